"""Tests of what compiling kernels is expected to take, and of the order in which candidates are
measured that share kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.device.registry import find
from gossamer.device.source import KernelSource
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.kernel_costs import KernelCosts
from gossamer.plan.tune.layer_times import LayerTimes
from gossamer.plan.tune.queue import AttemptQueue
from tests.plan.tune.test_queue import attempt, group, measure

FIRST, SECOND = (KernelSource.of(Path("kernel.cl"), "kernel", {"TILE": size}) for size in (8, 16))


def test_waiting_candidates_share_the_cost_of_a_kernel() -> None:
    costs = KernelCosts()
    costs.expect([FIRST])
    alone = costs.seconds([FIRST])
    costs.expect([FIRST])
    assert costs.seconds([FIRST]) == alone / 2 and costs.seconds([]) == 0


def test_the_cost_is_learnt_from_kernels_that_were_new() -> None:
    costs = KernelCosts(builders=4)
    assert costs.begin([FIRST]) == [FIRST] and costs.begin([FIRST]) == []
    costs.learn([FIRST], 2.0)
    costs.learn([FIRST], 50.0)
    assert costs.seconds([FIRST]) == 0 and costs.seconds([SECOND]) == 2.0 / 4


def test_what_other_processes_build_costs_what_it_took_them() -> None:
    costs = KernelCosts()
    assert costs.seconds_elsewhere("library") == 0
    costs.learn_elsewhere("library", 0.25)
    costs.learn_elsewhere("library", 0.75)
    assert (costs.seconds_elsewhere("library"), costs.seconds_elsewhere("other")) == (0.5, 0)


def test_what_other_processes_build_fast_comes_first() -> None:
    one, other = group("one"), group("other")
    slow, fast = attempt(one, 50.0, "slow"), attempt(other, 50.0, "fast")
    queue = AttemptQueue([slow, fast], Estimates(find("host")), required_first=False)
    measure(queue, attempt(one, 100.0, "known"), 100.0)
    measure(queue, attempt(other, 100.0, "known"), 100.0)
    queue.costs.learn_elsewhere("slow", 1.0)
    assert [queue.pop(), queue.pop()] == [fast, slow]


def test_candidates_of_compiled_kernels_come_first() -> None:
    times = LayerTimes("conv")
    of = group("conv", times)
    required = replace(attempt(of, 100.0, is_required=True), kernels=(FIRST,))
    new = replace(attempt(of, 80.0, "new", layout="NHWC"), kernels=(SECOND,))
    known = replace(attempt(of, 90.0, "known", layout="CHWN"), kernels=(FIRST,))
    queue = AttemptQueue([required, new, known], Estimates(find("host")))
    assert queue.pop() is required
    queue.end(required)
    measure(queue, required, 100.0)
    assert [queue.pop(), queue.pop(), queue.pop()] == [known, new, None]


@pytest.mark.parametrize(("worth", "tried"), [(0.0, True), (0.5, False)])
def test_what_saves_too_little_for_its_time_is_not_tried(worth: float, tried: bool) -> None:
    of, other = group("conv"), group("other")
    required = [attempt(each, 100.0, is_required=True) for each in (of, other)]
    new = replace(attempt(of, 80.0, "new"), kernels=(SECOND,))
    queue = AttemptQueue([*required, new], Estimates(find("host")), worth=worth)
    for first in required:
        assert queue.pop() is first
        measure(queue, first, 100.0)
    assert (queue.pop() is new) == tried
    if not tried:
        assert queue.not_tried == [new] and new.measured is not None
        assert new.measured.failure == ("not tried: too little is expected to be saved of the "
                                        "network's 200.0 us for 0.51 s of building")
