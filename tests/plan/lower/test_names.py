"""Names of the layers of every op, which must differ as the plan assignment keeps what it chooses
by them, and the names of the values that they read and make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from tests.plan.lower.test_rules import CASES, Case, model_of

OPS = sorted({tried.op for tried in CASES})


def lowered(op: str) -> Iterator[tuple[Case, list[Layer]]]:
    """Yields the cases of an op, each with its layers."""
    for tried in CASES:
        if tried.op == op:
            proto, feeds = model_of(tried)
            first = next(iter(feeds.values()))
            batch = first.shape[0] if first.ndim else 1
            yield tried, lower(resolve(optimise(load(proto)), batch))[0]


@pytest.mark.parametrize("op", OPS)
def test_names_of_layers_differ(op: str) -> None:
    for tried, layers in lowered(op):
        names = [layer.name for layer in layers]
        assert len(set(names)) == len(names), f"{tried}: {names}"


@pytest.mark.parametrize("op", OPS)
def test_layers_read_and_make_the_values_of_their_problems(op: str) -> None:
    """A constant among a problem's weights is no value that the layer reads."""
    for tried, layers in lowered(op):
        for layer in layers:
            if not layer.is_reshape:
                assert len(layer.inputs) == len(layer.problem.inputs), tried
                assert len(layer.outputs) == len(layer.problem.outputs), tried
                assert set(layer.weights) == set(layer.problem.weight_shapes), tried
