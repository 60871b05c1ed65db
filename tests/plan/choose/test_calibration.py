"""Errors on calibration inputs, the tolerance, and layers in less than float32."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import gossamer
from gossamer.device.base import Buffer, Device
from gossamer.errors import InputError
from gossamer.measure import Timing
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times, planner, refine
from gossamer.plan.choose.calibration import Calibration
from gossamer.plan.choose.outcomes import Planned
from gossamer.plan.choose.planner import Planner
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS, Policy
from gossamer.plan.program import Program
from gossamer.plan.run.context import Context
from gossamer.plan.tune.network_reference import reference
from tests.fixtures import is_slow
from tests.golden import Golden
from tests.model.onnx_models import model, save, weights
from tests.plan import mixing
from tests.plan.mixing import BY_IMAGE, MIXING, node
from tests.plan.small import assert_close, expected, images, reloaded, small
from tests.tolerances import normalised_error, tolerance


@pytest.fixture
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return gossamer.load(str(save(small(), tmp_path_factory.mktemp("model"))))


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_every_image_counts_at_every_batch_size(graph: Graph, batch: int) -> None:
    x = images(5)
    seen: list[int] = []

    def run(inputs: dict[str, np.ndarray], wrong: int = -1) -> dict[str, np.ndarray]:
        assert len(inputs["x"]) == batch
        y = reference(graph, inputs)["y"]
        for row, image in enumerate(inputs["x"]):
            (index,) = np.flatnonzero((x == image).all(axis=(1, 2, 3)))
            seen.append(int(index))
            if index == wrong:
                y[row] *= 1.25
        return {"y": y}

    calibration = Calibration(graph, [x])
    assert calibration.error(run, batch) < 1e-12
    assert set(seen) == set(range(5))
    for wrong in range(5):
        assert calibration.error(lambda inputs, w=wrong: run(inputs, w), batch) == (
            pytest.approx(0.25))


@dataclass
class _Variant:
    precision: str

    def is_as_precise_as_float32(self, problem: object) -> bool:
        return self.precision == "fp32"


@dataclass
class _Program:
    """A program whose layers cost 1 us in lower precision, and 1 us + saved in float32."""

    steps: list[SimpleNamespace] = field(default_factory=list)


_LAYERS = {"a": (5.0, 3e-4), "b": (1.0, 1e-4), "c": (9.0, 2e-4), "d": (3.0, 4e-4)}
"""For each layer the time in us that the lower precision saves, and the error that it adds."""


def _chosen(allowed: frozenset[str] | None) -> Planned:
    program = _Program()
    for name, (saved, _) in _LAYERS.items():
        low = allowed is None or name in allowed
        half, full = _Variant("fp16"), _Variant("fp32")
        candidates = [SimpleNamespace(variant=full, cost=1 + saved),
                      SimpleNamespace(variant=half, cost=1.0)]
        program.steps.append(SimpleNamespace(
            layer=SimpleNamespace(name=name, inserted=False, problem=SimpleNamespace()),
            variant=half if low else full, candidates=candidates))
    return Planned(program)  # type: ignore[arg-type]


def _error(program: _Program) -> float:
    return 1e-7 + sum(_LAYERS[step.layer.name][1] for step in program.steps
                      if step.variant.precision == "fp16")


@pytest.mark.parametrize(("allowed", "less_precise"), [
    (None, "abcd"), (2e-3, "abcd"), (9.5e-4, "acd"), (6e-4, "ac"), (2.5e-4, "c"), (1e-4, ""),
    (1e-8, ""),
])
def test_layers_that_save_most_keep_their_precision(graph: Graph, allowed: float | None,
                                                    less_precise: str) -> None:
    calibration = Calibration(graph, [images(2)], allowed)
    planned = calibration.choose(_chosen, _error)  # type: ignore[arg-type]
    accuracy = planned.accuracy
    assert accuracy is not None
    assert "".join(accuracy.less_precise) == less_precise
    assert set(accuracy.held_back) == set("abcd") - set(less_precise)
    assert accuracy.error == _error(planned.program)  # type: ignore[arg-type]
    met = allowed is None or accuracy.error <= allowed
    assert met == ("does not meet the tolerance" not in str(accuracy))
    assert met == (allowed != 1e-8)


def test_bad_calibrations_are_refused(graph: Graph, golden: Golden) -> None:
    spoilt = images(2)
    spoilt[1, 0, 0, 0] = np.nan
    golden.refusals("calibrations", {
        "shape": lambda: Calibration(graph, [images(2)[..., :4]]),
        "no image": lambda: Calibration(graph, [images(0)]),
        "NaN": lambda: Calibration(graph, [spoilt]),
        **{f"a tolerance of {wrong}": lambda wrong=wrong: Policy(
            "quick", calibration=[images(1)], tolerance=wrong)
           for wrong in (0.0, -1.0, float("nan"), float("inf"))}})


class _Rounding(HostIm2col):
    """A host algorithm of lower precision: it rounds its inputs to 16 bits."""

    name = "rounding"
    polls = False

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterable[Variant]:
        return [replace(next(iter(super().variants(problem, device))), precision="tf32")]

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        rounded = [state.device.upload(
            np.frombuffer(buffer.bytes, np.float32).astype(np.float16).astype(np.float32), "test")
            for buffer in inputs]  # type: ignore[attr-defined]
        super().launch(state, rounded, outputs, workspace, stream)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """Adds an algorithm of lower precision, and sets its times to a millionth of the measured."""
    op = OPS["conv2d"]
    monkeypatch.setitem(OPS, "conv2d", replace(op, algorithms=(*op.algorithms, _Rounding())))
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda candidate: cost(candidate) / (1e6 if candidate.variant.precision == "tf32" else 1)))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the comparison with baseline plans off."""
    monkeypatch.setattr("gossamer.plan.choose.refine.refined",
                        lambda name, planned, *others: planned)


@pytest.mark.usefixtures("rounding", "alone")
def test_lower_precision_is_taken_within_the_tolerance_only(graph: Graph) -> None:
    x = images(4)

    def compiled(tolerance: float | None, precision: str = "tf32") -> Plan:
        plan = gossamer.compile(graph, "host", effort="quick", precision=precision,
                                calibration=x, tolerance=tolerance)
        plan(x)
        return plan

    free = compiled(None)
    accuracy = free.report(4).accuracy
    assert accuracy is not None and len(accuracy.less_precise) == 2
    assert 1e-5 < accuracy.error < 1e-3
    assert accuracy.error == pytest.approx(
        normalised_error(free(x), reference(graph, {"x": x})["y"]), rel=1e-6)
    strict = compiled(1e-5).report(4)
    assert strict.accuracy is not None and strict.accuracy.error < 1e-5
    assert not strict.accuracy.less_precise and len(strict.accuracy.held_back) == 2
    held = [row for row in strict.rows if row["layer"] in strict.accuracy.held_back]
    assert all("the tolerance requires" in row["rejected"]["rounding"] for row in held)
    assert str(strict.accuracy) in strict.notes
    fp32 = compiled(None, "fp32").report(4).accuracy
    assert fp32 is not None and not fp32.less_precise and fp32.error < 1e-5


def test_a_tolerance_needs_calibration(graph: Graph) -> None:
    with pytest.raises(InputError, match="pass calibration"):
        gossamer.compile(graph, "host", tolerance=1e-3)
    with pytest.raises(InputError, match="requires an effort"):
        gossamer.compile(graph, "host", precision="fp16")


def twins() -> onnx.ModelProto:
    """Returns a network with two layers of the same problem and with different weights."""
    return model([node("Conv", ["x", "w0"], ["a"], "one", pads=[1, 1, 1, 1]),
                  node("Sigmoid", ["a"], ["b"]),
                  node("Conv", ["b", "w1"], ["c"], "two", pads=[1, 1, 1, 1]),
                  node("Sigmoid", ["c"], ["y"])],
                 {"x": ["N", 3, 6, 5]}, {"y": 4},
                 {"w0": weights(3, 3, 3, 3), "w1": weights(3, 3, 3, 3, seed=1)})


@pytest.fixture
def held(tmp_path: Path, rounding: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Returns a function that makes a plan whose tolerance holds back the second of two twin
    layers. Its arguments are the times in us of programs with 0, 1 and 2 layers in float32."""
    def error(self: Planner, program: Program) -> float:
        (two,) = [step for step in program.steps if step.layer.name == "two"]
        return 0.0 if two.variant.precision == "fp32" else 1.0

    monkeypatch.setattr(Planner, "_error", error)

    def plan(*times: float) -> Plan:
        def interleave(tasks: Sequence[Any], **options: Any) -> list[Timing]:
            strict = [sum(step.variant.precision == "fp32" for step in
                          task.work.__self__.program.steps) for task in tasks]
            return [Timing(times[count], times[count], times[count], 5) for count in strict]

        monkeypatch.setattr(plan_times, "interleave", interleave)
        compiled = gossamer.compile(str(save(twins(), tmp_path)), "host", effort="max",
                                    precision="tf32", calibration=images(2), tolerance=1e-3)
        compiled.program(2)
        return compiled

    return plan


def test_a_baseline_plan_takes_of_equal_layers_those_that_are_not_held_back(
        held: Callable[..., Plan]) -> None:
    plan = held(1.0, 10.0, 20.0)
    accuracy = plan.report(2).accuracy
    assert accuracy is not None
    assert (accuracy.less_precise, accuracy.held_back) == (("one",), ("two",))


def test_a_baseline_plan_that_is_taken_tells_what_was_held_back(
        held: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline plan is that of dense algorithms."""
    monkeypatch.setattr(_Rounding, "dense", False)
    plan = held(1.0, 20.0, 10.0)
    assert {step.algorithm.name for step in plan.program(2).steps} == {"host_im2col"}
    accuracy = plan.report(2).accuracy
    assert accuracy is not None
    assert (accuracy.less_precise, accuracy.held_back) == ((), ("two",))


@pytest.mark.usefixtures("rounding")
def test_what_was_compared_leaves_nothing_in_memory(graph: Graph,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Context] = weakref.WeakSet()

    class Watched(Context):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)
            contexts.append(1)

    contexts: list[int] = []
    monkeypatch.setattr(planner, "Context", Watched)
    gc.disable()
    try:
        plan = gossamer.compile(graph, "host", effort="quick", precision="tf32",
                                calibration=images(4), tolerance=1e-5)
        plan.program(4)
        assert len(contexts) > 2 and len(alive) == 0
    finally:
        gc.enable()
    assert plan.memory["weights"] == 0


def calibrated(proto: onnx.ModelProto, folder: Path) -> Plan:
    return gossamer.compile(str(save(proto, folder)), "host", calibration=mixing.images(6))


@pytest.mark.parametrize("name", MIXING)
def test_images_that_are_mixed_are_compared_all_at_once_only(name: str, tmp_path: Path) -> None:
    plan = calibrated(MIXING[name], tmp_path)
    plan.program(6)
    accuracy = plan.report(6).accuracy
    assert accuracy is not None and accuracy.error < 1e-5
    for batch in (1, 4, 12):
        with pytest.raises(InputError, match=f"calibration inputs have 6 images, expected {batch} "
                                             f"for batch {batch}: .*'it'"):
            plan.program(batch)


@pytest.mark.parametrize("name", BY_IMAGE)
@pytest.mark.parametrize("batch", [1, 4, 6, 9])
def test_outputs_of_several_rows_or_none_an_image_are_compared(name: str, batch: int,
                                                               tmp_path: Path) -> None:
    plan = calibrated(BY_IMAGE[name], tmp_path)
    plan.program(batch)
    accuracy = plan.report(batch).accuracy
    assert accuracy is not None and accuracy.error < 1e-5


def test_each_image_of_several_rows_has_an_error_of_its_own(tmp_path: Path) -> None:
    calibration = calibrated(BY_IMAGE["rows"], tmp_path).calibration
    assert calibration is not None

    def run(inputs: Any) -> dict[str, np.ndarray]:
        y = inputs["x"].reshape(-1, 16).astype(np.float64)
        (last,) = np.flatnonzero((inputs["x"] == calibration._inputs["x"][5]).all(axis=(1, 2, 3)))
        y[3 * last:3 * last + 3] *= 1.5
        return {"y": y}

    assert calibration.error(run, 6) == pytest.approx(0.5)


@pytest.fixture
def halves_are_fast(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """Sets the times of float16 candidates to 1 us and of all others to 100 us. One config of each
    algorithm is measured in all its formats, whatever it takes, and the cheapest plan is compared
    with no baseline plan."""
    def cost(candidate: Candidate) -> float:
        if candidate.measured.failure:
            return math.inf
        return 1.0 if candidate.variant.precision == "fp16" else 100.0

    monkeypatch.setattr(Candidate, "cost", property(cost))
    monkeypatch.setitem(EFFORTS, "quick", replace(
        EFFORTS["quick"], configs=1, most_configs=1, samples=1, everything=True))
    monkeypatch.setattr(refine, "refined", lambda name, planned, *others: planned)


def compiled(device: Device, folder: Path, precision: str) -> Plan:
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    return gossamer.compile(str(save(small(), folder)), device, effort="quick",
                            precision=precision)


@pytest.mark.usefixtures("halves_are_fast")
def test_between_its_ends_a_network_runs_in_float16(compiled_device: Device,
                                                    tmp_path: Path) -> None:
    plan = compiled(compiled_device, tmp_path, "fp16")
    x = images(3)
    y = plan(x)
    assert 1e-6 <= normalised_error(y, expected(x)) <= tolerance("network", "fp16")

    program = plan.program(3)
    first, *between, last = program.steps
    assert not any(step.layer.inserted for step in between)
    # a first layer that reads float32 and computes in float16 needs no conversion before it
    assert first.layer.inserted or first.variant.precision == "fp16"
    assert [spec.dtype for spec in (last.variant.inputs[0], last.variant.outputs[0])] == [
        "float16", "float32"]
    assert first.inputs == ["x"] and program.root(program.outputs["y"]) in last.outputs
    assert {step.variant.precision for step in between} == {"fp16"}
    ends = {"x", program.outputs["y"]}
    assert {spec.dtype for name, spec in program.specs.items()
            if name not in program.constants and name not in ends} == {"float16"}
    assert {program.specs[name].dtype for name in ends} == {"float32"}

    # the flattened tensor is the same memory: halves go through
    (flat,) = program.aliases
    assert program.specs[flat].dtype == "float16"

    loaded = reloaded(plan, tmp_path, compiled_device)
    assert loaded(x).tobytes() == y.tobytes()
    assert [step.variant for step in loaded.program(3).steps] == [
        step.variant for step in program.steps]


@pytest.mark.usefixtures("halves_are_fast")
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float16_is_not_taken_where_it_is_not_allowed(compiled_device: Device, tmp_path: Path,
                                                      precision: str) -> None:
    plan = compiled(compiled_device, tmp_path, precision)
    x = images(3)
    y = plan(x)
    if precision == "fp32":
        assert_close(y, expected(x))
    for step in plan.program(3).steps:
        assert step.candidates
        assert all(candidate.variant.precision in ("fp32", precision)
                   for candidate in step.candidates)
    assert {spec.dtype for spec in plan.program(3).specs.values()} == {"float32"}
