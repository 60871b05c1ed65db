"""From nodes to problems: the only place that knows both the graph's ops and the ops' problems."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.errors import UnsupportedError
from gossamer.expression import Expression, identity
from gossamer.model.graph import Node, StaticGraph
from gossamer.ops.algorithm import Epilogue, Problem, WeightsInfo
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy import problem as copying
from gossamer.ops.elementwise.problem import ElementwiseProblem, cast
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.plan.program import Layer
from gossamer.tensor import TensorSpec, default_spec


def lower(static: StaticGraph, known: dict[str, WeightsInfo] | None = None
          ) -> tuple[list[Layer], dict[str, np.ndarray]]:
    """The layers of a graph in order, and the constants that they read as run-time values.

    known: what was found out about the weights, by node; filled here, and the same at every
    batch size of one graph.
    Raises UnsupportedError that names the node where no problem expresses it.
    """
    lowering = _Lowering(static, {} if known is None else known)
    for node in static.nodes:
        rule = _RULES.get(node.op)
        if rule is None:
            raise UnsupportedError(f"{static.graph.file}: {node.source or node.name}: no kernel "
                                   f"computes {node.op!r}")
        try:
            rule(lowering, node)
        except ValueError as error:
            raise UnsupportedError(
                f"{static.graph.file}: {node.source or node.name}: {error}") from None
    for info in static.graph.outputs:
        if info.name in static.constants:
            lowering.constants[info.name] = static.constants[info.name]
    return lowering.layers, lowering.constants


class _Lowering:
    def __init__(self, static: StaticGraph, known: dict[str, WeightsInfo]) -> None:
        self.static = static
        self._known = known
        self.layers: list[Layer] = []
        self.constants: dict[str, np.ndarray] = {}
        self.read = {name for node in static.nodes for name in node.inputs}
        self.read |= {info.name for info in static.graph.outputs}

    def constant(self, name: str) -> np.ndarray | None:
        return self.static.constants.get(name)

    def weight(self, name: str) -> np.ndarray | None:
        """A constant that is the same at every batch size, so that its packed forms can be
        shared. What resolving made for this batch size is none."""
        return self.static.graph.constants.get(name)

    def spec(self, name: str) -> TensorSpec:
        array = self.constant(name)
        if array is not None:
            return default_spec(array.shape, str(array.dtype))
        return default_spec(self.static.shapes[name], self.static.dtypes[name])

    def add(self, node: Node, problem: Problem, inputs: Sequence[str],
            weights: Mapping[str, np.ndarray] | None = None, *,
            outputs: Sequence[str] | None = None, name: str | None = None) -> None:
        for value in inputs:
            array = self.constant(value)
            if array is not None:
                self.constants[value] = array
        info = getattr(problem, "weights_info", None)
        density = None if info is None else info.density
        self.layers.append(Layer(name or node.name, problem.op, list(inputs),
                                 list(outputs or node.outputs), list(problem.outputs), problem,
                                 weights or {}, density, node.source))

    def weights_info(self, node: Node, weight: np.ndarray) -> WeightsInfo:
        if node.name not in self._known:
            self._known[node.name] = _weights_info(weight)
        return self._known[node.name]

    def transposed(self, node: Node, name: str) -> str:
        """The matrix of that name, turned by a copy."""
        turned = f"{name} transposed for {node.name}"
        source = self.spec(name)
        self.add(node, copying.transpose(source, (1, 0)), [name], outputs=[turned], name=turned)
        self.define(turned, source.shape[::-1], source.dtype)
        return turned

    def define(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Makes a value known that the graph does not have."""
        self.static.shapes[name] = shape
        self.static.dtypes[name] = dtype

    def reshape(self, node: Node, source: str, target: str, shape: Sequence[int]) -> None:
        """The same memory under another shape."""
        spec = default_spec(tuple(shape), self.spec(source).dtype)
        if self.constant(source) is not None:
            self.constants[source] = self.static.constants[source]
        self.layers.append(Layer(node.name, "reshape", [source], [target], [spec],
                                 source=node.source))

    def epilogue(self, node: Node) -> tuple[Epilogue, list[str], dict[str, np.ndarray]]:
        """The node's epilogue, the run-time values it reads and its constants."""
        expression: Expression = node.attributes.get("epilogue") or identity()
        kinds, values, weights = [], [], {}
        for index, name in enumerate(node.inputs[2:]):
            array = self.weight(name)
            if array is None:
                kinds.append("tensor")
                values.append(name)
            else:
                kinds.append("channel")
                weights[f"operand{index}"] = array
        return Epilogue(expression, tuple(kinds)), values, weights


def _weights_info(weight: np.ndarray) -> WeightsInfo:
    if not weight.size:
        return WeightsInfo()
    nonzero = weight != 0
    if nonzero.all():
        density, pattern = 1.0, ""
    else:
        density = float(np.count_nonzero(nonzero)) / weight.size
        pattern = hashlib.sha256(np.packbits(nonzero).tobytes()).hexdigest()[:16]
    magnitudes = np.abs(weight.reshape(len(weight), -1))
    binary = bool(magnitudes.min() > 0 and (magnitudes == magnitudes[:, :1]).all())
    return WeightsInfo(density, pattern, binary)


def _conv2d(lowering: _Lowering, node: Node) -> None:
    weight = lowering.weight(node.inputs[1])
    if weight is None:
        raise ValueError("the weights are computed at run time, expected a constant")
    attributes = node.attributes
    epilogue, values, weights = lowering.epilogue(node)
    n, c, h, w = lowering.spec(node.inputs[0]).shape
    problem = Conv2dProblem(
        n, c, h, w, weight.shape[0], (weight.shape[2], weight.shape[3]),
        tuple(attributes["strides"]), tuple(attributes["pads"]), tuple(attributes["dilations"]),
        attributes["groups"], epilogue, lowering.weights_info(node, weight))
    if min(problem.pads) < 0:
        raise ValueError(f"pads {problem.pads} are negative; crop the input with Slice instead")
    lowering.add(node, problem, [node.inputs[0], *values],
                 {"weight": weight, **weights})


def _gemm(lowering: _Lowering, node: Node) -> None:
    a, b = node.inputs[:2]
    attributes = node.attributes
    if attributes.get("trans_a"):
        a = lowering.transposed(node, a)
    weight = lowering.weight(b)
    if weight is None:
        _gemm_of_values(lowering, node, a, b)
        return
    if not attributes.get("trans_b"):
        weight = weight.T
    epilogue, values, weights = lowering.epilogue(node)
    rows, depth = lowering.spec(a).shape
    problem = GemmProblem(rows, weight.shape[0], depth, epilogue,
                          lowering.weights_info(node, weight))
    lowering.add(node, problem, [a, *values], {"weight": weight, **weights})


def _gemm_of_values(lowering: _Lowering, node: Node, a: str, b: str) -> None:
    """A product of two run-time matrices, and its epilogue as a layer of its own."""
    if node.attributes.get("trans_b"):
        b = lowering.transposed(node, b)
    problem = MatmulProblem(lowering.spec(a), lowering.spec(b))
    expression = node.attributes.get("epilogue") or identity()
    if expression.is_identity:
        lowering.add(node, problem, [a, b])
        return
    product = f"product of {node.name}"
    lowering.define(product, problem.outputs[0].shape, problem.outputs[0].dtype)
    lowering.add(node, problem, [a, b], outputs=[product], name=product)
    _expression(lowering, node, [product, *node.inputs[2:]], expression)


def _elementwise(lowering: _Lowering, node: Node) -> None:
    _expression(lowering, node, node.inputs, node.attributes["expression"])


def _expression(lowering: _Lowering, node: Node, operands: Sequence[str],
                expression: Expression) -> None:
    arrays = [lowering.weight(name) for name in operands]
    constants = tuple(i for i, array in enumerate(arrays) if array is not None)
    dtypes = tuple(lowering.static.dtypes[name] for name in node.outputs)
    problem = ElementwiseProblem(tuple(lowering.spec(name) for name in operands), expression,
                                 dtypes, constants)
    weights = {f"operand{i}": array for i, array in enumerate(arrays) if array is not None}
    values = [name for name, array in zip(operands, arrays, strict=True) if array is None]
    lowering.add(node, problem, values, weights)


def _cast(lowering: _Lowering, node: Node) -> None:
    source = lowering.spec(node.inputs[0])
    lowering.add(node, cast(source, node.attributes["dtype"]), node.inputs)


def _conv_transpose2d(lowering: _Lowering, node: Node) -> None:
    weight = lowering.weight(node.inputs[1])
    bias = lowering.weight(node.inputs[2]) if len(node.inputs) > 2 else None
    if weight is None or (bias is None and len(node.inputs) > 2):
        raise ValueError("the weights are computed at run time, expected constants")
    attributes = node.attributes
    problem = ConvTranspose2dProblem(
        lowering.spec(node.inputs[0]), weight.shape[1] * attributes["groups"],
        (weight.shape[2], weight.shape[3]), tuple(attributes["strides"]),
        tuple(attributes["pads"]), tuple(attributes["dilations"]),
        tuple(attributes["output_padding"]), attributes["groups"], bias is not None)
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    lowering.add(node, problem, node.inputs[:1], weights)


def _pool(lowering: _Lowering, node: Node) -> None:
    a = node.attributes
    lowering.add(node, PoolProblem(
        lowering.spec(node.inputs[0]), a["kind"], tuple(a["kernel"]), tuple(a["strides"]),
        tuple(a["pads"]), tuple(a["dilations"]), bool(a["ceil_mode"]),
        bool(a["count_include_pad"])), node.inputs[:1])


def _reduce(lowering: _Lowering, node: Node) -> None:
    a = node.attributes
    lowering.add(node, ReduceProblem(lowering.spec(node.inputs[0]), a["kind"], tuple(a["axes"]),
                                     bool(a["keepdims"])), node.inputs[:1])


def _concat(lowering: _Lowering, node: Node) -> None:
    parts = tuple(lowering.spec(name) for name in node.inputs)
    axis = node.attributes["axis"] % len(parts[0].shape)
    lowering.add(node, ConcatProblem(parts, axis), node.inputs)


def _split(lowering: _Lowering, node: Node) -> None:
    source = lowering.spec(node.inputs[0])
    axis = node.attributes["axis"] % len(source.shape)
    parts = copying.split(source, axis, node.attributes["sizes"])
    for index, (problem, output) in enumerate(zip(parts, node.outputs, strict=True)):
        if output in lowering.read:
            lowering.add(node, problem, node.inputs[:1], outputs=[output],
                         name=f"{node.name}.{index}")


def _slice(lowering: _Lowering, node: Node) -> None:
    a = node.attributes
    source = lowering.spec(node.inputs[0])
    # in a graph -1 stands before the first element; for slice_ it counts from the last
    ends = [-source.shape[axis] - 1 if end < 0 else end
            for end, axis in zip(a["ends"], a["axes"], strict=True)]
    lowering.add(node, copying.slice_(source, a["starts"], ends, a["axes"], a["steps"]),
                 node.inputs[:1])


def _reshape(lowering: _Lowering, node: Node) -> None:
    lowering.reshape(node, node.inputs[0], node.outputs[0],
                     lowering.static.shapes[node.outputs[0]])


def _transpose(lowering: _Lowering, node: Node) -> None:
    lowering.add(node, copying.transpose(lowering.spec(node.inputs[0]),
                                         node.attributes["permutation"]), node.inputs[:1])


def _expand(lowering: _Lowering, node: Node) -> None:
    lowering.add(node, copying.expand(lowering.spec(node.inputs[0]),
                                      lowering.static.shapes[node.outputs[0]]), node.inputs[:1])


def _pad(lowering: _Lowering, node: Node) -> None:
    a = node.attributes
    lowering.add(node, PadProblem(lowering.spec(node.inputs[0]), tuple(a["pads"]), a["mode"],
                                  float(a.get("value") or 0.0)), node.inputs[:1])


def _resize(lowering: _Lowering, node: Node) -> None:
    """Ranks 3 to 4: a missing height stands as 1."""
    a = node.attributes
    source = lowering.spec(node.inputs[0])
    sizes, scales = tuple(a["sizes"]), tuple(a["scales"])
    rules = (a["mode"], a["coordinates"], a["nearest_mode"])
    if len(source.shape) == 4:
        lowering.add(node, ResizeProblem(source, sizes, scales, *rules), node.inputs[:1])
        return
    if len(source.shape) != 3:
        raise ValueError(f"resizes the spatial dimensions of rank 3 or 4, got {source}")
    n, c, w = source.shape
    lifted, result = f"{node.name} lifted", f"{node.name} resized"
    lowering.reshape(node, node.inputs[0], lifted, (n, c, 1, w))
    problem = ResizeProblem(default_spec((n, c, 1, w), source.dtype), (1, *sizes), (1.0, *scales),
                            *rules)
    lowering.add(node, problem, [lifted], outputs=[result], name=result)
    lowering.define(result, problem.outputs[0].shape, source.dtype)
    lowering.reshape(node, result, node.outputs[0], lowering.static.shapes[node.outputs[0]])


def _softmax(lowering: _Lowering, node: Node) -> None:
    source = lowering.spec(node.inputs[0])
    axis = node.attributes["axis"] % len(source.shape)
    lowering.add(node, SoftmaxProblem(source, axis, bool(node.attributes["log"])),
                 node.inputs[:1])


def _gather(lowering: _Lowering, node: Node) -> None:
    data, indices = node.inputs
    source = lowering.spec(data)
    lowering.add(node, GatherProblem(source, lowering.spec(indices),
                                     node.attributes["axis"] % len(source.shape)), [data, indices])


def _matmul(lowering: _Lowering, node: Node) -> None:
    a, b = node.inputs
    weight = lowering.weight(b)
    left = lowering.spec(a)
    if weight is not None and weight.ndim == 2 and len(left.shape) == 2:
        problem = GemmProblem(left.shape[0], weight.shape[1], left.shape[1],
                              weights_info=lowering.weights_info(node, weight.T))
        lowering.add(node, problem, [a], {"weight": weight.T})
        return
    lowering.add(node, MatmulProblem(left, lowering.spec(b)), [a, b])


_RULES: dict[str, Callable[[_Lowering, Node], Any]] = {
    "cast": _cast,
    "concat": _concat,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "elementwise": _elementwise,
    "expand": _expand,
    "gather": _gather,
    "gemm": _gemm,
    "matmul": _matmul,
    "pad": _pad,
    "pool": _pool,
    "reduce": _reduce,
    "reshape": _reshape,
    "resize": _resize,
    "slice": _slice,
    "softmax": _softmax,
    "split": _split,
    "transpose": _transpose,
}
