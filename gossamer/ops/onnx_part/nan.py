"""Make ONNX models propagate NaN in ONNX Runtime.

ONNX Runtime ignores NaN in operators that compute a maximum, a minimum or the index of one. A model
with these operators is therefore rewritten to two forms. The first form has an additional output,
which is NaN if one of the operators has read NaN. This output costs little, and does not affect the
layouts that ONNX Runtime chooses. The second form propagates NaN, and runs only if the first form
has found NaN. Values within subgraphs cannot become outputs, so both forms propagate NaN in
subgraphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from gossamer.onnx_model import ModelWriter, nodes_of, nodes_within, subgraphs

_POOLS = frozenset(("GlobalMaxPool", "MaxPool"))
_REDUCTIONS = frozenset(("ReduceMax", "ReduceMin"))
_POSITIONS = frozenset(("ArgMax", "ArgMin"))
_WATCHED = _POOLS | _REDUCTIONS | _POSITIONS
_REWRITTEN = frozenset((("Sign", TensorProto.FLOAT16), ("LogSoftmax", TensorProto.DOUBLE)))
"""Pairs of an operator and the only type in which it loses NaN. Both forms of a model propagate NaN
through these operators."""
_LOSING = _WATCHED | {operator for operator, _ in _REWRITTEN}
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16))
_FIRST_OPSET = 9
"""The first opset of ONNX with both IsNaN and Where."""
_MOST_PIXELS = 2.0**30
"""An upper bound of the number of pixels of an image."""
_PREFIX = "gossamer/nan"


def losing_nan(model: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime might not propagate NaN in a model."""
    return _opset(model) >= _FIRST_OPSET and _loses(nodes_of(model))


def watch(model: onnx.ModelProto) -> bool:
    """Rewrite a model to its first form.

    Returns whether the additional output was added. If not, the rewritten model itself propagates
    NaN.
    """
    rewriter = _Rewriter(model)
    watched = rewriter.rewrite(model.graph, keeps_watched=True)
    if watched:
        rewriter.watch(watched)
    return bool(watched)


def let_through(model: onnx.ModelProto) -> None:
    """Rewrite a model to its second form."""
    _Rewriter(model).rewrite(model.graph, keeps_watched=False)


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import
                if entry.domain in ("", "ai.onnx")), default=0)


def _loses(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(node.op_type in _LOSING for node in nodes)


class _Rewriter:
    """Rewrites the graphs of a model.

    The functions of the model are inlined first.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        if any(_loses(nodes_within(function.node)) for function in model.functions):
            model.CopyFrom(inliner.inline_local_functions(model))
        self._graph = model.graph
        self._opset = _opset(model)
        self._writer = ModelWriter(_PREFIX)
        # ONNX's inference is used for types only, because it finds wrong shapes for some pools
        self._inferred = shape_inference.infer_shapes(model).graph
        self._shapes = {
            **{info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
               for info in model.graph.input},
            **{tensor.name: list(tensor.dims) for tensor in model.graph.initializer}}

    def rewrite(self, graph: onnx.GraphProto, inferred: onnx.GraphProto | None = None,
                outer: Mapping[str, int] | None = None, *,
                keeps_watched: bool) -> dict[str, onnx.NodeProto]:
        """Make the nodes of a graph and of its subgraphs propagate NaN.

        inferred: this graph with the types that ONNX's inference found.
        outer: types of the values of the enclosing graphs.
        keeps_watched: whether nodes of the graph itself are kept if their inputs can be watched
        instead; nodes of subgraphs are always rewritten.

        Returns the values that must be watched for NaN, each with a node that reads the value.
        """
        inferred = inferred or self._inferred
        types = _types(inferred, outer or {})
        watched: dict[str, onnx.NodeProto] = {}
        nodes: list[onnx.NodeProto] = []
        lost: set[str] = set()
        for node, typed in zip(graph.node, inferred.node, strict=True):
            for inner, inner_typed in zip(subgraphs(node), subgraphs(typed), strict=True):
                self.rewrite(inner, inner_typed, types, keeps_watched=False)
            kind = types.get(node.input[0], 0) if node.input else 0
            is_watched = node.op_type in _WATCHED and kind in _FLOATS
            if node.domain not in ("", "ai.onnx") or not (
                    is_watched or (node.op_type, kind) in _REWRITTEN):
                nodes.append(node)
            elif is_watched and keeps_watched:
                nodes.append(node)
                # The output of a watched node need not be watched: a NaN that the node loses is
                # found at the node's input.
                if node.input[0] not in lost:
                    watched.setdefault(node.input[0], node)
                lost.update(node.output[:1])
            else:
                self._let_through(node, kind)
                nodes += self._writer.nodes
                self._writer.nodes.clear()
        del graph.node[:]
        graph.node.extend(nodes)
        return watched

    def watch(self, watched: Mapping[str, onnx.NodeProto]) -> None:
        """Add an output that is NaN if a watched value has NaN.

        The output may also be NaN if a value has, or may have, infinities. Images are reduced by a
        mean over the pixels, because ONNX Runtime computes this mean in the layout that it has
        chosen for the images.
        """
        write, types = self._writer.node, _types(self._inferred, {})
        producers = {output: node for node in self._graph.node for output in node.output}
        sums = []
        readers: dict[str, list[onnx.NodeProto]] = {}
        for value, node in watched.items():
            if types[value] != TensorProto.FLOAT:
                value = write("Cast", [value], to=TensorProto.FLOAT)
            if node.op_type not in _POOLS:
                sums.append(write("ReduceSum", [value], keepdims=0))
                continue
            for source, convolution in self._sources(value, producers):
                if convolution is not None:
                    readers.setdefault(source, []).append(convolution)
                    continue
                mean = write("GlobalAveragePool", [source])
                sums.append(write("ReduceSum", [mean], keepdims=0))
        bounds = []
        for value, convolutions in readers.items():
            weights = write("Sum", [self._size(node.input[1]) for node in convolutions])
            if value in producers and producers[value].op_type == "Relu":
                value = write("GlobalAveragePool", [value])
                weights = self._product(weights, _MOST_PIXELS)
            bounds.append(write("Mul", [self._size(value), weights]))
            bounds += [self._size(name) for node in convolutions for name in node.input[2:]]
        if bounds:
            # If the output of a convolution may be infinite or NaN, its bound is infinite or NaN.
            # The product of such a bound and zero is NaN.
            sums.append(self._product(write("Sum", bounds), 0.0))
        total = sums[0] if len(sums) == 1 else write("Sum", sums)
        self._graph.node.extend(self._writer.nodes)
        self._graph.output.append(helper.make_tensor_value_info(total, TensorProto.FLOAT, []))

    def _sources(self, value: str, producers: Mapping[str, onnx.NodeProto]
                 ) -> Iterator[tuple[str, onnx.NodeProto | None]]:
        """Find the values from which NaN in images can originate.

        Yields (value, None) for a value that must be watched itself. If a value is the output of a
        convolution, and the input of this convolution is smaller, the input is watched instead;
        (input, convolution) is then yielded.
        """
        node = producers.get(value)
        if node is not None and node.op_type in ("Relu", "Concat"):
            for name in node.input:
                yield from self._sources(name, producers)
        elif node is not None and node.op_type == "Conv" and self._enlarges(node):
            yield node.input[0], node
        else:
            yield value, None

    def _enlarges(self, convolution: onnx.NodeProto) -> bool:
        """Return whether a convolution's output is known to be larger than its input."""
        shape = self._shapes.get(convolution.input[1], ())
        given = {attribute.name: helper.get_attribute_value(attribute)
                 for attribute in convolution.attribute}
        return len(shape) > 2 and shape[0] > shape[1] * given.get("group", 1) * math.prod(
            given.get("strides", ()))

    def _size(self, value: str) -> str:
        """Add a node for the sum of the magnitudes of a value's elements."""
        return self._writer.node("ReduceL1", [value], keepdims=0)

    def _product(self, value: str, number: float) -> str:
        """Add nodes for the product of a value and a number."""
        return self._writer.node("Mul", [value, self._constant(np.array(number, np.float32))])

    def _let_through(self, node: onnx.NodeProto, kind: int) -> None:
        """Add nodes that replace a node and propagate NaN."""
        write, positions = self._writer.node, ""
        is_nan = write("IsNaN", node.input[:1])
        mask = write("Cast", [is_nan], to=TensorProto.FLOAT)
        if node.op_type == "Sign":
            found = is_nan
        elif node.op_type == "LogSoftmax":
            found = write("IsNaN", [self._copied(node, "Softmax", node.input[0])])
        elif node.op_type in _POSITIONS:
            positions = self._copied(node, "ArgMax", mask)
            found = write("Cast", [self._any(node, mask)], to=TensorProto.BOOL)
        else:
            largest = self._copied(
                node, "ReduceMax" if node.op_type in _REDUCTIONS else node.op_type, mask)
            if len(node.output) > 1 and node.output[1]:
                positions = self._writer.nodes[-1].output[1]
            found = write("Cast", [largest], to=TensorProto.BOOL)
        self._copied(node, node.op_type, node.input[0])
        self._writer.nodes[-1].name = node.name
        without = self._writer.nodes[-1].output
        for output, inner in zip(node.output, without, strict=True):
            is_position = positions and (node.op_type in _POSITIONS or output == node.output[-1])
            chosen = positions if is_position else self._constant(
                np.array(np.nan, helper.tensor_dtype_to_np_dtype(kind)))
            if output:
                self._writer.nodes.append(helper.make_node(
                    "Where", [found, chosen, inner], [output], self._writer.new_name()))

    def _any(self, node: onnx.NodeProto, mask: str) -> str:
        """Add a node for the maximum of a mask along the axis of an ArgMax or ArgMin."""
        given = {attribute.name: helper.get_attribute_value(attribute)
                 for attribute in node.attribute}
        axes, keepdims = [given.get("axis", 0)], given.get("keepdims", 1)
        if self._opset < 18:
            return self._writer.node("ReduceMax", [mask], axes=axes, keepdims=keepdims)
        return self._writer.node("ReduceMax", [mask, self._constant(np.array(axes, np.int64))],
                                 keepdims=keepdims)

    def _constant(self, array: np.ndarray) -> str:
        """Add a constant as a node, so that it belongs to the subgraph that uses it."""
        return self._writer.node("Constant", [], value=numpy_helper.from_array(array))

    def _copied(self, node: onnx.NodeProto, operator: str, value: str) -> str:
        """Add a copy of a node with another operator and another first input.

        Returns the name of the copy's first output.
        """
        other = onnx.NodeProto()
        other.CopyFrom(node)
        other.op_type, other.input[0] = operator, value
        other.name = self._writer.new_name()
        other.output[:] = [output and self._writer.new_name() for output in node.output]
        self._writer.nodes.append(other)
        return other.output[0]


def _types(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Return the types of the values of a graph, by name.

    outer: types of the values of the enclosing graphs.
    """
    return {**outer, **{info.name: info.type.tensor_type.elem_type
                        for info in (*graph.input, *graph.output, *graph.value_info)},
            **{tensor.name: tensor.data_type for tensor in graph.initializer}}
