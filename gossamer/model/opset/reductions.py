"""Definitions of the ops that reduce, normalise or sort numbers along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gossamer.facts import NONNEGATIVE, REAL, ValueFacts, integers
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    BATCH_AXIS,
    Images,
    InferenceState,
    OpDef,
    always,
    never,
    not_evaluated,
    works_across_images,
)
from gossamer.ordering import first_places

_OF_NOTHING = {"max": -math.inf, "mean": math.nan, "sum": 0.0}
"""The result of each kind of reduction over no elements, such as over a batch of 0."""


def _reduce_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axes = node.attributes["axes"]
    if axes == "spatial":
        axes = range(2, len(shape))
    elif isinstance(axes, int):
        axes = range(state.axis(node, axes, len(shape)), len(shape))
    elif not axes:
        axes = range(len(shape))
    axes = tuple(sorted(state.axis(node, axis, len(shape)) for axis in axes))
    kind, keepdims = node.attributes["kind"], node.attributes["keepdims"]
    result = [1 if axis in axes else size for axis, size in enumerate(shape)
              if keepdims or axis not in axes]
    if not all(shape[axis] for axis in axes) and state.dtypes[node.inputs[0]] == "float32":
        state.check_constant(node, result, "float32")
        state.know(node.outputs[0], np.full(result, _OF_NOTHING[kind], np.float32))
        return
    state.emit(node, result, kind=kind, axes=axes, keepdims=keepdims)


def _reduce(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    (x,) = arrays
    reductions: dict[str, Callable[..., Any]] = {"mean": np.mean, "max": np.max, "sum": np.sum}
    accurate = x.astype(np.float64) if x.dtype.kind == "f" else x
    reduction = reductions[attributes["kind"]]
    result = reduction(accurate, axis=attributes["axes"], keepdims=attributes["keepdims"])
    return [np.asarray(result, dtype=x.dtype)]


def _reduce_mixes(images: Images, node: Node) -> str | None:
    axis = images.axes[node.inputs[0]]
    return f"reduces axis {axis}, {BATCH_AXIS}" if axis in node.attributes["axes"] else None


def _reduce_facts(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    (x,), kind = facts, node.attributes["kind"]
    if kind == "max":
        return [x]
    shape = static.shapes[node.inputs[0]]
    sums = x.sum_of(math.prod(shape[axis] for axis in node.attributes["axes"]))
    return [x.same_sign() if kind == "mean" or sums == REAL else sums]


def _softmax_shape(state: InferenceState, node: Node) -> None:
    shape = state.shapes[node.inputs[0]]
    axis = state.axis(node, node.attributes["axis"], len(shape))
    log = node.attributes["log"]
    if node.attributes.get("flatten") and math.prod(shape[axis + 1:]) != 1:
        matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        flat = state.reshape(node, matrix, node.inputs[0], [state.new_name(node, "flat")])
        result = state.emit(node, matrix, inputs=[flat],
                            outputs=[state.new_name(node, "softmax")], axis=1, log=log)
        state.reshape(node, shape, result, node.outputs)
    else:
        state.emit(node, shape, axis=axis, log=log)


def _softmax_facts(static: StaticGraph, node: Node,
                   facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    return [REAL if node.attributes["log"] else NONNEGATIVE]


def _top_k_shape(state: InferenceState, node: Node) -> None:
    x = node.inputs[0]
    shape, (count,) = state.shapes[x], node.attributes["count"]
    axis = state.axis(node, node.attributes["axis"], len(shape))
    if not 0 <= count <= shape[axis]:
        raise state.error(node, f"selects {count} elements along an axis of {shape[axis]}")
    dtype = state.dtypes[x]
    small = dtype in ("int8", "int16", "uint8", "uint16", "bool") and x not in state.known
    if dtype not in _ORDERED and not small and x not in state.known:
        raise state.unsupported(node, f"orders {dtype}; gossamer orders {', '.join(_ORDERED)} and "
                                      "smaller integers")
    elements, indices = node.outputs
    a, result = node.attributes, (*shape[:axis], count, *shape[axis + 1:])
    state.emit(
        node, result, axis=axis, count=(count,), largest=a["largest"],
        nan_first=a.get("nan_first", a["largest"]), last=a.get("last", False),
        inputs=[state.cast(node, x, [state.new_name(node, "number")], "int32") if small else x],
        outputs=[state.new_name(node, "element") if small else elements, indices])
    if small:
        state.cast(node, state.nodes[-1].outputs[0], [elements], dtype)
    state.dtypes[node.outputs[1]] = "int64"


def _top_k(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    (x,), axis, (count,) = arrays, attributes["axis"], attributes["count"]
    found = first_places(x, axis, count, **{
        key: attributes[key] for key in ("largest", "nan_first", "last")})
    return [np.take_along_axis(x, found, axis), found]


def _top_k_facts(static: StaticGraph, node: Node,
                 facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    length = static.shapes[node.inputs[0]][node.attributes["axis"]]
    return [facts[0], integers(0, max(length - 1, 0))]


_ORDERED = ("float32", "int32", "int64")
"""The dtypes that top_k can sort."""

DEFINITIONS = (
    OpDef("reduce",
          text='x; kind "mean", "max" or "sum", axes (before resolve() also None for all, '
               '"spatial" for all but the first two, or an int for all from this one on), keepdims',
          shape=_reduce_shape, evaluate=_reduce, mixes=_reduce_mixes, passes_values=True,
          discontinuous=never, facts=_reduce_facts, float_only=True, attribute_inputs=("axes",)),
    OpDef("softmax",
          text="x; axis, log; before resolve() also flatten: whether one softmax is over all axes "
               "from `axis` on",
          shape=_softmax_shape, evaluate=not_evaluated, mixes=works_across_images,
          passes_values=True, discontinuous=never, facts=_softmax_facts, float_only=True,
          attribute_inputs=()),
    OpDef("top_k",
          text="x; count: a tuple with the number of elements to select; axis; largest: whether "
               "the order is descending; nan_first: whether NaN precedes all numbers (default: "
               "the value of `largest`); last: whether, among equal elements, the one with the "
               "highest index comes first (default: False); outputs: the elements and their "
               "indices",
          shape=_top_k_shape, evaluate=_top_k, mixes=works_across_images, passes_values=True,
          discontinuous=always, facts=_top_k_facts, float_only=False, attribute_inputs=("count",)),
)
