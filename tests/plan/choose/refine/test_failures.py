"""Whole plans that fail or have no room in memory, and the stored times of others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

import gossamer
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import DeviceError, DeviceLostError, OutOfMemoryError
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.assigner import Assigned, Assigner
from gossamer.plan.choose.outcomes import EndToEnd
from gossamer.plan.choose.plan_times import program_key
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.run import prepared_steps
from gossamer.plan.run.context import Context
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import model
from tests.plan.choose.refine.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
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
    for count in (1, 2):  # what does not run is tried again, and the other plan timed again
        plan = make()
        assert algorithm(plan.program(2)) == DEPTHWISE and rounds == [[DEPTHWISE]] * count
        assert outcomes(plan)[OTHER] == "does not run: no such thing"
    refusing.refused = ()
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 10.0})
    assert algorithm(make().program(2)) == DENSE and rounds == [[DEPTHWISE, DENSE]]


def test_a_measured_choice_that_does_not_run_is_left(
    make: Callable[..., Plan], refusing: type[Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.refused = (DEPTHWISE,)
    reset(monkeypatch, **{DENSE: 100.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE
    assert outcomes(plan) == {CHOICE: "does not run: no such thing",
                              OTHER: "taken: the fastest"}


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


def test_a_program_that_does_not_fit_alone_is_tried_again_later(
    make: Callable[..., Plan], narrow: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow[0] = 0
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    assert outcomes(make())[OTHER] == "does not run: host has no room"
    narrow[0] = 2
    assert algorithm(make().program(2)) == DENSE and rounds == [[DEPTHWISE, DENSE]]


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
        times = plan_times.end_to_end(plan.graph, [refused, working], host, tuner)
        assert [time.failure for time in times] == ["does not run: cannot be built", ""]
        assert len(alive) == 2 and not any(each() for each in alive)
    finally:
        gc.enable()


def choices(plan: Plan) -> list[Any]:
    return [(step.layer.name, step.algorithm.name, step.variant, step.rejected)
            for step in plan.program(2).steps]


@pytest.mark.parametrize("best", [DEPTHWISE, DENSE])
def test_the_second_plan_measures_nothing_and_is_the_same(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 100.0, best: 51.237})
    first = make()
    first.end_to_end(2)
    first_report = first.report(2)
    assert len(rounds) == 1 and not first_report.end_to_end_cached
    second = make()
    second.end_to_end(2)
    second_report = second.report(2)
    assert len(rounds) == 1 and second_report.end_to_end_cached
    assert second.tuner is not None and second.tuner.measured == 0
    assert choices(second) == choices(first) and algorithm(first.program(2)) == best
    assert replace(second_report, end_to_end_cached=False) == first_report


def test_the_saved_plan_is_the_one_taken(make: Callable[..., Plan], tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    plan = make()
    plan.program(2)
    plan.save(tmp_path / "a.plan")
    monkeypatch.setattr(Tuner, "measure_all", None)
    loaded = gossamer.Plan.load(tmp_path / "a.plan")
    assert choices(loaded) == choices(plan) and algorithm(loaded.program(2)) == DENSE
    assert len(rounds) == 1 and loaded.report(2).plans == []


def test_programs_are_replayed_where_the_device_has_graphs(pocl: Any, tmp_path: Path) -> None:
    from tests.plan.device_stand_ins import GraphDevice

    graphs = GraphDevice(pocl)
    plan = compiled(small(), graphs, tmp_path)
    programs = [plan.program(2), plan.program(3), plan.program(2)]
    tuner = Tuner(graphs, "quick", cache=TuningCache(graphs, tmp_path / "tuning"))
    times = plan_times.end_to_end(plan.graph, programs, graphs, tuner)
    assert graphs.captures == 2  # one for each that differs
    assert all(time.timing and time.timing.median_us > 0 for time in times)
    again = plan_times.end_to_end(plan.graph, programs, graphs, tuner)
    assert again == [EndToEnd(time.timing, cached=True) for time in times]
    assert graphs.captures == 2


def difference(tmp_path: Path, inputs: Sequence[str], prefix: str = "") -> Program:
    """Returns a program that subtracts two values, which equal layers compute from x and y."""
    node = helper.make_node
    proto = model([node("Relu", ["x"], [prefix + "a"], prefix + "first"),
                   node("Relu", ["y"], [prefix + "b"], prefix + "second"),
                   node("Softmax", [prefix + "a"], [prefix + "c"]),
                   node("Softmax", [prefix + "b"], [prefix + "d"]),
                   node("Sub", [prefix + name for name in inputs], ["z"])],
                  {"x": [2, 3], "y": [2, 3]}, {"z": 2})
    (folder := tmp_path / "difference").mkdir(exist_ok=True)
    return compiled(proto, find("host"), folder).program(1)


def test_the_key_tells_programs_apart_by_what_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: Path
) -> None:
    def key(program: Program) -> str:
        return program_key(program, find("host"))

    first = key(difference(tmp_path, ["c", "d"]))
    assert key(difference(tmp_path, ["c", "d"], "other ")) == first
    assert key(difference(tmp_path, ["d", "c"])) != first
    plan = gossamer.compile(str(network), "host")
    keys = {key(plan.program(batch)) for batch in (1, 2)}
    program = plan.program(1)
    for changed in ({"config": (("tile", 8),)}, {"precision": "tf32"}):
        step = program.steps[0]
        keys.add(key(replace(program, steps=[
            replace(step, variant=replace(step.variant, **changed)), *program.steps[1:]])))
    keys.add(key(gossamer.compile(str(network), "host", only=DENSE).program(1)))
    monkeypatch.setattr(plan_times, "identity", lambda algorithm, device: "changed")
    keys.add(key(program))
    assert len(keys) == 6 and first not in keys
