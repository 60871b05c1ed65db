"""Calls of a plan: arrays are checked, a context computes, and the outputs are returned.

Of some networks ONNX Runtime computes the end, from the results of the plan's program.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from gossamer import debug, onnx_model
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError, installing, quoted
from gossamer.model.graph import Graph, Tail, ValueInfo, as_called
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.ops.host_threads import Threads, number_of
from gossamer.ops.onnx_part.host import fatal_node, merged, run_empty
from gossamer.ops.onnx_part.session import Session, parsed
from gossamer.plan.program import Program
from gossamer.plan.run.binding import (
    are_on,
    as_called_for,
    as_taken,
    batch_of,
    buffers_of,
    by_name,
    callers_stream,
    fill,
    in_order,
    like_on_host,
    on_host,
)
from gossamer.plan.run.bound import BoundCall, bind
from gossamer.plan.run.context import Context, single
from gossamer.plan.run.contexts import Contexts, KnownCall, form_of
from gossamer.plan.run.host_transfers import page_locked_array
from gossamer.tensor import TensorSpec, default_spec

_MOST_FORMS = 64
"""How many combinations of shapes and dtypes of NumPy arrays are remembered as checked, so that
later calls with them are not checked again."""
_NUMBERS = "biufc"
"""The values of dtype.kind of NumPy arrays of numbers."""


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
        """Return the outputs of a call; see `Plan.__call__`."""
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
        if are_on(self._device, inputs):
            results = self._on_device(inputs, stream, form)
        else:
            results = self._on_host(inputs)
        if out is not None:
            results = fill(out, results)
        return single(results)

    async def asynchronous(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
                           stream: Any) -> Any:
        """Return the outputs of a call that another thread makes; see `Plan.run_async`."""
        # importing asyncio takes longer than importing this file with all its imports
        import asyncio

        inputs = self._in_order(inputs, named)
        on_device = are_on(self._device, inputs)
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
        """Return a bound call; see `Plan.bind`."""
        self.check_usable()
        return bind(self._graph, self._device, self.first_context,
                    self._in_order(inputs, named), out, stream)

    def page_locked(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return arrays for the inputs in page-locked memory; see `Plan.pinned`."""
        self.check_usable()
        if not isinstance(batch, Integral) or batch < 1:
            raise InputError(f"batch is {quoted(batch)}, expected 1 or more")
        shapes = resolve(self._network, batch).shapes
        specs = [default_spec(shapes[info.name], info.dtype) if info.given is None
                 else TensorSpec(shapes[info.name], info.given.format(len(info.shape)))
                 for info in self._network.inputs]
        return tuple(page_locked_array(self._device, spec.stored_shape, spec.stored_dtype)
                     for spec in specs)

    def check_usable(self) -> None:
        """Raise InputError where the plan was closed, and DeviceError where the process was forked
        after its device was opened."""
        if self._is_closed:
            raise InputError(f"{self._graph.name}: the plan is closed; make another one, or call "
                             "it before plan.close() or the end of its with block")
        self._device.check_usable()

    def first_context(self, batch: int) -> Context:
        """Return the first context of a batch size, which is the last one from now on."""
        context = self.contexts.first(batch)
        self.last_batch = batch
        return context

    def close(self) -> None:
        """Forget all contexts, whose memory is freed, and refuses further calls."""
        self._is_closed = True
        if self.contexts.all():
            self._device.synchronize()
        self.contexts.clear()

    def _in_order(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the inputs of a call in the order of the graph's inputs. The axes of each input
        stay in the caller's order."""
        return as_called_for(self._network, in_order(self._graph, inputs, named))

    def _staged(self, inputs: tuple[Any, ...]) -> tuple[np.ndarray, ...] | None:
        """Return the outputs for NumPy arrays of known shapes and dtypes, computed by the graph
        that was captured for such calls; None where no graph was captured."""
        batch = self._batches.get(_form_on_host(inputs))
        if batch is None or debug.logger.isEnabledFor(logging.DEBUG):
            return None
        with self.contexts.taken(batch) as context:
            outputs = context.run_staged(inputs)
        self.last_batch = batch
        return outputs

    def _on_host(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        arrays = list(map(on_host, inputs))
        form = _form_on_host(arrays)
        batch = self._batches.get(form)
        named: dict[str, np.ndarray] = {}
        if batch is None:
            batch = batch_of(self._graph, arrays, inputs)
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
        return tuple(like_on_host(inputs[0], array) for array in results) if inputs else results

    def _on_device(self, inputs: tuple[Any, ...], stream: Any,
                   form: Hashable | None) -> tuple[Any, ...]:
        """Return the outputs for arrays on the device.

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
        batch = batch_of(graph, arrays, inputs)
        empty = {} if batch else self._empty_outputs(batch)
        program = None if empty else self._program(batch)
        results = []
        for info in graph.outputs:
            spec = (default_spec(empty[info.name].shape, str(empty[info.name].dtype))
                    if program is None else program.specs[program.outputs[info.name]])
            results.append(device.empty_array(spec, f"output {info.name!r}", stream))
        if program is not None:
            context = self.contexts.on_stream(batch, stream)
            context.run_on_device(buffers_of(graph.inputs, arrays),
                                  buffers_of(graph.outputs, results), stream)
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
        """Return the outputs if all of them are empty; else {}."""
        static = resolve(self._network, batch)
        outputs = {info.name: np.zeros(static.shapes[info.name],
                                       info.returned_dtype or static.dtypes[info.name])
                   for info in self._network.outputs}
        return {} if any(array.size for array in outputs.values()) else outputs


def _form_on_host(arrays: Sequence[Any]) -> Hashable | None:
    """Return a key for calls with NumPy arrays, which consists of the arrays' shapes and dtypes: a
    call needs no checks if a call with the same key was checked before. Return None for other
    arrays."""
    if any([type(array) is not np.ndarray for array in arrays]):
        return None
    return tuple([(array.shape, array.dtype) for array in arrays])


class TailCalls(Calls):
    """The calls of one plan whose graph has a tail, the end of a network that ONNX Runtime computes
    after the plan's program. Outputs are NumPy arrays, or lists where ONNX has sequences.

    threads: the threads of ONNX Runtime.

    Raises UnsupportedError where ONNX Runtime is not installed or does not compute the tail. Raises
    ValueError where the tail reads values that nothing makes, or where its model has another number
    of inputs or outputs than the tail.
    """

    def __init__(self, graph: Graph, tail: Tail, device: Device,
                 make_context: Callable[[int, Any], Context],
                 program: Callable[[int], Program], threads: Threads) -> None:
        super().__init__(replace(graph, tail=None), device, make_context, program)
        taken = {info.name for info in tail.inputs}
        there = taken.union(info.name for info in graph.outputs)
        if not taken.issuperset(info.name for info in graph.inputs):
            raise ValueError("the network reads inputs that its callers do not give")
        if not there.issuperset(tail.reads):
            raise ValueError("the end of the network reads what is not there")
        file = graph.file or graph.name
        if not onnx_model.has_runtime():
            raise UnsupportedError(f"{file}: needs ONNX Runtime: {installing('onnxruntime')}")
        self._network = graph
        self._tail = tail
        self._source = next((source for source, _ in nodes_of(tail.model)), "the outputs")
        try:
            self._session = Session(tail.model.tobytes(), tail.constants,
                                    threads=number_of(threads))
        except UnsupportedError as error:
            raise UnsupportedError(f"{file}: {self._source} and what follows it: {error}") from None
        computed = {info.name for info in graph.outputs}
        self._makes = [info.name for info in tail.outputs if info.name not in computed]
        if (self._session.inputs, self._session.outputs) != (len(tail.reads), len(self._makes)):
            raise ValueError("the end of the network reads or makes other values than its model")

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
                 stream: Any) -> Any:
        self.check_usable()
        given = in_order(self._network, inputs, named)
        values = {info.name: _as_taken(info, on_host(value))
                  for info, value in zip(self._tail.inputs, given, strict=True)}
        computed: dict[str, Any] = {}
        if self._graph.outputs:
            results = super().__call__(
                tuple(values[info.name] for info in self._graph.inputs), {}, None, None)
            computed = dict(zip((info.name for info in self._graph.outputs),
                                results if isinstance(results, tuple) else (results,), strict=True))
        there = {**values, **computed}
        for info in (*self._network.inputs, *self._network.outputs):
            # callers may give and get arrays of other dtypes than the network computes with
            there[info.name] = np.asarray(there[info.name], info.dtype)
        try:
            made = self._run([there[name] for name in self._tail.reads])
        except InputError as error:
            raise InputError(f"{self._source} and what follows it: {error}") from None
        computed.update(zip(self._makes, made, strict=True))
        outputs = tuple(computed[info.name] for info in self._tail.outputs)
        if out is not None:
            outputs = fill(out, outputs)
        return single(outputs)

    def _run(self, given: list[Any]) -> list[Any]:
        """Return what the tail makes of the values that it reads."""
        if all(np.size(value) for value in given if isinstance(value, np.ndarray)):
            return self._session.run(given)
        model, constants = parsed(self._tail.model.tobytes()), self._tail.constants
        values = merged(constants, given)
        fatal = fatal_node(model, [getattr(value, "shape", None) for value in values], constants)
        return run_empty(model, values, given, self._session, fatal)

    def bound(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
              stream: Any) -> NoReturn:
        raise self.error("be bound")

    def page_locked(self, batch: int) -> NoReturn:
        raise self.error("have pinned inputs")

    def error(self, what: str) -> InputError:
        """Return the error of a call that is not possible where the data decide shapes. what:
        words for the call, such as "be bound"."""
        return InputError(f"{self._graph.name} cannot {what}: {self._source} and what follows it "
                          "have shapes that the data decide; call the plan with arrays")


def _as_taken(info: ValueInfo, value: Any) -> Any:
    """Return an input of a network as ONNX Runtime accepts it. Raises InputError for numbers where
    texts are expected, and for texts where numbers are expected."""
    if info.dtype == "string":
        array = np.asarray(value)
        if array.dtype.kind not in "OUS":
            raise InputError(f"input {quoted(info.name)} is an array of {array.dtype}, expected "
                             "texts")
        return array.astype(object)
    try:
        np.dtype(info.dtype)
    except TypeError:
        # the input is a sequence, a map, an optional value, or has a dtype that NumPy does not have
        return value
    array = np.asarray(value, order="C")
    if array.dtype.kind not in _NUMBERS and array.dtype.kind != "V":
        raise InputError(f"input {quoted(info.name)} is an array of {array.dtype}, expected one of "
                         f"{info.dtype}")
    dtype = info.called.dtype
    return array.astype(dtype) if np.can_cast(array.dtype, dtype) else array
