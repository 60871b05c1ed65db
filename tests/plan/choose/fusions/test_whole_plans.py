"""Fusions in calibration, and in the baseline plans that the measured choice is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gossamer.measure import Task, Timing
from gossamer.plan.choose import plan_times
from tests.plan.choose.fusions.toy import (
    ALONE_US,
    FUSION,
    LAYERS,
    NAME,
    FusedBlock,
    blocks,
    images,
    make_plan,
    no_comparison,
    set_costs,
    step_names,
    with_algorithm,
)
from tests.plan.small import reloaded


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_algorithm(monkeypatch, FusedBlock())


def times_by_algorithm(monkeypatch: pytest.MonkeyPatch, fused: float, alone: float) -> None:
    """Sets the times of whole programs: of those with a fused block, and of others."""
    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        programs = [task.work.__self__.program for task in tasks]  # type: ignore[attr-defined]
        times = [fused if any(step.algorithm.name == NAME for step in program.steps) else alone
                 for program in programs]
        return [Timing(time, 0.99 * time, 1.01 * time, 20) for time in times]

    monkeypatch.setattr(plan_times, "interleave", interleave)


def test_a_fusion_that_is_slower_as_a_whole_is_left(monkeypatch: pytest.MonkeyPatch,
                                                    tmp_path: Path) -> None:
    set_costs(monkeypatch, 25.0)
    times_by_algorithm(monkeypatch, fused=50.0, alone=20.0)
    plan = make_plan(blocks(1), tmp_path)
    assert step_names(plan) == LAYERS
    rows = {row["plan"]: row for row in plan.report(2).plans}
    assert rows["measured choice"]["outcome"] == "50.0 us against 20.0 us"
    (taken,) = [name for name, row in rows.items() if row["is_taken"]]
    assert taken == "second choice"
    assert plan.report(2).rows[0]["rejected"][NAME] == (
        f"{FUSION}: 25.0 us against 30.0 us, but the plan is no faster with it")
    y = plan(images(2))
    loaded = reloaded(plan, tmp_path)
    np.testing.assert_array_equal(loaded(images(2)), y)


def test_a_fusion_that_is_faster_as_a_whole_is_taken(monkeypatch: pytest.MonkeyPatch,
                                                     tmp_path: Path) -> None:
    set_costs(monkeypatch, 3.5 * ALONE_US)
    times_by_algorithm(monkeypatch, fused=20.0, alone=50.0)
    plan = make_plan(blocks(1), tmp_path)
    assert step_names(plan) == [FUSION]
    report = plan.report(2)
    assert report.end_to_end_us == 20.0 and report.rows[0]["layers"] == LAYERS
    assert [row["plan"] for row in report.plans if row["is_taken"]] == ["second choice"]
    assert report.rows[0]["rejected"]["layer by layer"] == (
        "30.0 us against 35.0 us, but the plan is no faster with it")


@pytest.mark.parametrize(("tolerance", "precision"), [(0.1, "fp16"), (1e-6, "fp32")])
def test_the_tolerance_decides_on_a_fusion(tolerance: float, precision: str,
                                           monkeypatch: pytest.MonkeyPatch,
                                           tmp_path: Path) -> None:
    no_comparison(monkeypatch)
    set_costs(monkeypatch, 20.0, 0.1, fused_fp16=5.0)
    plan = make_plan(blocks(1), tmp_path, precision="fp16", calibration=[images(4)],
                     tolerance=tolerance)
    report = plan.report(2)
    assert [row["precision"] for row in report.rows if row["layer"] == FUSION] == [precision]
    assert report.accuracy is not None and report.accuracy.error <= tolerance
    less_precise = (FUSION,) if precision == "fp16" else ()
    assert report.accuracy.less_precise == less_precise
    assert report.accuracy.held_back == (() if less_precise else (FUSION,))
