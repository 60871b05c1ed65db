"""Tests the kernels of other ops in emulation: no data races, products, and rounding to TF32.

Emulated tensor cores truncate to TF32, as those of GPUs do. `pytest -m sanitize --emulate races`
and `--emulate bounds` check all kernels and variants.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.special import erf

import tests.ops.matmul.test_matmul as matmul
import tests.ops.test_elementwise as elementwise
import tests.ops.test_tf32_rounding as tf32
from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import Format, TensorSpec
from tests.emulation.device import Emulate
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.test_conv2d import BIAS_CLIP
from tests.ops.harness import check, check_variants, random_weights
from tests.ops.problems import PROBLEMS

CONVOLUTION = Conv2dProblem(1, 5, 6, 5, 9, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP)
CASES: dict[str, Problem] = {
    **{name: PROBLEMS[name][0] for name in (
        "reduce", "softmax", "layer_norm", "matmul", "copy", "top_k")},
    "planes": convert(TensorSpec((2, 3, 3, 8), Format("NCHW")),
                      TensorSpec((2, 3, 3, 8), Format("NHWC", "float16"))),
    "gemm": GemmProblem(3, 12, 20, BIAS_CLIP),
    "conv2d": replace(CONVOLUTION, weights_info=WeightsInfo(0.3, "a pattern")),
}


def test_error_function(emulate: Emulate) -> None:
    elementwise.test_results_are_precise(emulate("plain"), "erf", -7, 7, erf, 1e-6)


def smallest_of_each_precision(variants: list[Variant]) -> list[Variant]:
    def size(variant: Variant) -> tuple[int, ...]:
        config = dict(variant.config)
        return tuple(int(config.get(name, 0)) for name in ("threads", "tile_p", "tile_m",
                                                           "slice_k"))

    variants_by_precision: dict[str, Variant] = {}
    # test_convolutions.py looks for races in its kernel, whose variants have fragments
    for variant in sorted((v for v in variants if "fragments" not in dict(v.config)), key=size):
        variants_by_precision.setdefault(variant.precision, variant)
    return list(variants_by_precision.values())


@pytest.mark.parametrize("case", CASES)
def test_no_race(emulate: Emulate, case: str) -> None:
    problem = CASES[case]
    weights = sparse(problem, 0.3) if case == "conv2d" else random_weights(problem)
    check(problem, emulate("races"), weights=weights, taken=smallest_of_each_precision)


SMALL = {"tile_m": 16, "tile_n": 16, "warps_k": 4}
SHARED_SUMS = {"tile_m": 32, "tile_n": 32, "warps_k": 8}
MEDIUM = {"tile_m": 32, "tile_n": 32, "warps_k": 1}
FLAT = {"tile_m": 16, "tile_n": 128}
LARGE = {"tile_m": 64, "tile_n": 64, "warps_k": 1}
SHARED_LARGE = {"tile_m": 64, "tile_n": 64, "warps_k": 2}
ODD = {"tile_m": 48, "tile_n": 48}


@pytest.mark.parametrize("mode, name, precision, config", [
    ("bounds", "scores", "fp16", SMALL),
    ("bounds", "scores", "tf32", LARGE),
    ("bounds", "values", "fp16", MEDIUM),
    ("bounds", "values", "tf32", SHARED_SUMS),
    ("bounds", "channels", "fp16", SHARED_SUMS),
    ("bounds", "channels", "tf32", SMALL),
    ("bounds", "columns", "fp16", ODD),
    ("bounds", "columns", "tf32", LARGE),
    ("bounds", "both", "fp16", FLAT),
    ("bounds", "both", "tf32", SHARED_LARGE),
    ("bounds", "broadcast", "fp16", MEDIUM),
    ("bounds", "broadcast", "tf32", SMALL),
    ("bounds", "empty sums", "fp16", SMALL),
    ("bounds", "empty sums", "tf32", SHARED_SUMS),
    ("bounds", "vectors", "fp16", SMALL),
    ("bounds", "vectors", "tf32", MEDIUM),
    ("races", "scores", "fp16", MEDIUM),
    ("races", "values", "fp16", SMALL),
    ("races", "channels", "fp16", SHARED_SUMS),
    ("races", "columns", "tf32", SHARED_LARGE),
    ("races", "both", "fp16", LARGE),
])
def test_matmul(emulate: Emulate, mode: str, name: str, precision: str,
                                 config: dict[str, int]) -> None:
    device, problem = emulate(mode, schedule=2), matmul.PROBLEMS[name]
    # in float16 the result is stored as float16 in one variant, and as float32 in another
    variants = matmul.variants_of(problem, device, precision, config)
    check_variants(matmul.ALGORITHM, problem, device, variants)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_numbers_that_are_not_finite_reach_their_rows_and_columns(emulate: Emulate,
                                                                  precision: str) -> None:
    device = emulate("plain", schedule=1)
    for problem, config in ((matmul.SCORES, MEDIUM), (matmul.VALUES, SHARED_SUMS)):
        variants = matmul.variants_of(problem, device, precision, config)
        matmul.check_not_finite(problem, device, variants)


def test_a_constant_is_rounded_to_the_precision(emulate: Emulate) -> None:
    device, problem = emulate("plain"), matmul.with_constants(matmul.BOTH)
    for precision in ("tf32", "fp16"):
        check_variants(matmul.ALGORITHM, problem, device,
                       matmul.variants_of(problem, device, precision, LARGE))


@pytest.mark.parametrize("name", tf32.CASES)
def test_inputs_are_rounded_to_tf32(emulate: Emulate, name: str) -> None:
    device = emulate("plain")
    variants = tf32.variants_of(name, device)
    tf32.check_rounding(name, device, variants[::max(1, len(variants) // 2)])


@pytest.mark.parametrize("name", tf32.OF_WARPGROUPS)
def test_inputs_of_warpgroups_are_rounded_to_tf32(emulate: Emulate, name: str) -> None:
    device = emulate("plain", wgmma=True, cluster=1)
    variants = [variant for variant in tf32.variants_of(name, device)
                if dict(variant.config).get("wgmma")]
    tf32.check_rounding(name, device, variants[::max(1, len(variants) // 3)])
