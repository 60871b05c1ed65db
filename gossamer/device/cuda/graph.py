"""CUDA graphs, which record work so that one call replays it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.cuda.driver import check, quietly

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
        self._executable = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, quietly, device, driver.cuGraphExecDestroy, self._executable)

    def launch(self, stream: Any = None) -> None:
        """Replays the graph on a stream; None is the stream for which it was captured."""
        stream = self._stream if stream is None else stream
        with self._device.current():
            self._device.checked("replaying a graph", driver.cuGraphLaunch(
                self._executable, self._device.stream_handle(stream)))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)

    def on(self, stream: Any) -> Callable[[], None]:
        """Returns a function that replays the graph on a stream with one call of the driver."""
        handle = driver.CUstream(self._device.stream_handle(stream))
        executable, launch, success = (
            self._executable, driver.cuGraphLaunch, driver.CUresult.CUDA_SUCCESS)

        def replay() -> None:
            # a thread that has used no context yet, or one of another device, is refused
            if launch(executable, handle)[0] != success:
                self.launch(stream)

        return replay
