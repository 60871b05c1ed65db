"""Options that a policy refuses."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from gossamer.plan.policy import Policy
from tests.golden import Golden


@pytest.mark.parametrize("seconds", [1e-300, 1, np.float32(2.5), 1e300])
def test_any_other_budget_is_allowed(seconds: float) -> None:
    assert Policy("quick", budget_s=seconds).budget_s == seconds


def test_options_that_are_refused(golden: Golden) -> None:
    options: list[dict[str, Any]] = [
        {"effort": "quick", name: value} for name in ("budget_s", "tolerance", "sparse_threshold")
        for value in ("10", [0.5], 1j)]
    options += [{"effort": "quick", "budget_s": seconds}
                for seconds in (0, -1.0, math.nan, math.inf, -math.inf, np.float32(0))]
    options += [{"budget_s": 1}, {"force": {"a": "cudn"}}]
    golden.refusals("policies", {str(each): partial(Policy, **each) for each in options})
