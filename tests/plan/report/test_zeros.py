"""Tests of what a report says on zeros among weights."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.native import processor as native
from gossamer.device.registry import find
from gossamer.ops.registry import OPS
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.report.report import Report
from gossamer.plan.report.zeros import break_even, reason_lines
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.plan.small import reloaded, save, small

SLOWER = "the best algorithm that skips them is no faster"


@pytest.mark.parametrize(("density", "sparse_us", "dense_us", "expected"), [
    (0.1, 40.0, 10.0, 0.025), (0.1, 10.0, 40.0, 0.4), (0.5, 10.0, 40.0, 1.0),
    (None, 1.0, 1.0, None), (0.0, 1.0, 1.0, None), (0.1, math.inf, 1.0, None),
    (0.1, 1.0, math.inf, None), (0.1, 0.0, 1.0, None), (0.1, 1.0, 0.0, None)])
def test_the_time_of_nonzeros_is_extrapolated(density: float | None, sparse_us: float,
                                              dense_us: float, expected: float | None) -> None:
    assert break_even(density, sparse_us, dense_us) == (
        None if expected is None else pytest.approx(expected))


def row(kind: str, reason: str, sparse_us: float | None = None, dense_us: float = 10.0,
        density: float = 0.1) -> dict[str, Any]:
    known = None if sparse_us is None else break_even(density, sparse_us, dense_us)
    return {"kind": kind, "zeros_reason": reason, "best_sparse_us": sparse_us,
            "best_dense_us": dense_us, "break_even": known, "density": density,
            "skips_zeros": not reason}


def test_each_kind_of_layer_has_a_line() -> None:
    rows = [row("3x3 convolution", SLOWER, 25.0), row("3x3 convolution", SLOWER, 40.0),
            row("3x3 convolution", "no algorithm was tried"), row("product", ""),
            row("1x1 convolution", SLOWER, 12.0)]
    assert reason_lines(rows) == [
        f"zeros are not skipped in 3x3 convolutions: in 2 layers {SLOWER}: it takes 2.5 to 4 times "
        "as long as the best dense one, and is expected to win below a density of 2% to 4%; in 1 "
        "layer no algorithm was tried",
        f"zeros are not skipped in 1x1 convolutions: in 1 layer {SLOWER}: it takes 1.2 times as "
        "long as the best dense one, and is expected to win below a density of 8%"]


def test_layers_with_empty_outputs_are_reported(tmp_path: Path) -> None:
    """All candidates of such layers take no time."""
    host = find("host")
    tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
    plan = Plan(pruned(tmp_path), host, Policy(unfused=True), tuner=tuner)
    line = next(line for line in plan.report(0).zeros_lines if "are not skipped" in line)
    assert SLOWER in line and "below a density" not in line


def test_layers_without_nonzeros_have_no_density_at_which_zeros_win() -> None:
    empty = {**row("product", SLOWER, 25.0), "break_even": None}
    assert reason_lines([empty]) == [
        f"zeros are not skipped in products: in 1 layer {SLOWER}: it takes 2.5 times as long as "
        "the best dense one"]


def test_layers_without_weights_are_counted() -> None:
    rows = [row("product", "", density=0.0), row("product", "", density=0.2)]
    assert Report("host", 1, rows).zeros_lines[1] == (
        "the weights of 1 layer are all zero: only the bias, the activation and sums are "
        "computed")


SKIPPING = {algorithm.name for op in OPS.values() for algorithm in op.algorithms
            if not algorithm.dense}


def pruned(folder: Path) -> Any:
    graph = gossamer.load(str(save(small(), folder)))
    for name, array in graph.constants.items():
        if array.ndim > 1:
            kept = np.random.default_rng(0).random(array.shape) < 0.5
            graph.constants[name] = array * kept
    return graph


def test_a_plan_that_measures_says_below_which_density_zeros_win(tmp_path: Path) -> None:
    host = find("host")
    plan = Plan(pruned(tmp_path), host, tuner=Tuner(
        host, "quick", cache=TuningCache(host, tmp_path / "tuning")))
    report = plan.report(1)
    weighted = [row for row in report.rows if row["density"] is not None]
    assert len(weighted) > 2
    for each in weighted:
        times = {dense: [candidate["median_us"] for candidate in each["candidates"]
                         if (candidate["algorithm"] in SKIPPING) is not dense
                         and candidate["median_us"]] for dense in (True, False)}
        assert each["best_sparse_us"] == min(times[False], default=None)
        if times[False] and times[True]:
            assert each["best_dense_us"] <= min(times[True])
            assert each["break_even"] == break_even(
                each["density"], min(times[False]), each["best_dense_us"])
        assert bool(each["zeros_reason"]) is not each["skips_zeros"]
    assert all(line in str(report).splitlines() for line in report.zeros_lines)


def test_a_plan_that_measures_nothing_says_so(tmp_path: Path) -> None:
    plan = gossamer.compile(pruned(tmp_path), "host")
    lines = plan.report(1).zeros_lines
    assert "this plan has no times of algorithms; set an effort" in lines[1]
    loaded = reloaded(plan, tmp_path)
    assert "this plan has no times of algorithms; set an effort" in str(loaded.report(1))


def test_a_plan_without_the_generator_says_what_it_would_bring(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_llvm", lambda: None)
    report = gossamer.compile(pruned(tmp_path), "host").report(1)
    line = next(note for note in report.notes if "generated code" in note)
    assert re.fullmatch(r"zeros of \d layers would be skipped by generated code, which may be "
                        r"several times as fast: needs llvmlite, .*'\.\[host\]'.*", line)
    monkeypatch.undo()
    assert "generated code" not in str(gossamer.compile(pruned(tmp_path), "host").report(1))
