"""The verb `compile`: what it prints, --calibration, --tolerance and --explain."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.cli import compile
from gossamer.io.text import duration_text
from gossamer.plan.tune.tuner import Progress, Tuner
from tests.cli.compile.command import Run, compile_
from tests.model.onnx_models import model, save, weights
from tests.plan.choose.fusions.toy import FusedPair, no_comparison, set_costs, with_algorithm
from tests.plan.small import images


def test_the_table_says_what_was_chosen_and_how_long_it_takes(run: Run, network: Path) -> None:
    result = compile_(run, network, "--batch", "1,3")
    for heading in ("layer", "problem", "density", "algorithm", "time", "quartiles", "dense time",
                    "speed-up", "error"):
        assert heading in result.stdout
    for batch in (1, 3):
        assert re.search(rf"^end to end, batch {batch}: [\d.]+ (us|ms)$", result.stdout, re.M)
    assert re.search(r"^classes +3x8 to 3x4|^classes ", result.stdout, re.M)
    assert re.search(r"^\d+ candidates measured, 0 from the cache, \d+ not tried$", result.stdout,
                     re.M)


def test_the_second_compilation_measures_nothing_and_saves_the_same(
        run: Run, network: Path, tmp_path: Path) -> None:
    counts, ends = [], []
    for name in ("a", "b"):
        result = compile_(run, network, "--json", "-o", tmp_path / f"{name}.plan")
        described = json.loads(result.stdout)
        counts.append((described["measured"], described["reused"]))
        (report,) = described["reports"]
        ends.append((report["end_to_end_us"], report["end_to_end_cached"]))
    assert counts[0][0] > 0 == counts[0][1]
    assert counts[1] == counts[0][::-1]
    assert ends == [(ends[0][0], False), (ends[0][0], True)] and ends[0][0] > 0
    text = compile_(run, network).stdout
    assert f"end to end, batch 1: {duration_text(ends[0][0])} (from the cache)\n" in text
    assert (tmp_path / "a.plan").read_bytes() == (tmp_path / "b.plan").read_bytes()


def test_how_many_layers_take_less_than_float32_is_told(run: Run, network: Path) -> None:
    # the host computes in float32 only
    result = compile_(run, network, "--precision", "fp16")
    assert re.search(r"^precision fp16 allowed: 0 of \d+ layers in lower precision than float32$",
                     result.stdout, re.M)
    assert "allowed:" not in compile_(run, network).stdout


def test_scattered_times_are_told_and_kept(
        run: Run, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.measure.SCATTERED", 0.0)
    monkeypatch.setattr("gossamer.plan.tune.tuner._FEW_TIMINGS", 1)
    narrow = compile_(run, network)
    assert re.search(r"^notice: the quartiles of the times on .* differ by more than .*"
                     "measure again when the device is idle, and run `gossamer cache clear`",
                     narrow.stderr, re.M)
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


def test_lines_are_told_once_and_threads_only_on_the_host(
        run: Run, network: Path, device_name: str, tmp_path: Path) -> None:
    assert compile_(run, network, "--batch", "1,2").stdout.count("host ran all ") == 1
    np.save(tmp_path / "x.npy", images(1))
    call = ("run", network, "--input", tmp_path / "x.npy")
    told = run(*call, "--threads", "2", "--device", device_name).stderr
    assert told == ("" if device_name == "host" else f"notice: --threads 2: has no effect on "
                    f"{device_name}, only on layers on the host\n")
    for verb in (("compile", network), call, ("serve", network)):
        assert "--threads 0: expected all, or a number of 1 or more" in run(
            *verb, "--threads", "0").stderr


def test_a_network_without_a_batch_takes_none(run: Run, tmp_path: Path) -> None:
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": []}, {"y": None}), tmp_path)
    compile_(run, path)
    result = compile_(run, path, "--batch", "4", code=2)
    assert f"--batch 4: {path} has no batch dimension; omit --batch" in result.stderr


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
    assert any("tuning ended before" in note for note in report["notes"])
    later = json.loads(compile_(run, network, "--json").stdout)
    assert later["measured"] > 0


def test_calibration_tells_the_error_of_the_outputs(run: Run, network: Path,
                                                    tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images(3))
    result = compile_(run, network, "--calibration", tmp_path / "x.npy", "--precision", "fp16",
                      "--tolerance", "1e-3", "--json")
    (report,) = json.loads(result.stdout)["reports"]
    assert 0 < report["accuracy"]["error"] < 1e-3
    assert report["accuracy"]["images"] == 3 and report["accuracy"]["tolerance"] == 1e-3
    assert any("on 3 calibration images" in note for note in report["notes"])


def test_calibration_images_that_are_mixed_are_refused_before_anything_is_measured(
        run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model([helper.make_node("Softmax", ["x"], ["y"], "it", axis=0)],
                      {"x": ["N", 3, 6, 5]}, {"y": 4}), tmp_path)
    np.save(tmp_path / "x.npy", images(3))
    words = ("--calibration", tmp_path / "x.npy", "--batch")
    compile_(run, path, *words, "3")
    monkeypatch.setattr(Tuner, "measure_all", None)
    result = compile_(run, path, *words, "3,4", code=2)
    assert result.stderr.startswith("error: the calibration inputs have 3 images, expected 4 for "
                                    "batch 4: Softmax 'it' works across axis 0")


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
            if explained:
                assert reason in result.stdout
        for name, reason in row["rejected"].items():
            if explained:
                assert re.search(rf"^{name} .*{re.escape(reason)}", result.stdout, re.M)


def test_names_of_layers_are_shown_as_they_are(run: Run, tmp_path: Path) -> None:
    odd = "[red]a/b[/red] %s {x}"
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], odd)], {"x": ["N", 3, 4, 4]},
                  {"y": 4}, {"w": weights(2, 3, 1, 1)})
    path = save(proto, tmp_path)
    for name in (odd, odd.rpartition("/")[0]):  # the module before the last slash has one layer
        result = compile_(run, path, "--explain", name, "-o", tmp_path / "odd.plan")
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
