"""The contexts in which a plan's calls run.

Several calls of one batch size may run at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.plan.run.context import Context

_SHARE = 16
"""The contexts that are kept take at most this part of the device's memory, 1 / _SHARE."""
_STEP_BYTES = 2**14
"""About the bytes of host memory that a context takes for each step."""
_AT_ONCE = 4
"""The number of calls of one batch size that run at once by default."""


class _Group:
    """The contexts of one batch size.

    contexts: all contexts; the context that on_stream() or first() returned last is at the end.
    free: contexts that no thread has taken. None in the queue says that no context could be made;
    each thread that takes None puts None back.
    making: a lock for the thread that makes a further context.
    most: how many contexts fit into the device's memory, as far as is known.
    """

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.free: SimpleQueue[Context | None] = SimpleQueue()
        self.making = threading.Lock()
        self.most = math.inf


class Contexts:
    """Contexts by batch size. Threads and streams use these contexts for their calls.

    Where a call would have to wait, a further context is made, up to `most` for a batch size or
    until the device's memory is full.

    make: makes a context from a batch size and the stream on which the context works.
    most: how many calls of one batch size run at once.
    dropped: is called when contexts are dropped, so that nothing else keeps their memory.
    """

    def __init__(self, device: Device, make: Callable[[int, Any], Context],
                 dropped: Callable[[], None]) -> None:
        self._device = device
        self._make = make
        self.most = _AT_ONCE
        self._dropped = dropped
        self._groups: dict[int, _Group] = {}
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, batch: int) -> Iterator[Context]:
        """Within a `with` block, provides a context that no other thread takes meanwhile."""
        context = None
        while context is None:
            group = self._group(batch)
            try:
                context = group.free.get_nowait()
            except Empty:
                context = self._new(batch, group) or group.free.get()
            if context is None:
                group.free.put(None)
        try:
            yield context
        finally:
            group.free.put(context)

    def on_stream(self, batch: int, stream: Any) -> Context:
        """Return the context that was last used on a stream. If there is none, returns a context
        whose work has ended, or a new context. If no further context can be made, several streams
        share a context, and the device computes the work of one stream after the work of another
        stream."""
        group = self._group(batch)
        device = self._device
        handle = device.stream_handle(stream)

        def find() -> Context | None:
            with self._lock:
                return _first(group, lambda context: not device.is_closed(context.last_stream)
                              and device.stream_handle(context.last_stream) == handle) or _first(
                    group, lambda context: device.is_idle(context.last_stream))

        context = find()
        if context is None:
            context = self._new(batch, group, for_stream=True)
            if context is not None:
                group.free.put(context)
        return context or self.first(batch)

    def first(self, batch: int) -> Context:
        """Return a context of a batch size for work that may wait for other calls."""
        group = self._group(batch)
        with self._lock:
            context = _first(group, lambda context: True)
        if context is None:
            with self.taken(batch) as context:
                pass
        return context

    def all(self, batch: int | None = None) -> list[Context]:
        """Return the contexts that were made so far, of one batch size or of all."""
        with self._lock:
            return [context for each, group in self._groups.items() if batch in (None, each)
                    for context in group.contexts]

    def clear(self) -> None:
        """Forget all contexts. The memory of a context is freed when the calls that use the
        context have ended."""
        with self._lock:
            self._groups.clear()
            self._dropped()

    def _new(self, batch: int, group: _Group, *, for_stream: bool = False) -> Context | None:
        """Return a further context; None where the limit is reached or a context is free.
        for_stream: whether a context is made even if another context is free, since the stream of
        the free context may still have work."""
        with group.making:
            if len(group.contexts) >= min(self.most, group.most) or not (
                    for_stream or group.free.empty()):
                return None
            try:
                stream = self._device.create_stream() if group.contexts else None
                context = self._make(batch, stream)
            except BaseException as error:
                if not group.contexts:
                    self._give_up(batch, group)
                    raise
                if not isinstance(error, OutOfMemoryError):
                    raise
                group.most = len(group.contexts)
                return None
            with self._lock:
                group.contexts.append(context)
                self._drop_others(batch)
            return context

    def _give_up(self, batch: int, group: _Group) -> None:
        """Let the threads that wait for the first context, which could not be made, try to make it
        themselves."""
        with self._lock:
            if self._groups.get(batch) is group:
                del self._groups[batch]
        group.free.put(None)

    def _group(self, batch: int) -> _Group:
        group = self._groups.get(batch)
        if group is None or next(reversed(self._groups)) != batch:
            with self._lock:
                group = self._groups.pop(batch, None) or _Group()
                self._groups[batch] = group
        return group

    def _drop_others(self, batch: int) -> None:
        """Drop the batch sizes that were least recently used, as long as the contexts take more
        than their share of the device's memory."""
        most = self._device.limits.memory_bytes // _SHARE
        sizes = {each: sum(map(_bytes, group.contexts)) for each, group in self._groups.items()}
        for each in list(self._groups):
            if sum(sizes.values()) <= most:
                break
            if each != batch:
                del self._groups[each], sizes[each]
                self._dropped()


def _bytes(context: Context) -> int:
    """Return the bytes that a context takes by itself: constants are shared."""
    return (context.buffers.activation_bytes + context.buffers.workspace_bytes
            + _STEP_BYTES * len(context.program.steps))


def _first(group: _Group, fits: Callable[[Context], bool]) -> Context | None:
    """Return the first context of a group for which fits() is true, and moves this context to the
    end."""
    for context in group.contexts:
        if fits(context):
            group.contexts.remove(context)
            group.contexts.append(context)
            return context
    return None
