"""Baseline plans that are not made: those that are the measured choice, and those that differ from
it in little."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gossamer.plan.candidate import Candidate
from gossamer.plan.choose.cheapest import Cheapest
from gossamer.plan.plan import Plan
from tests.plan.choose.baseline_plans.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
    SAME,
    outcomes,
    reset,
)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list with the algorithm to which each choice for the whole network is restricted.
    """
    made: list[Any] = []
    choose = Cheapest.choices

    def recorded(self: Cheapest) -> Any:
        made.append(self._policy.only)
        return choose(self)

    monkeypatch.setattr(Cheapest, "choices", recorded)
    return made


def test_a_plan_that_the_measured_choice_is_already_is_not_made(
        make: Callable[..., Plan], choices: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 200.0})
    found = outcomes(make())
    assert found[SAME] == f"the same as {CHOICE}"
    assert choices == [None, DENSE]


@pytest.mark.parametrize("others_us", [9.0, 11.0])
def test_a_plan_that_differs_in_layers_that_take_little_time_is_not_made(
        others_us: float, make: Callable[..., Plan], choices: list[Any],
        monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 100.0})
    time = Candidate.cost.fget  # type: ignore[attr-defined]

    def cost(self: Candidate) -> float:
        is_thin = self.variant.inputs[0].shape[1] == self.variant.outputs[0].shape[1]
        us = others_us if not is_thin else 1.0 if self.algorithm.name == DENSE else 1.1
        return us if math.isfinite(time(self)) else math.inf

    monkeypatch.setattr(Candidate, "cost", property(cost))
    found = outcomes(make())
    assert found[OTHER] == f"the same as {CHOICE}"
    if others_us == 9.0:
        assert choices == [None, DEPTHWISE], "1 of 19 us is not little"
    else:
        assert choices == [None]
        assert found[SAME] == ("not tried: it can compute layers that take 1.0 us of the measured "
                               "choice's 23.0 us")
