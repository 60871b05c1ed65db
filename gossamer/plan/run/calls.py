"""Calls of a plan: checks of the inputs, the computation in a context, and the outputs.

For networks with a tail, ONNX Runtime afterwards computes the tail from the results of the plan's
program.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from numbers import Integral
from typing import Any

import numpy as np

from gossamer import onnx_model
from gossamer.device.base import Device
from gossamer.device.other_libraries import DeviceArray
from gossamer.errors import InputError, UnsupportedError, installing, quoted
from gossamer.model.graph import Graph, Tail, ValueInfo, as_called
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.ops.host_threads import Threads, number_of
from gossamer.ops.onnx_part.host import fatal_node, merged, run_empty
from gossamer.ops.onnx_part.session import Session, parsed
from gossamer.plan.run import binding
from gossamer.plan.run.bound import BoundCall, bind
from gossamer.plan.run.context import Context, NewOutputs, single
from gossamer.plan.run.contexts import Contexts
from gossamer.tensor import default_spec

_MOST_KNOWN = 64
"""Maximum number of forms of calls (see form_of) that are remembered."""
_NUMBERS = "biufc"
"""Values of dtype.kind of numeric NumPy arrays."""

Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Function that takes the inputs of a call and returns its outputs."""


class Calls:
    """The calls of one plan, which share its contexts.

    network: the plan's graph.
    graph: the same graph with inputs and outputs in the formats of callers' arrays.
    make_context: makes a context from a batch size and the stream on which the context works.
    last_batch: batch size of the last computed call; None before the first.
    """

    def __init__(self, graph: Graph, device: Device,
                 make_context: Callable[[int, Any], Context]) -> None:
        self.network = graph
        self.graph = as_called(graph)
        self.device = device
        self.make_context = make_context
        self.last_batch: int | None = None
        self._known: dict[Hashable, Compute | None] = {}
        """The functions that compute calls of remembered forms."""
        self.contexts = Contexts(device, make_context, self._known.clear)
        self._is_closed = False

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any] | None = None,
                 out: Any = None, stream: Any = None) -> Any:
        """Return the outputs of a call; see `Plan.__call__`."""
        self.check_usable()
        form = None if out is not None or stream is not None or named else form_of(inputs)
        known = self._known.get(form)
        if known is not None:
            return single(known(inputs))
        inputs = self.in_order(inputs, named or {})
        results = (self._on_device(inputs, stream, form) if binding.are_on(self.device, inputs)
                   else self._on_host(inputs))
        return single(results if out is None else binding.fill(
            self.graph.name, self.graph.outputs, out, results))

    async def asynchronous(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
                           stream: Any) -> Any:
        """Return the outputs of a call made in another thread; see `Plan.run_async`."""
        # imported here, because asyncio takes longer to import than this file with all its imports
        import asyncio

        inputs = self.in_order(inputs, named)
        on_device = binding.are_on(self.device, inputs)
        if on_device and stream is None:
            # a library may have another current stream in another thread
            stream = binding.callers_stream(inputs[0])

        def completed() -> Any:
            outputs = self(inputs, out=out, stream=stream)
            if on_device:
                self.device.synchronize(stream)
            return outputs

        return await asyncio.to_thread(completed)

    def bound(self, inputs: tuple[Any, ...], named: Mapping[str, Any], out: Any,
              stream: Any) -> BoundCall:
        """Return a bound call; see `Plan.bind`."""
        return bind(self.graph, self.device, self.first_context,
                    self.in_order(inputs, named), out, stream)

    def page_locked(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return page-locked arrays for the inputs; see `Plan.pinned`."""
        check_pinned(batch)
        return self.contexts.of(batch).first().page_locked()

    def check_usable(self) -> None:
        """Raise InputError or DeviceError if the plan is unusable.

        Raises InputError if the plan was closed, and DeviceError if the process was forked after
        the device was opened.
        """
        if self._is_closed:
            raise InputError(f"{self.graph.name}: the plan is closed; make another plan, or "
                             "move this call before plan.close() and inside the plan's with block")
        self.device.check_usable()

    def first_context(self, batch: int) -> Context:
        """Return a batch size's first context, and set `last_batch` to the size.
        """
        context = self.contexts.of(batch).first()
        self.last_batch = batch
        return context

    def close(self) -> None:
        """Free the memory of all contexts, and refuse further calls."""
        self._is_closed = True
        if self.contexts.all():
            self.device.synchronize()
        self.contexts.clear()

    def in_order(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a call's inputs in the graph's order.

        The axes of each input stay in the caller's order.
        """
        return binding.as_called_for(self.network, binding.in_order(self.graph, inputs, named))

    def _keep(self, form: Hashable, computed: Compute | None) -> None:
        """Record the function that computes later calls of a form without checks.

        computed: the function; None records that the form occurred once.
        """
        if form is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[form] = computed

    def _on_host(self, inputs: tuple[Any, ...]) -> Sequence[Any]:
        arrays = list(map(binding.on_host, inputs))
        form = form_of(arrays)
        known = self._known.get(form)
        if known is None:
            batch = binding.batch_of(self.graph, arrays, inputs)
            empty = self.empty_outputs(batch) if any(array.size == 0 for array in arrays) else ()
            if empty:
                return binding.like_on_host(inputs, empty)
            known = partial(self._computed, batch)
            self._keep(form, known)
        return binding.like_on_host(inputs, known(arrays))

    def _computed(self, batch: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs for NumPy arrays that were checked."""
        pool = self.contexts.of(batch)
        context = pool.take()
        try:
            outputs = context.compute(arrays)
        finally:
            pool.give_back(context)
        self.last_batch = batch
        return outputs

    def _on_device(self, inputs: tuple[Any, ...], stream: Any,
                   form: Hashable | None) -> tuple[Any, ...]:
        """Return the outputs for arrays on the device.

        form: form of the call. When a form occurs a second time, a graph is captured for it. None
        for a call that is always checked.
        """
        device, graph = self.device, self.graph
        current = binding.callers_stream(inputs[0])
        if stream is None:
            stream = current
        else:
            device.check_stream(stream)
        taken = [binding.as_taken(array, info.dtype)
                 for info, array in zip(graph.inputs, inputs, strict=True)]
        arrays = binding.on_device(device, graph, taken, stream)
        batch = binding.batch_of(graph, arrays, inputs)
        empty = () if batch else self.empty_outputs(batch)
        if empty:
            return self._like(inputs[0], binding.new_outputs(device, graph, [
                default_spec(array.shape, str(array.dtype)) for array in empty], stream))
        context = self.contexts.of(batch).on_stream(stream)
        buffers = binding.buffers_of(arrays)
        replay = None
        if all(map(operator.is_, taken, inputs)):
            if form in self._known:
                replay = context.replayed(buffers, device.stream_handle(stream),
                                          _torch_outputs(context, inputs[0]))
            self._keep(form, replay)
        if replay is not None:
            outputs = replay(inputs)
        else:
            results = binding.new_outputs(device, graph, context.output_specs, stream)
            context.run_on_device(buffers, binding.buffers_of(results), stream)
            outputs = self._like(inputs[0], results)
        self.last_batch = batch
        if current is None or stream is not current:
            # wait, because the inputs' library does not know that this stream still reads them
            device.synchronize(stream)
        return outputs

    def _like(self, array: Any, results: Sequence[DeviceArray]) -> tuple[Any, ...]:
        """Return device results as arrays of the library that made `array`."""
        return tuple(self.device.like(array, result) for result in results)

    def empty_outputs(self, batch: int) -> Sequence[np.ndarray]:
        """Return the outputs if all of them are empty arrays; () if any is not empty."""
        static = resolve(self.network, batch)
        outputs = [np.zeros(static.shapes[info.name],
                            info.returned_dtype or static.dtypes[info.name])
                   for info in self.network.outputs]
        return () if any(array.size for array in outputs) else outputs


def check_pinned(batch: int) -> None:
    """Raise InputError unless the batch size of pinned arrays is a whole number of 1 or more."""
    if not isinstance(batch, Integral) or batch < 1:
        raise InputError(f"batch is {quoted(batch)}, expected 1 or more")


def form_of(arrays: Sequence[Any]) -> Hashable:
    """Return the form of a call: everything that its checks depend on.

    The form of NumPy arrays consists of shapes and dtypes. The form of torch tensors on a CUDA
    device also contains devices, strides, addresses, inference mode and torch's current stream.
    None if an array is of another type, or requires a gradient.
    """
    kind = type(arrays[0]) if arrays else None
    if kind is np.ndarray:
        if any([type(array) is not kind for array in arrays]):
            return None
        return tuple([(array.shape, array.dtype) for array in arrays])
    torch = sys.modules.get("torch")
    if torch is None or kind is not torch.Tensor or not arrays[0].is_cuda:
        return None
    form: list[Any] = []
    for array in arrays:
        if type(array) is not kind or array.requires_grad:
            return None
        form += (array.data_ptr(), array.shape, array.stride(), array.dtype, array.device)
    form += (torch.is_inference_mode_enabled(), _handle_of()(array.device.index))
    return tuple(form)


@cache
def _handle_of() -> Callable[[int], int]:
    """Return the function that gets torch's current stream handle.

    The function takes the index of a device. It makes no stream object if torch can return the
    handle alone.
    """
    torch = sys.modules["torch"]
    return getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
        lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def _torch_outputs(context: Context, like: Any) -> Callable[[], NewOutputs]:
    """Return a function that allocates output tensors, and returns them with their addresses.

    like: a tensor on the context's device.
    """
    device = context.device
    makers = [partial(sys.modules["torch"].empty_like,
                      device.like(like, device.array_in(context.buffers.of(value), spec)))
              for value, spec in zip(context.outputs, context.output_specs, strict=True)]

    def new() -> NewOutputs:
        outputs = tuple([make() for make in makers])
        return outputs, tuple([output.data_ptr() for output in outputs])

    return new


class TailCalls(Calls):
    """Calls of a plan whose graph has a tail.

    The tail is the end of a network, which ONNX Runtime computes after the plan's program. Outputs
    are NumPy arrays; an ONNX sequence is a list.

    threads: the threads of ONNX Runtime.

    Raises UnsupportedError if ONNX Runtime is not installed or does not support the tail. Raises
    ValueError if the tail reads values that nothing computes, or if the tail and its model differ
    in the number of inputs or outputs.
    """

    def __init__(self, graph: Graph, tail: Tail, device: Device,
                 make_context: Callable[[int, Any], Context], threads: Threads) -> None:
        super().__init__(replace(graph, tail=None), device, make_context)
        taken = {info.name for info in tail.inputs}
        there = taken.union(info.name for info in graph.outputs)
        if not taken.issuperset(info.name for info in graph.inputs):
            raise ValueError("the network reads inputs that are not inputs of the plan")
        if not there.issuperset(tail.reads):
            raise ValueError("the end of the network reads undefined values")
        file = graph.file or graph.name
        if not onnx_model.has_runtime():
            raise UnsupportedError(f"{file}: needs ONNX Runtime: {installing('onnxruntime')}")
        self.network = graph
        self._tail = tail
        self._source = next((source for source, _ in nodes_of(tail.model)), "the outputs")
        try:
            self._session = Session(tail.model.tobytes(), tail.constants,
                                    threads=number_of(threads))
        except UnsupportedError as error:
            raise UnsupportedError(f"{file}: {self._source} and the nodes after it: {error}"
                                   ) from None
        computed = {info.name for info in graph.outputs}
        self._makes = [info.name for info in tail.outputs if info.name not in computed]
        if (self._session.inputs, self._session.outputs) != (len(tail.reads), len(self._makes)):
            raise ValueError("the end of the network reads or writes other values than its model")

    def __call__(self, inputs: tuple[Any, ...], named: Mapping[str, Any] | None = None,
                 out: Any = None, stream: Any = None) -> Any:
        self.check_usable()
        given = binding.in_order(self.network, inputs, named or {})
        values = {info.name: _as_taken(info, binding.on_host(value))
                  for info, value in zip(self._tail.inputs, given, strict=True)}
        computed: dict[str, Any] = {}
        if self.graph.outputs:
            results = super().__call__(tuple(values[info.name] for info in self.graph.inputs))
            computed = dict(zip((info.name for info in self.graph.outputs),
                                results if isinstance(results, tuple) else (results,), strict=True))
        there = {**values, **computed}
        for info in (*self.network.inputs, *self.network.outputs):
            # callers' arrays may have other dtypes than those with which the network computes
            there[info.name] = np.asarray(there[info.name], info.dtype)
        try:
            made = self._run([there[name] for name in self._tail.reads])
        except InputError as error:
            raise InputError(f"{self._source} and the nodes after it: {error}") from None
        computed.update(zip(self._makes, made, strict=True))
        outputs = tuple(computed[info.name] for info in self._tail.outputs)
        return single(outputs if out is None else binding.fill(
            self.graph.name, self._tail.outputs, out, outputs))

    def _run(self, given: list[Any]) -> list[Any]:
        """Return the tail's outputs for the values that it reads."""
        if all(np.size(value) for value in given if isinstance(value, np.ndarray)):
            return self._session.run(given)
        model, constants = parsed(self._tail.model.tobytes()), self._tail.constants
        values = merged(constants, given)
        fatal = fatal_node(model, [getattr(value, "shape", None) for value in values], constants)
        return run_empty(model, values, given, self._session, fatal)

    def error(self, what: str) -> InputError:
        """Return the error of a call that data-dependent shapes make impossible.

        what: the impossible action as text, such as "be bound".
        """
        return InputError(f"{self.graph.name} cannot {what}: {self._source} and the nodes after "
                          "it have data-dependent shapes; call the plan with arrays")


def _as_taken(info: ValueInfo, value: Any) -> Any:
    """Return an input as ONNX Runtime accepts it.

    Raises InputError for numbers if strings are expected, and for strings if numbers are expected.
    """
    if info.dtype == "string":
        array = np.asarray(value)
        if array.dtype.kind not in "OUS":
            raise InputError(f"input {quoted(info.name)} is an array of {array.dtype}, expected "
                             "strings")
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
