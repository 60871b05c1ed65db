"""Batchers: right answers for many callers, full queues, deadlines, and ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import (
    DeadlineError,
    DeviceError,
    InputError,
    QueueFullError,
)
from gossamer.plan.batcher import Batcher
from gossamer.plan.plan import Plan
from tests.fixtures import needed
from tests.model.onnx_models import model, save
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import in_threads

TIMES = {1: 1e-3, 2: 1.1e-3, 4: 1.2e-3}


class HeldHost(HostDevice):
    """A host whose work waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()
        self.has_begun = threading.Event()
        self.error: Exception | None = None

    def write(self, buffer: Any, array: np.ndarray, stream: Any = None) -> None:
        self.has_begun.set()
        assert self.may_go.wait(20)
        if self.error is not None:
            raise self.error
        super().write(buffer, array, stream)


@pytest.fixture
def fixed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch sizes 1, 2 and 4, whatever this machine takes for them."""
    monkeypatch.setattr("gossamer.plan.batcher.measured_times", lambda *_: dict(TIMES))


@pytest.fixture
def held(fixed_times: None, tmp_path: Path) -> tuple[Batcher, HeldHost]:
    device = HeldHost()
    return Batcher(gossamer.compile(str(save(small(), tmp_path)), device), queue=6), device


@pytest.fixture
def busy(held: tuple[Batcher, HeldHost]) -> tuple[Batcher, HeldHost, Future[Any]]:
    """A batcher, its device, and a request that the device has begun, and computes once it is let
    go."""
    batcher, device = held
    device.may_go.clear()
    device.has_begun.clear()
    first = batcher.submit(images(1))
    assert device.has_begun.wait(20)
    return batcher, device, first


@pytest.mark.parametrize("name", ["host", "pocl", "host,host"])
def test_many_threads_get_their_own_answers(name: str, tmp_path: Path) -> None:
    plan = gossamer.compile(str(save(small(), tmp_path)),
                            needed(name) if name == "pocl" else name)
    with Batcher(plan, latency=0.5) as batcher:
        def ask(caller: int) -> None:
            for index in range(8):
                x = images(1 + (caller + index) % 5, 100 * caller + index)
                assert_close(batcher(x), expected(x))

        in_threads(ask, range(6))
    assert batcher.waiting == 0 and next(iter(batcher.times)) == 1


def test_tasks_of_asyncio(fixed_times: None, tmp_path: Path) -> None:
    batcher = Batcher(compiled(small(), find("host"), tmp_path))

    async def ask_all() -> list[np.ndarray]:
        return await asyncio.gather(*(batcher.run_async(x=images(2, seed)) for seed in range(9)))

    for seed, y in enumerate(asyncio.run(ask_all())):
        assert_close(y, expected(images(2, seed)))
    batcher.close()


def test_the_arrays_of_a_request_that_was_refused_are_freed(fixed_times: None,
                                                             tmp_path: Path) -> None:
    with Batcher(compiled(small(), find("host"), tmp_path)) as batcher:
        x = images(2)[:, :1]
        kept = weakref.ref(x)
        gc.disable()
        try:
            (refused,) = batcher.submit_all([({"x": x}, None)])
            assert isinstance(refused.exception(), InputError)
            del x, refused
            assert kept() is None
        finally:
            gc.enable()


def test_what_waits_becomes_one_batch(busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    waiting = [batcher.submit(images(1, seed)) for seed in range(4)]
    assert batcher.waiting == 4
    device.may_go.set()
    wait([first, *waiting], 20)
    assert batcher.batches == {1: 1, 4: 1}
    for seed, future in enumerate(waiting):
        assert_close(future.result(), expected(images(1, seed)))


def test_a_request_larger_than_a_batch_is_split(held: tuple[Batcher, HeldHost]) -> None:
    batcher, _ = held
    assert_close(batcher(images(6)), expected(images(6)))
    assert batcher.batches == {4: 1, 2: 1}
    with pytest.raises(InputError, match="the request has 7 images, but the queue holds at most 6"):
        batcher(images(7))


def test_a_full_queue_refuses(busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    waiting = [batcher.submit(images(3)) for _ in range(2)]
    with pytest.raises(QueueFullError, match="queue is full: 6 of at most 6 images are waiting"):
        batcher.submit(images(1))
    # one that is given up makes room
    assert waiting[0].cancel()
    third = batcher.submit(images(2))
    device.may_go.set()
    wait([first, waiting[1], third], 20)
    assert_close(waiting[1].result(), expected(images(3)))
    assert_close(third.result(), expected(images(2)))
    assert batcher.waiting == 0
    with pytest.raises(CancelledError):
        waiting[0].result()


def test_a_deadline_that_passes(busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    late, patient = batcher.submit(images(1), deadline=1e-4), batcher.submit(images(1))
    threading.Event().wait(0.01)
    device.may_go.set()
    with pytest.raises(DeadlineError, match="the deadline passed before the request was computed"):
        late.result(20)
    assert_close(patient.result(20), expected(images(1)))
    assert_close(first.result(20), expected(images(1)))
    with pytest.raises(DeadlineError, match="deadline 0: expected seconds above 0"):
        batcher.submit(images(1), deadline=0)


def test_the_request_that_is_due_first_goes_first(
        busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    done: list[str] = []
    patient, urgent = batcher.submit(images(3)), batcher.submit(images(3), deadline=60)
    patient.add_done_callback(lambda _: done.append("patient"))
    urgent.add_done_callback(lambda _: done.append("urgent"))
    device.may_go.set()
    wait([first, patient, urgent], 20)
    assert done == ["urgent", "patient"]


def test_an_error_reaches_those_of_its_batch(busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    device.error = DeviceError("a kernel failed")
    device.may_go.set()
    with pytest.raises(DeviceError, match="a kernel failed"):
        first.result(20)
    device.error = None
    assert_close(batcher(images(2)), expected(images(2)))


@pytest.mark.parametrize(("inputs", "message"), [
    (images(2)[:, :2], "input 'x' has shape 2x2x6x5"),
    (images(2).astype(np.float64), "input 'x' has dtype float64"),
    ("x", "input 'x' is a str"),
])
def test_wrong_inputs_are_refused_at_once(held: tuple[Batcher, HeldHost], inputs: Any,
                                          message: str) -> None:
    with pytest.raises(InputError, match=message):
        held[0].submit(inputs)


def test_no_images(held: tuple[Batcher, HeldHost]) -> None:
    assert held[0](images(0)).shape == (0, 4)


def test_a_closed_batcher_computes_what_waits(busy: tuple[Batcher, HeldHost, Future[Any]]) -> None:
    batcher, device, first = busy
    waiting = [batcher.submit(images(1, seed)) for seed in range(5)]
    device.may_go.set()
    batcher.close()
    assert all(future.done() for future in (first, *waiting))
    with pytest.raises(InputError, match="the batcher is closed"):
        batcher.submit(images(1))
    batcher.close()


def test_a_dropped_batcher_ends_its_threads(fixed_times: None, tmp_path: Path) -> None:
    batcher = Batcher(compiled(small(), find("host"), tmp_path))
    batcher(images(1))
    (worker,) = batcher._work._threads
    del batcher
    gc.collect()
    worker.join(20)
    assert not worker.is_alive()


def test_a_network_that_mixes_images_computes_each_request_alone(tmp_path: Path) -> None:
    proto = model([helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[0], keepdims=1),
                   helper.make_node("Sub", ["x", "m"], ["y"], "centred")],
                  {"x": ["N", 3]}, {"y": 2})
    with Batcher(compiled(proto, find("host"), tmp_path)) as batcher:
        assert batcher.times == {}
        futures = [batcher.submit(np.float32([[0, 1, 2], [seed, seed, seed]]))
                   for seed in range(6)]
        for seed, future in enumerate(futures):
            x = np.float32([[0, 1, 2], [seed, seed, seed]])
            np.testing.assert_allclose(future.result(20), x - x.mean(axis=0), atol=1e-6)


def test_several_inputs_and_outputs(fixed_times: None, tmp_path: Path) -> None:
    proto = model([helper.make_node("Sub", ["left", "right"], ["y"], "difference"),
                   helper.make_node("Relu", ["y"], ["z"], "relu")],
                  {"left": ["N", 3], "right": ["N", 3]}, {"y": 2, "z": 2})
    with Batcher(compiled(proto, find("host"), tmp_path)) as batcher:
        left, right = np.float32([[1, 2, 3]] * 5), np.float32([[3, 2, 1]] * 5)
        for y, z in (batcher(left, right), batcher(right=right, left=left),
                     batcher({"left": left, "right": right})):
            assert y.tolist() == [[-2, 0, 2]] * 5 and z.tolist() == [[0, 0, 2]] * 5


@pytest.mark.parametrize(("options", "message"), [
    ({"latency": 0}, "latency 0: expected seconds above 0"),
    ({"latency": "5ms"}, "latency '5ms': expected seconds above 0"),
    ({"latency": float("nan")}, "latency nan: expected"),
    ({"most": 0}, "most 0: expected a whole number of 1 or more"),
    ({"queue": 1.5}, "queue 1.5: expected a whole number"),
])
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    with pytest.raises(InputError, match=message):
        Batcher(plan, **options)


@pytest.mark.parametrize(("most", "sizes"), [
    (1, [1]), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 4]), (7, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_batch_sizes_up_to_the_largest(most: int, sizes: list[int], tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    # a size whose measured time is disturbed would be left out
    monkeypatch.setattr("gossamer.plan.batcher._seconds",
                        lambda member, batch: 1.0)
    with Batcher(compiled(small(), find("host"), tmp_path), most=most, latency=10) as batcher:
        assert list(batcher.times) == sizes
        assert repr(batcher).endswith(f": batches of {str(sizes)[1:-1]}; 0 waiting>")


def test_a_closed_plan_makes_no_batcher(tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    plan.close()
    with pytest.raises(InputError, match="the plan is closed"):
        Batcher(plan)


def test_on_cuda(cuda: Device, tmp_path: Path) -> None:
    plan: Plan = compiled(small(), cuda, tmp_path, strict=True)
    with Batcher(plan, latency=0.05) as batcher:
        futures = [batcher.submit(images(1 + seed % 7, seed)) for seed in range(64)]
        for seed, future in enumerate(futures):
            assert_close(future.result(20), expected(images(1 + seed % 7, seed)))
