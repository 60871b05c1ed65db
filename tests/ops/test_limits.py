"""The largest problems that algorithms take.

Each limit is met by one problem and passed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gossamer.facts import PLUS_MINUS_ONE
from gossamer.ops.algorithm import Problem
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.ops.conv2d.binary.signs import SCALED
from tests.ops.fused.test_channel_attention import attention
from tests.ops.fused.test_convolution_pool_mma import pooled
from tests.ops.fused.test_pointwise_mean import head
from tests.ops.harness import op_of
from tests.ops.recording import RecordingDevice

GRID = 65535
"""The most work-groups along the second and the third dimension of a launch in CUDA."""
HALF = 2**15
"""So many rows of 2^16 numbers have one number more than signed 32-bit indices reach."""
CONV = Conv2dProblem(1, 64, 8, 8, 64, (3, 3), pads=(1, 1, 1, 1))
POINTWISE = replace(CONV, height=1, width=1, kernel=(1, 1), pads=(0,) * 4)
FIRST = replace(CONV, channels=3, height=5, width=9)
BITS = replace(CONV, weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
FEW = WeightsInfo(0.1, "mask")
PRUNED = replace(CONV, weights_info=FEW)


@pytest.mark.parametrize(("names", "most", "of_size", "reason"), [
    # words of 64 bits count as two
    ("packed", 2**9 - 1, lambda n: convert(*(
        TensorSpec((n, 64, 2**11, 2**10), Format(layout, "bits"))
        for layout in ("packed32", "packed64")), (PLUS_MINUS_ONE,)), "2147483648 elements"),
    ("tiled matmul_mma", HALF - 1, lambda n: MatmulProblem(
        default_spec((n, 2**16)), default_spec((2**16, 1)), (0,)), "32-bit indices"),
    ("few_rows published", HALF - 1, lambda n: GemmProblem(1, n, 2**16), "2^31 weights"),
    ("sparse_rows", HALF - 1, lambda n: GemmProblem(1, n, 2**16, weights_info=FEW), "2^31 weights"),
    ("im2col_gemm", 2**19 - 1, lambda n: replace(CONV, batch=n), "2^31 elements or more"),
    ("im2col_gemm", HALF, lambda n: replace(CONV, height=n, kernel=(n, 1)), "2^15 rows"),
    ("implicit_gemm_mma", HALF - 2, lambda n: replace(CONV, height=n), "32768 rows or more"),
    ("implicit_gemm_mma", HALF - 1, lambda n: replace(CONV, pads=(0, 0, HALF, 0),
                                                      kernel=(n, 1)), "32768 rows or more"),
    ("pointwise_mma", HALF - 1, lambda n: replace(POINTWISE, height=n), "32768 rows or more"),
    ("few_channels_mma", 8, lambda n: replace(FIRST, height=9, kernel=(n, 8)),
     "is 216 with padding"),
    ("few_channels_mma", GRID, lambda n: replace(FIRST, batch=n), "at most 65535 images"),
    ("few_channels_mma", GRID, lambda n: replace(FIRST, height=n), "65535 rows of results"),
    ("published", GRID, lambda n: replace(POINTWISE, batch=n), "more than 65535 work-groups"),
    # a tile is a product of 36 points
    ("winograd", (2**31 - 1) // (36 * 64), lambda n: replace(CONV, batch=n, height=2, width=2),
     "the transformed input or its products have 2^31 elements"),
    ("direct_sparse direct_sparse_table", HALF - 1, lambda n: replace(
        PRUNED, channels=2**16, out_channels=n, kernel=(1, 1)), "2^31 weights or more"),
    ("direct_sparse direct_sparse_table", 2**11 - 1, lambda n: replace(
        PRUNED, batch=n, channels=2**10, height=2**5, width=2**5, pads=(0,) * 4), "32-bit"),
    ("direct_sparse direct_sparse_table", 2**31 // (64 * 9), lambda n: replace(
        PRUNED, batch=n, height=1, width=1), "the padded input has 2^31 elements"),
    ("bit_tensor_core", HALF - 2, lambda n: replace(BITS, height=n, kernel=(1, 1), pads=(0,) * 4),
     "at most 32766 rows and columns, has 32767"),
    ("bit_tensor_core popcount", 2**24, lambda n: replace(
        BITS, channels=n, height=1, width=1, kernel=(1, 1), pads=(0,) * 4), "not exact in float32"),
    ("convolution_pool_mma", GRID, lambda n: pooled(replace(FIRST, batch=n)), "65535 images"),
    ("convolution_pool_mma", GRID, lambda n: pooled(replace(FIRST, height=2 * n)), "65535 rows"),
    ("convolution_pool_mma", 4, lambda n: pooled(FIRST, (n, 3), pads=(0,) * 4), "not 5 rows"),
    ("pointwise_mean", GRID, lambda n: head(n, 8, 8, (2, 2)), "at most 65535 images"),
    ("channel_attention", GRID, lambda n: attention(n, 8, 4, (2, 2)), "at most 65535 images"),
    # an update takes five launches; of 2^16 launches there is room for 13107 updates
    ("per_step", 2**16 // 5, lambda n: BackpropProblem((2, 2, 1), 1, n), "at most 13107 samples"),
    ("per_step", GRID, lambda n: BackpropProblem((2, 2), 1, n, batch=n), "samples per batch"),
    ("per_step", GRID, lambda n: BackpropProblem((2, 2), 1, 1, networks=n), "65535 networks"),
    ("per_step", 64 * GRID - 1, lambda n: BackpropProblem((n, 1), 1, 1), "work-groups per unit"),
    ("per_step", 2**14 - 1, lambda n: BackpropProblem((2, 2**16), 1, 1, batch=n), "32-bit indices"),
])
def test_the_largest_problem_is_taken_and_the_next_one_is_not(recorder: RecordingDevice, names: str,
                                                              most: int,
                                                              of_size: Callable[[int], Problem],
                                                              reason: str) -> None:
    largest, beyond = of_size(most), of_size(most + 1)
    algorithms = {algorithm.name: algorithm for algorithm in op_of(largest).algorithms}
    for name in names.split():
        assert algorithms[name].supports(largest, recorder) is None
        assert next(iter(algorithms[name].variants(largest, recorder)))
        assert reason in str(algorithms[name].supports(beyond, recorder)), name
