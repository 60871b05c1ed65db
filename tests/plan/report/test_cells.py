"""Cells of reports' tables."""

from __future__ import annotations

from typing import Any

from gossamer.plan.report.cells import layer_table


def test_a_fusion_of_many_layers_shows_its_first_and_last_one() -> None:
    def shown(count: int) -> dict[str, str]:
        names = " + ".join(f"layer {number}" for number in range(count))
        row: dict[str, Any] = {
            "layer": names, "problem": names, "config": "", "density": None, "algorithm": "a",
            "precision": "fp16", "best_dense_us": None, "median_us": None, "p25_us": None,
            "p75_us": None, "error": None, "device": "host"}
        _, rows = layer_table([row])
        return rows[0]

    assert shown(3)["layer"] == "layer 0 + layer 1 + layer 2"
    assert shown(20)["layer"] == shown(20)["problem"] == "layer 0 + 18 more + layer 19"
