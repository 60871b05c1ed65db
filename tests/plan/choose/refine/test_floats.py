"""The plan without algorithms on bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import gossamer
from gossamer.measure import Task, Timing
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.outcomes import MEASURED
from gossamer.plan.program import Program
from gossamer.plan.report.bits import computes_on_bits
from gossamer_bench.suites.binary_networks import vgg_cifar10

FLOATS = "floats only"


def has_bits(program: Program) -> bool:
    return any(map(computes_on_bits, program.steps))


@pytest.mark.parametrize(("bits_us", "taken"), [(200.0, FLOATS), (90.0, MEASURED)])
def test_bits_are_taken_on_the_host_where_the_whole_plan_is_faster(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bits_us: float, taken: str) -> None:
    """Each layer alone counts as a hundred times faster on bits."""
    cost = Candidate.cost.fget  # type: ignore[attr-defined]

    def set_cost(self: Candidate) -> float:
        time = 1.0 if self.algorithm.exact else 100.0
        return time if math.isfinite(cost(self)) else math.inf

    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        programs = [task.work.__self__.program for task in tasks]  # type: ignore[attr-defined]
        times = [bits_us if has_bits(program) else 100.0 for program in programs]
        return [Timing(time, 0.98 * time, 1.02 * time, 20) for time in times]

    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr(Candidate, "cost", property(set_cost))
    monkeypatch.setattr(plan_times, "interleave", interleave)
    plan = gossamer.compile(vgg_cifar10("small", 8), "host", effort="quick")
    assert has_bits(plan.program(1)) == (taken == MEASURED)
    rows = {row["plan"]: row for row in plan.report(1).plans}
    assert rows[taken]["is_taken"] and rows[FLOATS]["median_us"] == 100.0
