"""Fusions are measured together with a network's layers, and those within others unless these are
much faster than their layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.plan.tune.layer_times import LayerTimes
from gossamer.plan.tune.search import Search
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


@pytest.mark.parametrize("is_fast", [True, False])
def test_layers_and_fusions_are_measured_in_one_search(
        is_fast: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[list[str]] = []
    run = Search.run

    def recorded(self: Search, *arguments: Any) -> None:
        run(self, *arguments)
        found.append(list(dict.fromkeys(request.layer.name for request in self._requests)))

    monkeypatch.setattr(Search, "run", recorded)
    monkeypatch.setattr(LayerTimes, "useful_share", property(
        lambda times: 0.0 if is_fast and times.parts and times.covered_by else 1.0))
    with_algorithm(monkeypatch, FusedBlock(), FusedPair())
    no_comparison(monkeypatch)
    plan = make_plan(blocks(1), tmp_path)
    plan(images(2))
    assert found[0][:len(LAYERS)] == LAYERS and set(found[0]) == {*LAYERS, FUSION, *WITHIN}
    candidates = {node.layer.name: node.candidates for node in plan.program(2).measured}
    assert any(candidate.is_usable for candidate in candidates[FUSION])
    for name in WITHIN:
        left_out = [candidate.measured.not_tried for candidate in candidates[name]]
        assert left_out and all(left_out) == is_fast
