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
from gossamer.plan.run.host_transfers import HostTransfers, TransferGraph
from tests.model.onnx_models import model
from tests.plan.small import assert_close, compiled, expected, images, small


class PageLockingDevice(HostDevice):
    """The host as a device that copies page-locked memory when its stream is synchronised."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: list[np.ndarray] = []
        self.queue: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def locks_pages(self) -> bool:
        return True

    def page_locked(self, nbytes: int) -> np.ndarray:
        self.locked.append(np.empty(nbytes, np.uint8))
        return self.locked[-1]

    def is_page_locked(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, memory) for memory in self.locked)

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


def transferred(device: Device, source: np.ndarray, target: np.ndarray) -> Callable[[], None]:
    """Returns a function that sends an array to the device, and reads it back into another."""
    buffer = device.empty(max(source.nbytes, 1), "a test")
    transfers = HostTransfers(device, {"x": buffer}, {"y": buffer})
    bound = TransferGraph()
    return lambda: transfers.begin({"x": source}, {"y": target}, bound=bound,
                                   execute=lambda stream: None, steps=None, stream=None)()


@pytest.mark.parametrize("size", [1, 1000, 2**19, 3 * 2**19 + 5])
def test_arrays_of_any_size_go_there_and_back(size: int) -> None:
    device, rng = PageLockingDevice(), np.random.default_rng(0)
    source, target = np.zeros(size, np.float32), np.empty(size, np.float32)
    run = transferred(device, source, target)
    for _ in range(2):
        source[...] = rng.standard_normal(size, np.float32)
        run()
        np.testing.assert_array_equal(source, target)
    # memory is kept from call to call
    assert [memory.nbytes for memory in device.locked] == [4 * size, 4 * size]


def test_page_locked_arrays_are_copied_as_they_are() -> None:
    device = PageLockingDevice()
    source, target = (device.page_locked(40).view(np.float32) for _ in range(2))
    source[...], target[...] = np.arange(10), 0
    transferred(device, source, target)()
    np.testing.assert_array_equal(source, target)
    assert len(device.locked) == 2


def test_copies_are_part_of_a_graph_from_the_second_call_on() -> None:
    device = PageLockingDevice()
    graphs: list[Callable[[Any], None]] = []
    replays: list[int] = []

    def capture(work: Callable[[Any], None], stream: Any = None, repeats: int = 1) -> Any:
        graphs.append(work)

        def replay(stream: Any) -> None:
            replays.append(graphs.index(work))
            work(stream)

        return replay

    device.capture = capture  # type: ignore[method-assign]
    buffer = device.empty(40, "a test")
    transfers = HostTransfers(device, {"x": buffer}, {"y": buffer})
    pinned = device.page_locked(40).view(np.float32)
    bound = TransferGraph()
    for turn in range(4):
        for array, graph in ((np.empty(10, np.float32), None), (pinned, bound), (pinned, None)):
            array[...] = turn + np.arange(10)
            target = np.empty(10, np.float32)
            transfers.begin({"x": array}, {"y": target}, bound=graph, execute=lambda stream: None,
                            steps=lambda stream: None, stream=None)()
            np.testing.assert_array_equal(array, target)
    # memory of a caller who may free it is in a graph of bound calls only
    assert len(graphs) == 2 and replays == [0, 1] * 3
    assert bound.arrays[0] is pinned
    staged = transfers.staged
    assert staged is not None
    staged.inputs[0][...] = 7
    staged.replay()
    device.synchronize()
    np.testing.assert_array_equal(staged.outputs[0], np.full(10, 7, np.float32))


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
    assert plan._calls.contexts.of(4)[0]._transfers.staged is not None


def test_large_arrays_reach_a_gpu_in_pieces(cuda: Device) -> None:
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
