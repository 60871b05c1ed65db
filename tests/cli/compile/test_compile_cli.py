"""The verb `compile`: what it prints, and which options it refuses."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from onnx import helper

from gossamer.cli import compile
from gossamer.plan.tune.search import Progress
from tests.cli.compile.command import Run, compile_
from tests.model.onnx_models import model, save


def test_the_table_says_what_was_chosen_and_how_long_it_takes(run: Run, network: Path) -> None:
    result = compile_(run, network, "--batch", "1,3")
    for heading in ("layer", "problem", "density", "algorithm", "us", "quartiles", "dense us",
                    "speed-up", "error"):
        assert heading in result.stdout
    for batch in (1, 3):
        assert re.search(rf"^end to end, batch {batch}: [\d.]+ (us|ms)$", result.stdout, re.M)
    assert re.search(r"^classes +3x8 to 3x4|^classes ", result.stdout, re.M)
    assert re.search(r"^\d+ candidates measured, 0 from the cache, \d+ not tried$", result.stdout,
                     re.M)


def test_the_second_compilation_measures_nothing_and_saves_the_same(
        run: Run, network: Path, tmp_path: Path) -> None:
    counts, ends, builds = [], [], []
    for name in ("a", "b"):
        result = compile_(run, network, "--json", "-o", tmp_path / f"{name}.plan")
        described = json.loads(result.stdout)
        counts.append((described["measured"], described["reused"]))
        (report,) = described["reports"]
        ends.append((report["end_to_end_us"], report["end_to_end_cached"]))
        builds.append([(row["build_s"], row["build_when"]) for row in report["rows"]])
        assert report["build_s"] == sum(row["build_s"] for row in report["rows"])
    assert counts[0][0] > 0 == counts[0][1]
    assert counts[1] == counts[0][::-1]
    assert ends == [(ends[0][0], False), (ends[0][0], True)] and ends[0][0] > 0
    assert builds[0] == builds[1] and {when for _, when in builds[0]} == {"measured"}
    text = compile_(run, network).stdout
    assert re.search(r"^built in [\d.]+ [mu]?s when measured \(slowest: ", text, re.M)
    assert f"end to end, batch 1: {ends[0][0]:.1f} us (from the cache)\n" in text
    assert (tmp_path / "a.plan").read_bytes() == (tmp_path / "b.plan").read_bytes()


def test_how_many_layers_take_less_than_float32_is_told(run: Run, network: Path) -> None:
    # the host computes in float32 only
    result = compile_(run, network, "--precision", "fp16")
    assert re.search(r"^precision fp16 allowed: 0 of \d+ layers in less than float32$",
                     result.stdout, re.M)
    assert "allowed:" not in compile_(run, network).stdout


def test_scattered_times_are_told_and_kept(
        run: Run, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.measure.SCATTERED", 0.0)
    monkeypatch.setattr("gossamer.plan.tune.tuner._FEW_TIMINGS", 1)
    crowded = compile_(run, network)
    assert re.search(r"^notice: the times on .* scatter by \d+% from quartile to quartile: .*"
                     "measure again when it is idle, after `gossamer cache clear`$",
                     crowded.stderr, re.M)
    monkeypatch.setattr("gossamer.measure.SCATTERED", math.inf)
    quiet = compile_(run, network)
    assert quiet.stderr == ""
    assert re.search(r"^0 candidates measured", quiet.stdout, re.M)


def test_notices_of_the_cache_are_told_once(run: Run, network: Path, tmp_path: Path) -> None:
    compile_(run, network)
    (stored,) = (tmp_path / "cache" / "tuning").glob("*.sqlite")
    stored.write_text("{}")
    result = compile_(run, network, "--batch", "1,2")
    assert result.stderr.count("is corrupt or cut short") == 1
    assert "corrupt" not in result.stdout
    stored.write_text("{}")
    described = json.loads(compile_(run, network, "--json").stdout)
    (notice,) = described["notices"]
    assert notice.startswith(f"{stored} is corrupt")
    assert notice in described["reports"][0]["notes"]


def test_a_network_without_a_batch_takes_none(run: Run, tmp_path: Path) -> None:
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": []}, {"y": None}), tmp_path)
    compile_(run, path)
    result = compile_(run, path, "--batch", "4", code=2)
    assert f"--batch 4: {path} has no batch; leave --batch out" in result.stderr


def test_the_bar_counts_candidates() -> None:
    with compile._progress() as counter:
        task = counter._progress.tasks[0]
        counter.note("5 layers [x]: 40 candidates")
        assert (task.completed, task.total) == (0, None)
        assert task.description == "5 layers [x]: 40 candidates"
        counter.update(Progress(5, 2, 34.56, 40, 10, 2.6))
        assert (task.completed, task.total) == (10, 40)
        assert task.description == "2 of 5 layers, best 34.6 us so far, about 3 s left"
        counter.update(Progress(5, 0, 0.0, 40, 0, 0.0))
        assert task.description.endswith("so far")
        counter.note("net as a whole: 2 plans")
        assert (task.completed, task.description) == (0, "net as a whole: 2 plans")


def test_a_budget_measures_what_a_plan_needs(run: Run, network: Path, tmp_path: Path) -> None:
    result = compile_(run, network, "--budget", "1e-9", "--json")
    described = json.loads(result.stdout)
    assert described["measured"] > 0 and described["not_tried"] > 0
    (report,) = described["reports"]
    assert report["plans"] == [] and report["end_to_end_us"] > 0
    assert any("measuring was ended before" in note for note in report["notes"])
    later = json.loads(compile_(run, network, "--json").stdout)
    assert later["measured"] > 0


def test_where_the_time_of_measuring_went_is_shown(run: Run, network: Path) -> None:
    result = compile_(run, network, "--profile-tuning")
    assert re.search(r"^measuring took [\d.]+ s, of which the device checked or timed \d+%$",
                     result.stdout, re.M)
    for stage in ("listing configs", "checking", "timing"):
        assert re.search(rf"^{stage} +[\d.]+ +\d+%$", result.stdout, re.M), result.stdout
    again = compile_(run, network, "--profile-tuning")
    assert "nothing was measured: all times came from the cache" in again.stdout
