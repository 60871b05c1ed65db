"""A call of a plan with arrays that stay the same: it is checked once, and then replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.other_libraries import library
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.plan.candidate import counted
from gossamer.plan.run.binding import (
    are_on,
    batch_of,
    buffers_of,
    by_name,
    callers_stream,
    like_on_host,
    on_host,
    several,
)
from gossamer.plan.run.context import Context, single
from gossamer.plan.run.host_transfers import TransferGraph, page_locked_array


class BoundCall:
    """A call of a plan with fixed arrays, as `Plan.bind` makes it.

    Each call reads the present contents of the inputs, writes the outputs in place, and returns the
    outputs. With arrays on a CUDA device, a call queues one graph on its stream and does not wait
    for the graph. The arrays, the plan's weights and its memory live as long as this object.

    inputs: the bound inputs.
    outputs: the bound output, or a tuple of several outputs.
    """

    def __init__(self, names: Sequence[str], inputs: tuple[Any, ...], outputs: tuple[Any, ...],
                 device: Device, replay: Callable[[], None], stream: Any = None) -> None:
        """stream: the stream that the caller has given, which may be closed later; or None."""
        self.inputs = inputs
        self.outputs = single(outputs)
        self._device = device
        self._replay = replay
        self._stream = stream
        self._fixed = [(name, array, array.data_ptr, array.data_ptr(), array.shape)
                       for name, array in zip(names, (*inputs, *outputs), strict=True)
                       if hasattr(array, "data_ptr")]

    def __call__(self) -> Any:
        """Compute the outputs for the present contents of the inputs, and return them.

        Raises
        ------
        InputError
            If a bound tensor was resized or has other memory now, or the stream that was given to
            `Plan.bind` was closed.
        DeviceError
            If the device fails, or the process was forked after the plan was used.
        """
        if self._device.unusable:
            self._device.check_usable()
        for name, array, address_of, address, shape in self._fixed:
            if address_of() != address or array.shape != shape:
                raise InputError(f"{name} was resized, or has other memory, since it was bound; "
                                 "bind the call again")
        if self._stream is not None:
            self._device.check_stream(self._stream)
        self._replay()
        return self.outputs


def bind(graph: Graph, device: Device, context_of: Callable[[int], Context],
         inputs: tuple[Any, ...], out: Any, stream: Any) -> BoundCall:
    """Return the bound call of a plan. context_of: returns the context of a batch size."""
    names = [*(f"input {info.name!r}" for info in graph.inputs),
             *(f"out for {info.name!r}" for info in graph.outputs)]
    if any(library(array) == "jax" for array in (*inputs, *several(out))):
        raise InputError("arrays of jax never change, so that a call with them is not bound; "
                         "plan(x) takes them")
    if are_on(device, inputs):
        return _on_device(graph, device, context_of, inputs, out, stream, names)
    return _on_host(graph, device, context_of, inputs, out, names)


def _on_device(graph: Graph, device: Device, context_of: Callable[[int], Context],
               inputs: tuple[Any, ...], out: Any, stream: Any,
               names: Sequence[str]) -> BoundCall:
    given = stream
    if given is None:
        stream = callers_stream(inputs[0])
    else:
        device.check_stream(given)
    sources = [device.incoming(array, stream, name=name, dtype=info.dtype)
               for name, info, array in zip(names, graph.inputs, inputs, strict=False)]
    context = context_of(_batch(graph, sources))
    specs = [context.program.specs[context.program.outputs[info.name]] for info in graph.outputs]
    output_names = names[len(inputs):]
    if out is None:
        targets = [device.empty_array(spec, name, stream)
                   for spec, name in zip(specs, output_names, strict=True)]
        outputs = tuple(device.like(inputs[0], array) for array in targets)
    else:
        outputs = _listed(out, graph)
        targets = []
        for array, spec, name in zip(outputs, specs, output_names, strict=True):
            target = device.incoming(array, stream, name=name, dtype=spec.stored_dtype)
            _check_shape(name, target.shape, spec.shape)
            targets.append(target)
    _check_disjoint(names, [(array.buffer.address, array.buffer.nbytes)
                         for array in (*sources, *targets)], len(targets))
    replay = context.bound(buffers_of(graph.inputs, sources), buffers_of(graph.outputs, targets),
                           stream)
    return BoundCall(names, inputs, outputs, device, replay, given)


def _on_host(graph: Graph, device: Device, context_of: Callable[[int], Context],
             inputs: tuple[Any, ...], out: Any, names: Sequence[str]) -> BoundCall:
    arrays = list(map(on_host, inputs))
    context = context_of(_batch(graph, arrays))
    specs = [context.program.specs[context.program.outputs[info.name]] for info in graph.outputs]
    if out is None:
        targets = tuple(page_locked_array(device, spec.shape, spec.stored_dtype)
                        for spec in specs)
        outputs = tuple(like_on_host(inputs[0], array) for array in targets) if inputs else targets
    else:
        outputs = _listed(out, graph)
        targets = tuple(map(on_host, outputs))
        for array, spec, name in zip(targets, specs, names[len(inputs):], strict=True):
            if not isinstance(array, np.ndarray) or array.dtype != spec.stored_dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise InputError(f"{name} is {kind}, expected an array of {spec.stored_dtype}")
            _check_shape(name, array.shape, spec.shape)
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise InputError(f"{name} is not contiguous, or cannot be written; give a new "
                                 "array, or leave out away")
        bounds = [np.lib.array_utils.byte_bounds(array) for array in (*arrays, *targets)]
        _check_disjoint(names, [(low, high - low) for low, high in bounds], len(targets))
    results = dict(zip([info.name for info in graph.outputs], targets, strict=True))

    transfers = TransferGraph()

    def replay() -> None:
        if context.is_whole:
            for target, result in zip(targets, context.run_whole(arrays), strict=True):
                target[...] = result
            return
        device.check_usable()
        context.run_checked(by_name(graph, arrays), results, transfers)

    return BoundCall(names, inputs, outputs, device, replay)


def _batch(graph: Graph, arrays: Sequence[Any]) -> int:
    batch = batch_of(graph, arrays)
    if any(math.prod(array.shape) == 0 for array in arrays):
        raise InputError("a call without images cannot be bound; plan(x) returns its outputs")
    return batch


def _listed(out: Any, graph: Graph) -> tuple[Any, ...]:
    outputs = several(out)
    if len(outputs) != len(graph.outputs):
        raise InputError(f"out has {counted(len(outputs), 'array')}, {graph.name} has "
                         f"{counted(len(graph.outputs), 'output')}")
    return outputs


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != expected:
        raise InputError(f"{name} has shape {tuple(shape)}, expected {expected}")


def _check_disjoint(names: Sequence[str], spans: Sequence[tuple[int, int]], outputs: int) -> None:
    """Raise InputError where an output shares memory with an input or with another output.

    spans: address and bytes of each array.
    outputs: the number of outputs, which come last.
    """
    for index in range(len(names) - outputs, len(names)):
        address, nbytes = spans[index]
        for other, (other_address, other_nbytes) in zip(names[:index], spans, strict=False):
            if address < other_address + other_nbytes and other_address < address + nbytes:
                raise InputError(f"{names[index]} shares memory with {other}; give it memory of "
                                 "its own")
