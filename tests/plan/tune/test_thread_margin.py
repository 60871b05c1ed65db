"""Candidates with all BLAS threads have to be clearly faster than those with one."""

from __future__ import annotations

import math

import pytest

from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.gemm.dense import HostGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.candidate import Candidate
from gossamer.plan.measurement import Measurement
from gossamer.plan.tune.thread_margin import without_small_gains

PROBLEM = GemmProblem(3, 5, 7)


def candidate(threads: int | str | None, median: float) -> Candidate:
    config = () if threads is None else (("threads", threads),)
    variant = Variant(config, PROBLEM.inputs, PROBLEM.outputs)
    assert HostGemm().supports(PROBLEM, find("host")) is None
    return Candidate(HostGemm(), variant, Measurement.of(
        HostGemm(), variant, Timing(median, median, median, 5), error=0.0, weights=""))


@pytest.mark.parametrize(("all_threads", "stays"), [(79.0, True), (81.0, False), (150.0, False)])
def test_a_small_gain_is_not_taken(all_threads: float, stays: bool) -> None:
    one, every = without_small_gains([candidate(1, 100.0), candidate("all", all_threads)])
    assert one.cost == 100.0
    assert every.cost == (all_threads if stays else math.inf)
    if not stays:
        assert every.measured.failure == (
            f"{all_threads} us against 100.0 us with one thread, which needs no second processor "
            "to be free")


def test_what_has_no_counterpart_stays() -> None:
    candidates = [candidate("all", 10.0), candidate(None, 9.0),
                  candidate(1, 10.0).with_exclusion("wrong")]
    assert without_small_gains(candidates) == candidates
