"""Calls with torch tensors whose form was checked before, which need no DLPack exchange."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

from gossamer.plan.run.context import Context


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
        self._views = views
        self._device = views[0].device
        self._current_stream = sys.modules["torch"].cuda.current_stream

    def __call__(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Returns the outputs; None where no graph was captured for the arrays' addresses."""
        stream = self._current_stream(self._device)
        with self._context.replaying(tuple([array.data_ptr() for array in arrays]),
                                     stream) as is_known:
            return tuple([view.clone() for view in self._views]) if is_known else None
