"""CUDA graphs: recorded work that one call replays."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from gossamer.device.cuda.driver import check, quietly

if TYPE_CHECKING:
    from gossamer.device.cuda.device import CudaDevice


class CudaGraph:
    """Recorded work. Calling it, or launch(stream), replays the work in the stream's order."""

    def __init__(self, device: CudaDevice, graph: driver.CUgraph, kept: list[Any],
                 stream: Any) -> None:
        self._device = device
        self._stream = stream
        # the graph holds bare addresses: buffers and kernels must outlive it
        self._kept = kept
        self._executable = check(driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, quietly, device, driver.cuGraphExecDestroy, self._executable)

    def launch(self, stream: Any = None) -> None:
        """Replays on a stream; None: the one it was captured for."""
        stream = self._stream if stream is None else stream
        with self._device.current():
            self._device.checked("replaying a graph", driver.cuGraphLaunch(
                self._executable, self._device.stream_handle(stream)))

    def __call__(self, stream: Any = None) -> None:
        self.launch(stream)
