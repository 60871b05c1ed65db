from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.model.passes import optimise
from gossamer.model.shapes import resolve
from gossamer.plan.lower import lower
from gossamer.plan.program import Program
from gossamer.plan.select import choose, rivals
from gossamer.plan.tuner import Tuner
from gossamer.plan.tuning_cache import TuningCache
from gossamer.tensor import default_spec
from tests.conftest import is_slow
from tests.plan.small import save, small


@pytest.fixture
def chosen(device: Device, tmp_path: Path) -> Callable[..., Program]:
    """chosen(only, tuned): the program of the small network."""
    graph = optimise(gossamer.load(str(save(small(), tmp_path))))

    def make(only: str | None, tuned: bool) -> Program:
        static = resolve(graph, 2)
        layers, constants = lower(static)
        tuner = Tuner(device, "quick", cache=TuningCache(device, tmp_path)) if tuned else None
        return choose(layers, 2, {"x": default_spec(static.shapes["x"])}, ["y"], constants,
                      device, tuner, only=only)

    return make


@pytest.mark.parametrize("tuned", [False, True])
def test_a_forced_algorithm_is_taken_wherever_it_can_be(
    device: Device, chosen: Callable[..., Program], tmp_path: Path, tuned: bool
) -> None:
    if tuned and is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    graph = optimise(gossamer.load(str(save(small(), tmp_path))))
    layers, _ = lower(resolve(graph, 2))
    names = rivals(layers, device)
    assert names == (["few_rows", "tiled_gemm"] if device.compiles else [])
    for name in names:
        program = chosen(name, tuned)
        assert [step.algorithm.name for step in program.steps
                if step.layer.op == "gemm"] == [name]
        (step,) = [step for step in program.steps if step.layer.op == "gemm"]
        assert f"{name} is forced" in step.rejected.values()
    assert {step.algorithm.name for step in chosen("no such", tuned).steps} == {
        step.algorithm.name for step in chosen(None, tuned).steps}
