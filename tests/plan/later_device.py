"""A device whose copies go on beside the host, where there is no GPU: PoCL, which copies
page-locked memory at the last moment that CUDA allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer
from gossamer.device.opencl import OpenCLDevice
from gossamer.device.opencl_driver import Command


class LaterDevice(OpenCLDevice):
    """PoCL with page-locked memory. What is written later is copied when the stream next has other
    work or is waited for, and what is read later when it is waited for.

    locked: the page-locked arrays.
    """

    def __init__(self, pocl: OpenCLDevice) -> None:
        super().__init__(pocl.handle, 0)
        self.locked: list[np.ndarray] = []
        self._pending: dict[int, list[Callable[[], None]]] = {}

    @property
    def on_processors(self) -> bool:
        return False

    @property
    def locks_pages(self) -> bool:
        return True

    def page_locked(self, nbytes: int) -> np.ndarray:
        self.locked.append(np.full(nbytes, 255, np.uint8))
        return self.locked[-1]

    def is_page_locked(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, memory) for memory in self.locked)

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array), "the driver would wait for a copy of other memory"
        self._later(stream, lambda: OpenCLDevice.write(self, buffer, array, stream))

    def queue_read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        assert self.is_page_locked(array), "the driver would wait for a copy of other memory"
        self._later(stream, lambda: OpenCLDevice.read(self, buffer, array, stream))

    def capture(self, work: Callable[[Any], None], stream: Any = None,
                repeats: int = 1) -> Callable[..., None]:
        """Returns the work itself, as OpenCL records no copies of the host's memory."""
        return lambda stream=None: work(stream)

    def replay(self, commands: Sequence[tuple[str, Command]], stream: Any) -> None:
        self._copy_now(stream)
        super().replay(commands, stream)

    def synchronize(self, stream: Any = None) -> None:
        self._copy_now(stream)
        super().synchronize(stream)

    def _later(self, stream: Any, copy: Callable[[], None]) -> None:
        self._pending.setdefault(id(stream), []).append(copy)

    def _copy_now(self, stream: Any) -> None:
        for copy in self._pending.pop(id(stream), []):
            copy()
