"""Which of the plans that were measured as a whole is taken, and which are measured at all."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.native import processor as native
from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import Variant
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times, refine
from gossamer.plan.choose.outcomes import EndToEnd
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from gossamer.plan.run.context import Context
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import model, runtime, save, weights
from tests.ops.recording import RecordingDevice
from tests.plan.choose.refine.separable import (
    CHOICE,
    DENSE,
    DEPTHWISE,
    OTHER,
    algorithm,
    outcomes,
    reset,
    separable,
)
from tests.plan.small import assert_close


def images(batch: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, 3, 7, 7)).astype(np.float32)


def test_a_baseline_plan_that_is_faster_from_end_to_end_is_taken(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = reset(monkeypatch, **{DEPTHWISE: 123.45678, DENSE: 50.0})
    plan = make()
    assert algorithm(plan.program(2)) == DENSE
    assert rounds == [[DEPTHWISE, DENSE]]
    assert outcomes(plan) == {CHOICE: "123.5 us against 50.0 us", OTHER: "taken: the fastest"}
    report = plan.report(2)
    assert report.end_to_end_us == plan.end_to_end(2).median_us == 50.0
    assert [(row["median_us"], row["p25_us"], row["p75_us"]) for row in report.plans] == [
        (123.5, 121.0, 125.9), (50.0, 49.0, 51.0)]
    assert_close(plan(images()), runtime(separable(), {"x": images()})[0])


def test_the_layers_of_a_baseline_plan_say_why(make: Callable[..., Plan],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: 50.0})
    rows = {row["layer"]: row for row in make().report(2).rows}
    why = "10.0 us against 20.0 us, but the plan is no faster with it"
    thin = rows["thin"]
    assert thin["rejected"][DEPTHWISE] == why
    assert [(candidate["algorithm"], candidate["reason"])
            for candidate in thin["candidates"]] == [
        (DEPTHWISE, why), (DENSE, "taken")]
    assert (thin["best_dense_us"], thin["speedup"]) == (10.0, 0.5)
    # no other algorithm computes these layers, so that their reasons stay
    assert "needs one group per input channel" in rows["grow"]["rejected"][DEPTHWISE]
    assert [candidate["reason"] for candidate in rows["grow"]["candidates"]] == ["taken"]
    assert not any("forced" in reason for row in rows.values()
                   for reason in row["rejected"].values())


def test_an_algorithm_with_wrong_numbers_has_no_baseline_plan(
    make: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot be used, other algorithms replace it, which gives the measured choice."""
    plan = make()
    assert plan.tuner is not None
    measured = plan.tuner.candidates

    def spoilt(*arguments: Any) -> list[Candidate]:
        return [replace(candidate, measured=replace(candidate.measured, failure="wrong numbers"))
                if candidate.algorithm.name == DENSE and len(candidates) > 1 else candidate
                for candidates in [measured(*arguments)] for candidate in candidates]

    monkeypatch.setattr(plan.tuner, "candidates", spoilt)
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
        return Plan(gossamer.load(str(save(product, tmp_path))), host, tuner=tuner)

    # one algorithm, in one format
    monkeypatch.setattr(native, "absent", lambda: "left out")
    product = model([helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": (None, 8)},
                    {"y": 2}, {"w": weights(8, 4)})
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


def test_baseline_plans_of_a_device(quick_device: Device, tmp_path: Path) -> None:
    """With measured times the result is right, the report has these times, and the weights of the
    plans that were not taken are freed."""
    alive: weakref.WeakSet[Context] = weakref.WeakSet()
    network = model([helper.make_node("Conv", ["x", "w"], ["y"], "thin", group=3)],
                    {"x": ["N", 3, 7, 7]}, {"y": 4}, {"w": weights(3, 1, 3, 3)})

    class Watched(Context):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_times, "Context", Watched)
        tuner = Tuner(quick_device, "quick", cache=TuningCache(quick_device, tmp_path / "tuning"),
                      all_vendor_configs=True)
        plan = Plan(gossamer.load(str(save(network, tmp_path))), quick_device, tuner=tuner)
        report = plan.report(2)
        assert len(alive) == 0
    assert [row["outcome"].startswith("taken") for row in report.plans].count(True) == 1
    (taken,) = [row for row in report.plans if row["outcome"].startswith("taken")]
    assert report.end_to_end_us == taken["median_us"] > 0
    names = {row["plan"] for row in report.plans}
    assert CHOICE in names and len(names) >= 2
    assert_close(plan(images()), runtime(network, {"x": images()})[0])


@pytest.mark.parametrize("faster, skips_zeros", [("host_gemm", False), ("sparse_gemm", True)])
def test_all_dense_algorithms_together_are_a_baseline_plan(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: str, skips_zeros: bool) -> None:
    """Each layer alone is faster where zeros are skipped; the network with `faster`."""
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: (20.0 if self.algorithm.dense else 10.0)
        if math.isfinite(cost(self)) else math.inf))
    reset(monkeypatch, **{"host_gemm": 50.0, "sparse_gemm": 100.0, faster: 25.0})
    weight = weights(12, 8)
    weight[:, 2:] = 0
    network = model([helper.make_node("Gemm", ["x", "w"], ["y"], "thin")],
                    {"x": ["N", 12]}, {"y": 2}, {"w": weight})
    host = find("host")
    plan = Plan(gossamer.load(str(save(network, tmp_path))), host,
                tuner=Tuner(host, "max", cache=TuningCache(host, tmp_path / "tuning")))
    plan_outcomes = outcomes(plan)
    assert {CHOICE, "dense algorithms only"} <= plan_outcomes.keys()
    assert (algorithm(plan.program(2)) == "sparse_gemm") == skips_zeros
    if skips_zeros:
        assert plan_outcomes[OTHER] == "50.0 us against 25.0 us"
        assert "the network takes 25.0 us, with dense algorithms only 50.0 us" in str(
            plan.report(2))
    else:
        assert plan_outcomes[OTHER] == "taken: the fastest"
        assert plan_outcomes["dense algorithms only"] == f"the same as {OTHER}"


@pytest.mark.parametrize(("alone_us", "is_taken"), [(50.0, True), (100.0, True), (200.0, False)])
def test_one_thread_is_taken_unless_several_are_faster_as_a_whole(
        network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone_us: float,
        is_taken: bool) -> None:
    """Each layer alone is faster with all threads; the network takes 100 us with them."""
    cost = Candidate.cost.fget  # type: ignore[attr-defined]

    def threads(variant: Variant) -> object:
        return dict(variant.config).get("threads", 1)

    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: (20.0 if threads(self.variant) == 1 else 10.0)
        if math.isfinite(cost(self)) else math.inf))

    def timed(graph: Graph, programs: Sequence[Program], *others: object) -> list[EndToEnd]:
        times = [alone_us if all(threads(step.variant) == 1 for step in program.steps) else 100.0
                 for program in programs]
        return [EndToEnd(Timing(us, 0.99 * us, 1.01 * us, 5)) for us in times]

    monkeypatch.setattr(refine, "end_to_end", timed)
    host = find("host")
    plan = Plan(gossamer.load(str(network)), host,
                tuner=Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning")))
    convolutions = [step for step in plan.program(2).steps if step.layer.op == "conv2d"]
    assert {threads(step.variant) for step in convolutions} == ({1} if is_taken else {"all"})
    assert ("taken" in outcomes(plan)["one thread"]) == is_taken


def test_work_items_of_other_devices_are_no_threads_of_the_host() -> None:
    candidate: Any = SimpleNamespace(variant=Variant((("threads", 256),), (), ()))
    nodes: list[Any] = [SimpleNamespace(device=device) for device in (RecordingDevice(),
                                                                       find("host"))]
    assert [refine.one_thread(node, candidate) for node in nodes] == [True, False]


@pytest.mark.parametrize(("time", "outcome"), [
    (97.0, "97.0 us against 100.0 us, equal within noise"),
    (105.0, "105.0 us against 100.0 us")])
def test_a_difference_within_the_spread_is_none(make: Callable[..., Plan], time: float,
                                                outcome: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    reset(monkeypatch, **{DEPTHWISE: 100.0, DENSE: time})
    plan = make()
    assert algorithm(plan.program(2)) == DEPTHWISE and plan.end_to_end(2).median_us == 100.0
    taken = "equal to the fastest within noise" if time < 100 else "the fastest"
    assert outcomes(plan) == {CHOICE: f"taken: {taken}", OTHER: outcome}
    (thin,) = [row for row in plan.report(2).rows if row["layer"] == "thin"]
    assert thin["rejected"][DENSE] == "20.0 us against 10.0 us"
