"""Tests that the kernels of other ops have no data races in shared memory.

`pytest -m sanitize --emulate races` and `--emulate bounds` check all kernels and variants.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.test_conv2d import BIAS_CLIP
from tests.ops.harness import check, random_weights
from tests.ops.problems import PROBLEMS

CONVOLUTION = Conv2dProblem(1, 5, 6, 5, 9, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP)
CASES: dict[str, Problem] = {
    **{name: PROBLEMS[name][0] for name in (
        "reduce", "softmax", "layer_norm", "matmul", "copy", "top_k")},
    "gemm": GemmProblem(3, 12, 20, BIAS_CLIP),
    "conv2d": replace(CONVOLUTION, weights_info=WeightsInfo(0.3, "a pattern")),
}


def smallest_of_each_precision(variants: list[Variant]) -> list[Variant]:
    def size(variant: Variant) -> tuple[int, ...]:
        config = dict(variant.config)
        return tuple(int(config.get(name, 0)) for name in ("threads", "tile_p", "tile_m",
                                                           "slice_k"))

    variants_by_precision: dict[str, Variant] = {}
    # test_direct_sparse_pixels.py looks for races in its kernel, whose variants have fragments
    for variant in sorted((v for v in variants if "fragments" not in dict(v.config)), key=size):
        variants_by_precision.setdefault(variant.precision, variant)
    return list(variants_by_precision.values())


@pytest.mark.parametrize("case", CASES)
def test_no_race(emulate: Emulate, case: str) -> None:
    problem = CASES[case]
    weights = sparse(problem, 0.3) if case == "conv2d" else random_weights(problem)
    check(problem, emulate("races"), weights=weights, taken=smallest_of_each_precision)
