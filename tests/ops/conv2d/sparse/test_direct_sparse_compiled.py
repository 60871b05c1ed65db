"""Tests which problems direct_sparse_compiled takes, what it offers and what it launches. The code
that it generates is tested in test_code.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated.code import generate
from gossamer.ops.conv2d.sparse.generated.configs import (
    _all,
    configs,
    estimated_us,
    lines,
)
from gossamer.ops.conv2d.sparse.generated.direct_sparse_compiled import DirectSparseCompiled
from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedConfig, GeneratedTiling
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse.sparse_weights import (
    BIAS_RESIDUAL_CLIP,
    BIAS_SIGMOID,
    SCALE_PRELU,
    sparse,
    with_density,
)
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice
from tests.simulated.device import H200

DENSE = Conv2dProblem(64, 128, 14, 14, 128, (3, 3), pads=(1, 1, 1, 1))


@pytest.mark.parametrize("problem, architecture, reason", [
    (DENSE, "sm_90", "density of at most 50%, has 100%"),
    (with_density(DENSE, 0.1), "sm_75", "sm_75"),
    (with_density(replace(DENSE, channels=4096, out_channels=4096), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, channels=65536, out_channels=65536, groups=65536), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, kernel=(3, 3), dilation=(1, 2000), width=4100), 0.1), "sm_90",
     "no tile fits"),
    (with_density(replace(DENSE, height=4000, width=4000), 0.1), "sm_90", "2^31 elements"),
])
def test_reasons(problem: Conv2dProblem, architecture: str, reason: str) -> None:
    refusal = DirectSparseCompiled().supports(problem, RecordingDevice(architecture))
    assert refusal is not None and reason in refusal


def test_only_cuda_takes_ptx(device: Device) -> None:
    refusal = DirectSparseCompiled().supports(with_density(DENSE, 0.1), device)
    if device.api == "cuda":
        assert refusal is None
    else:
        assert refusal is not None and "PTX" in refusal


def test_variants_fit_and_begin_in_float32() -> None:
    problem = with_density(DENSE, 0.1)
    variants = list(DirectSparseCompiled().variants(problem, RecordingDevice("sm_90")))
    assert variants[0].precision == "fp32"
    assert {variant.precision for variant in variants} == {"fp32", "fp16"}
    for variant in variants:
        halves = variant.precision == "fp16"
        division = GeneratedTiling(problem, sizes_of(GeneratedConfig, variant), halves)
        assert division.shared_bytes <= H200.limits.shared_bytes_opt_in
        assert division.work_group <= 1024 and division.registers >= division.block
        assert {spec.layout for spec in (*variant.inputs, *variant.outputs)} == {"CHWN"}
        assert variant.inputs[0].dtype == ("float16" if halves else "float32")
        assert estimated_us(division, H200.limits) > 0
    odd = DirectSparseCompiled().variants(replace(problem, batch=3), RecordingDevice("sm_90"))
    assert {variant.precision for variant in odd} == {"fp32"}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("problem", [
    with_density(replace(DENSE, out_channels=96), 0.1),
    with_density(replace(DENSE, batch=2, height=2, width=2), 0.05),
    with_density(replace(DENSE, channels=96, out_channels=96, groups=96), 0.3)])
def test_how_long_code_gets_is_known_before(problem: Conv2dProblem, halves: bool) -> None:
    arrays = sparse(problem, problem.weights_info.density)
    for config in configs(problem, H200.limits, halves)[::6]:
        division = GeneratedTiling(problem, config, halves)
        # factors of float16 are moves, which the assembler drops
        count = sum(instruction.name != "mov.b32"
                    for instruction in generate(division, arrays).code.instructions)
        assert 0.7 < lines(division) / count < 1.4


@pytest.mark.parametrize("halves", [False, True])
def test_the_best_config_of_each_kind_comes_first(halves: bool) -> None:
    """The kinds are: k_groups, prefetch warps, and neither."""
    problem = with_density(DENSE, 0.1)

    def kind(config: GeneratedConfig) -> tuple[bool, int]:
        return config.k_groups > 1, config.prefetch_warps

    def expected(config: GeneratedConfig) -> float:
        return estimated_us(GeneratedTiling(problem, config, halves), H200.limits)

    offered = configs(problem, H200.limits, halves)
    assert len(set(offered)) == len(offered)
    assert sorted(map(kind, offered[:3])) == [(False, 0), (False, 1), (True, 0)]
    best = dict.fromkeys(map(kind, offered), math.inf)
    for config in _all(problem, H200.limits, halves):
        best[kind(config)] = min(best[kind(config)], expected(config))
    assert list(map(expected, offered[:3])) == sorted(best.values())


def test_long_code_is_no_candidate() -> None:
    """Small blocks take more instructions: large ones share more of them."""
    problem = with_density(Conv2dProblem(1, 2048, 1, 1, 1000, (1, 1)), 0.1)
    longest = max(lines(GeneratedTiling(problem, config))
                  for config in configs(problem, H200.limits))
    offered = configs(problem, H200.limits, most_lines=longest / 2)
    assert offered and all(lines(GeneratedTiling(problem, config)) <= longest / 2
                           for config in offered)


@pytest.mark.parametrize("batch", [8, 33, 64])
def test_resident_groups_are_no_more_than_a_multiprocessor_holds(batch: int) -> None:
    problem = with_density(Conv2dProblem(batch, 64, 20, 17, 64, (3, 3), groups=4), 0.1)
    assert all(GeneratedTiling(problem, config).work_group * config.blocks_per_unit <= 2048
               for config in configs(problem, H200.limits))


@pytest.mark.parametrize("halves", [False, True])
def test_resident_groups_share_the_memory_of_a_multiprocessor(halves: bool) -> None:
    """Each of several work-groups takes a kilobyte more than it asks for; one alone may have all of
    the memory."""
    problem = with_density(Conv2dProblem(32, 16, 56, 56, 16, (5, 5)), 0.1)
    needed: dict[bool, int] = {}
    for config in _all(problem, H200.limits, halves):
        count = config.blocks_per_unit
        nbytes = count * (GeneratedTiling(problem, config, halves).shared_bytes
                          + 1024 * (count > 1))
        needed[count > 1] = max(nbytes, needed.get(count > 1, 0))
    assert needed.keys() == {False, True}
    assert max(needed.values()) <= H200.limits.shared_bytes_opt_in, needed


def launched(problem: Conv2dProblem, **changes: int) -> RecordingDevice:
    """Launches the first variant with a changed config and returns the device that recorded it."""
    device, algorithm = RecordingDevice("sm_90"), DirectSparseCompiled()
    variant = next(iter(algorithm.variants(problem, device)))
    variant = replace(variant, config=tuple({**dict(variant.config), **changes}.items()))
    weights = Weights(sparse(problem, 0.1), device)
    state = algorithm.prepare(weights, problem, variant, device)
    buffers: list[Any] = [None] * len(variant.inputs)
    algorithm.launch(state, buffers, buffers[:1], None, "main")
    return device


def test_a_long_epilogue_is_a_kernel_of_its_own() -> None:
    launches = launched(with_density(replace(DENSE, epilogue=BIAS_SIGMOID), 0.1)).launches
    assert [kernel.name for (kernel, *_), _ in launches][1:] == ["epilogue_pass"]


def test_nothing_is_launched_for_nothing() -> None:
    assert launched(with_density(replace(DENSE, batch=0), 0.1)).launches == []


GPU_CASES = [(1, Epilogue()), (2, BIAS_RESIDUAL_CLIP), (5, BIAS_SIGMOID), (64, SCALE_PRELU)]
"""Batch sizes and epilogues of the tests on a GPU."""


def check_every(step: int, cuda: Device, batch: int, epilogue: Epilogue) -> None:
    """Checks every step-th variant of a convolution with strides, pads and groups."""
    algorithm = DirectSparseCompiled()
    problem = with_density(Conv2dProblem(batch, 12, 9, 7, 40, (3, 3), (1, 2), (1, 0, 1, 2),
                                         groups=2, epilogue=epilogue), 0.2)
    variants = list(algorithm.variants(problem, cuda))[::step]
    assert len(variants) >= 4
    check_variants(algorithm, problem, cuda, variants, sparse(problem, 0.2))


@pytest.mark.parametrize(("batch", "epilogue"), GPU_CASES)
def test_on_a_gpu(cuda: Device, batch: int, epilogue: Epilogue) -> None:
    check_every(1, cuda, batch, epilogue)


@pytest.mark.sanitize
@pytest.mark.parametrize(("batch", "epilogue"), GPU_CASES)
def test_few_variants_on_a_gpu(cuda: Device, batch: int, epilogue: Epilogue) -> None:
    check_every(6, cuda, batch, epilogue)


@pytest.mark.sanitize
def test_prefetch_warps_on_a_gpu(cuda: Device) -> None:
    algorithm = DirectSparseCompiled()
    problem = with_density(Conv2dProblem(32, 48, 9, 7, 40, (3, 3), pads=(1, 0, 1, 2),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.2)
    variants = [variant for variant in algorithm.variants(problem, cuda)
                if dict(variant.config).get("prefetch_warps")]
    assert len(variants) >= 4
    check_variants(algorithm, problem, cuda, variants, sparse(problem, 0.2))
