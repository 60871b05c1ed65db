"""NumPy arrays that go to a device and back by way of page-locked memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gossamer.device.base import Buffer, Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.plan.run.host_transfers import HostTransfers
from tests.device.helpers import PageLocked
from tests.model.onnx_models import model
from tests.plan.small import assert_close, compiled, expected, images, small


class PageLockingDevice(PageLocked, HostDevice):
    """The host as a device that copies page-locked memory when its stream is synchronised."""

    def __init__(self) -> None:
        super().__init__()
        self.locked = []
        self.queue: list[tuple[np.ndarray, np.ndarray]] = []

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array)
        self.queue.append((buffer.bytes[:array.nbytes], array))

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array)
        self.queue.append((array.reshape(-1).view(np.uint8), buffer.bytes[:array.nbytes]))

    def synchronize(self, stream: Any = None) -> None:
        for target, source in self.queue:
            target[...] = source.reshape(-1).view(np.uint8)
        self.queue.clear()


def transferred(device: Device, source: np.ndarray, target: np.ndarray) -> Callable[[], Any]:
    """Returns a function that sends an array to the device, and reads it back into another."""
    buffer = device.empty(max(source.nbytes, 1), "a test")
    transfers = HostTransfers(device, [buffer], [buffer], None)
    return lambda: transfers.begin([source], [target], lambda stream: None)()


@pytest.mark.parametrize("size", [1, 1000, 2**19, 3 * 2**19 + 5])
def test_arrays_of_any_size_go_there_and_back(size: int) -> None:
    device, rng = PageLockingDevice(), np.random.default_rng(0)
    source, target = np.zeros(size, np.float32), np.empty(size, np.float32)
    run = transferred(device, source, target)
    for _ in range(2):
        source[...] = rng.standard_normal(size, np.float32)
        run()
        np.testing.assert_array_equal(source, target)
    # memory is kept from call to call; the driver copies large arrays without it
    assert [memory.nbytes for memory in device.locked] == (
        [4 * size, 4 * size] if size <= 2**19 else [])


def test_page_locked_arrays_are_copied_as_they_are() -> None:
    device = PageLockingDevice()
    source, target = (device.page_locked(40).view(np.float32) for _ in range(2))
    source[...], target[...] = np.arange(10), 0
    transferred(device, source, target)()
    np.testing.assert_array_equal(source, target)
    assert len(device.locked) == 2


def test_copies_are_part_of_a_graph() -> None:
    device = PageLockingDevice()
    graphs: list[Callable[[Any], None]] = []

    def capture(work: Callable[[Any], None], stream: Any = None, repeats: int = 1) -> Any:
        graphs.append(work)
        return work

    device.capture = capture  # type: ignore[method-assign]
    buffer = device.empty(40, "a test")
    transfers = HostTransfers(device, [buffer], [buffer], None)
    pinned, target = device.page_locked(40).view(np.float32), np.empty(10, np.float32)

    def steps(stream: Any) -> None:
        pass

    # memory of a caller who may free it is in a graph of bound calls only
    assert transfers.captured([pinned], [target], steps, in_place=False) is None
    kept = transfers.captured([np.empty(10, np.float32)], [target], steps, in_place=False)
    bound = transfers.captured([pinned], [target], steps, in_place=True)
    assert kept is not None and bound is not None and len(graphs) == 2
    for work, reads_pinned in zip(graphs, (False, True), strict=True):
        work(None)
        assert (device.queue[0][1] is pinned) == reads_pinned
        device.queue.clear()
    for turn in range(3):
        array = turn + np.arange(10, dtype=np.float16)
        (result,) = kept([array], None)()
        np.testing.assert_array_equal(result, array.astype(np.float32), strict=True)
        pinned[...] = -array
        assert bound([pinned], [target])()[0] is target
        np.testing.assert_array_equal(target, -array)


def test_large_arrays_have_no_graph_unless_they_are_page_locked() -> None:
    device, size = PageLockingDevice(), 2**21 + 1
    buffer = device.empty(size, "a test")
    transfers = HostTransfers(device, [buffer], [buffer], None)
    for array in (np.empty(size, np.uint8), device.page_locked(size)):
        device.capture = lambda work, *_: work  # type: ignore[method-assign]
        graph = transfers.captured([array], [np.empty(8, np.uint8)], lambda stream: None,
                                   in_place=True)
        assert (graph is not None) == device.is_page_locked(array)


def test_calls_replay_one_graph_of_copies_and_steps_from_the_third_on(
        pocl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.plan.device_stand_ins import LaterDevice

    device = LaterDevice(pocl)
    plan, capture, captured = compiled(small(), device, tmp_path), device.capture, []

    def counted(work: Callable[[Any], None], stream: Any = None, repeats: int = 1) -> Any:
        captured.append(work)
        return capture(work, stream, repeats)

    monkeypatch.setattr(device, "capture", counted)
    for seed, graphs in enumerate((0, 1, 2, 2, 2)):
        assert_close(plan(images(2, seed)), expected(images(2, seed)))
        assert len(captured) == graphs
    assert_close(plan(np.asfortranarray(images(2))), expected(images(2)))
    x, y, pinned = images(2), np.empty((2, 4), np.float32), plan.pinned(2)
    calls = plan.bind(x, out=y), plan.bind(pinned)
    assert len(captured) == 4
    for seed in range(3):
        x[...], pinned[...] = images(2, seed), images(2, seed + 1)
        for call, shift in zip(calls, (0, 1), strict=True):
            assert_close(call(), expected(images(2, seed + shift)))
        assert_close(plan(pinned), expected(pinned))
    assert len(captured) == 4


def test_a_plan_gives_arrays_for_its_inputs(quick_device: Device, tmp_path: Path) -> None:
    plan = compiled(small(), quick_device, tmp_path)
    x = plan.pinned(3)
    assert x.shape == images(3).shape and x.dtype == np.float32
    for seed in range(2):
        x[...] = images(3, seed)
        assert_close(plan(x), expected(images(3, seed)))
    with pytest.raises(InputError, match="batch is 0, expected 1 or more"):
        plan.pinned(0)


def test_a_gpu_reads_page_locked_memory_in_place(cuda: Device, tmp_path: Path) -> None:
    plan = compiled(small(), cuda, tmp_path, strict=True)
    x = plan.pinned(3)
    assert cuda.is_page_locked(x) and not cuda.is_page_locked(images(3))
    call = plan.bind(x)
    for seed in range(3):
        x[...] = images(3, seed)
        assert_close(plan(x), expected(images(3, seed)))
        assert_close(call(), expected(images(3, seed)))


def test_calls_of_known_shapes_keep_their_inputs_and_outputs_apart(cuda: Device,
                                                                  tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["b"], ["q"], "relu"),
                   helper.make_node("Add", ["a", "b"], ["p"], "add")],
                  {"a": ["N", 3], "b": ["N", 3]}, {"p": 2, "q": 2})
    plan = compiled(proto, cuda, tmp_path, strict=True)
    rng = np.random.default_rng(0)
    for _ in range(6):
        a, b = rng.standard_normal((2, 4, 3), np.float32)
        for given in ((a, b), (np.asfortranarray(a), b), (a.astype(np.float16), b)):
            p, q = plan(*given)
            np.testing.assert_allclose(p, np.float32(given[0]) + b, rtol=1e-6)
            np.testing.assert_array_equal(q, np.maximum(b, 0))
    assert plan._calls.contexts.all(4)[0]._transfer_graph is not None


def test_large_arrays_reach_a_gpu(cuda: Device) -> None:
    source = np.random.default_rng(0).integers(0, 256, 9 * 2**20 + 7, np.uint8)
    target = np.zeros_like(source)
    run = transferred(cuda, source, target)
    for _ in range(3):
        source += 1
        run()
        np.testing.assert_array_equal(source, target)


def test_the_host_needs_no_page_locked_memory() -> None:
    host = find("host")
    assert not host.locks_pages and not host.is_page_locked(host.page_locked(8))
