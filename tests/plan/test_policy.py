"""Options that a policy refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.plan.policy import Policy


@pytest.mark.parametrize(("name", "option"), [
    ("budget_s", "budget"), ("tolerance", "tolerance"), ("sparse_threshold", "sparse_threshold")])
@pytest.mark.parametrize("value", ["10", [0.5], 1j])
def test_numbers_are_numbers(name: str, option: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{option} .*: expected a number$"):
        Policy("quick", **{name: value})


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, -math.inf, np.float32(0)])
def test_an_impossible_budget_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match=r"^budget .*: expected seconds above 0, such as 10$"):
        Policy("quick", budget_s=seconds)


@pytest.mark.parametrize("seconds", [1e-300, 1, np.float32(2.5), 1e300])
def test_any_other_budget_is_allowed(seconds: float) -> None:
    assert Policy("quick", budget_s=seconds).budget_s == seconds


def test_options_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(InputError, match="budget: without an effort nothing is measured"):
        Policy(budget_s=1)
    with pytest.raises(InputError, match=r"^force: 'a' cannot take 'cudn': .* to it: .*cudnn"):
        Policy(force={"a": "cudn"})
