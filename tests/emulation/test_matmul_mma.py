"""Tests the kernel of matmul_mma in emulation."""

from __future__ import annotations

import pytest

from tests.emulation.test_faults import Emulate
from tests.ops.harness import check_variants
from tests.ops.matmul.test_matmul import (
    ALGORITHM,
    BOTH,
    PROBLEMS,
    SCORES,
    VALUES,
    check_not_finite,
    variants_of,
    with_constants,
)

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
def test_it_computes_the_product(emulate: Emulate, mode: str, name: str, precision: str,
                                 config: dict[str, int]) -> None:
    device, problem = emulate(mode, schedule=2), PROBLEMS[name]
    # in float16 the result is stored as float16 in one variant, and as float32 in another
    check_variants(ALGORITHM, problem, device, variants_of(problem, device, precision, config))


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_numbers_that_are_not_finite_reach_their_rows_and_columns(emulate: Emulate,
                                                                  precision: str) -> None:
    device = emulate("plain", schedule=1)
    for problem, config in ((SCORES, MEDIUM), (VALUES, SHARED_SUMS)):
        check_not_finite(problem, device, variants_of(problem, device, precision, config))


def test_a_constant_is_rounded_to_the_precision(emulate: Emulate) -> None:
    device, problem = emulate("plain"), with_constants(BOTH)
    for precision in ("tf32", "fp16"):
        check_variants(ALGORITHM, problem, device,
                       variants_of(problem, device, precision, LARGE))
