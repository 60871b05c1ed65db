"""Plans whose candidates are measured: repeated plans, wrong candidates, and reports."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Buffer, Device
from gossamer.errors import DeviceLostError
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.registry import OPS
from gossamer.plan.choose import refine
from gossamer.plan.choose.program_builder import conversion_layer
from gossamer.plan.plan import Plan
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.rows import LayerCandidates, Row
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format, TensorSpec
from tests.fixtures import is_slow
from tests.plan.small import assert_close, expected, images, save, small
from tests.plan.tune.paced import Known, MakeTuner, Paced, PacedDevice, layer


@pytest.fixture
def tuned(device: Device, tmp_path: Path) -> Callable[[], Plan]:
    """Returns a function that makes a plan that measures."""
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    path = save(small(), tmp_path)

    def make() -> Plan:
        tuner = Tuner(device, "quick", cache=TuningCache(device, tmp_path / "tuning"))
        return Plan(gossamer.load(str(path)), device, tuner=tuner)

    return make


def choices(plan: Plan) -> list[tuple[str, str, str]]:
    return [(step.layer.name, step.algorithm.name, str(step.variant))
            for step in plan.program(2).steps]


def test_the_second_plan_measures_nothing_and_is_the_same(tuned: Callable[[], Plan]) -> None:
    first, second = tuned(), tuned()
    x = images(2)
    assert_close(first(x), expected(x))
    assert first.tuner is not None and first.tuner.measured > 0
    assert_close(second(x), expected(x))
    assert second.tuner is not None and second.tuner.measured == 0
    assert choices(first) == choices(second)


def test_whole_programs_have_the_devices_memory_to_themselves(
        tuned: Callable[[], Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, refined, counts = tuned(), refine.refined, []
    assert plan.tuner is not None

    def inputs_in_memory() -> int:
        assert plan.tuner is not None
        memory = plan.tuner._builds[plan.device.name].memory
        return len(memory.examples._buffers._results) + len(memory._buffers)

    def watched(*arguments: Any) -> Any:
        counts.append(inputs_in_memory())
        return refined(*arguments)

    monkeypatch.setattr(refine, "refined", watched)
    plan.program(2)
    assert counts == [0] and inputs_in_memory() == 0


class _Liar(Algorithm):
    """An algorithm that claims to support every convolution and computes something else."""

    op = "conv2d"
    name = "liar"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    def prepare(self, weights: Any, problem: Any, variant: Variant, device: Device) -> State:
        if self.fault == "crash":
            raise RuntimeError("no such thing\nsecond line")
        return State(problem, variant, device)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if self.fault == "lost":
            raise DeviceLostError("the device failed")
        if self.fault == "numbers":
            state.device.write(outputs[0], np.ones(outputs[0].nbytes // 4, np.float32))


@pytest.mark.parametrize(("fault", "reason"), [("numbers", "wrong numbers"),
                                               ("nothing", "wrong numbers"),
                                               ("crash", "does not run: no such thing")])
def test_a_candidate_that_fails_is_excluded_and_named(
    tuned: Callable[[], Plan], known: Known, fault: str, reason: str
) -> None:
    known(_Liar(fault))
    plan = tuned()
    x = images(2)
    assert_close(plan(x), expected(x))
    for step in plan.program(2).steps:
        if step.layer.op == "conv2d":
            assert step.algorithm.name != "liar"
            assert reason in step.rejected["liar"] and "\n" not in step.rejected["liar"]


def test_a_lost_device_ends_the_measuring_and_the_next_process_leaves_its_candidate(
    tuned: Callable[[], Plan], known: Known) -> None:
    known(_Liar("lost"))
    x = images(2)
    lost = 0
    while True:
        plan = tuned()
        try:
            assert_close(plan(x), expected(x))
            break
        except DeviceLostError as error:
            assert "the device failed; liar was tried for layer" in str(error)
            lost += 1
    assert lost
    reasons = {step.rejected["liar"] for step in plan.program(2).steps
               if step.layer.op == "conv2d"}
    assert reasons == {"does not run: the device failed"}


def test_losers_say_by_how_much(tuned: Callable[[], Plan], device: Device) -> None:
    plan = tuned()
    steps = [step for step in plan.program(1).steps if step.layer.op == "gemm"]
    (step,) = steps
    able = [a.name for a in OPS["gemm"].algorithms
            if a.supports(step.problem, device) is None and a is not step.algorithm
            and not a.by_name_only
            and any(v.precision == "fp32" for v in a.variants(step.problem, device))]
    assert not [step.rejected[name] for name in able
                if not re.search(" us (expected )?against |lower bound ", step.rejected[name])]


def test_measurements_are_finite_and_stored(tuned: Callable[[], Plan], device: Device) -> None:
    plan = tuned()
    program = plan.program(2)
    assert plan.tuner is not None
    for step in program.steps:
        stored = plan.tuner.cache.get(step.problem)
        assert stored and all(math.isfinite(m.median_us or 0) for m in stored)


def test_an_unknown_effort_is_refused(tmp_path: Path) -> None:
    path = save(small(), tmp_path)
    with pytest.raises(gossamer.GossamerError, match="effort 'hard': expected one of quick"):
        gossamer.compile(str(path), "host", effort="hard")


def test_the_report_has_every_candidate(tuned: Callable[[], Plan]) -> None:
    plan = tuned()
    plan(images(2))
    for row, step in zip(plan.report().rows, plan.program(2).steps, strict=True):
        assert len(row["candidates"]) == len(step.candidates) >= 1
        assert [c["reason"] for c in row["candidates"]].count("taken") == 1
        assert all(c["median_us"] is not None or c["reason"] for c in row["candidates"])
        assert row["median_us"] is not None and row["error"] <= 1e-5


@pytest.mark.parametrize("where", [-1, 0, 40])
def test_a_write_outside_the_output_is_found(
    known: Known, tmp_path: Path, own_cache: Path, where: int
) -> None:
    class Careless(HostIm2col):
        name = "careless"
        polls = False

        def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                   workspace: Buffer | None, stream: Any = None) -> None:
            super().launch(state, inputs, outputs, workspace, stream)
            memory = outputs[0].bytes  # type: ignore[attr-defined]
            end = memory.size if where >= 0 else 0
            ctypes.memset(memory.ctypes.data + end + where, 0, 1)

    known(Careless())
    plan = gossamer.compile(str(save(small(), tmp_path)), "host", effort="quick")
    for step in plan.program(2).steps:
        if step.layer.op == "conv2d":
            assert "wrong numbers (error inf)" in step.rejected["careless"]


def test_changes_of_one_name_from_several_formats_are_each_computed_as_they_are(
        device: Device, tmp_path: Path) -> None:
    target = TensorSpec((3, 8, 5, 5), Format("NCHW", "float16"))
    requests = []
    for source in (Format("NHWC", "float16"), Format("NCHW"), Format("NHWC")):
        change = conversion_layer("x", "x as NCHW float16", replace(target, format=source), target,
                                  REAL)
        able = [algorithm for algorithm in OPS["copy"].algorithms
                if change.problem and algorithm.supports(change.problem, device) is None]
        requests.append(LayerCandidates(change, able, device))
    tuner = Tuner(device, "max", cache=TuningCache(device, tmp_path), precision="fp16")
    tuner.measure_all(requests)
    for request in requests:
        candidates = tuner.measure(request.layer, request.algorithms, device)
        assert candidates
        assert [candidate.measured.failure for candidate in candidates] == [None] * len(candidates)


def test_what_one_plan_had_no_use_for_is_measured_for_the_next(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def useless(self: Tuner, row: Row) -> bool:
        if row.variant["n"] == 0:
            return False
        self._leave_out(row, "left to a fusion")
        return True

    def failures(tuner: Tuner, *layers: Layer) -> list[str | None]:
        tuner.start()
        tuner.measure_all([LayerCandidates(each, [paced], paced_device) for each in layers])
        return [candidate.measured.failure
                for candidate in tuner.measure(layers[0], [paced], paced_device)]

    paced = Paced("paced", 100.0, 60.0)
    known(paced)
    with monkeypatch.context() as patch:
        patch.setattr(Tuner, "_is_useless", useless)
        assert failures(paced_tuner(), layer()) == [None, "not tried: left to a fusion"]
    tuner = paced_tuner()
    assert failures(tuner, layer()) == [None, "not tried: left to a fusion"], "the same network"
    assert tuner.measured == 0
    other = layer("other", channels=8)
    assert failures(tuner, layer(), other) == [None, None], "another network with the layer"
    assert failures(paced_tuner(), layer()) == [None, None]
