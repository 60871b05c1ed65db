"""Value facts of a static graph (derive), and which of its values may be NaN (stating_nan)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gossamer.facts import REAL, ValueFacts, are_scaled_signs, of_array
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.elementwise import dtype_facts, may_be_nan
from gossamer.model.opset.registry import OPSET

_LARGEST_SUM = 2.0**127
"""Bound on sums of float32 values. Below this bound, rounding cannot make a partial sum
overflow."""


def derive(static: StaticGraph) -> dict[str, ValueFacts]:
    """Return the facts of every input, constant and result, by name.

    The op definitions derive the facts of results. The docstring of gossamer.facts says for which
    algorithms these facts hold.
    """
    facts = {info.name: dtype_facts(info.dtype) for info in static.graph.inputs}
    facts.update({name: of_array(array) for name, array in static.constants.items()})
    for node in static.nodes:
        rule = OPSET[node.op].facts
        known = [facts.get(name, REAL) for name in node.inputs]
        facts.update(zip(node.outputs, rule(static, node, known), strict=True))
    return facts


def stating_nan(static: StaticGraph, facts: Mapping[str, ValueFacts]) -> dict[str, ValueFacts]:
    """Return the facts of all values, including whether inputs and results may be NaN.

    Inputs of the network that are floats may be NaN; integers and booleans cannot. A result cannot
    be NaN if its arguments are finite and its function never returns NaN for finite arguments.
    Quotients and roots may return NaN for finite arguments.
    """
    found: dict[str, bool] = {info.name: _is_float(info.dtype) for info in static.graph.inputs}

    def nan(name: str) -> bool:
        if name not in found:
            # constants that no result depends on are not searched, because weights may be large
            array = static.constants.get(name)
            found[name] = array is None or (
                array.dtype.kind == "f" and bool(np.isnan(array.min(initial=0))))
        return found[name]

    for node in static.nodes:
        found.update(zip(node.outputs, _outputs_nan(static, node, facts, nan), strict=True))
    return {name: known if name in static.constants else replace(known, nan=found[name])
            for name, known in facts.items()}


def _is_of_signs(known: ValueFacts, weight: np.ndarray | None) -> bool:
    """Return whether a product may be computed on packed bits, which turn NaN into a sign."""
    return weight is not None and (known.is_binary or known.is_ternary) and are_scaled_signs(weight)


def _is_float(dtype: str) -> bool:
    return dtype_facts(dtype) == REAL


def _outputs_nan(static: StaticGraph, node: Node, facts: Mapping[str, ValueFacts],
                 nan: Callable[[str], bool]) -> Sequence[bool]:
    """Return for each output of a node whether it may be NaN.

    nan: function that returns whether the value with the given name may be NaN.
    """
    known = [facts.get(name, REAL) for name in node.inputs]
    if not any(_is_float(static.dtypes[name]) for name in node.outputs):
        return [False] * len(node.outputs)
    if node.op == "elementwise":
        return may_be_nan(node.attributes["expression"], known, list(map(nan, node.inputs)))
    if "epilogue" in node.attributes:
        weight = static.constants.get(node.inputs[1])
        bound = math.inf if weight is None else (
            known[0].largest * known[1].largest * weight.size)
        is_bounded = bound < _LARGEST_SUM and not nan(node.inputs[1]) and (
            not nan(node.inputs[0]) or _is_of_signs(known[0], weight))
        sums = ValueFacts(-bound, bound) if is_bounded else REAL
        return may_be_nan(node.attributes["epilogue"], [sums, *known[2:]],
                          [not is_bounded, *map(nan, node.inputs[2:])])
    values = [*known, *(facts[name] for name in node.outputs)]
    is_finite = all(math.isfinite(value.largest) for value in values)
    return [not is_finite or any(map(nan, node.inputs))] * len(node.outputs)
