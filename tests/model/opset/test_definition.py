"""An op that is defined in part is refused by name, and the definitions agree with the rest."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gossamer.model.opset.definition import (
    OpDef,
    define,
    never_jumps,
    not_evaluated,
    nothing_known,
    resolved,
)
from gossamer.model.opset.mixing import keeps_images_apart
from gossamer.model.opset.registry import OPSET, by_name
from gossamer.ops.registry import OPS
from gossamer.plan.lower.rules import check_rules
from tests.model.opset.cases import CASES, node_of

PARTS: dict[str, Any] = {
    "text": "x; axis", "shape": lambda state, node: state.alias(node), "evaluate": not_evaluated,
    "mixes": keeps_images_apart, "passes_values": True, "jumps": never_jumps,
    "facts": nothing_known, "float_only": False, "attribute_inputs": ()}


def test_a_whole_definition() -> None:
    toy = define("toy", **PARTS)
    assert toy.name == "toy" and toy.remains
    assert {"name", *PARTS} == {field.name for field in fields(OpDef)}


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(part: str) -> None:
    with pytest.raises(TypeError, match=rf"op 'toy' lacks {part}$"):
        define("toy", **{name: value for name, value in PARTS.items() if name != part})


def test_all_missing_parts_are_named() -> None:
    with pytest.raises(TypeError, match=r"op 'toy' lacks mixes, facts$"):
        define("toy", **{name: value for name, value in PARTS.items()
                         if name not in ("mixes", "facts")})


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(TypeError, match="op 'toy' has flops, expected text, shape"):
        define("toy", **PARTS, flops=0)


@pytest.mark.parametrize("part", ["evaluate", "mixes", "facts"])
def test_an_op_is_resolved_in_all_parts_or_in_none(part: str) -> None:
    with pytest.raises(TypeError, match=f"op 'toy' has {part} as an op that resolve"):
        define("toy", **{**PARTS, part: resolved})


def test_every_op_of_a_static_graph_needs_a_lowering_rule() -> None:
    toy, gone = (define(name, **{**PARTS, **dict.fromkeys(parts, resolved)})
                 for name, parts in (("toy", ()), ("gone", ("evaluate", "mixes", "facts"))))
    check_rules({"toy": toy, "gone": gone}, ["toy"])
    with pytest.raises(TypeError, match=r"^ops without a rule that lowers them: toy$"):
        check_rules({"toy": toy, "gone": gone}, [])
    with pytest.raises(TypeError, match=r"^rules for ops that no static graph has: gone, other$"):
        check_rules({"toy": toy, "gone": gone}, ["toy", "gone", "other"])


def test_an_op_that_is_defined_twice_is_named() -> None:
    toy, other = define("toy", **PARTS), define("other", **PARTS)
    assert by_name([toy, other]) == {"toy": toy, "other": other}
    with pytest.raises(TypeError, match="op 'toy' is defined twice"):
        by_name([toy, other, toy])


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
