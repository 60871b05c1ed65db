"""Tests the kernel of pointwise_mma and implicit_gemm_mma in emulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.tensor_core.test_implicit_gemm import (
    DEEP,
    DEEP_PAIRS,
    FOURS,
    GROUPS,
    ODD,
    ODD_CHANNELS,
    ODD_GROUPS,
    PADDED,
    PAIRS,
    PAIRS_OF_WINDOWS,
    POINTWISE,
    STEM,
    STRIDED,
    WINDOWS,
    algorithm_of,
    check,
)
from tests.ops.harness import check_variants
from tests.ops.test_channel_parts import PROBLEMS as OF_PARTS
from tests.ops.test_channel_parts import with_parts


@pytest.mark.parametrize("mode, problem, precision, config", [
    ("bounds", STRIDED, "fp16", {"tile_p": 128, "tile_m": 128}),
    ("bounds", ODD_CHANNELS, "tf32", {"tile_p": 64, "tile_m": 64}),
    ("bounds", GROUPS, "tf32", {"warps_k": 4, "cluster": 1}),
    ("bounds", STEM, "fp16", {"tile_p": 256, "tile_m": 32}),
    ("bounds", DEEP, "fp16", {"cluster": 4}),
    ("plain", WINDOWS, "tf32", {"tile_p": 128, "tile_m": 64}),
    ("plain", PADDED, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("races", POINTWISE, "fp16", {"tile_p": 64, "tile_m": 32, "keeps_weights": 0}),
    ("races", POINTWISE, "tf32", {"cluster": 2}),
    ("races", replace(POINTWISE, batch=8), "fp16", {"keeps_weights": 1}),
    ("races", WINDOWS, "fp16", {"warps_k": 4, "cluster": 1}),
    ("bounds", PAIRS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("races", PAIRS, "fp16", {"keeps_weights": 1}),
    ("bounds", PAIRS, "tf32", {"tile_p": 64, "tile_m": 64}),
    ("bounds", FOURS, "fp16", {"warps_k": 4, "cluster": 1}),
    ("bounds", ODD, "fp16", {"tile_p": 64, "tile_m": 32}),
    ("bounds", ODD, "tf32", {"tile_p": 64, "tile_m": 32}),
    ("bounds", ODD_GROUPS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("bounds", DEEP_PAIRS, "fp16", {"cluster": 2}),
    ("bounds", PAIRS_OF_WINDOWS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("bounds", PAIRS_OF_WINDOWS, "tf32", {"warps_k": 4, "cluster": 1}),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, config: dict[str, int]) -> None:
    device = emulate(mode, schedule=2)
    layout = "NCHW" if problem is STEM else "NHWC"
    check(problem, device, [
        variant for variant in algorithm_of(problem, device).variants(problem, device)
        if variant.precision == precision and variant.inputs[0].layout == layout
        and config.items() <= dict(variant.config).items()][:1])


def test_work_groups_take_several_tiles(emulate: Emulate) -> None:
    device = emulate("races", schedule=1, compute_units=1)
    problem = replace(POINTWISE, batch=9)
    check(problem, device, [
        variant for variant in algorithm_of(problem, device).variants(problem, device)
        if variant.precision == "fp16" and variant["cluster"] == 1 and (
            variant["keeps_weights"] or variant["tile_m"] == 64 or variant["warps_k"] > 1)])


@pytest.mark.parametrize("mode, problem, precision, cluster", [
    ("bounds", POINTWISE, "fp16", 1), ("races", POINTWISE, "tf32", 1),
    ("races", DEEP, "fp16", 2), ("bounds", DEEP, "tf32", 2),
    ("bounds", WINDOWS, "tf32", 1), ("races", WINDOWS, "fp16", 2)])
def test_warpgroups_multiply_what_other_warps_copy(
        emulate: Emulate, mode: str, problem: Conv2dProblem, precision: str, cluster: int) -> None:
    device = emulate(mode, schedule=2, wgmma=True)
    check(problem, device, [
        variant for variant in algorithm_of(problem, device).variants(problem, device)
        if variant["wgmma"] and variant.precision == precision
        and variant["cluster"] == cluster][:1])


@pytest.mark.parametrize("name", ["1x1 of fours", "1x1 of pairs", "odd channels"])
@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_it_reads_and_writes_parts_of_larger_tensors(emulate: Emulate, name: str,
                                                     precision: str) -> None:
    device, problem = emulate("bounds", schedule=1), OF_PARTS[name]
    assert isinstance(problem, Conv2dProblem)
    algorithm = algorithm_of(problem, device)
    variant = next(variant for variant in algorithm.variants_in(problem, device, (precision,))
                   if variant.inputs[0].layout == "NHWC")
    check_variants(algorithm, problem, device, list(with_parts(algorithm, problem, variant)))
