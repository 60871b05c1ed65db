"""The plan that was taken and the times of programs are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

import gossamer
from gossamer.device.registry import find
from gossamer.plan.choose import plan_times
from gossamer.plan.choose.outcomes import EndToEnd
from gossamer.plan.choose.plan_times import program_key
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.fixtures import working_devices
from tests.model.onnx_models import model
from tests.plan.choose.refine.separable import DENSE, DEPTHWISE, algorithm, reset
from tests.plan.small import compiled, small


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
    assert first_report.tuning and not second_report.tuning
    assert replace(second_report, end_to_end_cached=False,
                   tuning=first_report.tuning) == first_report


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


def test_programs_are_replayed_where_the_device_has_graphs(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    from tests.plan.graph_device import GraphDevice

    if "pocl" not in working_devices():
        pytest.skip("PoCL does not work here")
    graphs = GraphDevice(working_devices()["pocl"])  # type: ignore[arg-type]
    plan = compiled(small(), graphs, tmp_path)
    programs = [plan.program(2), plan.program(3), plan.program(2)]
    tuner = Tuner(graphs, "quick", cache=TuningCache(graphs, tmp_path / "tuning"))
    times = plan_times.end_to_end("small", programs, graphs, tuner)
    assert graphs.captures == 2  # one for each that differs
    assert all(time.timing and time.timing.median_us > 0 for time in times)
    again = plan_times.end_to_end("small", programs, graphs, tuner)
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
