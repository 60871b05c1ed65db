"""Tests the kernel of depthwise_tiled in emulation."""

from __future__ import annotations

import pytest

from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.dense.test_dense import ALGORITHM, PROBLEMS
from tests.ops.harness import check_variants
from tests.ops.test_channel_parts import PROBLEMS as OF_PARTS
from tests.ops.test_channel_parts import with_parts


@pytest.mark.parametrize("mode, name, precision", [
    ("bounds", "large filter", "fp16"), ("plain", "small image", "fp32"),
    ("bounds", "stride 2", "fp16"), ("races", "3x3", "fp16"), ("bounds", "3x3 stride 2", "fp16"),
    ("bounds", "several chunks", "fp16"), ("bounds", "copies of 8 bytes", "fp16"),
    ("bounds", "copies of 4 bytes", "fp16"), ("races", "copies of 4 bytes", "fp32"),
    ("bounds", "chunks with missing channels", "fp16"), ("bounds", "uneven", "fp32"),
    ("plain", "uneven", "fp16")])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, name: str,
                                     precision: str) -> None:
    device = emulate(mode, schedule=1)
    variants = [variant for variant in ALGORITHM.variants(PROBLEMS[name], device)
                if variant.precision == precision]
    check_variants(ALGORITHM, PROBLEMS[name], device, [variants[0], variants[-1]])


@pytest.mark.parametrize("name", ["depthwise", "depthwise of fours", "depthwise of pairs"])
def test_it_reads_and_writes_parts_of_larger_tensors(emulate: Emulate, name: str) -> None:
    device, problem = emulate("bounds", schedule=1), OF_PARTS[name]
    assert isinstance(problem, Conv2dProblem)
    for precision in ("fp32", "fp16"):
        variant = next(iter(ALGORITHM.variants_in(problem, device, (precision,))))
        check_variants(ALGORITHM, problem, device,
                       list(with_parts(ALGORITHM, problem, variant)))
