"""Drivers of OpenCL that one thread at a time may call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from tests.conftest import is_slow
from tests.device.noting_lock import NotingLock
from tests.device.test_launches import SELF_CHECK


def test_one_thread_at_a_time_calls_the_driver(compiled_device: Device,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    device = compiled_device
    if device.api != "opencl" or is_slow(device):
        pytest.skip("Oclgrind simulates one kernel at a time, and CUDA needs no lock")
    import pyopencl as cl

    lock, called = NotingLock(), dict[str, list[bool]]()
    monkeypatch.setattr(device, "_calls", lock)

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
    kernel = device.compile(SELF_CHECK)

    def work(start: int) -> bool:
        stream = device.create_stream()
        buffer = device.upload(np.full(8, start, np.float32), "a test")
        graph = device.capture(lambda stream: device.launch(
            kernel, (1,), (8,), (buffer, 8), stream=stream), stream)
        graph()
        device.synchronize(stream)
        device.launch(kernel, (1,), (8,), (buffer, 8), stream=stream)
        back = np.empty(8, np.float32)
        device.read(buffer, back, stream)
        return back.tolist() == [4 * start + 3] * 8

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    buffer = device.upload(np.zeros(8, np.float32), "a test")
    assert device.time(lambda stream: device.launch(
        kernel, (1,), (8,), (buffer, 8), stream=stream)) > 0
    assert called.keys() == set(names)
    assert all(all(held) for held in called.values())


def test_all_devices_of_a_driver_share_its_lock() -> None:
    pytest.importorskip("pyopencl")
    from gossamer.device.opencl_platforms import lock_of

    def device(driver: str) -> Any:
        return SimpleNamespace(platform=SimpleNamespace(name=driver))

    first, second = (lock_of(device("NVIDIA CUDA")) for _ in range(2))
    assert first is second and lock_of(device("Portable Computing Language")) is not first


def test_what_an_owner_drops_is_released_under_the_lock() -> None:
    pytest.importorskip("pyopencl")
    from gossamer.device.opencl_memory import Owner

    lock, held = NotingLock(), []

    class Kernel:
        def __del__(self) -> None:
            held.append(lock.is_held)

    owner = Owner([Kernel(), Kernel()], lock)
    del owner
    assert held == [True, True]
