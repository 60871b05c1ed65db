"""Drivers of OpenCL that one thread at a time may call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, DeviceError, OutOfMemoryError
from tests.device.helpers import SELF_CHECK, NotingLock, read, self_check_of
from tests.fixtures import is_slow
from tests.processes import in_threads


@pytest.fixture
def lock(compiled_device: Device, monkeypatch: pytest.MonkeyPatch) -> NotingLock:
    """A lock that is held round all calls of the device's driver."""
    if compiled_device.api != "opencl":
        pytest.skip("only OpenCL has drivers that one thread at a time may call")
    lock = NotingLock()
    monkeypatch.setattr(compiled_device, "_calls", lock)
    return lock


def test_one_thread_at_a_time_calls_the_driver(compiled_device: Device, lock: NotingLock,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    device, called = compiled_device, dict[str, list[bool]]()
    if is_slow(device):
        pytest.skip("Oclgrind simulates one kernel at a time")
    import pyopencl as cl

    def watched(name: str) -> Callable[..., Any]:
        function = getattr(cl, name)

        def watch(*arguments: Any, **options: Any) -> Any:
            called.setdefault(name, []).append(lock.is_held)
            return function(*arguments, **options)

        return watch

    names = ("enqueue_nd_range_kernel", "enqueue_copy", "enqueue_migrate_mem_objects",
             "enqueue_marker", "Kernel", "Buffer")
    for name in names:
        monkeypatch.setattr(cl, name, watched(name))
    # it is measured once, by whoever first times something on a GPU
    vars(device).pop("_waiting_us", None)

    def work(start: int) -> bool:
        stream = device.create_stream()
        buffer = device.upload(np.full(8, start, np.float32), "a test")
        check = self_check_of(device, buffer)
        device.capture(check, stream)()
        device.synchronize(stream)
        check(stream)
        back = read(device, buffer, 8, stream=stream)
        return back.tolist() == [4 * start + 3] * 8

    assert all(in_threads(work, range(12)))
    check = self_check_of(device, device.upload(np.zeros(8, np.float32), "a test"))
    assert device._time_by_clock(check) > 0
    if not device._is_gpu:
        assert device._time_by_events(check) > 0
    assert called.keys() == set(names)
    assert all(all(held) for held in called.values())


def test_threads_that_ask_for_a_kernel_at_a_time_build_it_once(
        compiled_device: Any, lock: NotingLock, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled_device
    monkeypatch.setattr(device, "_kernels", {})
    builds, build, both_ask = [], device._build, Barrier(2)

    def noted(source: KernelSource) -> Any:
        builds.append(source)
        time.sleep(0.2)  # the other thread asks meanwhile
        return build(source)

    def ask(_: int) -> Any:
        both_ask.wait()
        return device.compile(SELF_CHECK)

    monkeypatch.setattr(device, "_build", noted)
    first, second = in_threads(ask, range(2))
    assert first is second and len(builds) == 1


@pytest.fixture
def gpu(compiled_device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A second device for the same processor, which is taken for a GPU whose driver one thread at
    a time may call."""
    if compiled_device.api != "opencl":
        pytest.skip("only OpenCL has drivers that one thread at a time may call")
    lock = NotingLock()
    monkeypatch.setattr("gossamer.device.opencl.is_gpu", lambda handle: True)
    monkeypatch.setattr("gossamer.device.opencl.lock_of", lambda handle: lock)
    return type(compiled_device)(compiled_device.handle, 0)


def test_gpus_launch_recorded_kernels_without_events_under_the_lock(
        gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.device import opencl_driver

    held: list[bool] = []

    def enqueue(*arguments: Any) -> int:
        held.append(gpu._calls.is_held)
        return opencl_enqueue(*arguments)

    opencl_enqueue = opencl_driver.ENQUEUE
    assert opencl_enqueue is not None
    monkeypatch.setattr(opencl_driver, "ENQUEUE", enqueue)
    buffer = gpu.upload(np.zeros(8, np.float32), "a test")
    graph = gpu.capture(self_check_of(gpu, buffer), repeats=3)
    monkeypatch.setattr("pyopencl.enqueue_nd_range_kernel", None)
    graph()
    back = read(gpu, buffer, 8)
    assert held == [True] * 3 and back.tolist() == [7] * 8
    assert gpu.time(graph) > 0


def test_a_launch_without_event_that_the_driver_refuses_is_named(gpu: Any) -> None:
    from gossamer.device.opencl_driver import LaunchWithoutEvent

    kernel = gpu.compile(SELF_CHECK)
    command = LaunchWithoutEvent(kernel.create(), (8,), (8,))
    with pytest.raises(DeviceError, match="launching self_check: clEnqueueNDRangeKernel: "
                                          "INVALID_KERNEL_ARGS"):
        gpu.replay([("launching self_check", command)], None)


def test_a_status_without_a_name_is_told_by_its_number(
        gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gossamer.device import opencl_driver

    monkeypatch.setattr(opencl_driver, "ENQUEUE", lambda *arguments: -9999)
    graph = gpu.capture(self_check_of(gpu, gpu.upload(np.zeros(8, np.float32), "a test")))
    with pytest.raises(DeviceError, match=r"clEnqueueNDRangeKernel: .*-9999"):
        graph()


def test_threads_replay_graphs_without_events(gpu: Any) -> None:
    if is_slow(gpu):
        pytest.skip("Oclgrind simulates one kernel at a time")

    def work(start: int) -> bool:
        stream = gpu.create_stream()
        buffer = gpu.upload(np.full(8, start, np.float32), "a test")
        gpu.capture(self_check_of(gpu, buffer), stream, repeats=2)()
        gpu.synchronize(stream)
        return read(gpu, buffer, 8, stream=stream).tolist() == [4 * start + 3] * 8

    assert all(in_threads(work, range(12)))


def test_gpus_are_timed_by_the_clock_under_the_lock(gpu: Any) -> None:
    device, queues, lock = gpu, [], gpu._calls
    buffer = device.upload(np.zeros(8, np.float32), "a test")
    check = self_check_of(device, buffer)

    def work(stream: Any) -> None:
        queues.append((stream, lock.is_held))
        check(stream)

    assert device.time(work) > 0
    back = read(device, buffer, 8)
    assert queues == [(device._timing_queue, True)] and back.tolist() == [1] * 8


class Held:
    """An object of the driver that notes, as it is released, whether the lock is held. build: what
    programs do."""

    def __init__(self, lock: NotingLock, build: Callable[..., Any] | None = None) -> None:
        self.lock, self.build = lock, build

    def release(self) -> None:
        self.lock.released.append(self.lock.is_held)

    __del__ = release


def test_events_of_work_that_fails_are_released_under_the_lock(
        compiled_device: Any, lock: NotingLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyopencl.enqueue_marker", lambda queue: Held(lock))

    def fails(stream: Any) -> None:
        compiled_device._timed.events.append(Held(lock))
        raise DeviceError("it fails")

    with pytest.raises(DeviceError, match="it fails") as failure:
        compiled_device._time_by_events(fails)
    del failure
    gc.collect()
    assert lock.released == [True, True]


def test_a_program_that_cannot_be_built_is_released_under_the_lock(
        compiled_device: Any, lock: NotingLock, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    def build(*arguments: Any, **options: Any) -> None:
        # the error and this frame keep each other, as those of PyOpenCL do
        error = cl.RuntimeError("it is wrong")
        raise error

    monkeypatch.setattr(cl, "Program", lambda *arguments: Held(lock, build))
    with pytest.raises(CompileError, match="it is wrong") as failure:
        compiled_device._build(SELF_CHECK)
    del failure
    gc.collect()
    assert lock.released == [True]


def test_memory_that_a_driver_cannot_give_is_released_under_the_lock(
        compiled_device: Any, lock: NotingLock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyopencl.Buffer", Mock(return_value=Held(lock)))
    monkeypatch.setattr("pyopencl.enqueue_migrate_mem_objects", Mock(side_effect=MemoryError))
    with pytest.raises(OutOfMemoryError) as failure:
        compiled_device.empty(4, "a test")
    del failure
    gc.collect()
    assert lock.released == [True]


def test_all_devices_of_a_driver_share_its_lock() -> None:
    pytest.importorskip("pyopencl")
    from gossamer.device.opencl_driver import lock_of

    def device(driver: str) -> Any:
        return SimpleNamespace(platform=SimpleNamespace(name=driver))

    first, second = (lock_of(device("NVIDIA CUDA")) for _ in range(2))
    assert first is second and lock_of(device("Portable Computing Language")) is not first


def test_what_an_owner_drops_is_released_under_the_lock() -> None:
    pytest.importorskip("pyopencl")
    from gossamer.device.opencl_driver import Owner

    lock = NotingLock()
    owner = Owner([Held(lock), Held(lock)], lock)
    del owner
    assert lock.released == [True, True]
