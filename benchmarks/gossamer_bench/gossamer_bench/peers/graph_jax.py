"""A graph as one function that JAX compiles as a whole; needs jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gossamer.bench.peers.nearest_resize import nearest_positions, repetitions
from gossamer.bench.work import AbsentError
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.pool.problem import PoolProblem, counts_along
from gossamer.tensor import default_spec
from gossamer_bench.peers.expression_jax import evaluate

LAYOUTS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1)}
"""For each layout, the axes of an image (N, C, H, W) in the order of the layout."""

_FILTERS = {"NCHW": "OIHW", "NHWC": "OHWI"}
"""For each layout of images, the order of a filter's axes. The input channels have the same
position in a filter as the channels have in an image."""
_PROCESSOR_FILTERS = "HWIO"
"""The order of a filter's axes in which XLA reads filters on the processor. XLA transposes filters
with any other order in every call."""

_Item = TypeVar("_Item")


class GraphFunction:
    """A network at one batch size as a function of its weights and its input, with batch norms
    folded. The function returns a tuple of the graph's outputs.

    The axes of a tensor with four axes are in the order of the layout; the axes of other tensors
    are in the graph's order. The axes of filters are in the order that _FILTERS states for the
    layout, or on the processor in the order _PROCESSOR_FILTERS.

    weights: list of the constants, with their axes in these orders and in the precision's dtype; a
    call takes this list as its first argument.
    Raises AbsentError for an op that this file does not translate.
    """

    def __init__(self, graph: Graph, batch: int, layout: str, precision: str, *,
                 on_processor: bool) -> None:
        self.static = resolve(optimise(graph), batch)
        self.layout = layout
        self.dtype = np.dtype("float16" if precision == "fp16" else "float32")
        # DEFAULT lets XLA use TF32 for float32 on a GPU
        self.precision = lax.Precision.HIGHEST if precision == "fp32" else lax.Precision.DEFAULT
        filters, others = set[str](), {info.name for info in graph.outputs}
        for node in self.static.nodes:
            for index, name in enumerate(node.inputs):
                (filters if node.op == "conv2d" and index == 1 else others).add(name)
        self._names = [name for name in self.static.constants if name in filters | others]
        self._reordered = filters.intersection(self._names) - others if on_processor else set()
        self.weights = [self._weight(name) for name in self._names]
        for node in self.static.nodes:
            if node.op not in _RULES or any(self.static.dtypes[name] != "float32"
                                            for name in node.outputs if name):
                raise self.refused(node)

    def __call__(self, weights: Sequence[Any], x: Any) -> tuple[Any, ...]:
        graph = self.static.graph
        run = _Run(self, {**dict(zip(self._names, weights, strict=True)), graph.inputs[0].name: x})
        for node in self.static.nodes:
            results = _RULES[node.op](run, node)
            run.values.update(zip(node.outputs, results, strict=True))
        return tuple(run.values[info.name] for info in graph.outputs)

    def stored(self, array: np.ndarray) -> np.ndarray:
        """Returns an array of the graph as the function expects it: in the layout and the
        precision's dtype."""
        return self._in_memory(array, self.order(range(array.ndim)))

    def filter_order(self, name: str) -> str:
        """Returns the order of the axes of a convolution's filter."""
        return _PROCESSOR_FILTERS if name in self._reordered else _FILTERS[self.layout]

    def _weight(self, name: str) -> np.ndarray:
        array = self.static.constants[name]
        if name not in self._reordered:
            return self.stored(array)
        return self._in_memory(array, ["OIHW".index(axis) for axis in self.filter_order(name)])

    def _in_memory(self, array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """Returns an array with its axes in the order `axes`, and floats in the precision's
        dtype."""
        if array.dtype.kind == "f":
            array = array.astype(self.dtype)
        return np.ascontiguousarray(array.transpose(axes))

    def in_graph(self, array: np.ndarray) -> np.ndarray:
        """Returns a result of the function in float32, with its axes as in the graph."""
        axes = np.argsort(self.order(range(array.ndim)))
        return array.astype(np.float32).transpose(axes)

    def order(self, items: Sequence[_Item]) -> tuple[_Item, ...]:
        """Returns the items in the layout's order of axes. items: one item for each axis of a
        tensor, in the graph's order."""
        return tuple(items[axis] for axis in (LAYOUTS[self.layout] if len(items) == 4
                                              else range(len(items))))

    def refused(self, node: Node) -> AbsentError:
        """Returns the error for a node that this file does not translate."""
        return AbsentError(f"{self.static.graph.name}: {node.source or node.name} ({node.op}) has "
                           "no form in JAX here")


class _Run:
    """One evaluation of the graph, with arrays or with the tracers that JAX uses in place of
    arrays.

    values: arrays that are known so far, by their names in the graph.
    """

    def __init__(self, function: GraphFunction, values: dict[str, Any]) -> None:
        self.function = function
        self.values = values

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a value's shape in the graph."""
        return self.function.static.shapes[name]

    def axis(self, node: Node, axis: int) -> int:
        """Returns the index of an axis in the layout. axis: the axis of a node's first input in the
        graph."""
        rank = len(self.shape(node.inputs[0]))
        return self.function.order(range(rank)).index(axis % rank)

    def plain(self, value: Any) -> Any:
        """Returns a value with its axes as in the graph."""
        return jnp.transpose(value, np.argsort(self.function.order(range(value.ndim))).tolist())

    def placed(self, value: Any) -> Any:
        """Returns a value whose axes are as in the graph, transposed to the layout."""
        return jnp.transpose(value, self.function.order(range(value.ndim)))

    def operand(self, name: str, rank: int) -> Any:
        """Returns a value with `rank` axes, so that it broadcasts to other values of this rank."""
        value = self.values[name]
        if value.ndim == rank:
            return value
        value = self.plain(value)
        return self.placed(value.reshape((1,) * (rank - value.ndim) + value.shape))

    def with_epilogue(self, node: Node, result: Any, channel_axis: int) -> list[Any]:
        """Returns the results of a layer's epilogue on the layer's result. channel_axis: axis of
        the channels in the graph."""
        sizes = [1] * result.ndim
        sizes[channel_axis] = -1
        by_channel = self.function.order(sizes)
        operands = [self.values[name].reshape(by_channel)
                    if name in self.function.static.constants else self.values[name]
                    for name in node.inputs[2:]]
        return evaluate(node.attributes["epilogue"], [result, *operands])


def _conv2d(run: _Run, node: Node) -> list[Any]:
    a, (x, weight), layout = node.attributes, node.inputs[:2], run.function.layout
    top, left, bottom, right = a["pads"]
    return run.with_epilogue(node, lax.conv_general_dilated(
        run.values[x], run.values[weight], a["strides"], [(top, bottom), (left, right)],
        rhs_dilation=a["dilations"],
        dimension_numbers=(layout, run.function.filter_order(weight), layout),
        feature_group_count=a["groups"], precision=run.function.precision), 1)


def _gemm(run: _Run, node: Node) -> list[Any]:
    a, (x, weight) = node.attributes, (run.plain(run.values[name]) for name in node.inputs[:2])
    summed = ((0 if a["trans_a"] else x.ndim - 1,), (1 if a["trans_b"] else 0,))
    product = lax.dot_general(x, weight, (summed, ((), ())), precision=run.function.precision)
    return run.with_epilogue(node, run.placed(product), -1)


def _matmul(run: _Run, node: Node) -> list[Any]:
    x, y = (run.plain(run.values[name]) for name in node.inputs)
    return [run.placed(jnp.matmul(x, y, precision=run.function.precision))]


def _elementwise(run: _Run, node: Node) -> list[Any]:
    rank = len(run.shape(node.outputs[0]))
    results = evaluate(node.attributes["expression"],
                       [run.operand(name, rank) for name in node.inputs])
    shape = run.function.order(run.shape(node.outputs[0]))
    return [jnp.broadcast_to(jnp.asarray(result, run.function.dtype), shape) for result in results]


def _pool(run: _Run, node: Node) -> list[Any]:
    a, x, function = node.attributes, run.values[node.inputs[0]], run.function
    shape, out = run.shape(node.inputs[0]), run.shape(node.outputs[0])
    pads = [(0, 0), (0, 0)]
    for axis in range(2):
        # ceil_mode decides the output's size, and so where the last window ends
        covered = ((out[2 + axis] - 1) * a["strides"][axis]
                   + (a["kernel"][axis] - 1) * a["dilations"][axis] + 1)
        pads.append((a["pads"][axis], max(covered - shape[2 + axis] - a["pads"][axis], 0)))
    windows = (function.order((1, 1, *a["kernel"])), function.order((1, 1, *a["strides"])),
               function.order(pads), None, function.order((1, 1, *a["dilations"])))
    if a["kind"] == "max":
        return [lax.reduce_window(x, x.dtype.type(-np.inf), lax.max, *windows)]
    # sums of float16 would be rounded after each addition
    total = lax.reduce_window(x.astype(np.float32), np.float32(0), lax.add, *windows)
    problem = PoolProblem(default_spec(shape), a["kind"], tuple(a["kernel"]), tuple(a["strides"]),
                          tuple(a["pads"]), tuple(a["dilations"]), bool(a["ceil_mode"]),
                          bool(a["count_include_pad"]))
    counts = np.outer(counts_along(problem, 0), counts_along(problem, 1))[None, None]
    return [(total / run.placed(counts.astype(np.float32))).astype(x.dtype)]


def _pad(run: _Run, node: Node) -> list[Any]:
    a, x = node.attributes, run.values[node.inputs[0]]
    if a["mode"] != "constant":
        raise run.function.refused(node)
    low, high = (run.function.order(part) for part in (a["pads"][:x.ndim], a["pads"][x.ndim:]))
    value = x.dtype.type(a.get("value") or 0.0)
    return [lax.pad(x, value, list(zip(low, high, (0,) * x.ndim, strict=True)))]


def _resize(run: _Run, node: Node) -> list[Any]:
    shape, x = run.shape(node.inputs[0]), run.values[node.inputs[0]]
    positions = nearest_positions(run.function.static, node)
    if positions is None:
        raise run.function.refused(node)
    for axis, taken in enumerate(positions, 2):
        times, place = repetitions(taken, shape[axis]), run.axis(node, axis)
        # jnp.take reads a table of positions, and jnp.repeat needs no table
        x = (jnp.take(x, taken, place, mode="clip") if times is None
             else jnp.repeat(x, times, place))
    return [x]


def _reduce(run: _Run, node: Node) -> list[Any]:
    a = node.attributes
    reductions: dict[str, Callable[..., Any]] = {"mean": jnp.mean, "max": jnp.max, "sum": jnp.sum}
    result = reductions[a["kind"]](run.values[node.inputs[0]], tuple(
        run.axis(node, axis) for axis in a["axes"]), keepdims=True)
    if a["keepdims"]:
        return [result]
    return [run.placed(run.plain(result).reshape(run.shape(node.outputs[0])))]


def _layer_norm(run: _Run, node: Node) -> list[Any]:
    a, (x, scale, bias) = node.attributes, (run.values[name] for name in node.inputs)
    axes = tuple(run.axis(node, axis) for axis in a["axes"])
    if list(axes) != sorted(axes):
        raise run.function.refused(node)
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(x.shape))
    numbers = x.astype(np.float32)
    if a["centred"]:
        numbers = numbers - jnp.mean(numbers, axes, keepdims=True)
    variance = jnp.mean(numbers * numbers, axes, keepdims=True)
    result = numbers / jnp.sqrt(variance + np.float32(a["epsilon"]))
    return [(result * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)]


def _gather(run: _Run, node: Node) -> list[Any]:
    indices = run.function.static.constants.get(node.inputs[1])
    if indices is None or indices.ndim != 1:
        raise run.function.refused(node)
    return [jnp.take(run.values[node.inputs[0]], indices,
                     run.axis(node, node.attributes["axis"]), mode="wrap")]


def _softmax(run: _Run, node: Node) -> list[Any]:
    function = jax.nn.log_softmax if node.attributes["log"] else jax.nn.softmax
    return [function(run.values[node.inputs[0]], run.axis(node, node.attributes["axis"]))]


def _reshape(run: _Run, node: Node) -> list[Any]:
    value = run.plain(run.values[node.inputs[0]])
    return [run.placed(value.reshape(run.shape(node.outputs[0])))]


def _transpose(run: _Run, node: Node) -> list[Any]:
    value = run.plain(run.values[node.inputs[0]])
    return [run.placed(value.transpose(node.attributes["permutation"]))]


def _expand(run: _Run, node: Node) -> list[Any]:
    value = run.plain(run.values[node.inputs[0]])
    return [run.placed(jnp.broadcast_to(value, run.shape(node.outputs[0])))]


def _concat(run: _Run, node: Node) -> list[Any]:
    return [jnp.concatenate([run.values[name] for name in node.inputs],
                            run.axis(node, node.attributes["axis"]))]


def _split(run: _Run, node: Node) -> list[Any]:
    a = node.attributes
    return list(jnp.split(run.values[node.inputs[0]], np.cumsum(a["sizes"])[:-1],
                          run.axis(node, a["axis"])))


def _slice(run: _Run, node: Node) -> list[Any]:
    a, x = node.attributes, run.values[node.inputs[0]]
    cuts = [slice(None)] * x.ndim
    for start, end, axis, step in zip(a["starts"], a["ends"], a["axes"], a["steps"], strict=True):
        # in the graph, a backward slice with the end -1 includes element 0; in Python this end is
        # None
        cuts[run.axis(node, axis)] = slice(start, None if end < 0 else end, step)
    return [x[tuple(cuts)]]


_RULES: dict[str, Callable[[_Run, Node], list[Any]]] = {
    "conv2d": _conv2d, "gemm": _gemm, "matmul": _matmul, "elementwise": _elementwise,
    "pool": _pool, "pad": _pad, "resize": _resize, "reduce": _reduce, "softmax": _softmax,
    "reshape": _reshape, "transpose": _transpose, "expand": _expand, "concat": _concat,
    "split": _split, "slice": _slice, "layer_norm": _layer_norm, "gather": _gather}
