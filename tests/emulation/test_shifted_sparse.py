"""Tests the kernel of shifted_sparse_mma in emulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.conv2d.common import config_of
from gossamer.ops.conv2d.shifted.windows_fp16_sparse import SparseTile
from tests.emulation.test_faults import Emulate
from tests.emulation.test_shifted_gemm import device_of
from tests.ops.conv2d.shifted.test_windows_fp16_sparse import ALGORITHM, PROBLEMS, check


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
def test_it_computes_the_convolution(emulate: Emulate, mode: str, name: str, units: int,
                                     tile: SparseTile, pattern: str) -> None:
    device = device_of(emulate, mode, units)
    problem = PROBLEMS[name]
    variant = replace(next(iter(ALGORITHM.variants(problem, device))), config=config_of(tile))
    check(problem, device, [variant], pattern)
