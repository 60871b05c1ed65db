"""Calls of a plan with fixed arrays, checked once and then replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.other_libraries import library
from gossamer.errors import InputError
from gossamer.model.graph import Graph, ValueInfo
from gossamer.plan.run import binding
from gossamer.plan.run.context import Context, single
from gossamer.plan.run.host_transfers import page_locked_array
from gossamer.tensor import TensorSpec


class BoundCall:
    """A call with fixed arrays, made by `Plan.bind`.

    Each call reads the current contents of the inputs, writes the outputs in place, and returns the
    outputs. With arrays on a CUDA device, a call enqueues one graph on its stream and does not wait
    for it. This object keeps the arrays, and the plan's weights and memory, alive.

    inputs: the bound inputs.
    outputs: the bound output, or a tuple of several outputs.
    """

    def __init__(self, graph: Graph, inputs: tuple[Any, ...], outputs: tuple[Any, ...],
                 device: Device, replay: Callable[[], Any], stream: Any = None) -> None:
        """stream: the caller's stream, which may be closed later; or None."""
        self.inputs = inputs
        self.outputs = single(outputs)
        self._device = device
        self._replay = replay
        self._stream = stream
        self._fixed = [(name, array, array.data_ptr, array.data_ptr(), array.shape)
                       for name, array in zip(_names(graph), (*inputs, *outputs), strict=True)
                       if hasattr(array, "data_ptr")]

    def __call__(self) -> Any:
        """Compute the outputs for the inputs' current contents.

        Raises
        ------
        InputError
            If a bound tensor was resized or moved to other memory, or the stream that was passed to
            `Plan.bind` was closed.
        DeviceError
            If the device fails, or the process was forked after the plan was used.
        """
        self._device.check_usable()
        for name, array, address_of, address, shape in self._fixed:
            if address_of() != address or array.shape != shape:
                raise InputError(f"{name} was resized or moved to other memory after it was bound; "
                                 "bind the call again")
        if self._stream is not None:
            self._device.check_stream(self._stream)
        self._replay()
        return self.outputs


def bind(graph: Graph, device: Device, context_of: Callable[[int], Context],
         inputs: tuple[Any, ...], out: Any, stream: Any) -> BoundCall:
    """Return the bound call of a plan.

    context_of: returns the context of a batch size.
    """
    if any(library(array) == "jax" for array in (*inputs, *binding.several(out))):
        raise InputError("JAX arrays are immutable, so a call with them cannot be bound; use "
                         "plan(x)")
    if binding.are_on(device, inputs):
        return _on_device(graph, device, context_of, inputs, out, stream)
    return _on_host(graph, device, context_of, inputs, out)


def _on_device(graph: Graph, device: Device, context_of: Callable[[int], Context],
               inputs: tuple[Any, ...], out: Any, given: Any) -> BoundCall:
    """Return a bound call with arrays on the device.

    given: the caller's stream, or None.
    """
    if given is not None:
        device.check_stream(given)
    stream = binding.callers_stream(inputs[0]) if given is None else given
    sources = binding.on_device(device, graph, inputs, stream)
    context = context_of(_batch(graph, sources))
    specs = context.output_specs
    if out is None:
        targets = binding.new_outputs(device, graph, specs, stream)
        outputs = tuple(device.like(inputs[0], array) for array in targets)
    else:
        outputs = _given_outputs(graph, out, specs)
        targets = [device.incoming(array, stream, name=_out(info), dtype=info.dtype)
                   for info, array in zip(graph.outputs, outputs, strict=True)]
    buffers, results = binding.buffers_of(sources), binding.buffers_of(targets)
    _check_disjoint(graph, [(buffer.address, buffer.nbytes) for buffer in (*buffers, *results)])
    return BoundCall(graph, inputs, outputs, device, context.bound(buffers, results, stream), given)


def _on_host(graph: Graph, device: Device, context_of: Callable[[int], Context],
             inputs: tuple[Any, ...], out: Any) -> BoundCall:
    arrays = list(map(binding.on_host, inputs))
    context = context_of(_batch(graph, arrays))
    specs = context.output_specs
    if out is None:
        targets = [page_locked_array(device, spec.shape, spec.stored_dtype) for spec in specs]
        outputs = tuple(binding.like_on_host(inputs, targets))
    else:
        outputs = _given_outputs(graph, out, specs)
        targets = list(map(binding.on_host, outputs))
        for info, array in zip(graph.outputs, targets, strict=True):
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise InputError(f"{_out(info)} is not contiguous or not writable; give a new "
                                 "array, or omit out")
        bounds = map(np.lib.array_utils.byte_bounds, (*arrays, *targets))
        _check_disjoint(graph, [(low, high - low) for low, high in bounds])
    return BoundCall(graph, inputs, outputs, device, context.bound_on_host(arrays, targets))


def _batch(graph: Graph, arrays: Sequence[Any]) -> int:
    batch = binding.batch_of(graph, arrays)
    if any(math.prod(array.shape) == 0 for array in arrays):
        raise InputError("a call without images cannot be bound; plan(x) returns its outputs")
    return batch


def _given_outputs(graph: Graph, out: Any, specs: Sequence[TensorSpec]) -> tuple[Any, ...]:
    return binding.given_outputs(graph.name, graph.outputs, out,
                         [(spec.shape, spec.stored_dtype) for spec in specs])


def _names(graph: Graph) -> list[str]:
    """Return the names of inputs and outputs for messages."""
    return [*(f"input {info.name!r}" for info in graph.inputs), *map(_out, graph.outputs)]


def _out(info: ValueInfo) -> str:
    return f"out for {info.name!r}"


def _check_disjoint(graph: Graph, spans: Sequence[tuple[int, int]]) -> None:
    """Raise InputError if outputs share memory with other arrays.

    spans: address and size in bytes of each input and output.
    """
    names = _names(graph)
    for index in range(len(graph.inputs), len(names)):
        address, nbytes = spans[index]
        for other, (other_address, other_nbytes) in zip(names[:index], spans, strict=False):
            if address < other_address + other_nbytes and other_address < address + nbytes:
                raise InputError(f"{names[index]} shares memory with {other}; give it separate "
                                 "memory")
