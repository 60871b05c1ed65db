"""CUDA graphs: work that is captured once and then replayed."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver

from gossamer.device.base import Buffer, CopyingGraph
from gossamer.device.cuda.driver import DriverDevice, DriverError, check, device_error, quietly
from gossamer.device.cuda.memory import CudaBuffer
from gossamer.device.cuda.streams import CudaStream


class CudaGraph:
    """Recorded work; calling the graph, or launch(stream), replays it."""

    def __init__(self, device: DriverDevice, graph: driver.CUgraph, used_objects: list[Any],
                 stream: Any) -> None:
        self._device = device
        self._stream = stream
        # the graph contains bare addresses, so buffers and kernels must outlive it
        self._used_objects = used_objects
        self.executable = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, quietly, device, driver.cuGraphExecDestroy, self.executable)

    def launch(self, stream: Any = None) -> None:
        """Replay the graph on a stream; None means the graph's default stream."""
        stream = self._stream if stream is None else stream
        self._device.call("replaying a graph", driver.cuGraphLaunch, self.executable,
                          self._device.stream_handle(stream))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)

    def on(self, stream: Any) -> Callable[[], None]:
        """Return a function that replays the graph with one driver call."""
        handle = driver.CUstream(self._device.stream_handle(stream))
        executable, launch, success = (
            self.executable, driver.cuGraphLaunch, driver.CUresult.CUDA_SUCCESS)

        def replay() -> None:
            # the call fails in a thread without the device's context; launch() sets the context
            if launch(executable, handle)[0] != success:
                self.launch(stream)

        return replay


class CudaCopyingGraph(CopyingGraph):
    """A graph that ends with copies to changeable targets.

    copy_to() changes the targets in the instantiated graph. Replays that were launched earlier keep
    their targets. The driver rejects a change between memory of a pool and other memory, in either
    direction; the graph is then instantiated again.

    steps: CUDA graph of the recorded work; the caller may destroy it after the construction.
    copies: pairs (buffer that the work writes, number of bytes to copy).
    used_objects: buffers and kernels that the work uses.
    """

    def __init__(self, device: DriverDevice, steps: driver.CUgraph,
                 copies: Sequence[tuple[Buffer, int]], used_objects: list[Any]) -> None:
        self._device = device
        self._used_objects = [*used_objects, *copies]
        # keep the recorded graph: copy_to() uses the handles of its nodes
        self._recorded = check(driver.cuGraphCreate(0))
        weakref.finalize(self, quietly, device, driver.cuGraphDestroy, self._recorded)
        before = [check(driver.cuGraphAddChildGraphNode(self._recorded, None, 0, steps))]
        self._context = check(driver.cuCtxGetCurrent())
        self._nodes = []
        for source, nbytes in copies:
            assert isinstance(source, CudaBuffer)
            # the target is not known yet: use the source's address as a placeholder
            parameters = _device_copy(source.address, source.address, nbytes)
            node = check(driver.cuGraphAddMemcpyNode(
                self._recorded, before, 1, parameters, self._context))
            self._nodes.append((node, parameters))
        self._graph: CudaGraph | None = None
        self._executable: driver.CUgraphExec | None = None

    def copy_to(self, addresses: tuple[int, ...]) -> None:
        self.addresses = ()
        executable, change = self._executable, driver.cuGraphExecMemcpyNodeSetParams
        for (node, parameters), address in zip(self._nodes, addresses, strict=True):
            parameters.dstDevice = address
            if executable is None or change(executable, node, parameters,
                                            self._context)[0] != driver.CUresult.CUDA_SUCCESS:
                executable = None
        if executable is None:
            self._instantiate()
        self.addresses = addresses

    def _instantiate(self) -> None:
        """Instantiate the graph again with the targets in `_nodes`."""
        with self._device.current():
            for node, parameters in self._nodes:
                self._device.checked("setting the target of a copy",
                                     driver.cuGraphMemcpyNodeSetParams(node, parameters))
            self._graph = CudaGraph(self._device, self._recorded, self._used_objects, None)
            self._executable = self._graph.executable

    def on(self, stream: Any) -> Callable[[], None]:
        handle = driver.CUstream(self._device.stream_handle(stream))
        launch, success = driver.cuGraphLaunch, driver.CUresult.CUDA_SUCCESS

        def replay() -> None:
            if launch(self._executable, handle)[0] != success:
                assert self._graph is not None
                self._graph.launch(stream)

        return replay


def _device_copy(target: int, source: int, nbytes: int) -> driver.CUDA_MEMCPY3D:
    parameters = driver.CUDA_MEMCPY3D()
    parameters.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    parameters.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    parameters.srcDevice, parameters.dstDevice = source, target
    parameters.WidthInBytes, parameters.Height, parameters.Depth = nbytes, 1, 1
    return parameters


@dataclass(eq=False)
class _Capture:
    """The state of one recording while a thread captures work.

    stream: stream that captures the work; nothing is executed on it.
    used_objects: buffers and kernels that the graph must keep alive.
    begins_early: whether the graph has a kernel that may begin before the previous kernel has
    ended.
    """

    stream: CudaStream
    used_objects: list[Any] = field(default_factory=list)
    begins_early: bool = False


_TOGETHER = 10
"""Maximum number of executions that are captured together if kernels may begin early.

All executions captured together, except the first, may begin before the previous one has ended. The
number is a rule of thumb: larger numbers make recording slower.
"""

class Recorder:
    """Recorder of graphs on a device; several threads may record concurrently."""

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        self._of_thread = threading.local()

    @property
    def _capture(self) -> _Capture | None:
        """The recording of the calling thread, if any."""
        capture: _Capture | None = getattr(self._of_thread, "capture", None)
        return capture

    def keep(self, *objects: Any) -> None:
        """Keep objects alive as long as the graph being recorded.

        Does nothing if the calling thread is not recording.
        """
        if self._capture is not None:
            self._capture.used_objects.extend(objects)

    def note_early_begin(self) -> None:
        """Note that the graph being recorded has a kernel that may begin early.

        Does nothing if the calling thread is not recording.
        """
        if self._capture is not None:
            self._capture.begins_early = True

    def graph(self, work: Callable[[Any], None], stream: Any, repeats: int,
              events: Sequence[driver.CUevent] = (), *, as_in_plan: bool = False) -> CudaGraph:
        """Return a graph of repeated executions of some work.

        stream: default stream of replays.
        events: empty, or two events to record before the first and after the last execution.
        as_in_plan: whether executions may overlap. If true, up to _TOGETHER executions are captured
        together; among these, a kernel that may begin early does so. If false, each execution waits
        for the previous one.
        """
        device = self._device
        capture = _Capture(self._stream_of_thread())
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
        """Return a graph of some work and of copies of its results."""
        device = self._device
        capture = _Capture(self._stream_of_thread())
        with device.current():
            steps = self._captured(work, capture)
            try:
                return CudaCopyingGraph(device, steps, copies, capture.used_objects)
            except DriverError as error:
                raise device_error(f"{device.name} failed recording a graph", error) from None
            finally:
                driver.cuGraphDestroy(steps)

    def _stream_of_thread(self) -> CudaStream:
        """Return the capture stream of the calling thread.

        The stream lives as long as the thread, because vendor libraries may reuse the stream of
        their previous call.
        """
        stream: CudaStream | None = getattr(self._of_thread, "stream", None)
        if stream is None:
            stream = self._of_thread.stream = CudaStream(self._device)
        return stream

    def _captured(self, work: Callable[[Any], None], capture: _Capture,
                  repeats: int = 1) -> driver.CUgraph:
        """Return a graph of `repeats` consecutive executions of some work."""
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
    """Add repeated child graphs to a graph, in sequence.

    A child that is repeated N >= 4 times is added in groups of about sqrt(N), so that only about
    2 sqrt(N) driver calls are needed.

    parts: pairs of a child graph and its number of repetitions.
    events: empty, or two events to record before the first and after the last child.
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
    """Add a child graph `count` times in sequence; return [last node].

    before: a list with the node that the first child follows, or an empty list.
    """
    for _ in range(count):
        before = [check(driver.cuGraphAddChildGraphNode(graph, before or None, len(before), child))]
    return before
