"""NaN in models of ONNX Runtime, whose maxima, minima and indices of these leave out NaN.

A model with such operators has two forms. The first form has one more output, which is NaN where
an operator has read NaN. It costs little, and keeps the layouts that ONNX Runtime chooses. The
second form lets NaN through, and runs only where the first one has found NaN. Both forms let NaN
through within subgraphs, whose values cannot become outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

_POOLS = frozenset(("GlobalMaxPool", "MaxPool"))
_REDUCTIONS = frozenset(("ReduceMax", "ReduceMin"))
_PLACES = frozenset(("ArgMax", "ArgMin"))
_WATCHED = _POOLS | _REDUCTIONS | _PLACES
_REWRITTEN = frozenset((("Sign", TensorProto.FLOAT16), ("LogSoftmax", TensorProto.DOUBLE)))
"""Operators that lose NaN in one type only. Both forms of a model let NaN through them."""
_LOSING = _WATCHED | {operator for operator, _ in _REWRITTEN}
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16))
_FIRST_OPSET = 9
"""The opset since which ONNX has IsNaN and Where."""
_PREFIX = "gossamer/nan"


def losing_nan(model: onnx.ModelProto) -> bool:
    """Returns whether ONNX Runtime may lose NaN in a model."""
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    return _opset(model) >= _FIRST_OPSET and any(map(_contains, graphs))


def watch(model: onnx.ModelProto) -> bool:
    """Gives a model its first form. Returns whether the model has one more output then; otherwise
    it lets NaN through already."""
    writer = _Writer(model)
    watched = writer.rewrite(model.graph, keeps_watched=True)
    if watched:
        writer.watch(watched)
    return bool(watched)


def let_through(model: onnx.ModelProto) -> None:
    """Gives a model its second form."""
    _Writer(model).rewrite(model.graph, keeps_watched=False)


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import
                if entry.domain in ("", "ai.onnx")), default=0)


def _contains(nodes: Sequence[onnx.NodeProto]) -> bool:
    return any(node.op_type in _LOSING or any(map(_contains, (
        graph.node for graph in _subgraphs(node)))) for node in nodes)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


class _Writer:
    """Rewrites the graphs of a model, whose functions are put in place first."""

    def __init__(self, model: onnx.ModelProto) -> None:
        if any(_contains(function.node) for function in model.functions):
            model.CopyFrom(inliner.inline_local_functions(model))
        self._graph = model.graph
        self._opset = _opset(model)
        self._numbers = itertools.count()
        # ONNX's inference is asked for types alone: of some pools it finds wrong shapes
        self._inferred = shape_inference.infer_shapes(model).graph

    def rewrite(self, graph: onnx.GraphProto, inferred: onnx.GraphProto | None = None,
                outer: Mapping[str, int] | None = None, *,
                keeps_watched: bool) -> dict[str, onnx.NodeProto]:
        """Lets NaN through the nodes of a graph and of its subgraphs.

        inferred: this graph with the types that ONNX's inference has found.
        outer: types of the values around the graph.
        keeps_watched: whether nodes of the graph itself that have to be watched stay as they are.
        Returns for each value that has to be watched a node that reads it.
        """
        inferred = inferred or self._inferred
        types = _types(inferred, outer or {})
        watched: dict[str, onnx.NodeProto] = {}
        nodes: list[onnx.NodeProto] = []
        lost: set[str] = set()
        for node, typed in zip(graph.node, inferred.node, strict=True):
            for inner, inner_typed in zip(_subgraphs(node), _subgraphs(typed), strict=True):
                self.rewrite(inner, inner_typed, types, keeps_watched=False)
            kind = types.get(node.input[0], 0) if node.input else 0
            is_watched = node.op_type in _WATCHED and kind in _FLOATS
            if node.domain not in ("", "ai.onnx") or not (
                    is_watched or (node.op_type, kind) in _REWRITTEN):
                nodes.append(node)
            elif is_watched and keeps_watched:
                nodes.append(node)
                # NaN that such a node has lost was found where the node read it
                if node.input[0] not in lost:
                    watched.setdefault(node.input[0], node)
                lost.update(node.output[:1])
            else:
                nodes += self._letting(node, kind)
        del graph.node[:]
        graph.node.extend(nodes)
        return watched

    def watch(self, watched: Mapping[str, onnx.NodeProto]) -> None:
        """Adds an output that is NaN where one of the values has a NaN; it may also be NaN where a
        value has infinities. For images a mean over the pixels keeps the layout that ONNX Runtime
        has chosen."""
        nodes, types = self._graph.node, _types(self._inferred, {})
        sums = []
        for value, node in watched.items():
            if types[value] != TensorProto.FLOAT:
                value = self._add(nodes, "Cast", [value], to=TensorProto.FLOAT)
            if node.op_type in _POOLS:
                value = self._add(nodes, "GlobalAveragePool", [value])
            sums.append(self._add(nodes, "ReduceSum", [value], keepdims=0))
        total = sums[0] if len(sums) == 1 else self._add(nodes, "Sum", sums)
        self._graph.output.append(helper.make_tensor_value_info(total, TensorProto.FLOAT, []))

    def _letting(self, node: onnx.NodeProto, kind: int) -> list[onnx.NodeProto]:
        """Returns nodes that take the place of a node and let NaN through."""
        nodes: list[onnx.NodeProto] = []
        is_nan = self._add(nodes, "IsNaN", node.input[:1])
        mask = self._add(nodes, "Cast", [is_nan], to=TensorProto.FLOAT)
        places = ""
        if node.op_type == "Sign":
            found = is_nan
        elif node.op_type == "LogSoftmax":
            found = self._add(nodes, "IsNaN", [self._as(nodes, node, "Softmax", node.input[0])])
        elif node.op_type in _PLACES:
            places = self._as(nodes, node, "ArgMax", mask)
            found = self._add(nodes, "Cast", [self._any(nodes, node, mask)], to=TensorProto.BOOL)
        else:
            operator = "ReduceMax" if node.op_type in _REDUCTIONS else node.op_type
            largest = self._as(nodes, node, operator, mask)
            if len(node.output) > 1 and node.output[1]:
                places = nodes[-1].output[1]
            found = self._add(nodes, "Cast", [largest], to=TensorProto.BOOL)
        without = onnx.NodeProto()
        without.CopyFrom(node)
        without.output[:] = [output and self._name() for output in node.output]
        nodes.append(without)
        for output, inner in zip(node.output, without.output, strict=True):
            is_place = places and (node.op_type in _PLACES or output == node.output[-1])
            chosen = places if is_place else self._nan(nodes, kind)
            if output:
                nodes.append(helper.make_node("Where", [found, chosen, inner], [output],
                                              self._name()))
        return nodes

    def _any(self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, mask: str) -> str:
        """Adds the maximum of a mask along the axis of an ArgMax or ArgMin."""
        given = {attribute.name: helper.get_attribute_value(attribute)
                 for attribute in node.attribute}
        axes, keepdims = [given.get("axis", 0)], given.get("keepdims", 1)
        if self._opset < 18:
            return self._add(nodes, "ReduceMax", [mask], axes=axes, keepdims=keepdims)
        constant = self._add(nodes, "Constant", [],
                             value=numpy_helper.from_array(np.array(axes, np.int64)))
        return self._add(nodes, "ReduceMax", [mask, constant], keepdims=keepdims)

    def _nan(self, nodes: list[onnx.NodeProto], kind: int) -> str:
        nan = np.array(np.nan, helper.tensor_dtype_to_np_dtype(kind))
        return self._add(nodes, "Constant", [], value=numpy_helper.from_array(nan))

    def _as(self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, operator: str,
            value: str) -> str:
        """Adds a node as another one, with an operator and a first input of its own. Returns the
        name of its first output."""
        other = onnx.NodeProto()
        other.CopyFrom(node)
        other.op_type, other.name, other.input[0] = operator, self._name(), value
        other.output[:] = [output and self._name() for output in node.output]
        nodes.append(other)
        return other.output[0]

    def _add(self, nodes: Any, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self._name()
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _name(self) -> str:
        return f"{_PREFIX}{next(self._numbers)}"


def _types(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Returns the types of the values of a graph, by name. outer: types of values around it."""
    return {**outer, **{info.name: info.type.tensor_type.elem_type
                        for info in (*graph.input, *graph.output, *graph.value_info)},
            **{tensor.name: tensor.data_type for tensor in graph.initializer}}
