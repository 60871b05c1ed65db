"""The plan of the first configs of each algorithm is compared with the measured choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Program
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import save
from tests.plan.choose.refine.separable import CHOICE, outcomes, separable

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
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
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
        effort: str, last: int, first: int, make: Callable[..., Plan],
        rounds: list[list[int]]) -> None:
    plan = make(effort)
    assert taken(plan.program(2)) == first
    assert rounds == [[last, first]]
    assert outcomes(plan) == {CHOICE: f"{100 + last:.1f} us against {100 + first:.1f} us",
                              FIRST: "taken: the fastest"}


def test_nothing_is_compared_where_all_steps_take_first_configs(
        make: Callable[..., Plan], rounds: list[list[int]]) -> None:
    assert taken(make("quick").program(2)) == 1
    assert not rounds


def test_later_configs_that_are_known_are_compared_with_quick_too(
        make: Callable[..., Plan], rounds: list[list[int]]) -> None:
    make("normal").program(2)
    assert taken(make("quick").program(2)) == 1
    assert rounds == [[5, 1]], "both plans were timed before"


def test_configs_that_do_not_work_are_no_first_ones(
        make: Callable[..., Plan], rounds: list[list[int]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: cost(self) if int(str(self.variant["n"])) > 2 else float("inf")))
    assert taken(make("normal").program(2)) == 4
    assert rounds == [[5, 4]]
