"""Graphs as PyTorch modules, for networks without PyTorch code; needs torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional

from gossamer.bench.peers.nearest_resize import nearest_positions, repetitions
from gossamer.errors import UnsupportedError
from gossamer.expression import Expression
from gossamer.model.graph import Graph, Node, StaticGraph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise


def _hard_sigmoid(x: torch.Tensor, slope: float, shift: float) -> torch.Tensor:
    return torch.clamp(x * slope + shift, 0, 1)


def _least(x: Any, y: Any) -> torch.Tensor:
    return _limited(torch.minimum, "max", x, y)


def _greatest(x: Any, y: Any) -> torch.Tensor:
    return _limited(torch.maximum, "min", x, y)


def _limited(function: Callable[..., torch.Tensor], limit: str, x: Any, y: Any) -> torch.Tensor:
    """Return the minimum or maximum of two values.

    One of the values may be a number. In that case torch.clamp is called with the number as the
    limit, because torch.minimum and torch.maximum accept only tensors.
    """
    for tensor, number in ((x, y), (y, x)):
        if not isinstance(number, torch.Tensor):
            return torch.clamp(tensor, **{limit: number})
    return function(x, y)


def _as_number(compare: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return a comparison that returns 1 or 0 in its arguments' dtype."""
    def compared(x: Any, y: Any) -> torch.Tensor:
        dtype = next(each.dtype for each in (x, y) if isinstance(each, torch.Tensor))
        return compare(x, y).to(dtype)  # type: ignore[no-any-return]

    return compared


def _where(condition: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return torch.where(condition != 0, x, y).to(condition.dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "min": _least, "max": _greatest, "neg": torch.neg, "abs": torch.abs,
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "tanh": torch.tanh,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "atan": torch.atan,
    "erf": torch.erf, "floor": torch.floor, "round": torch.round,
    "to_float16": lambda x: x.half().to(x.dtype), "to_bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "sigmoid": torch.sigmoid,
    "sign": torch.sign, "relu": torch.relu, "clip": torch.clamp,
    "leaky_relu": functional.leaky_relu, "hard_sigmoid": _hard_sigmoid,
    "less": _as_number(operator.lt), "less_equal": _as_number(operator.le),
    "greater": _as_number(operator.gt), "greater_equal": _as_number(operator.ge), "where": _where}
"""The torch function for each function of an expression, with the same arguments and constants.

One of two arguments may be a number instead of a tensor.
"""


def graph_module(graph: Graph, batch: int) -> nn.Module:
    """Return a module in evaluation mode that computes a graph.

    The module accepts this batch size, and returns the graph's output, or a tuple of its outputs.
    It calls torch once for each op and for each step of an expression. Batch norms are folded.

    Raises UnsupportedError for an op or attribute that cannot be translated.
    """
    return _Writer(resolve(optimise(graph), batch)).module()


class _Writer:
    """Translator from the nodes of a static graph to torch calls.

    _values: the torch.fx node of each value of the graph.
    """

    def __init__(self, static: StaticGraph) -> None:
        self.static = static
        self._root = nn.Module()
        self._calls = fx.Graph()
        self._values: dict[str, fx.Node] = {}

    def module(self) -> nn.Module:
        graph = self.static.graph
        for index, info in enumerate(graph.inputs):
            self._values[info.name] = self._calls.placeholder(f"input_{index}")
        for node in self.static.nodes:
            write = _RULES.get(node.op)
            if write is None:
                raise self.refused(node)
            self._values[node.outputs[0]] = write(self, node)
        outputs = tuple(self.value(info.name) for info in graph.outputs)
        self._calls.output(outputs if len(outputs) > 1 else outputs[0])
        return fx.GraphModule(self._root, self._calls).eval().requires_grad_(False)

    def refused(self, node: Node) -> UnsupportedError:
        """Return the error for a node that cannot be translated."""
        return UnsupportedError(f"{self.static.graph.name}: {node.source or node.name} ({node.op})"
                                " cannot be translated to PyTorch")

    def value(self, name: str) -> fx.Node:
        """Return the torch.fx node of a value; a constant becomes a parameter."""
        if name not in self._values:
            attribute = f"constant_{len(self._values)}"
            array = np.ascontiguousarray(self.static.constants[name])
            self._root.register_parameter(attribute, nn.Parameter(
                torch.from_numpy(array.copy()), requires_grad=False))
            self._values[name] = self._calls.get_attr(attribute)
        return self._values[name]

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        return self._calls.call_function(function, arguments, options)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.static.shapes[name]

    def is_constant(self, name: str) -> bool:
        return name in self.static.constants

    def expression(self, node: Node, expression: Expression, known: Sequence[Any]) -> fx.Node:
        """Translate an expression with one result.

        known: the expression's inputs, followed by the results of its first steps if they are
        already translated.
        """
        results = list(known)
        if len(expression.outputs) != 1:
            raise self.refused(node)
        for step in expression.steps[len(known) - expression.inputs:]:
            if step.function == "constant":
                results.append(step.constants[0])
            elif step.function in _FUNCTIONS:
                results.append(self.call(_FUNCTIONS[step.function],
                                         *(results[index] for index in step.arguments),
                                         *step.constants))
            else:
                raise self.refused(node)
        return results[expression.outputs[0]]  # type: ignore[no-any-return]

    def with_epilogue(self, node: Node, layer: Callable[[fx.Node | None], fx.Node],
                      channel_axes: int) -> fx.Node:
        """Translate a layer and its epilogue.

        If the epilogue's first step adds a bias, the bias becomes an argument of the layer's call.

        layer: function that translates the layer with a bias or None.
        channel_axes: number of axes after the channel axis.
        """
        expression, operands = node.attributes["epilogue"], node.inputs[2:]
        known = [self._operand(name, channel_axes) for name in operands]
        bias = self._bias(expression, operands)
        if bias is None:
            return self.expression(node, expression, [layer(None), *known])
        flat = self.call(torch.reshape, self.value(bias), (-1,))
        return self.expression(node, expression, [None, *known, layer(flat)])

    def _bias(self, expression: Expression, operands: Sequence[str]) -> str | None:
        """Return the bias that the first step of an epilogue adds.

        None if the first step does not add a constant to the layer's result, or if a later step
        needs the result without the bias.
        """
        if not expression.steps or expression.steps[0].function != "add":
            return None
        first, *others = expression.steps
        later = {*expression.outputs, *(index for step in others for index in step.arguments)}
        low, high = sorted(first.arguments)
        if low != 0 or high == 0 or 0 in later or not self.is_constant(operands[high - 1]):
            return None
        return operands[high - 1]

    def _operand(self, name: str, channel_axes: int) -> fx.Node:
        """Return an operand of an epilogue; a constant is reshaped to broadcast over channels."""
        if not self.is_constant(name):
            return self.value(name)
        return self.call(torch.reshape, self.value(name), (-1, *[1] * channel_axes))


def _conv2d(writer: _Writer, node: Node) -> fx.Node:
    a = node.attributes
    x, pads = writer.value(node.inputs[0]), tuple(a["pads"])
    if pads[:2] != pads[2:]:
        x = writer.call(functional.pad, x, (pads[1], pads[3], pads[0], pads[2]))
        pads = (0, 0, 0, 0)
    weight = writer.value(node.inputs[1])
    return writer.with_epilogue(node, lambda bias: writer.call(
        functional.conv2d, x, weight, bias, tuple(a["strides"]), pads[:2], tuple(a["dilations"]),
        a["groups"]), 2)


def _gemm(writer: _Writer, node: Node) -> fx.Node:
    a = node.attributes
    x, weight = map(writer.value, node.inputs[:2])
    if a["trans_a"]:
        x = writer.call(torch.t, x)
    if not a["trans_b"]:
        weight = writer.call(torch.t, weight)
    return writer.with_epilogue(
        node, lambda bias: writer.call(functional.linear, x, weight, bias), 0)


def _pool(writer: _Writer, node: Node) -> fx.Node:
    a = node.attributes
    x, pads = writer.value(node.inputs[0]), tuple(a["pads"])
    is_max = a["kind"] == "max"
    if pads[:2] != pads[2:] or any(2 * pad > size for pad, size in zip(
            pads[:2], a["kernel"], strict=True)):
        if not is_max or a["ceil_mode"]:
            raise writer.refused(node)
        x = writer.call(functional.pad, x, (pads[1], pads[3], pads[0], pads[2]), "constant",
                        float("-inf"))
        pads = (0, 0, 0, 0)
    window = (tuple(a["kernel"]), tuple(a["strides"]), pads[:2])
    if is_max:
        return writer.call(functional.max_pool2d, x, *window, tuple(a["dilations"]),
                           bool(a["ceil_mode"]))
    if tuple(a["dilations"]) != (1, 1):
        raise writer.refused(node)
    return writer.call(functional.avg_pool2d, x, *window, bool(a["ceil_mode"]),
                       bool(a["count_include_pad"]))


def _pad(writer: _Writer, node: Node) -> fx.Node:
    a = node.attributes
    if a["mode"] != "constant":
        raise writer.refused(node)
    pads, rank = tuple(a["pads"]), len(writer.shape(node.inputs[0]))
    last_first = [size for axis in reversed(range(rank)) for size in pads[axis::rank]]
    return writer.call(functional.pad, writer.value(node.inputs[0]), tuple(last_first),
                       "constant", float(a.get("value") or 0.0))


def _elementwise(writer: _Writer, node: Node) -> fx.Node:
    return writer.expression(node, node.attributes["expression"],
                             [writer.value(name) for name in node.inputs])


def _reduce(writer: _Writer, node: Node) -> fx.Node:
    a = node.attributes
    functions: dict[str, Callable[..., Any]] = {
        "mean": torch.mean, "max": torch.amax, "sum": torch.sum}
    return writer.call(functions[a["kind"]], writer.value(node.inputs[0]), tuple(a["axes"]),
                       bool(a["keepdims"]))


def _reshape(writer: _Writer, node: Node) -> fx.Node:
    return writer.call(torch.reshape, writer.value(node.inputs[0]),
                       tuple(writer.shape(node.outputs[0])))


def _concat(writer: _Writer, node: Node) -> fx.Node:
    return writer.call(torch.cat, [writer.value(name) for name in node.inputs],
                       node.attributes["axis"])


def _layer_norm(writer: _Writer, node: Node) -> fx.Node:
    a, shape = node.attributes, writer.shape(node.inputs[0])
    axes = tuple(a["axes"])
    if axes != tuple(range(len(shape) - len(axes), len(shape))):
        raise writer.refused(node)
    x, scale, bias = (writer.value(name) for name in node.inputs)
    sizes = tuple(shape[axis] for axis in axes)
    if a["centred"]:
        return writer.call(functional.layer_norm, x, sizes, scale, bias, a["epsilon"])
    return writer.call(torch.add, writer.call(functional.rms_norm, x, sizes, scale, a["epsilon"]),
                       bias)


def _gather(writer: _Writer, node: Node) -> fx.Node:
    x, indices = node.inputs
    if len(writer.shape(indices)) != 1:
        raise writer.refused(node)
    return writer.call(torch.index_select, writer.value(x), node.attributes["axis"],
                       writer.value(indices))


def _softmax(writer: _Writer, node: Node) -> fx.Node:
    function = torch.log_softmax if node.attributes["log"] else torch.softmax
    return writer.call(function, writer.value(node.inputs[0]), node.attributes["axis"])


def _transpose(writer: _Writer, node: Node) -> fx.Node:
    return writer.call(torch.permute, writer.value(node.inputs[0]),
                       tuple(node.attributes["permutation"]))


def _resize(writer: _Writer, node: Node) -> fx.Node:
    positions = nearest_positions(writer.static, node)
    if positions is None or None in map(repetitions, positions, writer.shape(node.inputs[0])[2:]):
        raise writer.refused(node)
    return writer.call(functional.interpolate, writer.value(node.inputs[0]),
                       size=writer.shape(node.outputs[0])[2:], mode="nearest")


def _slice(writer: _Writer, node: Node) -> fx.Node:
    a, x = node.attributes, writer.value(node.inputs[0])
    cuts = [slice(None)] * len(writer.shape(node.inputs[0]))
    for start, end, axis, step in zip(a["starts"], a["ends"], a["axes"], a["steps"], strict=True):
        if step < 1:
            raise writer.refused(node)
        cuts[axis] = slice(start, end, step)
    return writer.call(operator.getitem, x, tuple(cuts))


_RULES: dict[str, Callable[[_Writer, Node], fx.Node]] = {
    "conv2d": _conv2d, "gemm": _gemm, "pool": _pool, "pad": _pad, "elementwise": _elementwise,
    "reduce": _reduce, "reshape": _reshape, "concat": _concat, "softmax": _softmax,
    "transpose": _transpose, "resize": _resize, "slice": _slice, "layer_norm": _layer_norm,
    "gather": _gather}
