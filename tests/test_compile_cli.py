"""The verb `compile`, and `run` with what it saved."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from typer.testing import CliRunner

import gossamer
from gossamer import compile_cli
from gossamer.cli import app
from gossamer.image import PRESETS
from gossamer.measure import Timing
from gossamer.model import zoo
from gossamer.plan import families
from gossamer.plan.html import build_text, page
from gossamer.plan.report import Report
from gossamer.plan.tuner import Trial, Tuner
from tests.model.onnx_models import model, save, weights
from tests.plan.small import assert_close, expected, images, small

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line with a cache of its own."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save(small(), tmp_path)


def compile_(run: Run, network: Path, *words: Any) -> Any:
    return run("compile", network, "--device", "host", "--effort", "quick", *words)


def test_the_table_says_what_was_chosen_and_how_long_it_takes(run: Run, network: Path) -> None:
    result = compile_(run, network, "--batch", "1,3")
    assert result.exit_code == 0, result.output
    for heading in ("layer", "problem", "density", "algorithm", "us", "quartiles", "dense us",
                    "speed-up", "error"):
        assert heading in result.stdout
    for batch in (1, 3):
        assert re.search(rf"^end to end, batch {batch}: \d+\.\d us$", result.stdout, re.M)
    assert re.search(r"^classes +3x8 to 3x4|^classes ", result.stdout, re.M)
    assert re.search(r"^\d+ candidates measured, 0 from the cache$", result.stdout, re.M)


def test_the_second_compilation_measures_nothing_and_saves_the_same(
        run: Run, network: Path, tmp_path: Path) -> None:
    counts, ends, builds = [], [], []
    for name in ("a", "b"):
        result = compile_(run, network, "--json", "-o", tmp_path / f"{name}.plan")
        assert result.exit_code == 0, result.output
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


@pytest.fixture
def separable(tmp_path: Path) -> Path:
    """A network for which the host has two families; the one that is slower layer by layer is
    faster as a whole."""
    node = helper.make_node
    proto = model([node("Conv", ["x", "w0"], ["a"], "thin", group=3, pads=[1, 1, 1, 1]),
                   node("Conv", ["a", "w1"], ["y"], "mix")], {"x": ["N", 3, 6, 5]}, {"y": 4},
                  {"w0": weights(3, 1, 3, 3), "w1": weights(4, 3, 1, 1)})
    return save(proto, tmp_path)


@pytest.fixture
def wholes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whole programs take 50 us in all with host_im2col alone and 100 us otherwise; the result
    counts what is timed."""
    timed: list[int] = []

    def interleave(tasks: Any, **options: Any) -> list[Timing]:
        timed.append(len(tasks))
        names = [{step.algorithm.name for step in task.work.__self__.program.steps}
                 for task in tasks]
        return [Timing(time, time - 1, time + 1, 5)
                for time in (50.0 if each == {"host_im2col"} else 100.0 for each in names)]

    monkeypatch.setattr(families, "interleave", interleave)
    cost = Trial.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Trial, "cost", property(
        lambda self: cost(self) * (1e-3 if self.algorithm.name == "host_depthwise" else 1.0)))
    return timed


def test_plans_of_one_algorithm_are_compared_from_end_to_end(
        run: Run, separable: Path, wholes: list[int], tmp_path: Path) -> None:
    html = tmp_path / "a.html"
    result = compile_(run, separable, "--explain", "thin", "--html", html)
    assert result.exit_code == 0, result.output
    rows = ["measured choice +100.0 +99.0 to 101.0 +100.0 us against 50.0 us",
            "host_depthwise wherever it can +100.0 +99.0 to 101.0 +the same as measured choice",
            "host_im2col wherever it can +50.0 +49.0 to 51.0 +taken: the fastest"]
    assert re.search("^plan +us end to end +quartiles +outcome\n" + "\n".join(rows)
                     + "\n\nend to end, batch 1: 50.0 us\nof 50.0 us end to end: .*on the host",
                     result.stdout, re.M)
    why = "but the plan that takes host_im2col wherever it can is faster as a whole"
    assert re.search(rf"^host_depthwise .*{why}$", result.stdout, re.M)
    assert wholes == [2]
    again = compile_(run, separable, "--json")
    assert wholes == [2]
    (report,) = json.loads(again.stdout)["reports"]
    assert [plan["median_us"] for plan in report["plans"]] == [100.0, 100.0, 50.0]
    assert sum(report["shares"].values()) == pytest.approx(1)
    found = _Page(html.read_text())
    for plan in report["plans"]:
        assert plan["plan"] in found.text and plan["outcome"] in found.text
    assert any(text.startswith("of 50.0 us end to end: ") for text in found.text)


def test_ctrl_c_while_plans_are_compared_keeps_the_candidates(
        run: Run, separable: Path, wholes: list[int], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tasks: Any, **options: Any) -> list[Timing]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(families, "interleave", interrupted)
        result = compile_(run, separable, "-o", tmp_path / "a.plan")
    assert result.exit_code == 130
    kept = re.match(r"error: interrupted: (\d+) candidates measured, kept in ", result.stderr)
    assert kept and not (tmp_path / "a.plan").exists()
    described = json.loads(compile_(run, separable, "--json").stdout)
    assert (described["measured"], described["reused"]) == (0, int(kept[1])) and wholes == [2]


def test_run_takes_a_saved_plan(run: Run, network: Path, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_(run, network, "-o", tmp_path / "small.plan").exit_code == 0
    monkeypatch.setattr(Tuner, "measure", None)
    x = images(2)
    np.save(tmp_path / "x.npy", x)
    result = run("run", tmp_path / "small.plan", "--input", tmp_path / "x.npy", "--output",
                 tmp_path / "y.npy", "--table")
    assert result.exit_code == 0, result.output
    assert "batch 2 was not planned: the choices are those of batch 1" in result.stdout
    assert "end to end, batch 2" in result.stdout
    y = np.load(tmp_path / "y.npy")
    assert_close(y, expected(x))
    np.testing.assert_array_equal(y, gossamer.Plan.load(tmp_path / "small.plan")(x))


def test_run_prepares_photos_for_a_plan_as_for_its_network_of_the_zoo(
        run: Run, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_(run, network, "-o", tmp_path / "small.plan").exit_code == 0
    photo = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    words = ["run", tmp_path / "small.plan", "--image", tmp_path / "photo.png", "--strict"]
    unknown = run(*words)
    assert unknown.exit_code == 0 and "photos are prepared as for ImageNet" in unknown.stderr
    name = gossamer.load(str(network)).name
    monkeypatch.setitem(zoo.MODELS, name, SimpleNamespace(preprocessing=PRESETS["none"]))
    known = run(*words)
    assert known.exit_code == 0 and known.stderr == ""
    assert known.stdout != unknown.stdout


def test_run_refuses_a_plan_that_is_none_and_shapes_of_one(run: Run, network: Path,
                                                           tmp_path: Path) -> None:
    plan = tmp_path / "small.plan"
    assert compile_(run, network, "-o", plan).exit_code == 0
    np.save(tmp_path / "x.npy", images(1))
    result = run("run", plan, "--shape", "3,6,5", "--input", tmp_path / "x.npy")
    assert result.exit_code == 2
    assert "--shape 3,6,5: the shapes of a saved plan are settled" in result.stderr
    plan.write_bytes(plan.read_bytes()[:500])
    result = run("run", plan, "--input", tmp_path / "x.npy")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {plan}: is corrupt or cut short")
    assert len(result.stderr.splitlines()) == 1


def test_explain_shows_every_candidate_with_a_reason(run: Run, network: Path) -> None:
    result = compile_(run, network, "--explain", "second", "--explain", "classes")
    assert result.exit_code == 0, result.output
    described = json.loads(compile_(run, network, "--json").stdout)
    for row in described["reports"][0]["rows"]:
        explained = f"\n{row['layer']} ({row['op']} " in result.stdout
        assert explained == (row["layer"] in ("second", "classes"))
        assert [each["reason"] for each in row["candidates"]].count("taken") == 1
        for each in row["candidates"]:
            assert each["reason"] and (each["median_us"] is not None or each["reason"] != "taken")
            assert (each["build_s"] is None) == (each["median_us"] is None)
            if explained:
                assert each["reason"] in result.stdout and build_text(each) in result.stdout
        for name, reason in row["rejected"].items():
            if explained:
                assert re.search(rf"^{name} .*{re.escape(reason)}", result.stdout, re.M)


@pytest.mark.parametrize(("name", "message"), [
    ("secnd", "close to it: 'second'"),
    ("clas", "close to it: 'classes'"),
    ("qqq", "`gossamer compile` without --explain lists them"),
    ("x as NHWC", "--explain x as NHWC: the network has no such layer"),
])
def test_an_unknown_layer_is_refused(run: Run, network: Path, name: str, message: str) -> None:
    result = compile_(run, network, "--explain", name)
    assert result.exit_code == 2
    assert message in result.stderr and result.stdout == ""


def test_calibration_tells_the_error_of_the_outputs(run: Run, network: Path,
                                                    tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images(3))
    np.save(tmp_path / "thin.npy", images(3)[..., :4])
    (tmp_path / "text.npy").write_text("text")
    result = compile_(run, network, "--calibration", tmp_path / "x.npy", "--precision", "fp16",
                      "--tolerance", "1e-3", "--json")
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["reports"]
    assert 0 < report["accuracy"]["error"] < 1e-3
    assert report["accuracy"]["images"] == 3 and report["accuracy"]["tolerance"] == 1e-3
    assert any("on 3 calibration images" in note for note in report["notes"])
    for words, message in (
            (("--tolerance", "1e-3"), "give --calibration"),
            (("--calibration", tmp_path / "y.npy"), f"--calibration {tmp_path / 'y.npy'}: no such"),
            (("--calibration", f"z={tmp_path / 'x.npy'}"), "--calibration z="),
            (("--calibration", tmp_path / "thin.npy"), "thin.npy: has shape 3x3x6x4, input 'x'"),
            (("--calibration", tmp_path / "text.npy"), "text.npy: cannot be read as a .npy array"),
            (("--calibration", tmp_path / "x.npy", "--tolerance", "0"), "above 0")):
        result = compile_(run, network, *words)
        assert result.exit_code == 2 and message in result.stderr, result.stderr
        assert "--input" not in result.stderr


def test_calibration_images_that_are_mixed_are_refused_before_anything_is_measured(
        run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model([helper.make_node("Softmax", ["x"], ["y"], "it", axis=0)],
                      {"x": ["N", 3, 6, 5]}, {"y": 4}), tmp_path)
    np.save(tmp_path / "x.npy", images(3))
    words = ("--calibration", tmp_path / "x.npy", "--batch")
    assert compile_(run, path, *words, "3").exit_code == 0
    monkeypatch.setattr(Tuner, "measure", None)
    result = compile_(run, path, *words, "3,4")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the calibration inputs hold 3 images, expected 4 for "
                                    "batch 4: Softmax 'it' works across axis 0")


def test_how_many_layers_take_less_than_float32_is_told(run: Run, network: Path) -> None:
    # the host computes in float32 only
    result = compile_(run, network, "--precision", "fp16")
    assert result.exit_code == 0, result.output
    assert re.search(r"^precision fp16 allowed: 0 of \d+ layers in less than float32$",
                     result.stdout, re.M)
    assert "allowed:" not in compile_(run, network).stdout


def test_a_plan_given_for_a_network_is_told_apart(run: Run, tmp_path: Path) -> None:
    result = run("inspect", tmp_path / "a.plan")
    assert result.exit_code == 2
    assert "a plan is loaded by `gossamer run FILE.plan` or gossamer.Plan.load" in result.stderr


def test_times_from_crowded_processors_are_told(
        run: Run, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = itertools.count(0, 1000.0)
    monkeypatch.setattr("gossamer.measure.waited_s", lambda: next(waits))
    crowded = compile_(run, network)
    assert crowded.exit_code == 0, crowded.output
    assert re.search(r"^notice: the processors were wanted elsewhere: in .* s of sampling, threads "
                     r"waited \d+000\.0 s for one; .* `gossamer cache clear`", crowded.stderr, re.M)
    known = compile_(run, network)
    assert known.exit_code == 0 and known.stderr == ""


def test_notices_of_the_cache_are_told_once(run: Run, network: Path, tmp_path: Path) -> None:
    assert compile_(run, network).exit_code == 0
    (stored,) = (tmp_path / "cache" / "tuning").glob("*.json")
    stored.write_text("{")
    result = compile_(run, network, "--batch", "1,2")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("is corrupt or cut short") == 1
    assert "corrupt" not in result.stdout
    stored.write_text("{")
    described = json.loads(compile_(run, network, "--json").stdout)
    (notice,) = described["notices"]
    assert notice.startswith(f"{stored} is corrupt")
    assert notice in described["reports"][0]["notes"]


class _Page(HTMLParser):
    """Collects what a page refers to and says; checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.widths: list[float] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self._open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action"):
                self.links.append(str(value))
            if name == "style":
                self.widths.append(float(str(value).removeprefix("width:").removesuffix("%")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def test_the_page_of_a_file_whose_name_is_no_utf_8(
        run: Run, network: Path, tmp_path: Path) -> None:
    odd = tmp_path / "sm\udce4ll.onnx"
    try:
        odd.write_bytes(network.read_bytes())
    except OSError:
        pytest.skip("this file system takes no such name")
    result = compile_(run, odd, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "sm\\udce4ll.onnx" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_page_stands_alone_and_says_it_all(run: Run, network: Path, tmp_path: Path) -> None:
    result = compile_(run, network, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "a.html").read_text()
    described = json.loads(compile_(run, network, "--json").stdout)
    found = _Page(text)
    assert found.links == [] and "url(" not in text and "@import" not in text
    assert "script" not in found.tags
    assert max(found.widths) == 100.0 and min(found.widths) >= 0
    for row in described["reports"][0]["rows"]:
        assert row["layer"] in found.text and row["problem"] in found.text
        for each in row["candidates"]:
            assert each["reason"] in found.text
        for reason in row["rejected"].values():
            assert reason in found.text


def test_the_page_escapes_names() -> None:
    name = '<script>alert("1")</script> & \'x\''
    row = {"layer": name, "op": name, "problem": name, "density": None, "algorithm": name,
           "config": name, "precision": "fp32", "layout": name, "device": name, "flops": 0,
           "median_us": 0.0, "p25_us": 0.0, "p75_us": 0.0, "cold_us": None, "error": None,
           "best_dense_us": None, "speedup": None, "build_s": None, "build_when": None,
           "build_cached": None, "device_bytes": None, "skips_zeros": False,
           "rejected": {name + "2": name},
           "candidates": [{"algorithm": name, "config": name, "layouts": [name],
                           "precision": name, "median_us": None, "p25_us": None, "p75_us": None,
                           "cold_us": None, "error": float("nan"), "build_s": 1.0,
                           "build_cached": True, "device_bytes": 0, "reason": name}]}
    facts = {"model": name, "device": name, "description": name, "effort": name,
             "precision": name, "measured": 1, "reused": 0}
    found = _Page(page(facts, [Report(name, 1, [row], [name])]))
    assert "script" not in found.tags
    assert found.text.count(name) >= 8


def test_names_of_layers_are_shown_as_they_are(run: Run, tmp_path: Path) -> None:
    odd = "[red]a/b[/red] %s {x}"
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], odd)], {"x": ["N", 3, 4, 4]},
                  {"y": 4}, {"w": weights(2, 3, 1, 1)})
    path = save(proto, tmp_path)
    result = compile_(run, path, "--explain", odd, "-o", tmp_path / "odd.plan")
    assert result.exit_code == 0, result.output
    assert result.stdout.count(odd) == 2
    assert gossamer.Plan.load(tmp_path / "odd.plan").program(1).steps[0].layer.name == odd


@pytest.mark.parametrize(("words", "message"), [
    (["--effort", "huge"], "--effort huge: expected one of quick, normal, max"),
    (["--precision", "fp8"], "--precision fp8: expected one of fp32, tf32, fp16"),
    (["--batch", "1,x"], "--batch 1,x: expected sizes of 1 or more, like 1,8"),
    (["--batch", "0"], "--batch 0: expected sizes of 1 or more"),
    (["--batch", ""], "--batch : expected sizes of 1 or more"),
    (["-o", "a.zip"], "--output a.zip: expected a name that ends in .plan"),
    (["-o", "absent/a.plan"], "--output absent/a.plan: there is no folder absent"),
    (["--html", "a.txt"], "--html a.txt: expected a name that ends in .html"),
    (["--shape", "4,6,5"], "4"),
])
def test_wrong_options_are_refused_before_anything_is_measured(
        run: Run, network: Path, words: list[str], message: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuner, "measure", None)
    result = compile_(run, network, *words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_network_without_a_batch_takes_none(run: Run, tmp_path: Path) -> None:
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": []}, {"y": None}), tmp_path)
    assert compile_(run, path).exit_code == 0
    result = compile_(run, path, "--batch", "4")
    assert f"--batch 4: {path} has no batch; leave --batch out" in result.stderr


def test_ctrl_c_keeps_what_was_measured(run: Run, network: Path,
                                        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure, calls = Tuner.measure, []

    def interrupted(self: Tuner, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(self, *arguments)

    monkeypatch.setattr(Tuner, "measure", interrupted)
    result = compile_(run, network, "-o", tmp_path / "a.plan")
    assert result.exit_code == 130
    kept = re.search(r"^error: interrupted: (\d+) candidates? measured, kept in (.*) for the next",
                     result.stderr)
    assert kept and int(kept[1]) > 0 and Path(kept[2]).is_file()
    assert not (tmp_path / "a.plan").exists()
    monkeypatch.undo()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    described = json.loads(compile_(run, network, "--json").stdout)
    assert described["reused"] >= int(kept[1]) and described["measured"] > 0


def test_ctrl_c_does_not_claim_what_was_not_kept(
        run: Run, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, calls = Tuner.measure, []

    def interrupted(self: Tuner, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == after[0]:
            raise KeyboardInterrupt
        return measure(self, *arguments)

    after = [1]
    monkeypatch.setattr(Tuner, "measure", interrupted)
    result = compile_(run, network)
    assert result.stderr == "error: interrupted: 0 candidates measured\n"
    (tmp_path / "cache").write_text("no folder")
    calls.clear()
    after[0] = 3
    result = compile_(run, network)
    assert result.exit_code == 130
    assert re.search(r"^error: interrupted: [1-9]\d* candidates? measured, not kept: .*"
                     r"tuning.*json cannot be written$", result.stderr, re.M)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_real_ctrl_c_exits_with_130(network: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
            [sys.executable, "-c", "from gossamer.console import main; main()", "compile",
             str(network), "--device", "host", "--effort", "max", "--batch", "64,128,256,512"],
            env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cache").glob("tuning/*.json")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("error: interrupted: ")


def test_the_bar_counts_what_it_is_told_of() -> None:
    with compile_cli._progress() as follow:
        follow.total = 2
        for line in ("first", "second [x]", "copy", "whole"):
            follow.note(line)
        task = follow._progress.tasks[0]
        assert (task.completed, task.total, task.description) == (3, 4, "whole")
