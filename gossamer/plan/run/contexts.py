"""The contexts in which a plan's calls run.

Several calls of one batch size may run at once. Calls with torch tensors of shapes and dtypes that
were checked before need no DLPack exchange.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.plan.run.context import Context, NewOutputs

_SHARE = 16
"""The contexts that are kept take at most this part of the device's memory, 1 / _SHARE."""
_STEP_BYTES = 2**14
"""About the bytes of host memory that a context takes for each step."""
_AT_ONCE = 4
"""The number of calls of one batch size that run at once by default."""
_MOST_KNOWN = 64
"""The most checked calls that are kept."""
_MOST_REPLAYS = 8
"""The most combinations of input addresses for which a call keeps functions that replay a graph."""


class _Group:
    """The contexts of one batch size.

    contexts: all contexts; the context that on_stream() or first() returned last is at the end.
    free: contexts that no thread has taken. None in the queue says that no context could be made;
    each thread that takes None puts None back.
    making: a lock for the thread that makes a further context.
    most: how many contexts fit into the device's memory; None while the number is not known.
    """

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.free: SimpleQueue[Context | None] = SimpleQueue()
        self.making = threading.Lock()
        self.most: int | None = None


class Contexts:
    """Contexts by batch size. Threads and streams use these contexts for their calls.

    Where a call would have to wait, a further context is made, up to `most` for a batch size or
    until the device's memory is full.

    make: makes a context from a batch size and the stream on which the context works.
    most: how many calls of one batch size run at once.
    known: calls that were checked before, by the result of form_of() for their tensors.
    """

    def __init__(self, device: Device, make: Callable[[int, Any], Context]) -> None:
        self._device = device
        self._make = make
        self.most = _AT_ONCE
        self.known: dict[Hashable, KnownCall] = {}
        self._groups: dict[int, _Group] = {}
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, batch: int) -> Iterator[Context]:
        """Within a `with` block, provides a context that no other thread takes meanwhile."""
        group, context = self._taken(batch)
        try:
            yield context
        finally:
            group.free.put(context)

    def _taken(self, batch: int) -> tuple[_Group, Context]:
        while True:
            group = self._group(batch)
            try:
                context = group.free.get_nowait()
            except Empty:
                self._grow(batch, group)
                context = group.free.get()
            if context is not None:
                return group, context
            group.free.put(None)

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
            self._grow(batch, group, for_stream=True)
            context = find()
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

    def remember(self, form: Hashable, call: KnownCall) -> None:
        """Store a call that was checked. form: the result of form_of() for the call's tensors."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known[form] = call

    def of(self, batch: int) -> list[Context]:
        """Return the contexts of a batch size that were made so far."""
        group = self._groups.get(batch)
        return [] if group is None else list(group.contexts)

    def all(self) -> list[Context]:
        """Return the contexts that were made so far."""
        with self._lock:
            return [context for group in self._groups.values() for context in group.contexts]

    def clear(self) -> None:
        """Forget all contexts. The memory of a context is freed when the calls that use the
        context have ended."""
        with self._lock:
            self._groups.clear()
            self.known.clear()

    def _grow(self, batch: int, group: _Group, *, for_stream: bool = False) -> None:
        """Make a further context unless the limit is reached or a context is free. for_stream:
        whether a context is made even if another context is free, since the stream of the free
        context may still have work."""
        with group.making:
            if self._is_full(group) or not (for_stream or group.free.empty()):
                return
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
                return
            with self._lock:
                group.contexts.append(context)
                self._drop_others(batch)
            group.free.put(context)

    def _give_up(self, batch: int, group: _Group) -> None:
        """Let the threads that wait for the first context, which could not be made, try to make it
        themselves."""
        with self._lock:
            if self._groups.get(batch) is group:
                del self._groups[batch]
        group.free.put(None)

    def _is_full(self, group: _Group) -> bool:
        most = self.most if group.most is None else min(self.most, group.most)
        return len(group.contexts) >= most

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
                self.known.clear()


def _bytes(context: Context) -> int:
    """Return the bytes that a context takes by itself: constants are shared."""
    return (context.activation_bytes + context.workspace_bytes
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


def form_of(arrays: Sequence[Any]) -> Hashable | None:
    """Return a key for calls with these arrays. The key consists of everything that the checks of
    a call depend on, and of the stream on which torch works now. Return None where an array is no
    plain torch tensor on a CUDA device, or requires a gradient."""
    torch = sys.modules.get("torch")
    if torch is None or not arrays:
        return None
    form: list[Any] = []
    for array in arrays:
        if type(array) is not torch.Tensor or array.requires_grad:
            return None
        form += (array.shape, array.stride(), array.dtype, array.device)
    if not arrays[0].is_cuda:
        return None
    form += (torch.is_inference_mode_enabled(), _handle_of()(form[3].index))
    return tuple(form)


@cache
def _handle_of() -> Callable[[int], int]:
    """Return a function that takes the index of a device and returns the handle of torch's current
    stream. The function makes no stream object where torch can return the handle alone."""
    torch = sys.modules["torch"]
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


class KnownCall:
    """The calls with tensors on the plan's device for which form_of() returns the same key.

    A call replays the graph that was captured for the tensors' addresses. The graph copies the
    outputs into new tensors: tensors that a caller still holds are never written again.

    context: the context that computes.
    form: the result of form_of() for the tensors.
    like: a tensor of one of the calls.
    """

    def __init__(self, context: Context, form: Sequence[Any], like: Any) -> None:
        program, device = context.program, context.device
        self._context = context
        self._stream = form[-1]
        self._makers = [partial(sys.modules["torch"].empty_like, device.like(
            like, device.array_in(context.buffer(value), program.specs[value])))
            for value in program.outputs.values()]
        self._replays: dict[tuple[int, ...], Callable[[], tuple[Any, ...]]] = {}
        """Functions that replay a graph, by the inputs' addresses."""

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the outputs; None where no graph was captured for the arrays' addresses."""
        addresses = tuple([array.data_ptr() for array in arrays])
        replay = self._replays.get(addresses)
        if replay is None:
            replay = self._context.replayed(addresses, self._stream, self._new_outputs)
            if replay is None:
                return None
            if len(self._replays) >= _MOST_REPLAYS:
                self._replays.clear()
            self._replays[addresses] = replay
        return replay()

    def _new_outputs(self) -> NewOutputs:
        outputs = tuple([make() for make in self._makers])
        return outputs, tuple([output.data_ptr() for output in outputs])
