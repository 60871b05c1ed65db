"""The contexts in which a plan's calls run, several of one batch size at once."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.plan.run.context import Context
from gossamer.plan.run.known import KnownCall

_MOST_BATCHES = 8
"""Number of batch sizes whose contexts are kept."""
_AT_ONCE = 4
"""Calls of one batch size that run at once where the user says nothing."""
_MOST_KNOWN = 64


class _Turn:
    """A thread that waits. Those that wait for a context to take get the next one that is free, in
    the order in which they came; the others look again.

    takes: whether the thread waits for a context to take. context: what it was given.
    """

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.context: Context | None = None
        self._locked = threading.Lock()
        self._locked.acquire()

    def come(self, context: Context | None = None) -> None:
        """Lets the thread go on."""
        self.context = context
        self._locked.release()

    def wait(self) -> None:
        """Waits until another thread calls come()."""
        self._locked.acquire()


@dataclass
class _Group:
    """The contexts of one batch size, the one whose use lies furthest back first.

    most: how many fit into the device's memory; None where that is not known.
    is_growing: whether a thread makes a further one.
    """

    contexts: list[Context] = field(default_factory=list)
    most: int | None = None
    is_growing: bool = False
    waiting: deque[_Turn] = field(default_factory=deque)

    def look_again(self) -> None:
        """Lets all threads that wait see what is free now."""
        while self.waiting:
            self.waiting.popleft().come()


class Contexts:
    """Contexts by batch size, which threads and streams take for their calls.

    A further context is made where a call would wait for another one, up to `most`, or as many as
    the device's memory holds.

    make: makes a context of a batch size that works on a stream.
    most: how many calls of one batch size run at once.
    known: calls with tensors of forms that were checked before.
    """

    def __init__(self, device: Device, make: Callable[[int, Any], Context]) -> None:
        self._device = device
        self._make = make
        self.most = _AT_ONCE
        self.known: dict[Hashable, KnownCall] = {}
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._busy: set[Context] = set()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, batch: int) -> Iterator[Context]:
        """Gives the body a context that no other thread takes meanwhile."""
        context = self._obtained(batch, self._free, is_taken=True)
        try:
            yield context
        finally:
            self._give_back(context)

    def on_stream(self, batch: int, stream: Any) -> Context:
        """Returns the context that works on a stream, or one that has no work left. Several streams
        may share one, and then wait for each other on the device."""
        handle = self._device.stream_handle(stream)

        def find(group: _Group) -> Context | None:
            for context in group.contexts:
                if self._device.stream_handle(context.last_stream) == handle:
                    return context
            for context in group.contexts:
                if context not in self._busy and self._device.is_idle(context.last_stream):
                    return context
            return group.contexts[0] if self._is_full(group) else None

        return self._obtained(batch, find)

    def first(self, batch: int) -> Context:
        """Returns the context of a batch size for what is no call, and may wait for calls."""
        return self._obtained(
            batch, lambda group: group.contexts[0] if group.contexts else None)

    def remember(self, form: Hashable, call: KnownCall) -> None:
        """Keeps a call with tensors of a form."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known[form] = call

    def of(self, batch: int) -> list[Context]:
        """Returns the contexts of a batch size that were made so far."""
        with self._lock:
            return list(self._groups[batch].contexts) if batch in self._groups else []

    def all(self) -> list[Context]:
        """Returns the contexts that were made so far."""
        with self._lock:
            return [context for group in self._groups.values() for context in group.contexts]

    def clear(self) -> None:
        """Forgets all contexts. Their memory is freed when the calls that use them have ended."""
        with self._lock:
            while self._groups:
                self._groups.popitem()[1].look_again()
            self.known.clear()

    def _give_back(self, context: Context) -> None:
        with self._lock:
            group = self._groups.get(context.batch)
            if group is not None and context in group.contexts:
                for turn in group.waiting:
                    if turn.takes:
                        group.waiting.remove(turn)
                        turn.come(context)
                        return
            self._busy.discard(context)

    def _free(self, group: _Group) -> Context | None:
        return next((context for context in group.contexts if context not in self._busy), None)

    def _is_full(self, group: _Group) -> bool:
        most = self.most if group.most is None else min(self.most, group.most)
        return len(group.contexts) >= most

    def _obtained(self, batch: int, find: Callable[[_Group], Context | None], *,
                  is_taken: bool = False) -> Context:
        """Returns the context that `find` finds, or makes one where there may be more; else waits
        for one. is_taken: whether the caller gives it back."""
        while True:
            with self._lock:
                group = self._group(batch)
                context = find(group)
                if context is not None:
                    group.contexts.remove(context)
                    group.contexts.append(context)
                    if is_taken:
                        self._busy.add(context)
                    return context
                if not group.is_growing and not self._is_full(group):
                    group.is_growing = True
                    is_first = not group.contexts
                    break
                turn = _Turn(is_taken)
                group.waiting.append(turn)
            try:
                turn.wait()
            except BaseException:
                with self._lock:
                    if turn in group.waiting:
                        group.waiting.remove(turn)
                if turn.context is not None:
                    self._give_back(turn.context)
                raise
            if turn.context is not None:
                return turn.context
        made: Context | None = None
        try:
            made = self._make(batch, None if is_first else self._device.create_stream())
        except OutOfMemoryError:
            if is_first:
                raise
            group.most = len(group.contexts)
        finally:
            with self._lock:
                group.is_growing = False
                if made is not None:
                    group.contexts.append(made)
                    if is_taken:
                        self._busy.add(made)
                group.look_again()
        return made or self._obtained(batch, find, is_taken=is_taken)

    def _group(self, batch: int) -> _Group:
        if batch not in self._groups:
            while len(self._groups) >= _MOST_BATCHES:
                self._groups.popitem(last=False)[1].look_again()
                self.known.clear()
            self._groups[batch] = _Group()
        self._groups.move_to_end(batch)
        return self._groups[batch]
