"""Tests the CUDA kernels of convolutions of floats in emulation.

The tests of each kernel, which run it on a GPU, have its problems and compare with the reference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tests.ops.conv2d.dense.test_dense as depthwise
import tests.ops.conv2d.grouped.test_grouped_mma as grouped
import tests.ops.conv2d.shifted.test_windows_fp16 as shifted
import tests.ops.conv2d.shifted.test_windows_fp16_sparse as shifted_sparse
import tests.ops.conv2d.tensor_core.test_few_channels as few
import tests.ops.conv2d.tensor_core.test_implicit_gemm as mma
import tests.ops.fused.test_first_convolution as first_convolution
from gossamer.ops.algorithm import Algorithm, Epilogue
from gossamer.ops.conv2d.grouped.tiling import GroupedTile
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.windows_fp16 import ShiftedTile
from gossamer.ops.conv2d.shifted.windows_fp16_sparse import SparseTile
from gossamer.ops.weights import Weights
from tests.emulation.device import Emulate
from tests.ops.harness import (
    check_variants,
    random_inputs,
    random_weights,
    run_variant,
    variants_of,
    with_tile,
)
from tests.ops.test_channel_parts import PROBLEMS as OF_PARTS
from tests.ops.test_channel_parts import with_parts


@pytest.mark.parametrize("mode, problem, precision, config", [
    ("bounds", mma.STRIDED, "fp16", {"tile_p": 128, "tile_m": 128}),
    ("bounds", mma.ODD_CHANNELS, "tf32", {"tile_p": 64, "tile_m": 64}),
    ("bounds", mma.GROUPS, "tf32", {"warps_k": 4, "cluster": 1}),
    ("bounds", mma.STEM, "fp16", {"tile_p": 256, "tile_m": 32}),
    ("bounds", mma.DEEP, "fp16", {"cluster": 4}),
    ("plain", mma.WINDOWS, "tf32", {"tile_p": 128, "tile_m": 64}),
    ("plain", mma.PADDED, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("races", mma.POINTWISE, "fp16", {"tile_p": 64, "tile_m": 32, "keeps_weights": 0}),
    ("races", mma.POINTWISE, "tf32", {"cluster": 2}),
    ("races", replace(mma.POINTWISE, batch=8), "fp16", {"keeps_weights": 1}),
    ("races", mma.WINDOWS, "fp16", {"warps_k": 4, "cluster": 1}),
    ("bounds", mma.PAIRS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("races", mma.PAIRS, "fp16", {"keeps_weights": 1}),
    ("bounds", mma.PAIRS, "tf32", {"tile_p": 64, "tile_m": 64}),
    ("bounds", mma.FOURS, "fp16", {"warps_k": 4, "cluster": 1}),
    ("bounds", mma.ODD, "fp16", {"tile_p": 64, "tile_m": 32}),
    ("bounds", mma.ODD, "tf32", {"tile_p": 64, "tile_m": 32}),
    ("bounds", mma.ODD_GROUPS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("bounds", mma.DEEP_PAIRS, "fp16", {"cluster": 2}),
    ("bounds", mma.PAIRS_OF_WINDOWS, "fp16", {"tile_p": 64, "tile_m": 64}),
    ("bounds", mma.PAIRS_OF_WINDOWS, "tf32", {"warps_k": 4, "cluster": 1}),
    *(("bounds", problem, precision, {"tile_p": 64, "tile_m": 64})
      for problem in mma.ROWS for precision in ("fp16", "tf32")),
])
def test_implicit_gemm(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     precision: str, config: dict[str, int]) -> None:
    device = emulate(mode, schedule=2)
    layout = "NCHW" if problem is mma.STEM else "NHWC"
    mma.check(problem, device, [variant for variant in variants_of(
        mma.algorithm_of(problem, device), problem, device, precision, config)
        if variant.inputs[0].layout == layout][:1])


def test_work_groups_take_several_tiles(emulate: Emulate) -> None:
    device = emulate("races", schedule=1, compute_units=1)
    problem = replace(mma.POINTWISE, batch=9)
    mma.check(problem, device, [
        variant for variant in mma.algorithm_of(problem, device).variants(problem, device)
        if variant.precision == "fp16" and variant["cluster"] == 1 and (
            variant["keeps_weights"] or variant["tile_m"] == 64 or variant["warps_k"] > 1)])


@pytest.mark.parametrize("mode, problem, precision, cluster", [
    ("bounds", mma.POINTWISE, "fp16", 1), ("races", mma.POINTWISE, "tf32", 1),
    ("races", mma.DEEP, "fp16", 2), ("bounds", mma.DEEP, "tf32", 2),
    ("bounds", mma.WINDOWS, "tf32", 1), ("races", mma.WINDOWS, "fp16", 2),
    ("bounds", mma.PATCHES, "fp16", 2)])
def test_warpgroups_multiply_what_other_warps_copy(
        emulate: Emulate, mode: str, problem: Conv2dProblem, precision: str, cluster: int) -> None:
    device = emulate(mode, schedule=2, wgmma=True)
    mma.check(problem, device, variants_of(mma.algorithm_of(problem, device), problem, device,
                                           precision, {"wgmma": 1, "cluster": cluster})[:1])


@pytest.mark.parametrize("algorithm, problem, precision", [
    *((None, OF_PARTS[name], precision) for name in (
        "1x1 of fours", "1x1 of pairs", "odd channels", "patches", "residual sum")
      for precision in ("tf32", "fp16")),
    *((depthwise.ALGORITHM, OF_PARTS[name], precision) for name in (
        "depthwise", "depthwise of fours", "depthwise of pairs") for precision in ("fp32", "fp16")),
    (grouped.ALGORITHM, grouped.PROBLEMS["fours"], "tf32"),
    (grouped.ALGORITHM, grouped.PROBLEMS["fours"], "fp16")])
def test_parts_of_larger_tensors(emulate: Emulate, algorithm: Algorithm | None,
                                 problem: Conv2dProblem, precision: str) -> None:
    device = emulate("bounds", schedule=1)
    algorithm = algorithm or mma.algorithm_of(problem, device)
    variant = next(variant for variant in variants_of(algorithm, problem, device, precision)
                   if variant.inputs[0].layout == "NHWC")
    check_variants(algorithm, problem, device, list(with_parts(algorithm, problem, variant)))


@pytest.mark.parametrize("mode, problem, config", [
    ("plain", few.WIDE, 0), ("bounds", few.STEM, 0), ("bounds", few.LARGE_FILTER, 1),
    ("bounds", few.GREY, 2), ("bounds", few.WIDE, 3), ("bounds", few.LONG_LINES, 4),
    ("bounds", few.ODD, 2), ("bounds", few.ODD, 7), ("races", few.STEM, 2), ("races", few.ODD, 0)])
def test_few_channels(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     config: int) -> None:
    device = emulate(mode, schedule=1)
    few.check(problem, device, list(few.ALGORITHM.variants(problem, device))[config:config + 1])


@pytest.mark.parametrize("mode, name, config", [
    ("bounds", "bytes", 0), ("races", "bytes", 2), ("bounds", "planes", 1), ("plain", "halves", 2),
    ("bounds", "bfloats", 1), ("bounds", "floats", 2)])
def test_few_channels_makes_the_image_of_what_is_given(emulate: Emulate, mode: str, name: str,
                                             config: int) -> None:
    device = emulate(mode, schedule=1)
    problem = first_convolution.PROBLEMS[name]
    variants = list(first_convolution.ALGORITHM.variants(problem, device))
    first_convolution.check(problem, device, variants[config:config + 1])


def test_what_is_off_the_window_of_few_channels_counts_for_nothing(emulate: Emulate) -> None:
    """The last step of inputs is longer than a window.

    Infinities beside it do no harm.
    """
    device = emulate("plain", schedule=1)
    problem = replace(few.STEM, batch=1, epilogue=Epilogue())
    arrays = random_weights(problem)
    x = random_inputs(problem)[0]
    x[0, 0, 0, 0] = np.inf
    variant = next(iter(few.ALGORITHM.variants(problem, device)))
    (actual,) = run_variant(few.ALGORITHM, problem, variant, device,
                            Weights(arrays, device, "the test"), [x])
    assert np.isfinite(actual[0, :, 1:]).all() and np.isfinite(actual[0, :, :, 1:]).all()
    assert not np.isfinite(actual[0, :, 0, 0]).any()


@pytest.mark.parametrize("mode, name, units, tile", [
    ("bounds", "same", 2, ShiftedTile(64, 1, 2, 64, 2, 3)),
    ("bounds", "slices", 2, ShiftedTile(64, 1, 1, 48, 2, 3)),
    ("bounds", "uneven", 1, ShiftedTile(64, 2, 1, 32, 2, 3)),
    ("bounds", "large window", 1, ShiftedTile(64, 1, 2, 16, 2, 0)),
    ("bounds", "row", 2, ShiftedTile(256, 1, 1, 48, 2, 3)),
    ("bounds", "strides", 2, ShiftedTile(64, 1, 1, 64, 3, 3)),
    ("bounds", "patches", 1, ShiftedTile(64, 1, 2, 16, 2, 0)),
    ("plain", "strides and dilation", 1, ShiftedTile(64, 2, 1, 64, 2, 3)),
    ("plain", "dilated", 1, ShiftedTile(64, 2, 2, 32, 2, 0)),
    ("plain", "same", 1, ShiftedTile(64, 2, 2, 64, 2, 0)),
    ("plain", "deep", 2, ShiftedTile(128, 2, 1, 64, 2, 4)),
    ("plain", "no pads", 1, ShiftedTile(96, 1, 2, 32, 2, 0)),
    ("plain", "wide pads", 1, ShiftedTile(64, 2, 1, 16, 2, 0)),
    ("races", "same", 1, ShiftedTile(64, 2, 1, 64, 2, 0)),
    ("races", "slices", 2, ShiftedTile(64, 1, 1, 48, 2, 3)),
    ("races", "strides", 1, ShiftedTile(64, 2, 1, 48, 4, 0)),
    ("races", "no pads", 1, ShiftedTile(96, 2, 2, 32, 2, 3)),
])
def test_shifted_gemm(emulate: Emulate, mode: str, name: str, units: int,
                                     tile: ShiftedTile) -> None:
    # with few multiprocessors a work-group takes several tiles
    device = emulate(mode, schedule=2, wgmma=True, compute_units=units)
    problem = shifted.PROBLEMS[name]
    shifted.check(problem, device, [with_tile(shifted.ALGORITHM, problem, device, tile)])


@pytest.mark.parametrize("mode, name, units, tile, pattern", [
    ("bounds", "same", 2, SparseTile(64, 1, 1, 2, 3), "2:4"),
    ("bounds", "slices", 2, SparseTile(96, 2, 1, 2, 3), "few"),
    ("bounds", "uneven", 1, SparseTile(64, 1, 2, 2, 4), "many"),
    ("bounds", "large window", 1, SparseTile(64, 1, 1, 2, 3), "one row"),
    ("bounds", "strides", 2, SparseTile(64, 2, 1, 3, 3), "few"),
    ("bounds", "dilated", 1, SparseTile(64, 1, 1, 2, 3), "2:4"),
    ("plain", "strides and dilation", 2, SparseTile(64, 1, 2, 4, 3), "2:4"),
    ("plain", "patches", 1, SparseTile(64, 1, 1, 2, 3), "many"),
    ("plain", "same", 1, SparseTile(64, 1, 2, 2, 3), "dense"),
    ("plain", "deep", 2, SparseTile(96, 2, 1, 2, 4), "none"),
    ("plain", "row", 5, SparseTile(160, 2, 1, 2, 3), "2:4"),
    ("plain", "no pads", 1, SparseTile(128, 1, 1, 2, 3), "2:4"),
    ("plain", "wide pads", 1, SparseTile(64, 1, 1, 2, 3), "few"),
    ("races", "same", 1, SparseTile(64, 1, 2, 2, 3), "2:4"),
    ("races", "slices", 2, SparseTile(64, 1, 1, 2, 3), "many"),
    ("races", "strides", 1, SparseTile(64, 1, 1, 2, 3), "none"),
])
def test_shifted_sparse(emulate: Emulate, mode: str, name: str, units: int,
                                     tile: SparseTile, pattern: str) -> None:
    device = emulate(mode, schedule=2, wgmma=True, compute_units=units)
    problem = shifted_sparse.PROBLEMS[name]
    shifted_sparse.check(problem, device, [
        with_tile(shifted_sparse.ALGORITHM, problem, device, tile)], pattern)


@pytest.mark.parametrize("mode, name, precision", [
    ("bounds", "large filter", "fp16"), ("plain", "small image", "fp32"),
    ("bounds", "stride 2", "fp16"), ("races", "3x3", "fp16"), ("bounds", "3x3 stride 2", "fp16"),
    ("bounds", "several chunks", "fp16"), ("bounds", "copies of 8 bytes", "fp16"),
    ("bounds", "copies of 4 bytes", "fp16"), ("races", "copies of 4 bytes", "fp32"),
    ("bounds", "chunks with missing channels", "fp16"), ("bounds", "uneven", "fp32"),
    ("plain", "uneven", "fp16")])
def test_depthwise_tiled(emulate: Emulate, mode: str, name: str,
                                     precision: str) -> None:
    device, problem = emulate(mode, schedule=1), depthwise.PROBLEMS[name]
    variants = variants_of(depthwise.ALGORITHM, problem, device, precision)
    check_variants(depthwise.ALGORITHM, problem, device, [variants[0], variants[-1]])


@pytest.mark.parametrize("mode, name, precision, tile", [
    ("bounds", "pairs", "fp16", GroupedTile(1, 4, 7, 2, 2, 1)),
    ("races", "fours", "fp16", GroupedTile(2, 1, 8, 2, 2, 2)),
    ("plain", "fours", "tf32", GroupedTile(7, 1, 7, 1, 2, 2)),
    ("bounds", "eights, stride 2", "fp16", GroupedTile(2, 2, 7, 2, 2, 1)),
    ("bounds", "eights, stride 2", "tf32", GroupedTile(4, 1, 8, 4, 2, 2)),
    ("bounds", "sixteens, uneven window", "fp16", GroupedTile(2, 2, 7, 1, 2, 2)),
    ("races", "thirty-twos", "fp16", GroupedTile(4, 2, 7, 2, 4, 2)),
    ("bounds", "thirty-twos", "tf32", GroupedTile(2, 4, 7, 1, 2, 1)),
    ("bounds", "sixty-fours, 1x1", "fp16", GroupedTile(1, 2, 7, 4, 4, 1)),
    ("bounds", "groups across units", "fp16", GroupedTile(4, 1, 8, 4, 2, 1)),
    ("bounds", "fewer outputs", "fp16", GroupedTile(2, 1, 14, 2, 2, 2)),
    ("bounds", "more outputs, dilation", "tf32", GroupedTile(1, 2, 8, 2, 2, 1)),
    ("bounds", "more outputs, dilation", "fp16", GroupedTile(2, 1, 7, 1, 2, 2)),
    ("plain", "7x7", "fp16", GroupedTile(4, 1, 8, 1, 2, 2))])
def test_grouped_mma(emulate: Emulate, mode: str, name: str, precision: str,
                     tile: GroupedTile) -> None:
    # with one multiprocessor a work-group takes several tiles
    device, problem = emulate(mode, schedule=2, compute_units=1), grouped.PROBLEMS[name]
    check_variants(grouped.ALGORITHM, problem, device, [
        with_tile(grouped.ALGORITHM, problem, device, tile, precision)])


def test_an_infinity_stays_within_the_channels_that_share_a_product(emulate: Emulate) -> None:
    device, problem = emulate("plain", schedule=1), grouped.PROBLEMS["fours"]
    x, *residual = random_inputs(problem)
    x[0, 0, 4, 4] = np.inf
    variant = next(iter(grouped.ALGORITHM.variants_in(problem, device, ("fp16",))))
    (y,) = run_variant(grouped.ALGORITHM, problem, variant, device,
                       Weights(random_weights(problem), device, "the test"), [x, *residual])
    assert np.isfinite(y[:, 16:]).all()
    assert not np.isfinite(y[:, :4, 3:6, 3:6]).all()
