"""Fusions are measured together with a network's layers, and left out by the times of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.plan.tune.rows import LayerCandidates
from gossamer.plan.tune.tuner import Tuner
from tests.plan.choose.fusions.toy import (
    FUSION,
    LAYERS,
    FusedBlock,
    FusedPair,
    blocks,
    images,
    make_plan,
    no_comparison,
    with_algorithm,
)

WITHIN = ["grow0 + middle0", "middle0 + shrink0"]


@pytest.mark.parametrize("is_slow", [True, False])
def test_layers_and_fusions_are_measured_in_one_search(
        is_slow: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[list[str]] = []
    measure, limit_us = Tuner.measure_all, LayerCandidates.limit_us

    def recorded(self: Tuner, *arguments: Any) -> None:
        measure(self, *arguments)
        found.append([node.layer.name for node in self._nodes])

    def limited(self: LayerCandidates, *arguments: Any) -> float:
        return 0.0 if is_slow and self.parts else limit_us(self, *arguments)

    monkeypatch.setattr(Tuner, "measure_all", recorded)
    monkeypatch.setattr(LayerCandidates, "limit_us", limited)
    with_algorithm(monkeypatch, FusedBlock(), FusedPair())
    no_comparison(monkeypatch)
    plan = make_plan(blocks(1), tmp_path)
    plan(images(2))
    assert found[0][:len(LAYERS)] == LAYERS and set(found[0]) == {*LAYERS, FUSION, *WITHIN}
    for node in plan.program(2).measured:
        if node.layer.name in (FUSION, *WITHIN):
            assert node.candidates
            left_out = [candidate.measured.not_tried for candidate in node.candidates]
            assert all(left_out) if is_slow else not all(left_out)
