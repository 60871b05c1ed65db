"""OpDef: all that gossamer.model knows of one op of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NoReturn

import numpy as np

from gossamer.facts import ValueFacts
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.mixing import Images
from gossamer.model.opset.state import InferenceState

ShapeRule = Callable[[InferenceState, Node], None]
"""A function that checks a node, makes its attributes concrete and adds the node, or nodes that
replace it, to the state."""

Evaluation = Callable[[dict[str, Any], Sequence[np.ndarray]], list[np.ndarray]]
"""A function of a node's concrete attributes and inputs that computes its outputs with NumPy."""

MixingRule = Callable[[Images, Node], str | None]
"""A function of (images, node) that returns how the node mixes images, as text that follows the
node's name. It returns None where image i of the outputs is a function of image i of the inputs,
with the same function for every i. The images of an output lie along the only axis that grows with
the batch. The rule is called where an input has images, or where an output grows with the batch."""

FactsRule = Callable[[StaticGraph, Node, Sequence[ValueFacts]], list[ValueFacts]]
"""A function of (static graph, node, facts of its inputs) that returns the facts of its outputs."""


@dataclass(frozen=True)
class OpDef:
    """The definition of an op of the graph.

    No field has a default, so that every definition has to state all fields: a wrong field may give
    wrong results.

    name: the `op` of the op's nodes.
    text: the inputs in order ("[x]" may be absent), a semicolon, and the attributes.
    shape: the shape rule.
    evaluate: the evaluation with NumPy, by which shape arithmetic and constants are computed, or
    `not_evaluated`.
    mixes: the mixing rule; gossamer.model.opset.mixing has common rules. The rule decides whether a
    batch may be run in parts, and whether a file may be run at another batch size than its own.
    passes_values: whether each element of an output is an element of the inputs, or a function of a
    few elements. If so, a sign taken of an output depends on how each input is rounded. A batch
    norm before the node is therefore not folded into weights.
    discontinuous: function that returns whether a small change of an input may change a node's
    result by much, as with a sign; `never` for an op whose results are continuous.
    facts: the rule that derives the value facts of the outputs.
    float_only: whether the op is computed in float32 only, so that other dtypes are refused.
    attribute_inputs: names of the attributes that a node may take from its second and further
    inputs instead, in the order of these inputs.

    An op that resolve() always turns into other ops has the fields RESOLVED.
    """

    name: str
    _: KW_ONLY
    text: str
    shape: ShapeRule
    evaluate: Evaluation
    mixes: MixingRule
    passes_values: bool
    discontinuous: Callable[[Node], bool]
    facts: FactsRule
    float_only: bool
    attribute_inputs: tuple[str, ...]

    @property
    def remains(self) -> bool:
        """Whether a static graph may have nodes of the op."""
        return self.evaluate is not resolved


def resolved(*arguments: Any) -> NoReturn:
    """Stand for `evaluate`, `mixes` and `facts` of an op that resolve() turns into other ops, so
    that no static graph has the op."""
    raise AssertionError("an op that resolve() turns into others is in a static graph")


RESOLVED: dict[str, Any] = {"evaluate": resolved, "mixes": resolved, "facts": resolved}
"""The fields of an op that resolve() always turns into other ops."""


def not_evaluated(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> NoReturn:
    """Stand for the evaluation of an op that stays a node even where all its inputs are known: no
    file uses the op in shape arithmetic."""
    raise AssertionError("an op that is not evaluated was")


def never(node: Node) -> bool:
    """The field `discontinuous` of an op with continuous results."""
    return False


def always(node: Node) -> bool:
    """The field `discontinuous` of an op with results that are whole numbers or indices."""
    return True


def first_input(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op whose outputs hold values of its first input only."""
    return [facts[0]] * len(node.outputs)


def nothing_known(static: StaticGraph, node: Node,
                  facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    """The facts rule of an op that states nothing about its results."""
    return [ValueFacts()] * len(node.outputs)
