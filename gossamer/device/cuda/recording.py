"""The recording of CUDA graphs: a thread captures work once, and the graph replays it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.base import Buffer
from gossamer.device.cuda.driver import DriverError, check, device_error
from gossamer.device.cuda.graph import CudaCopyingGraph, CudaGraph
from gossamer.device.cuda.streams import CudaStream, SideStreams

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice


@dataclass(eq=False)
class _Capture:
    """The recording of one graph, as long as a thread captures work for it.

    stream: stream on which the work is captured, and on which nothing is executed.
    side_streams: side streams of this graph alone, so that captured work does not mix with the work
    of other threads.
    used_objects: buffers and kernels that the graph is to keep alive.
    begins_early: whether the graph has a kernel that may begin before the previous kernel ended.
    """

    stream: CudaStream
    side_streams: SideStreams
    used_objects: list[Any] = field(default_factory=list)
    begins_early: bool = False


_TOGETHER = 10
"""Number of executions that are captured together where kernels may begin early. Of these ten, all
executions except the first begin as in a plan. The number is a rule of thumb: with a larger number
recording would take longer."""


class Recorder:
    """Records graphs on a device. Several threads may record at the same time, each one graph."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._of_thread = threading.local()

    @property
    def _capture(self) -> _Capture | None:
        """The recording of the calling thread; None while it records no graph."""
        capture: _Capture | None = getattr(self._of_thread, "capture", None)
        return capture

    @property
    def side_streams(self) -> SideStreams | None:
        """The side streams of the graph that the calling thread records; None while it records no
        graph."""
        return None if self._capture is None else self._capture.side_streams

    def keep(self, *objects: Any) -> None:
        """Keeps objects alive as long as the graph that the calling thread records. Does nothing
        where the thread records no graph."""
        if self._capture is not None:
            self._capture.used_objects.extend(objects)

    def note_early_begin(self) -> None:
        """Notes that the calling thread's graph has a kernel that may begin early. Does nothing
        where the thread records no graph."""
        if self._capture is not None:
            self._capture.begins_early = True

    def graph(self, work: Callable[[Any], None], stream: Any, repeats: int,
              events: Sequence[driver.CUevent] = (), *, as_in_plan: bool = False) -> CudaGraph:
        """Returns a graph of repeated executions of some work.

        stream: stream on which the graph is replayed where a call of the graph names no stream.
        events: none, or two events, recorded before the first execution and after the last one.
        as_in_plan: whether kernels that may begin early do so in nine of ten executions, as they do
        in a plan. Otherwise each execution waits for the end of the execution before it.
        """
        device = self._device
        capture = _Capture(self._stream_of_thread(), SideStreams(device.create_stream))
        with device.current():
            graph = self._captured(work, capture)
            try:
                if repeats > 1 or events:
                    parts, graph = [(graph, repeats)], check(driver.cuGraphCreate(0))
                    try:
                        if as_in_plan and capture.begins_early and repeats > 1:
                            together = min(repeats, _TOGETHER)
                            several = self._captured(work, capture, together)
                            parts = [(several, repeats // together),
                                     (parts[0][0], repeats % together)]
                        _repeat(graph, parts, events)
                    finally:
                        for part, _ in parts:
                            driver.cuGraphDestroy(part)
                return CudaGraph(device, graph, capture.used_objects, stream)
            except DriverError as error:
                raise device_error(f"{device.name} failed recording a graph", error) from None
            finally:
                driver.cuGraphDestroy(graph)

    def copying_graph(self, work: Callable[[Any], None],
                      copies: Sequence[tuple[Buffer, int]]) -> CudaCopyingGraph:
        """Returns a graph of some work and of copies of its results."""
        device = self._device
        capture = _Capture(self._stream_of_thread(), SideStreams(device.create_stream))
        with device.current():
            steps = self._captured(work, capture)
            try:
                return CudaCopyingGraph(device, steps, copies, capture.used_objects)
            except DriverError as error:
                raise device_error(f"{device.name} failed recording a graph", error) from None
            finally:
                driver.cuGraphDestroy(steps)

    def _stream_of_thread(self) -> CudaStream:
        """Returns the stream on which the calling thread captures. A thread has the same stream as
        long as it lives, since vendors' libraries may keep the stream until their next call."""
        stream: CudaStream | None = getattr(self._of_thread, "stream", None)
        if stream is None:
            stream = self._of_thread.stream = CudaStream(self._device)
        return stream

    def _captured(self, work: Callable[[Any], None], capture: _Capture,
                  repeats: int = 1) -> driver.CUgraph:
        """Returns a graph of `repeats` executions of some work, launched one after another."""
        handle, checked = capture.stream.handle, self._device.checked
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        checked("recording a graph", driver.cuStreamBeginCapture(handle, mode))
        self._of_thread.capture = capture
        try:
            for _ in range(repeats):
                work(capture.stream)
        except BaseException:
            # a failed capture may have left a partial graph
            status, graph = driver.cuStreamEndCapture(handle)
            if status == driver.CUresult.CUDA_SUCCESS:
                driver.cuGraphDestroy(graph)
            raise
        finally:
            self._of_thread.capture = None
        return checked("recording a graph", driver.cuStreamEndCapture(handle))


def _repeat(graph: driver.CUgraph, parts: Sequence[tuple[driver.CUgraph, int]],
            events: Sequence[driver.CUevent]) -> None:
    """Adds other graphs to a graph one after another.

    A graph that is added four times or more is added in groups, so that adding it N times takes
    about 2 sqrt(N) calls.
    parts: pairs of a graph and how often it is added.
    events: none, or two events, recorded before the first part and after the last one.
    """
    before: list[driver.CUgraphNode] = []
    if events:
        before = [check(driver.cuGraphAddEventRecordNode(graph, None, 0, events[0]))]
    for once, left in parts:
        in_group = math.isqrt(left)
        if in_group > 1:
            group = check(driver.cuGraphCreate(0))
            try:
                _add_one_after_another(group, once, in_group, [])
                before = _add_one_after_another(graph, group, left // in_group, before)
            finally:
                driver.cuGraphDestroy(group)
            left %= in_group
        before = _add_one_after_another(graph, once, left, before)
    if events:
        check(driver.cuGraphAddEventRecordNode(graph, before, 1, events[1]))


def _add_one_after_another(graph: driver.CUgraph, child: driver.CUgraph, count: int,
                           before: list[driver.CUgraphNode]) -> list[driver.CUgraphNode]:
    """Adds child graph nodes to a graph `count` times, one after another, and returns a list with
    the last node. before: a list with the node that the first child follows, or an empty list."""
    for _ in range(count):
        before = [check(driver.cuGraphAddChildGraphNode(graph, before or None, len(before), child))]
    return before
