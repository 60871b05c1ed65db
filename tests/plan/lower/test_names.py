"""The plan assignment keeps what it chooses by the names of layers, which must differ."""

from __future__ import annotations

import pytest

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.plan.lower.rules import lower
from tests.plan.lower.test_rules import CASES, model_of


@pytest.mark.parametrize("op", sorted({tried.op for tried in CASES}))
def test_names_of_layers_differ(op: str) -> None:
    for tried in CASES:
        if tried.op != op:
            continue
        proto, feeds = model_of(tried)
        first = next(iter(feeds.values()))
        layers, _ = lower(resolve(optimise(load(proto)), first.shape[0] if first.ndim else 1))
        names = [layer.name for layer in layers]
        assert len(set(names)) == len(names), f"{tried}: {names}"
