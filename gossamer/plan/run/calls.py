"""Calls of a plan: arrays are checked, a context computes, and the outputs are returned."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.model.graph import Graph, as_called
from gossamer.model.infer.resolve import resolve
from gossamer.plan.program import Program
from gossamer.plan.run.binding import as_called_for, batch_of, by_name, fill, in_order, single
from gossamer.plan.run.bound import BoundCall, bind
from gossamer.plan.run.context import Context
from gossamer.plan.run.contexts import Contexts
from gossamer.plan.run.foreign import (
    as_taken,
    callers_stream,
    is_foreign,
    like_on_host,
    on_host,
)
from gossamer.plan.run.host_transfers import page_locked_array
from gossamer.plan.run.known import KnownCall, form_of
from gossamer.tensor import TensorSpec, default_spec

_MOST_FORMS = 64
"""How many combinations of shapes and dtypes of NumPy arrays are remembered as checked, so that
later calls with them are not checked again."""


class Calls:
    """The calls of one plan, which share its contexts.

    make_context: makes a context from a batch size and the stream on which the context works.
    program: returns the program of a batch size.
    last_batch: the batch size of the last call that was computed; None before it.
    """

    def __init__(self, graph: Graph, device: Device, make_context: Callable[[int, Any], Context],
                 program: Callable[[int], Program]) -> None:
        self._network = graph
        self._graph = as_called(graph)
        """The graph with inputs and outputs in the formats of callers' arrays."""
        self._device = device
        self._program = program
        self.contexts = Contexts(device, make_context)
        self.last_batch: int | None = None
        self._batches: dict[Hashable, int] = {}
        """The batch size of NumPy arrays, by the shapes and dtypes that were checked."""
        self._is_closed = False

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
                 stream: Any) -> Any:
        """Returns the outputs of a call; see `Plan.__call__`."""
        self.check_usable()
        form = None
        if out is None and stream is None and not named:
            if inputs and type(inputs[0]) is np.ndarray and (
                    outputs := self._staged(inputs)) is not None:
                return single(outputs)
            form = form_of(inputs)
            known = self.contexts.known.get(form)
            if known is not None and not debug.logger.isEnabledFor(logging.DEBUG) and (
                    outputs := known(inputs)) is not None:
                return single(outputs)
        inputs = self._in_order(inputs, named)
        if self._are_on_device(inputs):
            results = self._on_device(inputs, stream, form)
        else:
            results = self._on_host(inputs)
        if out is not None:
            results = fill(out, results)
        return single(results)

    async def asynchronous(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
                           stream: Any) -> Any:
        """Returns the outputs of a call that another thread makes; see `Plan.run_async`."""
        # importing asyncio takes longer than importing this file with all its imports
        import asyncio

        inputs = self._in_order(inputs, named)
        on_device = self._are_on_device(inputs)
        if on_device and stream is None:
            # a library may have another current stream in another thread
            stream = callers_stream(inputs[0])

        def completed() -> Any:
            outputs = self(inputs, {}, out, stream)
            if on_device:
                self._device.synchronize(stream)
            return outputs

        return await asyncio.to_thread(completed)

    def bound(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
              stream: Any) -> BoundCall:
        """Returns a bound call; see `Plan.bind`."""
        self.check_usable()
        return bind(self._graph, self._device, self.first_context,
                    self._in_order(inputs, named), out, stream)

    def page_locked(self, batch: int) -> tuple[np.ndarray, ...]:
        """Returns arrays for the inputs in page-locked memory; see `Plan.pinned`."""
        self.check_usable()
        if batch < 1:
            raise InputError(f"batch is {batch}, expected 1 or more")
        shapes = resolve(self._network, batch).shapes
        specs = [default_spec(shapes[info.name], info.dtype) if info.given is None
                 else TensorSpec(shapes[info.name], info.given.format(len(info.shape)))
                 for info in self._network.inputs]
        return tuple(page_locked_array(self._device, spec.stored_shape, spec.stored_dtype)
                     for spec in specs)

    def check_usable(self) -> None:
        """Raises InputError where the plan was closed, and DeviceError where the process was forked
        after its device was opened."""
        if self._is_closed:
            raise InputError(f"{self._graph.name}: the plan is closed; make another one, or call "
                             "it before plan.close() or the end of its with block")
        self._device.check_usable()

    def first_context(self, batch: int) -> Context:
        """Returns the first context of a batch size, which is the last one from now on."""
        context = self.contexts.first(batch)
        self.last_batch = batch
        return context

    def close(self) -> None:
        """Forgets all contexts, whose memory is freed, and refuses further calls."""
        self._is_closed = True
        if self.contexts.all():
            self._device.synchronize()
        self.contexts.clear()

    def _in_order(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the inputs of a call in the order of the graph's inputs. The axes of each input
        stay in the caller's order."""
        return as_called_for(self._network, in_order(self._graph, inputs, named))

    def _are_on_device(self, inputs: Sequence[Any]) -> bool:
        return bool(inputs) and is_foreign(inputs[0]) and self._device.holds(inputs[0])

    def _staged(self, inputs: tuple[Any, ...]) -> tuple[np.ndarray, ...] | None:
        """Returns the outputs for NumPy arrays of known shapes and dtypes, computed by the graph
        that was captured for such calls; None where no graph was captured."""
        batch = self._batches.get(_form_on_host(inputs))
        if batch is None or debug.logger.isEnabledFor(logging.DEBUG):
            return None
        with self.contexts.taken(batch) as context:
            outputs = context.run_staged(inputs)
        self.last_batch = batch
        return outputs

    def _on_host(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays = [on_host(array) if is_foreign(array) else array for array in inputs]
        form = _form_on_host(arrays)
        batch = self._batches.get(form)
        named: dict[str, np.ndarray] = {}
        if batch is None:
            batch = batch_of(self._graph, arrays)
            if any(array.size == 0 for array in arrays):
                named = self._empty_outputs(batch)
            if not named and form is not None:
                if len(self._batches) >= _MOST_FORMS:
                    self._batches.clear()
                self._batches[form] = batch
        if not named:
            with self.contexts.taken(batch) as context:
                named = context.run_checked(by_name(self._graph, arrays))
            self.last_batch = batch
        results = tuple(named[info.name] for info in self._graph.outputs)
        if inputs and is_foreign(inputs[0]):
            return tuple(like_on_host(inputs[0], array) for array in results)
        return results

    def _on_device(self, inputs: tuple[Any, ...], stream: Any,
                   form: Hashable | None) -> tuple[Any, ...]:
        """Returns the outputs for arrays on the device.

        form: a key of the call's shapes, dtypes and library; later calls with the same key need no
        checks.
        """
        device, graph = self._device, self._graph
        current = callers_stream(inputs[0])
        if stream is None:
            stream = current
        else:
            device.check_stream(stream)
        taken = [as_taken(array, info.dtype)
                 for info, array in zip(graph.inputs, inputs, strict=True)]
        arrays = [device.incoming(array, stream, name=f"input {info.name!r}", dtype=info.dtype)
                  for info, array in zip(graph.inputs, taken, strict=True)]
        batch = batch_of(graph, arrays)
        empty = {} if batch else self._empty_outputs(batch)
        program = None if empty else self._program(batch)
        results = []
        for info in graph.outputs:
            spec = (default_spec(empty[info.name].shape, str(empty[info.name].dtype))
                    if program is None else program.specs[program.outputs[info.name]])
            results.append(device.empty_array(spec, f"output {info.name!r}", stream))
        if program is not None:
            context = self.contexts.on_stream(batch, stream)
            context.run_on_device(
                {info.name: array.buffer for info, array in zip(graph.inputs, arrays, strict=True)},
                {info.name: array.buffer
                 for info, array in zip(graph.outputs, results, strict=True)}, stream)
            self.last_batch = batch
            is_as_given = all(map(operator.is_, taken, inputs))
            if (isinstance(form, tuple) and form not in self.contexts.known and is_as_given
                    and debug.level() < 2):
                self.contexts.remember(form, KnownCall(context, form, inputs[0]))
            if current is None or stream is not current:
                # the library of the inputs does not know that this stream still reads the inputs
                device.synchronize(stream)
        return tuple(device.like(inputs[0], array) for array in results)

    def _empty_outputs(self, batch: int) -> dict[str, np.ndarray]:
        """Returns the outputs if all of them are empty; else {}."""
        static = resolve(self._network, batch)
        outputs = {info.name: np.zeros(static.shapes[info.name],
                                       info.returned_dtype or static.dtypes[info.name])
                   for info in self._network.outputs}
        return {} if any(array.size for array in outputs.values()) else outputs


def _form_on_host(arrays: Sequence[Any]) -> Hashable | None:
    """Returns a key for calls with NumPy arrays, which consists of the arrays' shapes and dtypes: a
    call needs no checks if a call with the same key was checked before. Returns None for other
    arrays."""
    if any([type(array) is not np.ndarray for array in arrays]):
        return None
    return tuple([(array.shape, array.dtype) for array in arrays])
