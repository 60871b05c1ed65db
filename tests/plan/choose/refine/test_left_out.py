"""Plans that are not timed: those that are the measured choice, and those whose layers take clearly
longer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gossamer.plan.candidate import Candidate
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


@pytest.mark.parametrize(("dense_us", "is_timed"), [(12.0, True), (40.0, False)])
def test_a_plan_whose_layers_take_clearly_longer_is_not_timed(
        dense_us: float, is_timed: bool, make: Callable[..., Plan],
        monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    time = Candidate.cost.fget  # type: ignore[attr-defined]

    def cost(self: Candidate) -> float:
        is_thin = self.variant.inputs[0].shape[1] == self.variant.outputs[0].shape[1]
        us = 10.0 if not is_thin or self.algorithm.name == DEPTHWISE else dense_us
        return us if math.isfinite(time(self)) else math.inf

    monkeypatch.setattr(Candidate, "cost", property(cost))
    plan = make()
    assert algorithm(plan.program(2)) == (DENSE if is_timed else DEPTHWISE)
    assert rounds == ([[DEPTHWISE, DENSE]] if is_timed else [[DEPTHWISE]])
    if not is_timed:
        assert outcomes(plan)[OTHER] == ("not tried: its layers take at least 60.0 us alone, those "
                                         "of the measured choice 30.0 us")


@pytest.mark.parametrize("others_us", [9.0, 11.0])
def test_a_plan_of_an_algorithm_for_layers_that_take_little_time_is_not_made(
        others_us: float, make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 100.0})
    time = Candidate.cost.fget  # type: ignore[attr-defined]

    def cost(self: Candidate) -> float:
        is_thin = self.variant.inputs[0].shape[1] == self.variant.outputs[0].shape[1]
        us = others_us if not is_thin else 1.0 if self.algorithm.name == DENSE else 1.1
        return us if math.isfinite(time(self)) else math.inf

    monkeypatch.setattr(Candidate, "cost", property(cost))
    found = outcomes(make())
    # 1 of 19 us is not little; 1 of 23 us is, and the other plan is the measured choice
    assert set(found) == ({CHOICE, OTHER, SAME} if others_us == 9.0 else set())
    assert found.get(OTHER) in (None, f"the same as {CHOICE}")
