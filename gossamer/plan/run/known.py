"""Calls with torch tensors whose form was checked before, which need no DLPack exchange."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gossamer.plan.run.context import Context

_MOST_LAUNCHES = 8


def form_of(arrays: Sequence[Any]) -> Hashable | None:
    """Returns what identifies the checks that a call with these arrays needs; None where one of
    them is no plain torch tensor, or requires a gradient."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    form = []
    for array in arrays:
        if type(array) is not torch.Tensor or array.requires_grad:
            return None
        form += [array.shape, array.stride(), array.dtype, array.device]
    return tuple(form)


def known_call(form: Hashable, context: Context, like: Any) -> dict[Hashable, KnownCall]:
    """Returns the known call of a form in a dictionary, which is empty where an output lies in the
    memory of an input. like: one of the tensors of the call."""
    program, device = context.program, context.device
    inputs = {program.root(value) for value in program.inputs.values()}
    if any(program.place(value).whole in inputs for value in program.outputs.values()):
        return {}
    views = [device.like(like, device.array_in(context.buffer(value), program.specs[value]))
             for value in program.outputs.values()]
    return {form: KnownCall(context, views)}


class KnownCall:
    """A call with tensors of one form on the plan's device.

    It replays the graph that was captured for the tensors' addresses, and copies what the graph
    wrote into new tensors: what a caller still holds is never written again.

    context: the context that computes. views: its outputs as tensors.
    """

    def __init__(self, context: Context, views: Sequence[Any]) -> None:
        self._context = context
        self._copies = [view.clone for view in views]
        self._index = views[0].device.index
        self._handle_of = _handle_of()
        self._launches: dict[tuple[int, ...], Callable[[], None]] = {}
        """Functions that replay graphs, by the handle of the stream and the inputs' addresses."""

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Returns the outputs; None where no graph was captured for the arrays' addresses."""
        handle = self._handle_of(self._index)
        key = (handle, *[array.data_ptr() for array in arrays])
        launch = self._launches.get(key)
        if launch is None:
            launch = self._context.replayed(key[1:], handle)
            if launch is None:
                return None
            if len(self._launches) >= _MOST_LAUNCHES:
                self._launches.clear()
            self._launches[key] = launch
        return self._context.run_known(launch, handle, self._copies)


def _handle_of() -> Callable[[int], int]:
    """Returns a function from the index of a device to the handle of torch's current stream, which
    makes no object for it where torch has such a function."""
    torch = sys.modules["torch"]
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))
