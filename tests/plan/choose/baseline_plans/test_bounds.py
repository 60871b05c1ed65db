"""The least times of baseline plans: none takes less, whichever regions it computes as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.plan.choose.baseline_bounds import BaselineBounds

ONE, OTHER, FUSED = "im2col_gemm", "published", "inverted_residual"
LAYERS = ("a", "b", "c", "d")
REGIONS = (("a", "b"), ("b", "c"), ("a", "b", "c"), ("c", "d"))
Times = Mapping[str, float]


def measured(covers: tuple[str, ...], name: str, times: Times) -> Any:
    """Returns a layer or region with a candidate of each algorithm."""
    return SimpleNamespace(
        layer=SimpleNamespace(name=name, covers=covers),
        candidates=[SimpleNamespace(algorithm=SimpleNamespace(name=algorithm, dense=True),
                                    cost=time, is_usable=time < math.inf)
                    for algorithm, time in times.items()])


def network(alone: Sequence[Times], regions: Sequence[float]) -> list[Any]:
    return [*(measured((), name, times) for name, times in zip(LAYERS, alone, strict=True)),
            *(measured(covers, "+".join(covers), {FUSED: time})
              for covers, time in zip(REGIONS, regions, strict=True))]


def least_by_trying(alone: Sequence[Times], regions: Sequence[float]) -> float:
    """Returns the least time of all layers over all choices of regions that share no layer."""
    cost = dict(zip(LAYERS, (min(times.values()) for times in alone), strict=True))
    best = math.inf
    for taken in itertools.product((False, True), repeat=len(REGIONS)):
        chosen = [number for number, is_taken in enumerate(taken) if is_taken]
        covered = [name for number in chosen for name in REGIONS[number]]
        if len(covered) == len(set(covered)):
            best = min(best, sum(regions[number] for number in chosen) + sum(
                time for name, time in cost.items() if name not in covered))
    return best


TIME = st.floats(0.1, 100.0)


@given(st.lists(st.fixed_dictionaries({ONE: TIME, OTHER: TIME}), min_size=4, max_size=4),
       st.lists(TIME, min_size=4, max_size=4))
def test_no_plan_takes_less(alone: list[Times], regions: list[float]) -> None:
    bounds = BaselineBounds(network(alone, regions))
    least = least_by_trying(alone, regions)
    assert bounds.least_us(None) <= least * (1 + 1e-9)
    # what takes an algorithm that computes every layer takes no region
    assert bounds.least_us(ONE) == pytest.approx(sum(times[ONE] for times in alone))


def test_without_regions_it_is_the_sum_of_the_fastest() -> None:
    alone = [{ONE: 3.0, OTHER: 2.0}, {ONE: 4.0}, {OTHER: math.inf, ONE: 5.0}, {ONE: 1.0}]
    bounds = BaselineBounds(network(alone, [math.inf] * 4))
    assert bounds.least_us(None) == 12.0 and bounds.least_us(ONE) == 13.0
    # layers that the algorithm cannot compute take the fastest other one
    assert bounds.least_us(OTHER) == 12.0
