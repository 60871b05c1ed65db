"""Candidates that make the program faster as a whole take the place of those it has."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.errors import GossamerError
from gossamer.measure import Task, Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.planner import Planner
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Program
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.measures import Chosen
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import model, save, weights
from tests.plan.choose.refine.separable import CHOICE, outcomes

node = helper.make_node
OTHERS = "other candidates for {}"


class GpuLikeHost(HostDevice):
    """The host as a device that is no processor."""

    @property
    def on_processors(self) -> bool:
        return False


class Numbered(HostIm2col):
    """A convolution with the configs n=0 to n=3, each of which takes 0.3 us more alone than the one
    before."""

    name = "numbered"

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        plain = next(iter(super().variants(problem, device)))
        yield from (replace(plain, config=(("n", n),)) for n in range(4))


def chain() -> onnx.ModelProto:
    """Returns two equal convolutions between others."""
    return model([node("Conv", ["x", "w0"], ["a"], "first"),
                  node("Conv", ["a", "w1"], ["b"], "left"),
                  node("Conv", ["b", "w2"], ["c"], "right"),
                  node("Conv", ["c", "w3"], ["y"], "last")],
                 {"x": ["N", 3, 7, 7]}, {"y": 4},
                 {"w0": weights(6, 3, 1, 1), "w1": weights(6, 6, 1, 1, seed=1),
                  "w2": weights(6, 6, 1, 1, seed=2), "w3": weights(2, 6, 1, 1, seed=3)})


def configs(program: Program) -> tuple[int, ...]:
    return tuple(int(str(step.variant["n"])) for step in program.steps)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """Returns a list to which each round of timing adds the configs of its programs."""
    rounds: list[list[tuple[int, ...]]] = []

    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        rounds.append([configs(task.work.__self__.program)  # type: ignore[attr-defined]
                       for task in tasks])
        return [Timing(time, time - 0.1, time + 0.1, int(options["repeats"]))
                for time in map(time_of, rounds[-1])]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    return rounds


def time_of(taken: tuple[int, ...]) -> float:
    """Returns the time of a program: the first layer is best with config 2, those in the middle
    with config 1, and the last one with what it takes alone."""
    first, left, right, last = taken
    return 100 + 3 * abs(first - 2) + 2 * (abs(left - 1) + abs(right - 1)) + 5 * last


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Returns a function that makes a plan with the effort normal."""
    monkeypatch.setitem(OPS, "conv2d", replace(OPS["conv2d"], algorithms=(Numbered(),)))
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: math.inf if "wrong" in (self.measured.failure or "")
        else 10.0 + 0.3 * int(str(self.variant["n"]))))
    path = save(chain(), tmp_path)

    def plan(device: Device | None = None, **options: Any) -> Plan:
        host = device or GpuLikeHost()
        tuner = Tuner(host, "normal", cache=TuningCache(host, tmp_path / "tuning"), **options)
        return Plan(gossamer.load(str(path)), host, tuner=tuner)

    return plan


def test_candidates_that_help_are_taken_together(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]]) -> None:
    plan = make()
    assert configs(plan.program(2)) == (2, 1, 1, 0)
    alone, together = rounds
    assert alone[0] == (0, 0, 0, 0)
    # the equal layers change together
    assert sorted(alone[1:]) == sorted(
        changed for n in (1, 2, 3) for changed in ((n, 0, 0, 0), (0, n, n, 0), (0, 0, 0, n)))
    assert together == [(0, 0, 0, 0), (2, 1, 1, 0)]
    assert outcomes(plan) == {CHOICE: "110.0 us against 100.0 us",
                              OTHERS.format("3 layers"): "taken: the fastest"}
    step = plan.program(2).steps[0]
    assert len(step.candidates) == 4 and plan.end_to_end(2).median_us == 100.0


def test_the_second_plan_measures_nothing_and_is_the_same(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]]) -> None:
    first, second = make(), make()
    assert configs(first.program(2)) == configs(second.program(2))
    assert len(rounds) == 2
    assert second.tuner is not None and second.tuner.measured == 0
    assert outcomes(second) == outcomes(first)


def test_few_samples_are_taken_of_each_and_more_of_those_that_help(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    interleave = plan_times.interleave
    monkeypatch.setattr(plan_times, "interleave", lambda tasks, **options: (
        asked.append(options["repeats"]), interleave(tasks, **options))[1])
    make().program(2)
    assert asked == [3, EFFORTS["normal"].samples]


def test_they_are_tried_only_where_they_may_save_enough(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    # of 40 us alone, 1 us may be saved: less 0.3 us for each config, and twice that in the middle
    monkeypatch.setitem(EFFORTS, "normal", replace(EFFORTS["normal"], replacement_gain=0.025))
    make().program(2)
    assert set(rounds[0][1:]) == {(0, 1, 1, 0)}
    monkeypatch.setitem(EFFORTS, "normal", replace(EFFORTS["normal"], replacement_gain=0.04))
    plan = make()
    assert configs(plan.program(3)) == (0, 0, 0, 0)
    assert len(rounds) == 2 and not plan.report(3).plans


def test_those_that_may_save_most_are_tried_first(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "normal", replace(EFFORTS["normal"], replacements=2))
    make().program(2)
    assert rounds[0][1:] == [(0, 1, 1, 0), (0, 2, 2, 0)]


def test_none_are_tried_on_processors(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]]) -> None:
    assert configs(make(HostDevice()).program(2)) == (0, 0, 0, 0)
    assert not rounds


def test_none_are_tried_once_measuring_was_ended(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]]) -> None:
    plan = make()
    assert plan.tuner is not None
    plan.tuner.stop()
    assert configs(plan.program(2)) == (0, 0, 0, 0)
    assert not rounds


def test_together_they_may_be_slower(make: Callable[..., Plan],
                                     rounds: list[list[tuple[int, ...]]],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    apart = time_of
    monkeypatch.setattr(sys.modules[__name__], "time_of", lambda taken: (
        120.0 if taken == (2, 1, 1, 0) else apart(taken)))
    plan = make()
    assert configs(plan.program(2)) == (0, 0, 0, 0)
    assert outcomes(plan) == {CHOICE: "taken: the fastest",
                              OTHERS.format("3 layers"): "120.0 us against 110.0 us"}


def test_one_that_computes_wrong_numbers_with_the_layers_weights_is_left(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def verified(self: Tuner, chosen: Iterable[Chosen]) -> list[Candidate]:
        found = []
        for layer, candidate, _ in chosen:
            if candidate.variant["n"] == 1:
                asked.append(layer.name)
                candidate = candidate.with_exclusion("wrong numbers")
            found.append(candidate)
        return found

    monkeypatch.setattr(Tuner, "verified", verified)
    assert configs(make().program(2)) == (2, 0, 0, 0)
    assert "left" in asked


def test_they_may_not_cost_more_accuracy_than_the_user_allows(
        make: Callable[..., Plan], rounds: list[list[tuple[int, ...]]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    def accurate(self: Planner, program: Program) -> Program:
        raise GossamerError("its error 1 is more than the tolerance 0")

    monkeypatch.setattr(Planner, "_accurate", accurate)
    plan = make()
    assert configs(plan.program(2)) == (0, 0, 0, 0)
    assert not plan.report(2).plans
