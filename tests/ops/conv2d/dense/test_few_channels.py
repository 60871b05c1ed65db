"""Tests few_channels_mma: the kernel on a GPU, its builds, and its reasons;
tests/emulation/test_few_channels.py runs the kernel anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.dense.mma.few_channels import FewChannelsMma
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.cubins import check_builds
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import check_variants, random_weights
from tests.ops.recording import RecordingDevice

ALGORITHM = FewChannelsMma()
STEM = Conv2dProblem(2, 3, 11, 37, 32, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=BIAS_CLIP)
LARGE_FILTER = Conv2dProblem(1, 3, 14, 20, 64, (7, 7), (2, 2), (3, 2, 3, 4), epilogue=BIAS_CLIP)
GREY = Conv2dProblem(1, 1, 9, 12, 24, (5, 1), (1, 2), (0, 1, 2, 0), epilogue=RESIDUAL_FIRST)
WIDE = Conv2dProblem(1, 4, 6, 19, 112, (2, 2), epilogue=BIAS_RESIDUAL_RELU)
LONG_LINES = Conv2dProblem(2, 2, 7, 21, 40, (3, 9), (2, 3), (1, 4, 1, 4), epilogue=BIAS_CLIP)
ODD = Conv2dProblem(1, 3, 9, 18, 64, (5, 5), pads=(2, 2, 2, 2), epilogue=BIAS_CLIP)
PROBLEMS = (STEM, LARGE_FILTER, GREY, WIDE, LONG_LINES, ODD)


def check(problem: Conv2dProblem, device: Device, variants: Sequence[Variant]) -> None:
    """Compares the outputs of variants, all in float16, with the reference."""
    assert {variant.precision for variant in variants} == {"fp16"}
    check_variants(ALGORITHM, problem, device, variants)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_computes_the_convolution_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    check(problem, cuda, list(ALGORITHM.variants(problem, cuda)))


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    device = RecordingDevice()
    for problem in PROBLEMS:
        weights = Weights(random_weights(problem), device)
        for variant in ALGORITHM.variants(problem, device):
            ALGORITHM.prepare(weights, problem, variant, device)
    check_builds(device.sources)


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(STEM, channels=8), "at most 4 input channels"),
    (replace(STEM, channels=3, groups=3, out_channels=24), "one group"),
    (replace(STEM, out_channels=20), "multiples of 8"),
    (replace(STEM, dilation=(1, 2)), "without dilation"),
    (replace(STEM, kernel=(9, 9), height=40, width=40), "of which there may be 192"),
    (replace(STEM, stride=(30, 30), height=400, width=400), "do not fit"),
])
def test_other_convolutions_give_a_reason(problem: Conv2dProblem, reason: str) -> None:
    assert reason in (ALGORITHM.supports(problem, RecordingDevice()) or "")


def test_an_empty_batch_needs_no_launch() -> None:
    problem, device = replace(STEM, batch=0), RecordingDevice()
    weights = Weights(random_weights(problem), device)
    for variant in ALGORITHM.variants(problem, device):
        assert not ALGORITHM.prepare(weights, problem, variant, device).launches
