"""The measured choice against the best plan of each algorithm, with times that a test sets."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.device import find
from gossamer.device.base import Device
from gossamer.errors import DeviceError, OutOfMemoryError
from gossamer.measure import Task, Timing
from gossamer.plan import families, planning, tuning_cache
from gossamer.plan.context import Context
from gossamer.plan.families import EndToEnd, program_key
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.tuner import Trial, Tuner
from gossamer.plan.tuning_cache import TuningCache
from tests.conftest import working_devices
from tests.model.onnx_models import model, runtime, save, weights
from tests.plan.small import assert_close, compiled, small

DEPTHWISE, DENSE = "host_depthwise", "host_im2col"
CHOICE = "measured choice"
OTHER, SAME = f"{DENSE} wherever it can", f"{DEPTHWISE} wherever it can"


def separable() -> onnx.ModelProto:
    """A depthwise layer, which a dense algorithm computes too, between two that are not."""
    node = helper.make_node
    return model([node("Conv", ["x", "w0"], ["a"], "grow"),
                  node("Conv", ["a", "w1"], ["b"], "thin", group=6, pads=[1, 1, 1, 1]),
                  node("Conv", ["b", "w2"], ["y"], "shrink")],
                 {"x": ["N", 3, 7, 7]}, {"y": 4},
                 {"w0": weights(6, 3, 1, 1), "w1": weights(6, 1, 3, 3, seed=1),
                  "w2": weights(2, 6, 1, 1, seed=2)})


def images(batch: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, 3, 7, 7)).astype(np.float32)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save(separable(), tmp_path)


@pytest.fixture
def make(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """A plan on the host for which each layer alone is faster with the depthwise algorithm."""
    cost = Trial.cost.fget  # type: ignore[attr-defined]

    def told(self: Trial) -> float:
        known = 10.0 if self.algorithm.name == DEPTHWISE else 20.0
        return known if math.isfinite(cost(self)) else math.inf

    monkeypatch.setattr(Trial, "cost", property(told))

    def plan(**options: Any) -> Plan:
        host = find("host")
        tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
        return Plan(gossamer.load(str(network)), host, tuner=tuner, **options)

    return plan


def algorithm(program: Program) -> str:
    """That of the depthwise layer."""
    (step,) = [step for step in program.steps if step.layer.name == "thin"]
    return step.algorithm.name


def reset(monkeypatch: pytest.MonkeyPatch, **times: float) -> list[list[str]]:
    """Sets what whole programs take by the algorithm of their depthwise layer, with quartiles 2%
    away; the result lists what is timed together."""
    rounds: list[list[str]] = []

    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        programs = [task.work.__self__.program for task in tasks]  # type: ignore[attr-defined]
        rounds.append([algorithm(program) for program in programs])
        return [Timing(time, 0.98 * time, 1.02 * time, 20)
                for time in (times[name] for name in rounds[-1])]

    monkeypatch.setattr(families, "interleave", interleave)
    return rounds


def outcomes(plan: Plan) -> dict[str, str]:
    return {row["plan"]: row["outcome"] for row in plan.report(2).plans}


def choices(plan: Plan) -> list[Any]:
    return [(step.layer.name, step.algorithm.name, step.variant, step.rejected)
            for step in plan.program(2).steps]


def test_a_family_that_is_faster_as_a_whole_is_taken(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 123.45678, DENSE: 50.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE
    assert rounds == [[DEPTHWISE, DENSE]]  # the choice is what one family takes: timed once
    assert outcomes(plan) == {CHOICE: "123.5 us against 50.0 us", OTHER: "taken: the fastest",
                              SAME: "the same as measured choice"}
    report = plan.report(2)
    assert report.end_to_end_us == plan.end_to_end(2).median_us == 50.0
    assert [(row["median_us"], row["p25_us"], row["p75_us"]) for row in report.plans] == [
        (123.5, 121.0, 125.9), (123.5, 121.0, 125.9), (50.0, 49.0, 51.0)]
    assert_close(plan(images()), runtime(separable(), {"x": images()})[0])


def test_the_layers_of_a_family_say_why(make: Callable[..., Plan],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    rows = {row["layer"]: row for row in make().report(2).rows}
    why = f"10.0 us against 20.0 us, but the plan that takes {OTHER} is faster as a whole"
    thin = rows["thin"]
    assert thin["rejected"][DEPTHWISE] == why
    assert [(each["algorithm"], each["reason"]) for each in thin["candidates"]] == [
        (DEPTHWISE, why), (DENSE, "taken")]
    assert (thin["best_dense_us"], thin["speedup"]) == (10.0, 0.5)
    # nobody computes those otherwise: they have what they had
    assert "needs one group a channel" in rows["grow"]["rejected"][DEPTHWISE]
    assert [each["reason"] for each in rows["grow"]["candidates"]] == ["taken"]
    assert not any("forced" in reason for row in rows.values()
                   for reason in row["rejected"].values())


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
    monkeypatch.setattr(Tuner, "measure", None)
    loaded = gossamer.Plan.load(tmp_path / "a.plan")
    assert choices(loaded) == choices(plan) and algorithm(loaded.program(2)) == DENSE
    assert len(rounds) == 1 and loaded.report(2).plans == []


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


@pytest.mark.parametrize(("rounds", "repeats", "taken"), [
    ([(97.0, 4.0), (97.0, 0.5)], [5, 10], DENSE),
    ([(97.0, 4.0), (102.0, 0.5)], [5, 10], DEPTHWISE),
    ([(97.0, 4.0), (97.0, 4.0), (98.0, 4.0)], [5, 10, 20], DEPTHWISE),
    ([(99.5, 4.0)], [5], DEPTHWISE),
    ([(50.0, 4.0)], [5], DENSE),
], ids=["clear then", "the other way", "never clear", "alike", "clear at once"])
def test_more_samples_are_taken_where_quartiles_touch(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[float, float]],
    repeats: list[int], taken: str
) -> None:
    """rounds: what the dense program takes, and half the width between quartiles; the other
    takes 100 us."""
    asked: list[int] = []

    def interleave(tasks: Sequence[Task], **options: Any) -> list[Timing]:
        time, spread = rounds[len(asked)]
        asked.append(options["repeats"])
        return [Timing(each, each - spread, each + spread, options["repeats"]) for each in (
            time if algorithm(task.work.__self__.program) == DENSE else 100.0  # type: ignore[attr-defined]
            for task in tasks)]

    monkeypatch.setattr(families, "interleave", interleave)
    plan = make()
    assert algorithm(plan.program(2)) == taken and asked == repeats
    assert plan.end_to_end(2) == Timing(*(
        each + rounds[-1][0] if taken == DENSE else each + 100.0
        for each in (0.0, -rounds[-1][1], rounds[-1][1])), repeats[-1])


def test_only_what_may_be_the_fastest_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def interleave(tasks: Sequence[str], **options: Any) -> list[Timing]:
        asked.append("".join(tasks))
        return [Timing(*{"a": (100.0, 95.0, 105.0), "b": (103.0, 99.0, 107.0),
                         "c": (120.0, 110.0, 130.0)}[task], options["repeats"]) for task in tasks]

    monkeypatch.setattr(families, "interleave", interleave)
    timings = families._timed({name: name for name in "cab"}, 10)  # type: ignore[arg-type, misc]
    assert asked == ["cab", "ab", "ab"]
    assert {name: timing.repeats for name, timing in timings.items()} == {
        "a": 40, "b": 40, "c": 10}


class Refusing(Context):
    """A context that programs with some algorithms do not get."""

    refused: tuple[str, ...] = ()
    error: Exception = RuntimeError("no such thing\nsecond line")

    def __init__(self, name: str, program: Program, *arguments: Any) -> None:
        if algorithm(program) in self.refused:
            raise self.error
        super().__init__(name, program, *arguments)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> type[Refusing]:
    made = type("Made", (Refusing,), {})
    monkeypatch.setattr(families, "Context", made)
    return made


def test_a_family_that_does_not_run_is_named(make: Callable[..., Plan], refusing: type[Refusing],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_family_without_a_program_is_named(make: Callable[..., Plan],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0})
    choose = planning.choose

    def refused(*arguments: Any, only: str | None, **options: Any) -> Program:
        if only == DENSE:
            raise DeviceError("no candidate works")
        return choose(*arguments, only=only, **options)

    monkeypatch.setattr(planning, "choose", refused)
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and rounds == [[DEPTHWISE]]
    assert outcomes(plan)[OTHER] == "cannot be made: no candidate works"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device with memory for so many contexts at a time."""
    room = [1]
    alive: weakref.WeakSet[Context] = weakref.WeakSet()

    class Narrow(Context):
        def __init__(self, *arguments: Any) -> None:
            if len(alive) >= room[0]:
                raise OutOfMemoryError("host has no room")
            alive.add(self)
            super().__init__(*arguments)

    monkeypatch.setattr(families, "Context", Narrow)
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
    interleave = families.interleave

    def interrupted(tasks: Sequence[Task], **options: float) -> list[Timing]:
        try:
            return interleave(tasks, **options)
        except KeyError:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(families, "interleave", interrupted)
    plan = make()
    with pytest.raises(KeyboardInterrupt):
        plan.program(2)
    assert plan.planned_batches == []
    narrow[0] = 2
    rounds = reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    again = make()
    assert again.tuner is not None and algorithm(again.program(2)) == DENSE
    assert again.tuner.measured == 0 and rounds == [[DENSE, DEPTHWISE]]


def test_an_algorithm_with_wrong_numbers_is_no_family(make: Callable[..., Plan],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it could not be used, others stand in for it: all is as the measured choice."""
    plan = make()
    assert plan.tuner is not None
    measure = plan.tuner.measure

    def spoilt(*arguments: Any) -> list[Trial]:
        return [replace(trial, measured=replace(trial.measured, failure="wrong numbers"))
                if trial.algorithm.name == DENSE and len(trials) > 1 else trial
                for trials in [measure(*arguments)] for trial in trials]

    monkeypatch.setattr(plan.tuner, "measure", spoilt)
    rounds = reset(monkeypatch)
    assert algorithm(plan.program(2)) == DEPTHWISE
    assert rounds == [] and plan.report(2).plans == []


def test_nothing_is_timed_where_nothing_is_to_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    monkeypatch.setattr(families, "interleave", lambda tasks, **options: [
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


def test_families_of_a_device(quick_device: Device, network: Path, tmp_path: Path) -> None:
    """With no time set: the result is right, what is told is what was measured, and the weights
    of the plans that were not taken are gone."""
    alive: weakref.WeakSet[Context] = weakref.WeakSet()

    class Watched(Context):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "Context", Watched)
        tuner = Tuner(quick_device, "quick", cache=TuningCache(quick_device, tmp_path / "tuning"))
        plan = Plan(gossamer.load(str(network)), quick_device, tuner=tuner)
        report = plan.report(2)
        assert len(alive) == 0
    assert [row["outcome"].startswith("taken") for row in report.plans].count(True) == 1
    (taken,) = [row for row in report.plans if row["outcome"].startswith("taken")]
    assert report.end_to_end_us == taken["median_us"] > 0
    names = {row["plan"] for row in report.plans}
    assert CHOICE in names and len(names) >= 3
    assert_close(plan(images()), runtime(separable(), {"x": images()})[0])


def test_programs_are_replayed_where_the_device_has_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyopencl")
    from tests.plan.graph_device import GraphDevice

    if "pocl" not in working_devices():
        pytest.skip("PoCL does not work here")
    monkeypatch.setattr(tuning_cache, "toolkit", lambda device: "")
    graphs = GraphDevice(working_devices()["pocl"])  # type: ignore[arg-type]
    plan = compiled(small(), graphs, tmp_path)
    programs = [plan.program(2), plan.program(3), plan.program(2)]
    tuner = Tuner(graphs, "quick", cache=TuningCache(graphs, tmp_path / "tuning"))
    times = families.end_to_end("small", programs, graphs, tuner)
    assert graphs.captures == 2  # one for each that differs
    assert all(each.timing and each.timing.median_us > 0 for each in times)
    again = families.end_to_end("small", programs, graphs, tuner)
    assert again == [EndToEnd(each.timing, cached=True) for each in times]
    assert graphs.captures == 2


def difference(tmp_path: Path, inputs: Sequence[str], prefix: str = "") -> Program:
    """x and y, made by equal layers, one taken from the other."""
    node = helper.make_node
    proto = model([node("Relu", ["x"], [prefix + "a"], prefix + "first"),
                   node("Relu", ["y"], [prefix + "b"], prefix + "second"),
                   node("Softmax", [prefix + "a"], [prefix + "c"]),
                   node("Softmax", [prefix + "b"], [prefix + "d"]),
                   node("Sub", [prefix + each for each in inputs], ["z"])],
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
    monkeypatch.setattr(families, "identity", lambda algorithm, device: "changed")
    keys.add(key(program))
    assert len(keys) == 6 and first not in keys


@pytest.mark.parametrize("faster, kept", [(DENSE, False), ("sparse_im2col", True)])
def test_all_that_skip_no_zeros_are_a_family(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: str, kept: bool) -> None:
    """Each layer alone is faster where zeros are skipped; the network is where it is said."""
    cost = Trial.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Trial, "cost", property(
        lambda self: (20.0 if self.algorithm.dense else 10.0)
        if math.isfinite(cost(self)) else math.inf))
    reset(monkeypatch, **{DENSE: 50.0, "sparse_im2col": 100.0, faster: 25.0})
    weight = weights(8, 4, 3, 3)
    weight[:, :, 1:] = 0
    network = model([helper.make_node("Conv", ["x", "w"], ["y"], "thin")],
                    {"x": ["N", 4, 7, 7]}, {"y": 4}, {"w": weight})
    host = find("host")
    plan = Plan(gossamer.load(str(save(network, tmp_path))), host,
                tuner=Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning")))
    found = outcomes(plan)
    assert list(found)[:2] == [CHOICE, "dense algorithms only"]
    assert (algorithm(plan.program(2)) == "sparse_im2col") == kept
    if kept:
        assert found["dense algorithms only"] == "50.0 us against 25.0 us"
        assert "the network takes 25.0 us, with dense algorithms only 50.0 us" in str(
            plan.report(2))
    else:
        assert found["dense algorithms only"] == "taken: the fastest"
        assert found[OTHER] == "the same as dense algorithms only"
