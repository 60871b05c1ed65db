"""Calls of a network whose end ONNX Runtime computes from the results of the plan's program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from gossamer import host_library
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError, quoted
from gossamer.model.graph import Graph, Tail, ValueInfo
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.ops.host_threads import Threads, number_of
from gossamer.ops.onnx_part.empty import fatal_node, merged, run_empty
from gossamer.ops.onnx_part.session import Session, parsed
from gossamer.plan.program import Program
from gossamer.plan.run.binding import fill, in_order, single
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.context import Context
from gossamer.plan.run.foreign import is_foreign, on_host

_NUMBERS = "biufc"
"""The values of dtype.kind of NumPy arrays of numbers."""


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
        there = {info.name for info in (*tail.inputs, *graph.outputs)}
        if not there.issuperset(tail.reads):
            raise ValueError("the end of the network reads what is not there")
        file = graph.file or graph.name
        if not host_library.is_installed():
            raise UnsupportedError(f"{file}: needs ONNX Runtime; pip install onnxruntime")
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
        values = {info.name: _as_taken(info, on_host(value) if is_foreign(value) else value)
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
        """Returns what the tail makes of the values that it reads."""
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
        """Returns the error of a call that is not possible where the data decide shapes. what:
        words for the call, such as "be bound"."""
        return InputError(f"{self._graph.name} cannot {what}: {self._source} and what follows it "
                          "have shapes that the data decide; call the plan with arrays")


def _as_taken(info: ValueInfo, value: Any) -> Any:
    """Returns an input of a network as ONNX Runtime accepts it. Raises InputError for numbers where
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
