"""The contexts in which a plan's calls run.

Several calls of one batch size may run at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.plan.run.context import Context

_SHARE = 16
"""Kept contexts take at most 1 / _SHARE of the device's memory."""
_STEP_BYTES = 2**14
"""Approximate host memory in bytes that a context needs for each step."""
_AT_ONCE = 4
"""Default maximum number of calls of one batch size that run at once."""


class ContextPool:
    """The contexts of one batch size, shared by the calls of threads and streams.

    If a call would have to wait for a context, another context is made, as long as the device has
    memory and this batch size has fewer than `owner.most` contexts.

    owner: the contexts of all batch sizes.
    contexts: all contexts of this size. on_stream() and first() return one of them, and move it to
    the end of the list.
    """

    def __init__(self, owner: Contexts, batch: int) -> None:
        self._owner = owner
        self._batch = batch
        self.contexts: list[Context] = []
        self._free: SimpleQueue[Context] = SimpleQueue()
        self._lock = threading.RLock()

    def take(self) -> Context:
        """Return a context for exclusive use until give_back()."""
        try:
            return self._free.get_nowait()
        except Empty:
            with self._lock:
                made = self._made()
            return self._free.get() if made is None else made

    def give_back(self, context: Context) -> None:
        """Make a context available to other threads."""
        self._free.put(context)

    def on_stream(self, stream: Any) -> Context:
        """Return a context for work on a stream.

        The first choice is the context that the stream used last, the second a context whose work
        has ended, and the third a new context. If no more contexts can be made, several streams
        share a context, and their work is executed one after another.
        """
        device = self._owner.device
        handle = device.stream_handle(stream)
        with self._lock:
            context = self._found(
                lambda context: not device.is_closed(context.last_stream)
                and device.stream_handle(context.last_stream) == handle) or self._found(
                lambda context: device.is_idle(context.last_stream))
            if context is None and (context := self._made()) is not None:
                self.give_back(context)
            return context or self.first()

    def first(self) -> Context:
        """Return the least recently returned context, for work that may wait."""
        with self._lock:
            context = self._found(lambda context: True)
            if context is None:
                context = self.take()
                self.give_back(context)
            return context

    def _found(self, fits: Callable[[Context], bool]) -> Context | None:
        """Return the first context for which fits() is true, and move it to the end.

        None if there is no such context.
        """
        context = next(filter(fits, self.contexts), None)
        if context is not None:
            self.contexts.remove(context)
            self.contexts.append(context)
        return context

    def _made(self) -> Context | None:
        """Return a new context; None if the maximum is reached or memory is short.

        The caller holds the lock.
        """
        if len(self.contexts) >= self._owner.most:
            return None
        try:
            context = self._owner.make(
                self._batch, self._owner.device.create_stream() if self.contexts else None)
        except OutOfMemoryError:
            if not self.contexts:
                raise
            return None
        self.contexts.append(context)
        self._owner.drop_others(self._batch)
        return context


class Contexts:
    """The contexts of all batch sizes.

    make: makes a context from a batch size and the stream on which the context works.
    most: maximum number of contexts, and so of concurrent calls, of one batch size.
    dropped: called when contexts are dropped; it removes other references to their memory.
    """

    def __init__(self, device: Device, make: Callable[[int, Any], Context],
                 dropped: Callable[[], None]) -> None:
        self.device = device
        self.make = make
        self.most = _AT_ONCE
        self._dropped = dropped
        self._pools: dict[int, ContextPool] = {}
        self._lock = threading.Lock()

    def of(self, batch: int) -> ContextPool:
        """Return a batch size's contexts, and mark them as used most recently."""
        with self._lock:
            pool = self._pools.pop(batch, None) or ContextPool(self, batch)
            self._pools[batch] = pool
            return pool

    def all(self, batch: int | None = None) -> list[Context]:
        """Return the existing contexts of one or all batch sizes."""
        with self._lock:
            return [context for each, pool in self._pools.items() if batch in (None, each)
                    for context in pool.contexts]

    def clear(self) -> None:
        """Forget all contexts.

        The memory of a context is freed when the calls that use it have ended.
        """
        with self._lock:
            self._pools.clear()
            self._dropped()

    def drop_others(self, batch: int) -> None:
        """Drop the contexts of least recently used batch sizes.

        This keeps all contexts within 1 / _SHARE of the device's memory.

        batch: the batch size whose contexts are never dropped.
        """
        most = self.device.limits.memory_bytes // _SHARE
        with self._lock:
            sizes = {each: sum(map(_bytes, pool.contexts)) for each, pool in self._pools.items()}
            for each in list(self._pools):
                if sum(sizes.values()) <= most:
                    break
                if each != batch:
                    del self._pools[each], sizes[each]
                    self._dropped()


def _bytes(context: Context) -> int:
    """Return a context's size in bytes, without shared constants."""
    return (context.buffers.activation_bytes + context.buffers.workspace_bytes
            + _STEP_BYTES * len(context.program.steps))
