"""Plans that cannot be made, do not run, or do not get memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import DeviceError, DeviceLostError, OutOfMemoryError
from gossamer.measure import Task, Timing
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.assigner import Assigned, Assigner
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.run import prepared_steps
from gossamer.plan.run.context import Context
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
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
from tests.plan.small import compiled, small


class Refusing(Context):
    """A context that raises an error for programs with some algorithms."""

    refused: tuple[str, ...] = ()
    error: Exception = RuntimeError("no such thing\nsecond line")

    def __init__(self, name: str, program: Program, *arguments: Any) -> None:
        if algorithm(program) in self.refused:
            raise self.error
        super().__init__(name, program, *arguments)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> type[Refusing]:
    subclass = type("RefusingHere", (Refusing,), {})
    monkeypatch.setattr(plan_times, "Context", subclass)
    return subclass


def test_a_baseline_plan_that_does_not_run_is_named(
    make: Callable[..., Plan], refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.refused = (DENSE,)
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0})
    for _ in range(2):  # what does not run is tried again, and nothing is timed for it
        plan = make()
        assert algorithm(plan.program(2)) == DEPTHWISE and rounds == [[DEPTHWISE]]
        assert outcomes(plan)[OTHER] == "does not run: no such thing"
    refusing.refused = ()
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 10.0})
    assert algorithm(make().program(2)) == DENSE and rounds == [[DENSE, DEPTHWISE]]


def test_a_measured_choice_that_does_not_run_is_left(
    make: Callable[..., Plan], refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.refused = (DEPTHWISE,)
    reset(monkeypatch, **{DENSE: 100.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE
    assert outcomes(plan) == {CHOICE: "does not run: no such thing", OTHER: "taken: the fastest",
                              SAME: "does not run: no such thing"}
    (thin,) = [row for row in plan.report(2).rows if row["layer"] == "thin"]
    assert thin["rejected"][DEPTHWISE].endswith(
        f"the plan that takes {OTHER} runs, which the measured choice does not")


def test_where_none_runs_the_error_is_told(make: Callable[..., Plan], refusing: type[Refusing],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    refusing.refused = (DEPTHWISE, DENSE)
    rounds = reset(monkeypatch)
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and rounds == []
    assert plan.report(2).end_to_end_us is None
    with pytest.raises(DeviceError, match="at batch 2 on host: does not run: no such thing"):
        plan.end_to_end(2)


def test_a_baseline_plan_without_a_program_is_named(make: Callable[..., Plan],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0})
    refuse_dense(monkeypatch, DeviceError("no candidate works"))
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and rounds == [[DEPTHWISE]]
    assert outcomes(plan)[OTHER] == "cannot be made: no candidate works"


def test_a_device_that_is_lost_while_a_baseline_plan_is_made_is_told(
        make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0})
    refuse_dense(monkeypatch, DeviceLostError("strided was tried for layer 'x as NCHW'"))
    with pytest.raises(DeviceLostError, match="strided was tried"):
        make().program(2)


def refuse_dense(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Has making the plan with the dense algorithm raise an error."""
    program = Assigner.program

    def refused(self: Assigner, assigned: Assigned, *why: str) -> Program:
        if any((node.layer.name, candidate.algorithm.name) == ("thin", DENSE)
               for node, candidate in assigned.taken):
            raise error
        return program(self, assigned, *why)

    monkeypatch.setattr(Assigner, "program", refused)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limits the memory to a number of contexts, the list's only element."""
    room = [1]
    alive: weakref.WeakSet[Context] = weakref.WeakSet()

    class Narrow(Context):
        def __init__(self, *arguments: Any) -> None:
            if len(alive) >= room[0]:
                raise OutOfMemoryError("host has no room")
            alive.add(self)
            super().__init__(*arguments)

    monkeypatch.setattr(plan_times, "Context", Narrow)
    return room


def test_programs_that_do_not_fit_together_are_timed_in_turn(
    make: Callable[..., Plan], narrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE and rounds == [[DEPTHWISE], [DENSE]]
    # all memory was given back
    assert algorithm(make().program(3)) == DENSE and rounds[2:] == [[DEPTHWISE], [DENSE]]


def test_a_program_that_does_not_fit_alone_is_tried_again_later(
    make: Callable[..., Plan], narrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow[0] = 0
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    assert outcomes(make())[OTHER] == "does not run: host has no room"
    narrow[0] = 2
    assert algorithm(make().program(2)) == DENSE and rounds == [[DEPTHWISE, DENSE]]


def test_what_was_timed_before_an_interruption_is_kept(
    make: Callable[..., Plan], narrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0})
    interleave = plan_times.interleave

    def interrupted(tasks: Sequence[Task], **options: float) -> list[Timing]:
        try:
            return interleave(tasks, **options)
        except KeyError:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(plan_times, "interleave", interrupted)
    plan = make()
    with pytest.raises(KeyboardInterrupt):
        plan.program(2)
    assert plan.planned_batches == []
    narrow[0] = 2
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    again = make()
    assert again.tuner is not None and algorithm(again.program(2)) == DENSE
    assert again.tuner.measured == 0 and rounds == [[DENSE, DEPTHWISE]]


def test_a_program_that_cannot_be_built_leaves_none_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = find("host")
    plan = compiled(small(), host, tmp_path)
    refused, working = plan.program(2), plan.program(3)
    problems = [step.problem for step in refused.steps]
    alive: list[weakref.ref[Context]] = []
    build = prepared_steps.build

    class Watched(Context):
        def __init__(self, *arguments: Any) -> None:
            alive.append(weakref.ref(self))
            super().__init__(*arguments)

    def refusing_build(algorithm: Any, weights: Any, problem: Any, *arguments: Any) -> Any:
        if problem in problems:
            raise RuntimeError("cannot be built")
        return build(algorithm, weights, problem, *arguments)

    monkeypatch.setattr(HostDevice, "builds_side_by_side", True)
    monkeypatch.setattr(plan_times, "Context", Watched)
    monkeypatch.setattr(prepared_steps, "build", refusing_build)
    tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path))
    gc.disable()
    try:
        times = plan_times.end_to_end("small", [refused, working], host, tuner)
        assert [time.failure for time in times] == ["does not run: cannot be built", ""]
        assert len(alive) == 2 and not any(each() for each in alive)
    finally:
        gc.enable()
