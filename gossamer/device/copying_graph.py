"""Recorded work that ends with copies, whose targets may be changed before each replay."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.device.base import Buffer, Device


class CopyingGraph(abc.ABC):
    """Recorded work that ends with copies whose targets are set before a replay.

    addresses: addresses of the targets that were set last, one for each copy.
    """

    addresses: tuple[int, ...] = ()

    @abc.abstractmethod
    def copy_to(self, addresses: tuple[int, ...]) -> None:
        """Sets the addresses of the targets of later replays, one for each copy. The memory stays
        the caller's."""

    @abc.abstractmethod
    def on(self, stream: Any) -> Callable[[], None]:
        """Returns a function that replays the work on a stream as quickly as possible."""


class GraphThenCopies(CopyingGraph):
    """A graph with copies, which the device queues one by one after each replay of the graph.

    graph: the recorded work.
    copies: pairs of a buffer that the work writes and the number of bytes to copy.
    """

    def __init__(self, device: Device, graph: Callable[..., None],
                 copies: Sequence[tuple[Buffer, int]]) -> None:
        self._device = device
        self._graph = graph
        self._copies = copies
        self._targets: Sequence[Buffer] = ()

    def copy_to(self, addresses: tuple[int, ...]) -> None:
        self.addresses = addresses
        self._targets = [self._device.wrap(address, nbytes, None)
                         for address, (_, nbytes) in zip(addresses, self._copies, strict=True)]

    def on(self, stream: Any) -> Callable[[], None]:
        def replay() -> None:
            self._graph(stream)
            for (source, nbytes), target in zip(self._copies, self._targets, strict=True):
                self._device.copy(target, source, nbytes, stream)

        return replay
