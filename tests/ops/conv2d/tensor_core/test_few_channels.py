"""Tests few_channels_mma: the kernel on a GPU, its builds, and its reasons;
tests/emulation/test_convolutions.py runs the kernel anywhere."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import hypothesis
import hypothesis.strategies as st
import pytest

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.few_channels import FewChannelsMma
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = FewChannelsMma()
check = partial(check_variants, ALGORITHM)
STEM = Conv2dProblem(2, 3, 11, 37, 32, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=BIAS_CLIP)
LARGE_FILTER = Conv2dProblem(1, 3, 14, 20, 64, (7, 7), (2, 2), (3, 2, 3, 4), epilogue=BIAS_CLIP)
GREY = Conv2dProblem(1, 1, 9, 12, 24, (5, 1), (1, 2), (0, 1, 2, 0), epilogue=RESIDUAL_FIRST)
WIDE = Conv2dProblem(1, 4, 6, 19, 112, (2, 2), epilogue=BIAS_RESIDUAL_RELU)
LONG_LINES = Conv2dProblem(2, 2, 7, 21, 40, (3, 9), (2, 3), (1, 4, 1, 4), epilogue=BIAS_CLIP)
ODD = Conv2dProblem(1, 3, 9, 18, 64, (5, 5), pads=(2, 2, 2, 2), epilogue=BIAS_CLIP)
PROBLEMS = (STEM, LARGE_FILTER, GREY, WIDE, LONG_LINES, ODD)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_computes_the_convolution_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    check(problem, cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, PROBLEMS)


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(STEM, channels=8), "at most 4 input channels"),
    (replace(STEM, channels=3, groups=3, out_channels=24), "one group"),
    (replace(STEM, out_channels=20), "a multiple of 8"),
    (replace(STEM, dilation=(1, 2)), "without dilation"),
    (replace(STEM, stride=(30, 30), height=400, width=400), "do not fit"),
])
def test_other_convolutions_give_a_reason(problem: Conv2dProblem, reason: str) -> None:
    assert reason in (ALGORITHM.supports(problem, RecordingDevice()) or "")


PARTS = {8: {8}, 16: {16}, 24: {24}, 32: {32}, 40: {40}, 48: {48}, 64: {64, 32}, 96: {32},
         120: {40, 24}, 128: {64, 32}}
"""For numbers of output channels, those that a work-group may compute."""


def shared_bytes(problem: Conv2dProblem, rows: int, columns: int, part: int) -> int:
    """Returns the bytes of shared memory of a work-group, as few_channels.cu reserves them."""
    height = (rows - 1) * problem.stride[0] + problem.kernel[0]
    width = (columns - 1) * problem.stride[1] + problem.kernel[1]
    pitch = -(-width // 2) * 2
    copy = (problem.channels * height + 16) * pitch
    second = -(-copy // 64) * 64 + 32 if problem.stride[1] % 2 else 0
    row_width = next(count for count in (2, 4, 8, 16) if count >= problem.kernel[1])
    steps = -(-problem.channels * problem.kernel[0] * row_width // 16)
    return 2 * (second + copy) + 2 * steps * part * 16


@hypothesis.given(st.data())
def test_work_groups_have_as_much_shared_memory_as_they_need(data: st.DataObject) -> None:
    """A work-group of every variant fits the 40 KiB that a kernel may have everywhere, and every
    combination that is left out exceeds them, but for less than 400 bytes by which the host's
    estimate is too large."""
    kernel = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 8)), "kernel")
    problem = Conv2dProblem(
        1, data.draw(st.integers(1, 4), "channels"), 200, 200,
        data.draw(st.sampled_from(sorted(PARTS)), "output channels"), kernel,
        data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)), "stride"))
    device, most = RecordingDevice(), 40 * 1024
    found = {(variant["channels"], variant["rows"], variant["columns"])
             for variant in ALGORITHM.variants(problem, device)}
    assert (ALGORITHM.supports(problem, device) is None) == bool(found)
    for part, rows, columns in found:
        assert part in PARTS[problem.out_channels]
        assert shared_bytes(problem, rows, columns, part) <= most
    for part, (rows, columns) in itertools.product(
            PARTS[problem.out_channels], ((8, 16), (4, 16), (8, 32), (4, 32), (16, 16))):
        assert ((part, rows, columns) in found
                or shared_bytes(problem, rows, columns, part) > most - 400)
