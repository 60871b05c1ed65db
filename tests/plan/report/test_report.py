"""The report of a plan: rows, times, and layers that fell back to the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError, ModelError, UnsupportedError
from gossamer.io.text import duration_text
from gossamer.measure import Timing
from gossamer.ops.registry import OPS
from gossamer.plan.choose.outcomes import DENSE_ONLY, EndToEnd, Planned
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.plan.report.cells import row_time_text
from gossamer.plan.report.report import Report, make_report
from tests.cli.command_line import succeeds
from tests.model.onnx_models import model, runtime, save, weights
from tests.plan.small import assert_close, compiled, expected, images, small

COLUMNS = {"layer", "layers", "op", "problem", "density", "algorithm", "config", "precision",
           "form", "layout", "device", "flops", "skips_zeros", "rejected", "kind", "best_sparse_us",
           "break_even", "zeros_reason"}
TIMES = {"median_us", "p25_us", "p75_us", "share"}


@pytest.fixture
def plan(quick_device: Device, tmp_path: Path) -> Plan:
    return compiled(small(), quick_device, tmp_path)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function: after refuse("pool") algorithms of that op run on the host only."""

    def patch(op: str) -> None:
        for algorithm in OPS[op].algorithms:
            supports = algorithm.supports

            def only_host(problem: Any, device: Device, supports: Any = supports) -> str | None:
                return "refused by a test" if device.compiles else supports(problem, device)

            monkeypatch.setattr(algorithm, "supports", only_host)

    return patch


def test_rows_tell_every_step(plan: Plan, quick_device: Device) -> None:
    report = plan.report(3)
    assert (report.device, report.batch, report.end_to_end_us) == (quick_device.name, 3, None)
    steps = plan.program(3).steps
    assert len(report.rows) == len(steps) > 0
    for row, step in zip(report.rows, steps, strict=True):
        assert row.keys() == COLUMNS
        assert (row["layer"], row["op"]) == (step.layer.name, step.problem.op)
        assert row["algorithm"] in [a.name for a in OPS[row["op"]].algorithms]
        assert row["device"] == quick_device.name
        assert row["problem"] and row["flops"] >= 0
    by_name = {row["layer"]: row for row in report.rows}
    assert by_name["second"]["problem"].startswith("3x3 8x6x5 -> 8x6x5")
    assert by_name["second"]["flops"] >= 2 * 3 * 8 * 8 * 9 * 6 * 5
    assert by_name["second"]["density"] == by_name["classes"]["density"] == 1
    assert by_name["pool"]["density"] is None


def test_density_is_that_of_the_weights(quick_device: Device, tmp_path: Path) -> None:
    pruned = weights(8, 4, 3, 3)
    pruned[:, 1:] = 0
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
                  {"x": ["N", 4, 5, 5]}, {"y": 4}, {"w": pruned})
    rows = compiled(proto, quick_device, tmp_path).report(1).rows
    assert [row["density"] for row in rows if row["op"] == "conv2d"] == [0.25]


def test_text_has_a_line_for_every_step_and_note(plan: Plan, quick_device: Device) -> None:
    report = plan.report()
    assert report.batch == 1
    lines = str(report).splitlines()
    assert len(lines) == 1 + len(report.rows) + len(report.notes)
    assert lines[0].split() == ["layer", "problem", "algorithm", "config"]
    for line, row in zip(lines[1:], report.rows, strict=False):
        assert line.startswith(row["layer"]) and row["problem"] in line
    layers = sum(not step.layer.inserted for step in plan.program(1).steps)
    assert lines[-1] == f"{quick_device.name} ran all {layers} layers"


def test_what_became_of_the_zeros_in_words() -> None:
    def row(skips: bool, density: float | None, us: float, dense: float | None) -> dict[str, Any]:
        return {"skips_zeros": skips, "density": density, "best_dense_us": dense,
                "speedup": dense and dense / us}

    thin, other, full = row(True, 0.1, 4.0, 9.5), row(True, 0.3, 2.0, 3.0), row(False, 1.0, 7, 7)
    pool = row(False, None, 1.0, 1.0)
    assert Report("host", 1, [thin, full, pool, other]).zeros_line == (
        "zeros are skipped in 2 of 3 layers with weights: these layers alone take 6.0 us, and "
        "12.5 us with the best dense algorithms")
    measured = Report("host", 1, [thin, other], end_to_end_us=8.0,
                      plans=[{"plan": DENSE_ONLY, "median_us": 15.0, "is_taken": False}])
    assert measured.zeros_line.endswith(
        "algorithms; the network takes 8.0 us, with dense algorithms only 15.0 us")
    unknown = row(True, 0.2, 1.0, None)
    assert Report("host", 1, [thin, unknown]).zeros_line == (
        "zeros are skipped in 2 of 2 layers with weights")
    assert Report("host", 1, [row(False, 0.0, 1.0, 1.0)]).zeros_line == (
        "zeros are skipped in 0 of 1 layer with weights")
    assert Report("host", 1, [full, pool]).zeros_line == ""


def test_a_notebook_shows_the_table_and_a_prompt_one_line(plan: Plan) -> None:
    report = plan.profile()
    assert len(repr(report)) < 120 and repr(report).startswith("<Report of")
    page = report._repr_html_()
    assert page in plan._repr_html_() or plan._repr_html_().count("<tr>") == page.count("<tr>")
    assert page.count("<tr>") == len(report.rows) + 1
    for row in report.rows:
        assert f">{row['layer']}</td>" in page and f">{row['algorithm']}</td>" in page
    assert duration_text(report.end_to_end_us) in page
    quick = gossamer.compile(small(), "host", effort="quick")
    assert "report(1) measures batch 1" in quick._repr_html_() and not quick.planned_batches
    rows = quick.program(3).shown
    assert PlanGroup([quick])._repr_html_().count("<tr>") == len(rows) + 1


@pytest.mark.parametrize(("microseconds", "text"), [
    (0, "0.0 us"), (8.25, "8.2 us"), (999.9, "999.9 us"), (999.96, "1.00 ms"), (1e3, "1.00 ms"),
    (1234, "1.23 ms"), (12345, "12.3 ms"), (123456, "123 ms"), (999499, "999 ms"),
    (999500, "1.00 s"), (1.5e6, "1.50 s"), (123456789, "123 s"), (4e9, "4000 s")])
def test_times_have_three_digits_from_a_millisecond_on(microseconds: float, text: str) -> None:
    assert duration_text(microseconds) == text


def test_a_time_that_a_profile_rounds_to_nothing() -> None:
    assert [row_time_text({"median_us": us, "config": config}) for us, config in (
        (None, ""), (0.0, ""), (0.0, "in place"), (0.26, ""))] == ["", "< 1 us", "0.0 us", "0.3 us"]


def test_report_is_of_the_last_batch(plan: Plan) -> None:
    plan(images(2))
    assert plan.report().batch == 2
    plan(images(0))
    assert plan.report().batch == 2
    assert plan.report(5).batch == 5
    with pytest.raises(InputError, match="batch 'a': expected a number of images"):
        plan.profile("a")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_profile_fills_in_the_times(plan: Plan, quick_device: Device) -> None:
    report = plan.profile(2)
    assert report.batch == 2 and report.end_to_end_us is not None and report.end_to_end_us > 0
    for row in report.rows:
        assert row.keys() == COLUMNS | TIMES
        assert 0 < row["p25_us"] <= row["median_us"] <= row["p75_us"]
    assert sum(row["share"] for row in report.rows) == pytest.approx(1)
    assert sum(report.shares.values()) == pytest.approx(1)
    assert report.shares.keys() <= {"on the host" if quick_device.name == "host" else "our kernels",
                                    "between layers"}
    assert "end to end on" in str(report) and report.shares_line in str(report)
    assert report.call_us is not None and report.call_us > 0
    assert report.call_line and report.call_line in str(report)
    assert plan.report(2) == report
    assert plan.report(3).call_us is None and plan.report(3).call_line == ""
    assert plan.report(3).end_to_end_us is None
    assert_close(plan(images(2)), expected(images(2)))


def _shares(plan: Plan, end_to_end_us: float, step_us: float = 10.0) -> dict[str, float]:
    program = plan.program(2)
    timings = [Timing(step_us, step_us, step_us, 5)] * len(program.steps)
    end_to_end = EndToEnd(Timing(end_to_end_us, end_to_end_us, end_to_end_us, 5))
    return make_report(Planned(program), plan.device, timings, end_to_end).shares


def test_shares_say_whose_kernels_the_time_goes_to(
    compiled_device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[[str], None]
) -> None:
    refuse("pool")
    plan = compiled(small(), compiled_device, tmp_path)
    steps = plan.program(2).steps
    count = len(steps)
    (step,) = [step for step in steps if step.layer.name == "classes"]
    assert _shares(plan, 100.0 * count) == pytest.approx(
        {"our kernels": (count - 1) / (10 * count), "on the host": 1 / (10 * count),
         "between layers": 0.9})
    monkeypatch.setattr(type(step.algorithm), "vendor", "cuBLAS")
    assert _shares(plan, 20.0 * count) == pytest.approx(
        {"our kernels": (count - 2) / (2 * count), "cuBLAS": 0.5 / count,
         "on the host": 0.5 / count, "between layers": 0.5})
    # the layers take longer one by one than together
    assert _shares(plan, 1.0) == pytest.approx(
        {"our kernels": (count - 2) / count, "cuBLAS": 1 / count, "on the host": 1 / count})
    assert _shares(plan, 0.0, 0.0) == {}
    assert plan.report(2).shares == {} and plan.report(2).shares_line == ""


def test_a_layer_without_a_time_leaves_shares_out(tmp_path: Path) -> None:
    """A layer has to take a candidate without a time where measuring gave up on all of them."""
    plan = gossamer.compile(str(save(small(), tmp_path)), "host", effort="quick")
    program = plan.program(2)
    (step, *_) = [step for step in program.steps if step.candidates]
    step.candidates = [replace(candidate, measured=replace(
        candidate.measured, median_us=None, failure="given up")) for candidate in step.candidates]
    report = make_report(Planned(program), plan.device, None, EndToEnd(Timing.of([20.0])))
    assert any(row.get("median_us", 0) is None for row in report.rows)
    assert report.shares == {} and report.end_to_end_us == 20.0
    assert "end to end on host, batch 2: 20.0 us" in str(report)


def test_a_report_tells_of_scattered_times_in_its_own_profile(
        plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.measure.SCATTERED", 0.0)

    def told(report: Report) -> bool:
        return any("the quartiles of the times" in note for note in report.notes)

    assert told(plan.profile(2)) and told(plan.report(2)) and not told(plan.report(3))
    monkeypatch.setattr("gossamer.measure.SCATTERED", math.inf)
    assert not told(plan.profile(2))


@pytest.mark.parametrize(("axis", "batch"), [(0, 4), (1, 1)])
def test_a_file_of_one_batch_size_is_reported_at_a_size_at_which_it_runs(
    axis: int, batch: int, compiled_device: Device, tmp_path: Path
) -> None:
    proto = model([helper.make_node("ReduceMean", ["x"], ["y"], axes=[axis])], {"x": [4, 3]},
                  {"y": 2})
    path = save(proto, tmp_path)
    for use in (Plan.report, Plan.profile):
        assert use(compiled(proto, compiled_device, tmp_path)).batch == batch
    plan = compiled(proto, compiled_device, tmp_path)
    assert list(plan.choices()) == [str(batch)]
    plan.save(tmp_path / "saved.plan")
    assert Plan.load(tmp_path / "saved.plan", compiled_device).report().batch == batch
    for verb in (("inspect",), ("compile", "--device", "host", "--effort", "quick")):
        assert f"batch {batch}" in succeeds(*verb, path).stdout
    x = np.ones((4, 3), np.float32)
    plan(x)
    for rows in (1, 8) if axis == 0 else ():
        for refused in (plan, plan.bind):
            with pytest.raises(ModelError, match="run it at batch 4"):
                refused(np.resize(x, (rows, 3)))
    assert plan.report().batch == plan.profile().batch == 4


@pytest.mark.parametrize("op", ["conv2d", "pool", "copy"])
def test_a_layer_that_the_device_cannot_run_goes_to_the_host(
    op: str, compiled_device: Device, tmp_path: Path, refuse: Callable[[str], None]
) -> None:
    node = helper.make_node
    proto = model([node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
                   node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2]),
                   node("Transpose", ["b"], ["c"], "turn", perm=[0, 2, 3, 1]),
                   node("Relu", ["c"], ["y"], "relu")],
                  {"x": ["N", 3, 4, 5]}, {"y": 4}, {"w": weights(4, 3, 3, 3)})
    refuse(op)
    plan = compiled(proto, compiled_device, tmp_path)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 3, 4, 5)).astype(np.float32)
        assert_close(plan(x), runtime(proto, {"x": x})[0])
    report = plan.report()
    host_rows = [row for row in report.rows if row["device"] == "host"]
    assert {row["op"] for row in host_rows} == {op}
    (note,) = report.notes
    # on the host are the refused layer and the layout changes that were inserted for it
    assert note.startswith(f"{compiled_device.name} ran 3 of 4 layers; 1 ") and " on host: " in note
    assert all(row["layer"] in note for row in host_rows) and "refused by a test" in note
    strict = compiled(proto, compiled_device, tmp_path, strict=True)
    with pytest.raises(UnsupportedError, match=f"{compiled_device.name} cannot run .*"
                                               "refused by a test.*strict") as caught:
        strict(x)
    assert "\n" not in str(caught.value)


def test_profile_of_a_plan_with_a_layer_on_the_host(
    compiled_device: Device, tmp_path: Path, refuse: Callable[[str], None]
) -> None:
    refuse("softmax")
    proto = model([helper.make_node("Softmax", ["x"], ["a"], "soft"),
                   helper.make_node("Relu", ["a"], ["y"], "relu")], {"x": ["N", 3]}, {"y": 2})
    report = compiled(proto, compiled_device, tmp_path).profile(2)
    assert [row["device"] for row in report.rows] == ["host", compiled_device.name]
    # the device's clock does not measure the host, but it measures the next layer
    assert report.rows[1]["median_us"] > 0


def test_nothing_computes_it(quick_device: Device, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in OPS["softmax"].algorithms:
        monkeypatch.setattr(algorithm, "supports", lambda problem, device: "out of order")
    proto = model([helper.make_node("Softmax", ["x"], ["y"], "soft")], {"x": ["N", 3]}, {"y": 2})
    plan = compiled(proto, quick_device, tmp_path)
    with pytest.raises(UnsupportedError, match=r"no algorithm computes .*out of order") as e:
        plan.program(1)
    assert "\n" not in str(e.value)
