"""The option --explain: every candidate of a layer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from onnx import helper

import gossamer
from gossamer.plan.report.html import build_text
from tests.cli.compile.command import Run, compile_
from tests.model.onnx_models import model, save, weights
from tests.plan.choose.fusions.toy import FusedPair, no_comparison, set_costs, with_algorithm


def test_explain_shows_every_candidate_with_a_reason(run: Run, network: Path) -> None:
    result = compile_(run, network, "--explain", "second", "--explain", "classes")
    described = json.loads(compile_(run, network, "--json").stdout)
    for row in described["reports"][0]["rows"]:
        explained = f"\n{row['layer']} ({row['op']} " in result.stdout
        assert explained == (row["layer"] in ("second", "classes"))
        assert [candidate["reason"] for candidate in row["candidates"]].count("taken") == 1
        for candidate in row["candidates"]:
            reason, measured = candidate["reason"], candidate["median_us"] is not None
            assert reason and (measured or reason != "taken")
            assert (candidate["build_s"] is not None) == measured
            if explained:
                assert reason in result.stdout and build_text(candidate) in result.stdout
        for name, reason in row["rejected"].items():
            if explained:
                assert re.search(rf"^{name} .*{re.escape(reason)}", result.stdout, re.M)


def test_names_of_layers_are_shown_as_they_are(run: Run, tmp_path: Path) -> None:
    odd = "[red]a/b[/red] %s {x}"
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], odd)], {"x": ["N", 3, 4, 4]},
                  {"y": 4}, {"w": weights(2, 3, 1, 1)})
    path = save(proto, tmp_path)
    result = compile_(run, path, "--explain", odd, "-o", tmp_path / "odd.plan")
    assert result.stdout.count(odd) == 2
    assert gossamer.Plan.load(tmp_path / "odd.plan").program(1).steps[0].layer.name == odd


def test_explain_takes_a_layer_of_a_fusion(run: Run, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    with_algorithm(monkeypatch, FusedPair())
    no_comparison(monkeypatch)
    set_costs(monkeypatch, 1.0)
    proto = model([helper.make_node("Conv", ["x", "w0"], ["a"], "grow"),
                   helper.make_node("Conv", ["a", "w1"], ["y"], "shrink")],
                  {"x": ["N", 3, 4, 4]}, {"y": 4},
                  {"w0": weights(6, 3, 1, 1), "w1": weights(2, 6, 1, 1, seed=1)})
    for name in ("shrink", "grow + shrink"):
        result = compile_(run, save(proto, tmp_path), "--explain", name)
        assert result.stdout.count("\ngrow + shrink (fused ") == 1
        assert re.search("^layer by layer .*20.0 us against 1.0 us", result.stdout, re.M)
