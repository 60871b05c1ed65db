"""CUDA graphs, which record work so that one call replays it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.base import Buffer
from gossamer.device.copying_graph import CopyingGraph
from gossamer.device.cuda.driver import check, quietly
from gossamer.device.cuda.memory import CudaBuffer

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice


class CudaGraph:
    """Recorded work. Calling the graph, or launch(stream), replays it in the stream's order."""

    def __init__(self, device: CudaDevice, graph: driver.CUgraph, used_objects: list[Any],
                 stream: Any) -> None:
        self._device = device
        self._stream = stream
        # the graph contains bare addresses, so buffers and kernels must outlive it
        self._used_objects = used_objects
        self.executable = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, quietly, device, driver.cuGraphExecDestroy, self.executable)

    def launch(self, stream: Any = None) -> None:
        """Replays the graph on a stream; None is the stream for which it was captured."""
        stream = self._stream if stream is None else stream
        self._device.call("replaying a graph", driver.cuGraphLaunch, self.executable,
                          self._device.stream_handle(stream))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)

    def on(self, stream: Any) -> Callable[[], None]:
        """Returns a function that replays the graph on a stream with one call of the driver."""
        handle = driver.CUstream(self._device.stream_handle(stream))
        executable, launch, success = (
            self.executable, driver.cuGraphLaunch, driver.CUresult.CUDA_SUCCESS)

        def replay() -> None:
            # the driver refuses a thread without a current context, or with another device's
            # context; launch() makes the right context current
            if launch(executable, handle)[0] != success:
                self.launch(stream)

        return replay


class CudaCopyingGraph(CopyingGraph):
    """A graph that ends with copies, whose targets are parameters of the instantiated graph.

    New targets do not affect replays that were launched before. The driver accepts a new target
    only in memory of the same kind as the old target's memory, and memory of a pool is a kind of
    its own. For a target in memory of another kind the graph is instantiated again.

    steps: the recorded work, a graph that the caller destroys.
    copies: pairs of a buffer that the work writes and the number of bytes to copy.
    used_objects: buffers and kernels that the work uses.
    """

    def __init__(self, device: CudaDevice, steps: driver.CUgraph,
                 copies: Sequence[tuple[Buffer, int]], used_objects: list[Any]) -> None:
        self._device = device
        self._used_objects = [*used_objects, *copies]
        # the parameters of a node are set by the node's handle, which is valid as long as the
        # recorded graph exists
        self._recorded = check(driver.cuGraphCreate(0))
        weakref.finalize(self, quietly, device, driver.cuGraphDestroy, self._recorded)
        before = [check(driver.cuGraphAddChildGraphNode(self._recorded, None, 0, steps))]
        self._context = check(driver.cuCtxGetCurrent())
        self._nodes = []
        for source, nbytes in copies:
            assert isinstance(source, CudaBuffer)
            # the target is not known yet, so the source's address stands for it
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
        """Instantiates the graph again, with the targets in the parameters of its nodes."""
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
