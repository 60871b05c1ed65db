"""The definitions of ops agree with each other, with their texts, the lowering rules and the
references."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

from gossamer.model import opset
from gossamer.model.opset.definition import (
    RESOLVED,
    OpDef,
    keeps_images_separate,
    never,
    not_evaluated,
    nothing_known,
)
from gossamer.model.opset.registry import OPSET
from gossamer.ops.registry import OPS
from gossamer.plan.lower.rules import check_rules
from tests.model.executor import execute
from tests.model.opset.cases import CASES, node_of
from tests.tolerances import FLOAT32, normalised_error

PARTS: dict[str, Any] = {
    "text": "x; axis", "shape": lambda state, node: state.alias(node), "evaluate": not_evaluated,
    "mixes": keeps_images_separate, "passes_values": True, "discontinuous": never,
    "facts": nothing_known, "float_only": False, "attribute_inputs": ()}


def test_every_op_of_a_static_graph_needs_a_lowering_rule() -> None:
    toy, gone = (OpDef(name, **{**PARTS, **parts})
                 for name, parts in (("toy", {}), ("gone", RESOLVED)))
    check_rules({"toy": toy, "gone": gone}, ["toy"])
    with pytest.raises(TypeError, match=r"^ops without a lowering rule: toy$"):
        check_rules({"toy": toy, "gone": gone}, [])
    with pytest.raises(TypeError, match=r"^rules for ops that no static graph has: gone, other$"):
        check_rules({"toy": toy, "gone": gone}, ["toy", "gone", "other"])


def test_no_op_is_defined_twice() -> None:
    modules = (importlib.import_module(f"{opset.__name__}.{each.name}")
               for each in pkgutil.iter_modules(opset.__path__))
    names = [definition.name for module in modules
             for definition in getattr(module, "DEFINITIONS", ())]
    assert sorted(names) == sorted(OPSET)


def test_nodes_of_ops_have_definitions() -> None:
    # copies are what moves data, training is no node, a fusion is several, and a benchmark may have
    # registered ops of its own
    planned = {name for name, op in OPS.items()
               if op.problem.__module__.startswith("gossamer.ops.")}
    remaining = {name.removesuffix("_training") for name, op in OPSET.items() if op.remains}
    assert planned - {"copy", "backprop", "part", "fused"} <= remaining


@pytest.mark.parametrize("op", [op for op in OPSET if OPSET[op].remains])
def test_the_text_names_all_attributes_of_a_node(op: str) -> None:
    for case in CASES[op]:
        node, _, _ = node_of(op, case)
        for attribute in node.attributes:
            assert attribute in OPSET[op].text, f"{op}: {attribute}"


@pytest.mark.parametrize("op", OPSET)
def test_the_text_names_all_attributes_that_may_come_as_inputs(op: str) -> None:
    assert all(name in OPSET[op].text for name in OPSET[op].attribute_inputs)


EVALUATED = [name for name, op in OPSET.items() if op.remains and op.evaluate is not not_evaluated]


@pytest.mark.parametrize("op", EVALUATED)
def test_evaluation_agrees_with_the_reference(op: str) -> None:
    for case in CASES[op]:
        node, static, arrays = node_of(op, case)
        results = OPSET[op].evaluate(node.attributes, [arrays[name] for name in node.inputs])
        expected = execute(static, arrays)
        for name, result in zip(node.outputs, results, strict=True):
            assert result.shape == static.shapes[name]
            assert result.dtype.name == static.dtypes[name]
            if result.dtype.kind == "f":
                assert normalised_error(result, expected[name]) <= FLOAT32
            else:
                np.testing.assert_array_equal(result, expected[name])


def test_every_op_of_a_static_graph_has_a_case() -> None:
    assert CASES.keys() == {name for name, op in OPSET.items() if op.remains}
