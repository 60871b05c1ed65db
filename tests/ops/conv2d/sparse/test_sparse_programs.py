"""Tests that code and tables of sparse convolutions are kept for repeated builds."""

from __future__ import annotations

from collections.abc import Callable
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
    H200,
    sparse,
    with_density,
)

PROBLEM = with_density(Conv2dProblem(64, 8, 6, 6, 8, (3, 3), pads=(1, 1, 1, 1)), 0.2)


build_only = pytest.importorskip("tests.device.cuda.without_gpu", exc_type=ImportError)
MAKER = build_only.BuildOnlyMaker(0, "H200 (sm_90)", "", H200, "sm_90", "H200")


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lists what is generated, with an empty kernel cache and an assembler that needs no time."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    monkeypatch.setattr(build_only.nvjitlink, "build",
                        lambda program, architecture: (program.text.encode()[-1000:], None))
    programs: list[Any] = []
    generate = module.generate

    def counting(*arguments: Any) -> Any:
        programs.append(generate(*arguments))
        return programs[-1]

    counting.__module__ = generate.__module__
    monkeypatch.setattr(module, "generate", counting)
    return programs


def prepared(arrays: dict[str, np.ndarray], problem: Conv2dProblem = PROBLEM, variant: int = 0,
             device: Device | None = None, **changes: int) -> list[Any]:
    algorithm = module.DirectSparseCompiled()
    device = MAKER() if device is None else device
    chosen = list(algorithm.variants(problem, device))[variant]
    chosen = replace(chosen, config=tuple({**dict(chosen.config), **changes}.items()))
    state = algorithm.prepare(Weights(arrays, device), problem, chosen, device)
    return [(launch.kernel.name, launch.kernel.code_bytes, launch.work_groups)
            for launch in state.launches]


def test_a_layer_that_is_built_again_is_not_generated_again(
        generated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = sparse(PROBLEM, 0.2)
    first = prepared(arrays, channels=3)
    assert len(generated) == len(first) == 1

    def nothing(*arguments: Any) -> Any:
        raise AssertionError("the code is on disk")

    nothing.__module__ = "gossamer.ops.conv2d.sparse.generated.code"
    monkeypatch.setattr(module, "generate", nothing)
    monkeypatch.setattr(build_only.nvjitlink, "build", nothing)
    again = {name: array.copy() for name, array in arrays.items()}
    assert prepared(again, channels=3) == first
    # neither a hash of the pattern nor what is known of values changes the code
    other = replace(PROBLEM, weights_info=replace(PROBLEM.weights_info, mask_hash="another"))
    assert prepared(again, other, channels=3) == first


def test_what_the_code_depends_on_has_code_of_its_own(
        generated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with_bias = with_density(replace(PROBLEM, epilogue=BIAS_RESIDUAL_CLIP), 0.2)
    arrays = sparse(with_bias, 0.2)
    cases: list[Callable[[], Any]] = [
        lambda: prepared(arrays),
        lambda: prepared({**arrays, "weight": arrays["weight"] * 2}),
        lambda: prepared(arrays, variant=1),
        lambda: prepared(arrays, replace(PROBLEM, batch=32)),
        lambda: prepared(arrays, with_bias),
        lambda: prepared({**arrays, "operand0": arrays["operand0"] + 1}, with_bias),
        lambda: prepared(arrays, device=replace(MAKER, architecture="sm_100")()),
    ]
    for number, case in enumerate(cases, 1):
        case()
        assert len(generated) == number
    monkeypatch.setattr(build_only.nvjitlink, "version", lambda: "99.0")
    prepared(arrays)
    monkeypatch.setattr(module, "source_hash", lambda name: f"changed {name}")
    prepared(arrays)
    assert len(generated) == len(cases) + 2
    for case in cases:
        case()
    assert len(generated) == 2 * len(cases) + 1


def test_the_generator_is_part_of_the_key() -> None:
    files, _ = sources(module.generate.__module__)
    assert {"code.py", "epilogue.py", "tiling.py", "ptx.py"} <= {
        path.name for path in files}
