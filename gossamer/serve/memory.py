"""How much memory the requests of a server may hold together: bodies, arrays and answers."""

from __future__ import annotations

from types import TracebackType


class MemoryFullError(Exception):
    """The requests in memory have no room for another one."""


class Memory:
    """Counts the bytes that requests hold. most: the most bytes that all of them may hold."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def share(self) -> Share:
        """Returns the share of a request, which is given back at the end of a `with` block."""
        return Share(self)


class Share:
    """The bytes that one request holds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    def set(self, count: int) -> None:
        """Changes how many bytes the request holds. Raises MemoryFullError where these are more
        than before, and more than there is room for."""
        more = count - self._held
        if more > 0 and self._memory.held + more > self._memory.most:
            raise MemoryFullError
        self._memory.held += more
        self._held = count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.set(0)
