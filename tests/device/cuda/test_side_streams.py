"""Tests of side streams: they are kept for each stream and each capture, and run work on a GPU."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from tests.device.helpers import SELF_CHECK

cuda_streams = pytest.importorskip("gossamer.device.cuda.streams", exc_type=ImportError)
cuda = pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)
recording = pytest.importorskip("gossamer.device.cuda.graph", exc_type=ImportError)

class Stream:
    def __init__(self, *arguments: object) -> None:
        self.handle = next(_handles)


_handles = itertools.count(1000)


def test_a_stream_keeps_those_beside_it() -> None:
    side = cuda_streams.SideStreams(Stream)
    first, second = side.side_streams_of(1, 2), side.side_streams_of(2, 1)
    assert len({*first, *second}) == 3
    assert side.side_streams_of(1, 1) == first[:1] and side.side_streams_of(1, 3)[:2] == first
    assert side.side_streams_of(2, 1) == second


def test_streams_of_callers_that_are_gone_go_too() -> None:
    side = cuda_streams.SideStreams(Stream)
    references = [weakref.ref(side.side_streams_of(handle, 1)[0]) for handle in range(100)]
    gc.collect()
    alive = [index for index, reference in enumerate(references) if reference() is not None]
    assert alive == list(range(68, 100))
    assert side.side_streams_of(99, 1) == [references[99]()]


def test_threads_get_whole_sets() -> None:
    side = cuda_streams.SideStreams(Stream)
    start = threading.Barrier(8)

    def ask(number: int) -> list[Stream]:
        start.wait()
        return side.side_streams_of(number % 4, 3)

    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(ask, range(8)))
    assert all(streams[number] == streams[number + 4] for number in range(4))
    assert len({stream for triple in streams for stream in triple}) == 12


@pytest.fixture
def deviceless(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CUDA device without a driver, which can only capture graphs."""
    device = cuda.CudaDevice.__new__(cuda.CudaDevice)
    device.index, device._current = 0, nullcontext()
    device._recorder, device._stream = recording.Recorder(device), Stream()
    device._side = cuda_streams.SideStreams(Stream)
    for module in (cuda, recording):
        monkeypatch.setattr(module, "CudaStream", Stream)
    monkeypatch.setattr(recording, "CudaGraph", lambda *arguments: "a graph")
    success = (cuda.driver.CUresult.CUDA_SUCCESS,)
    for name in ("cuStreamBeginCapture", "cuGraphDestroy"):
        monkeypatch.setattr(cuda.driver, name, lambda *arguments: success)
    monkeypatch.setattr(cuda.driver, "cuStreamEndCapture", lambda stream: (*success, "recorded"))
    monkeypatch.setattr(cuda.CudaDevice, "stream_handle",
                        lambda self, stream: (stream or self._stream).handle)
    return device


def test_a_capture_has_streams_of_its_own(deviceless: Any) -> None:
    outside = deviceless.side_streams(None, 2)
    inside: list[list[Stream]] = []

    def work(stream: Stream) -> None:
        inside.append(deviceless.side_streams(stream, 2))
        inside.append(deviceless.side_streams(stream, 2))
        # side streams of a capture differ from those outside, for every stream and in other threads
        assert not {*deviceless.side_streams(None, 2)} & {*outside, *inside[0]}
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(deviceless.side_streams, None, 2).result() == outside

    assert deviceless.capture(work) == deviceless.capture(work) == "a graph"
    assert inside[0] == inside[1] and inside[2] == inside[3]
    assert not {*inside[0]} & {*outside} and not {*inside[0]} & {*inside[2]}
    assert deviceless.side_streams(None, 2) == outside


def test_after_a_capture_that_failed_streams_are_those_of_before(deviceless: Any) -> None:
    outside = deviceless.side_streams(None, 1)

    def fail(stream: Stream) -> None:
        deviceless.side_streams(stream, 1)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        deviceless.capture(fail)
    assert deviceless.side_streams(None, 1) == outside


@pytest.mark.parametrize("captured", [False, True])
def test_work_forks_and_joins_on_a_gpu(cuda: Device, captured: bool) -> None:
    device: Any = cuda
    kernel = device.compile(SELF_CHECK)

    def run(_: int) -> np.ndarray:
        buffers: list[Buffer] = [device.upload(np.ones(4096, np.float32), "a test")
                                 for _ in range(4)]

        def work(stream: Any) -> None:
            for turn in range(3):
                side = device.side_streams(stream, 3)
                for side_stream in side:
                    device.wait(side_stream, stream)
                # each buffer moves to another stream than before, after the work of that stream
                moved = buffers[turn:] + buffers[:turn]
                for buffer, target in zip(moved, [stream, *side], strict=True):
                    device.launch(kernel, (64,), (64,), (buffer, 4096), stream=target)
                for side_stream in side:
                    device.wait(stream, side_stream)

        main = device.create_stream()
        if captured:
            device.capture(work)(main)
        else:
            work(main)
        result = np.empty((4, 4096), np.float32)
        for buffer, row in zip(buffers, result, strict=True):
            device.read(buffer, row, main)
        return result

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(run, range(16)):
            assert (result == 15).all()
