"""Tests that code and tables of sparse convolutions are kept for repeated builds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import sources
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated import direct_sparse_compiled as module
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse.sparse_weights import (
    BIAS_RESIDUAL_CLIP,
    sparse,
    with_density,
)
from tests.simulated.device import H200

PROBLEM = with_density(Conv2dProblem(64, 8, 6, 6, 8, (3, 3), pads=(1, 1, 1, 1)), 0.2)
drivers = pytest.importorskip("tests.device.cuda.fake_driver", exc_type=ImportError)
nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A device of a driver that is not there, with the limits of an H200."""
    drivers.FakeDriver(monkeypatch)
    with drivers.fake_device() as made:
        made.limits = H200.limits
        yield made


@pytest.fixture
def generated(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lists what is generated, with an empty kernel cache and an assembler that needs no time."""
    monkeypatch.setattr(nvjitlink, "build",
                        lambda program, architecture: (program.text.encode()[-1000:], None))
    programs: list[Any] = []
    generate = module.generate

    def counting(*arguments: Any) -> Any:
        programs.append(generate(*arguments))
        return programs[-1]

    counting.__module__ = generate.__module__
    monkeypatch.setattr(module, "generate", counting)
    return programs


def prepared(device: Device, arrays: dict[str, np.ndarray], problem: Conv2dProblem = PROBLEM,
             variant: int = 0, architecture: str = "sm_90", **changes: int) -> list[Any]:
    algorithm, device.architecture = module.DirectSparseCompiled(), architecture
    chosen = list(algorithm.variants(problem, device))[variant]
    chosen = replace(chosen, config=tuple({**dict(chosen.config), **changes}.items()))
    state = algorithm.prepare(Weights(arrays, device), problem, chosen, device)
    return [(launch.kernel.name, launch.work_groups)
            for launch in state.launches]


def test_a_layer_that_is_built_again_is_not_generated_again(
        gpu: Device, generated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = sparse(PROBLEM, 0.2)
    first = prepared(gpu, arrays, channels=3)
    assert len(generated) == len(first) == 1

    def nothing(*arguments: Any) -> Any:
        raise AssertionError("the code is on disk")

    nothing.__module__ = "gossamer.ops.conv2d.sparse.generated.code"
    monkeypatch.setattr(module, "generate", nothing)
    monkeypatch.setattr(nvjitlink, "build", nothing)
    again = {name: array.copy() for name, array in arrays.items()}
    assert prepared(gpu, again, channels=3) == first
    # neither a hash of the pattern nor what is known of values changes the code
    other = replace(PROBLEM, weights_info=replace(PROBLEM.weights_info, mask_hash="another"))
    assert prepared(gpu, again, other, channels=3) == first


def test_what_the_code_depends_on_has_code_of_its_own(
        gpu: Device, generated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with_bias = with_density(replace(PROBLEM, epilogue=BIAS_RESIDUAL_CLIP), 0.2)
    arrays = sparse(with_bias, 0.2)
    cases: list[Callable[[], Any]] = [
        lambda: prepared(gpu, arrays),
        lambda: prepared(gpu, {**arrays, "weight": arrays["weight"] * 2}),
        lambda: prepared(gpu, arrays, variant=1),
        lambda: prepared(gpu, arrays, replace(PROBLEM, batch=32)),
        lambda: prepared(gpu, arrays, with_bias),
        lambda: prepared(gpu, {**arrays, "operand0": arrays["operand0"] + 1}, with_bias),
        lambda: prepared(gpu, arrays, architecture="sm_100"),
    ]
    for number, case in enumerate(cases, 1):
        case()
        assert len(generated) == number
    monkeypatch.setattr(nvjitlink, "version", lambda: "99.0")
    prepared(gpu, arrays)
    monkeypatch.setattr(module, "source_hash", lambda name: f"changed {name}")
    prepared(gpu, arrays)
    assert len(generated) == len(cases) + 2
    for case in cases:
        case()
    assert len(generated) == 2 * len(cases) + 1


def test_the_generator_is_part_of_the_key() -> None:
    files, _ = sources(module.generate.__module__)
    assert {"code.py", "epilogue.py", "tiling.py", "ptx.py"} <= {
        path.name for path in files}
