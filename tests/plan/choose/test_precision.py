"""Plans that may be less precise: the algorithms, the conversions and the errors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import refine
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS
from tests.fixtures import is_slow
from tests.plan.small import assert_close, expected, images, save, small
from tests.tolerances import normalised_error, tolerance


@pytest.fixture
def halves_are_fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sets the times of float16 candidates to 1 us and of all others to 100 us. One config of each
    algorithm is measured, and the cheapest plan is compared with no baseline plan."""
    def cost(candidate: Candidate) -> float:
        if candidate.measured.failure:
            return math.inf
        return 1.0 if candidate.variant.precision == "fp16" else 100.0

    monkeypatch.setattr(Candidate, "cost", property(cost))
    monkeypatch.setitem(EFFORTS, "quick", replace(EFFORTS["quick"], configs=1, samples=1))
    monkeypatch.setattr(refine, "refined", lambda name, planned, *others: planned)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))


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

    plan.save(tmp_path / "small.plan")
    loaded = Plan.load(tmp_path / "small.plan", compiled_device)
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
