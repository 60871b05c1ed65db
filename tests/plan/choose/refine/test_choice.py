"""Which of the plans that were measured as a whole is taken, and which are measured at all."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.measure import Task, Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.outcomes import MEASURED
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Program
from gossamer.plan.report.bits import computes_on_bits
from gossamer.plan.run.context import Context
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from gossamer_bench.suites.binary_networks import vgg_cifar10
from tests.model.onnx_models import model, runtime, save, weights
from tests.plan.choose.refine.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
    SAME,
    algorithm,
    outcomes,
    reset,
    separable,
)
from tests.plan.small import assert_close, small


def images(batch: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, 3, 7, 7)).astype(np.float32)


def test_a_baseline_plan_that_is_faster_from_end_to_end_is_taken(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 123.45678, DENSE: 50.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE
    # the measured choice equals one baseline plan, and both are timed once
    assert rounds == [[DEPTHWISE, DENSE]]
    assert outcomes(plan) == {CHOICE: "123.5 us against 50.0 us", OTHER: "taken: the fastest",
                              SAME: "the same as measured choice"}
    report = plan.report(2)
    assert report.end_to_end_us == plan.end_to_end(2).median_us == 50.0
    assert [(row["median_us"], row["p25_us"], row["p75_us"]) for row in report.plans] == [
        (123.5, 121.0, 125.9), (123.5, 121.0, 125.9), (50.0, 49.0, 51.0)]
    assert_close(plan(images()), runtime(separable(), {"x": images()})[0])


def test_the_layers_of_a_baseline_plan_say_why(make: Callable[..., Plan],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    rows = {row["layer"]: row for row in make().report(2).rows}
    why = f"10.0 us against 20.0 us, but the plan that takes {OTHER} is faster as a whole"
    thin = rows["thin"]
    assert thin["rejected"][DEPTHWISE] == why
    assert [(candidate["algorithm"], candidate["reason"])
            for candidate in thin["candidates"]] == [
        (DEPTHWISE, why), (DENSE, "taken")]
    assert (thin["best_dense_us"], thin["speedup"]) == (10.0, 0.5)
    # no other algorithm computes these layers, so that their reasons stay
    assert "needs one group a channel" in rows["grow"]["rejected"][DEPTHWISE]
    assert [candidate["reason"] for candidate in rows["grow"]["candidates"]] == ["taken"]
    assert not any("forced" in reason for row in rows.values()
                   for reason in row["rejected"].values())


def test_an_algorithm_with_wrong_numbers_has_no_baseline_plan(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot be used, other algorithms replace it, which gives the measured choice."""
    plan = make()
    assert plan.tuner is not None
    measure = plan.tuner.measure

    def spoilt(*arguments: Any) -> list[Candidate]:
        return [replace(candidate, measured=replace(candidate.measured, failure="wrong numbers"))
                if candidate.algorithm.name == DENSE and len(candidates) > 1 else candidate
                for candidates in [measure(*arguments)] for candidate in candidates]

    monkeypatch.setattr(plan.tuner, "measure", spoilt)
    rounds = reset(monkeypatch)
    assert algorithm(plan.program(2)) == DEPTHWISE
    assert rounds == [] and plan.report(2).plans == []


def test_nothing_is_timed_where_nothing_is_to_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    monkeypatch.setattr(plan_times, "interleave", lambda tasks, **options: [
        rounds.append(len(tasks)) or Timing(7.0, 6.0, 8.0, 20) for _ in tasks])
    host = find("host")

    def make() -> Plan:
        tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
        return Plan(gossamer.load(str(save(small(), tmp_path))), host, tuner=tuner)

    plan = make()
    plan.program(2)
    assert rounds == [] and plan.report(2).plans == []
    for other in (plan, plan, make()):
        assert other.end_to_end(2) == Timing(7.0, 6.0, 8.0, 20) and rounds == [1]
    assert plan.report(2).end_to_end_us == 7.0


def test_a_forced_algorithm_and_a_fixed_order_are_compared_with_nothing(
    make: Callable[..., Plan], network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = reset(monkeypatch)
    assert algorithm(make(only=DENSE).program(2)) == DENSE
    plan = gossamer.compile(str(network), "host")
    assert plan.end_to_end(2).median_us > 0
    assert plan.report(2).end_to_end_us == plan.end_to_end(2).median_us and rounds == []


def test_baseline_plans_of_a_device(quick_device: Device, network: Path, tmp_path: Path) -> None:
    """With measured times the result is right, the report has these times, and the weights of the
    plans that were not taken are freed."""
    alive: weakref.WeakSet[Context] = weakref.WeakSet()

    class Watched(Context):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_times, "Context", Watched)
        tuner = Tuner(quick_device, "quick", cache=TuningCache(quick_device, tmp_path / "tuning"),
                      all_vendor_configs=True)
        plan = Plan(gossamer.load(str(network)), quick_device, tuner=tuner)
        report = plan.report(2)
        assert len(alive) == 0
    assert [row["outcome"].startswith("taken") for row in report.plans].count(True) == 1
    (taken,) = [row for row in report.plans if row["outcome"].startswith("taken")]
    assert report.end_to_end_us == taken["median_us"] > 0
    names = {row["plan"] for row in report.plans}
    assert CHOICE in names and len(names) >= 3
    assert_close(plan(images()), runtime(separable(), {"x": images()})[0])


@pytest.mark.parametrize("faster, skips_zeros", [(DENSE, False), ("sparse_im2col", True)])
def test_all_dense_algorithms_together_are_a_baseline_plan(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: str, skips_zeros: bool) -> None:
    """Each layer alone is faster where zeros are skipped; the network with `faster`."""
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: (20.0 if self.algorithm.dense else 10.0)
        if math.isfinite(cost(self)) else math.inf))
    reset(monkeypatch, **{DENSE: 50.0, "sparse_im2col": 100.0, faster: 25.0})
    weight = weights(8, 4, 3, 3)
    weight[:, :, 1:] = 0
    network = model([helper.make_node("Conv", ["x", "w"], ["y"], "thin")],
                    {"x": ["N", 4, 7, 7]}, {"y": 4}, {"w": weight})
    host = find("host")
    plan = Plan(gossamer.load(str(save(network, tmp_path))), host,
                tuner=Tuner(host, "max", cache=TuningCache(host, tmp_path / "tuning")))
    plan_outcomes = outcomes(plan)
    assert list(plan_outcomes)[:2] == [CHOICE, "dense algorithms only"]
    assert (algorithm(plan.program(2)) == "sparse_im2col") == skips_zeros
    if skips_zeros:
        assert plan_outcomes["dense algorithms only"] == "50.0 us against 25.0 us"
        assert "the network takes 25.0 us, with dense algorithms only 50.0 us" in str(
            plan.report(2))
    else:
        assert plan_outcomes["dense algorithms only"] == "taken: the fastest"
        assert plan_outcomes[OTHER] == "the same as dense algorithms only"


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


FIRST = "the first configs of each algorithm"


class Numbered(HostIm2col):
    """A convolution with the configs n=0 to n=9, each of which counts as faster than the one
    before."""

    name = "numbered"

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        plain = next(iter(super().variants(problem, device)))
        yield from (replace(plain, config=(("n", n),)) for n in range(10))


def taken(program: Program) -> int:
    """Returns the config of the layers of a program, which have all the same."""
    (config,) = {int(str(step.variant["n"])) for step in program.steps}
    return config


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns a list to which each round of timing adds the configs of its programs. Later configs
    count as slower in a plan."""
    rounds: list[list[int]] = []

    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        rounds.append([taken(task.work.__self__.program)  # type: ignore[attr-defined]
                       for task in tasks])
        return [Timing(time, time, time, 20) for time in (100.0 + n for n in rounds[-1])]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    return rounds


@pytest.fixture
def make_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Returns a function that makes a plan with an effort on the host, which measures as many
    configs of each layer whatever they take."""
    for name, effort in EFFORTS.items():
        monkeypatch.setitem(EFFORTS, name, replace(effort, more_configs=None))
    monkeypatch.setitem(OPS, "conv2d", replace(OPS["conv2d"], algorithms=(Numbered(),)))
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: 50.0 - int(str(self.variant["n"]))))
    path = save(separable(), tmp_path)

    def plan(effort: str, **options: Any) -> Plan:
        host = find("host")
        tuner = Tuner(host, effort, cache=TuningCache(host, tmp_path / "tuning"), **options)
        return Plan(gossamer.load(str(path)), host, tuner=tuner)

    return plan


@pytest.mark.parametrize(("effort", "last", "first"), [("normal", 5, 1), ("max", 9, 5)])
def test_the_configs_of_less_effort_are_taken_where_they_are_faster_as_a_whole(
        effort: str, last: int, first: int, make_with: Callable[..., Plan],
        rounds: list[list[int]]) -> None:
    plan = make_with(effort)
    assert taken(plan.program(2)) == first
    assert rounds == [[last, first]]
    assert outcomes(plan) == {CHOICE: f"{100 + last:.1f} us against {100 + first:.1f} us",
                              FIRST: "taken: the fastest"}


def test_nothing_is_compared_where_all_steps_take_first_configs(
        make_with: Callable[..., Plan], rounds: list[list[int]]) -> None:
    assert taken(make_with("quick").program(2)) == 1
    assert not rounds


def test_later_configs_that_are_known_are_compared_with_quick_too(
        make_with: Callable[..., Plan], rounds: list[list[int]]) -> None:
    make_with("normal").program(2)
    assert taken(make_with("quick").program(2)) == 1
    assert rounds == [[5, 1]], "both plans were timed before"


def test_configs_that_do_not_work_are_no_first_ones(
        make_with: Callable[..., Plan], rounds: list[list[int]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: cost(self) if int(str(self.variant["n"])) > 2 else float("inf")))
    assert taken(make_with("normal").program(2)) == 4
    assert rounds == [[5, 4]]
