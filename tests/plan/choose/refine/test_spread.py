"""Plans that take about the same time: only a difference beyond the spread counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.plan.plan import Plan
from tests.plan.choose.refine.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
    SAME,
    algorithm,
    outcomes,
    reset,
)


@pytest.mark.parametrize(("time", "outcome"), [
    (97.0, "97.0 us against 100.0 us, within the spread: the measured choice stays"),
    (104.0, "104.0 us against 100.0 us")])
def test_a_difference_within_the_spread_is_none(make: Callable[..., Plan], time: float,
                                                outcome: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: time})
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and plan.end_to_end(2).median_us == 100.0
    taken = "no other is faster by more than the spread" if time < 100 else "the fastest"
    assert outcomes(plan) == {CHOICE: f"taken: {taken}", OTHER: outcome,
                              SAME: "the same as measured choice"}
    (thin,) = [row for row in plan.report(2).rows if row["layer"] == "thin"]
    assert thin["rejected"][DENSE] == "20.0 us against 10.0 us"
