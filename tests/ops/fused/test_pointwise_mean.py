"""A 1x1 convolution and a mean as one kernel of NVIDIA GPUs, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

from functools import partial

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.pointwise_mean import PointwiseMean
from gossamer.ops.fused.problem import ENTRY, FusionProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from tests.ops.fused.blocks import BIAS_RELU6, BIAS_RESIDUAL, BIAS_SILU, QUOTIENT
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = PointwiseMean()
check = partial(check_variants, ALGORITHM)


def head(batch: int, channels: int, out_channels: int, size: tuple[int, int], *,
         epilogue: Epilogue = BIAS_RELU6, pooled: bool = False, keepdims: bool = False,
         stride: tuple[int, int] = (1, 1)) -> FusionProblem:
    """Return a 1x1 convolution and the mean over the image behind it, as a pooling with `pooled`.
    """
    convolution = Conv2dProblem(batch, channels, *size, out_channels, (1, 1), stride,
                                epilogue=epilogue)
    x = convolution.outputs[0]
    mean = (PoolProblem(x, "average", x.shape[2:], x.shape[2:]) if pooled
            else ReduceProblem(x, "mean", (2, 3), keepdims))
    return FusionProblem((convolution, mean),
                         ((ENTRY, *[ENTRY] * epilogue.tensor_count), ((0, 0),)), ((1, 0),))


USUAL = head(2, 40, 72, (7, 7))
POOLED = head(1, 24, 20, (3, 5), epilogue=BIAS_SILU, pooled=True)
LARGE = head(1, 352, 24, (11, 13), keepdims=True)
"""Warps take several turns, in the last of which some have no pixels, and load the channels of a
pixel in several parts."""
UNUSED_CHANNELS = head(3, 8, 13, (1, 1), epilogue=QUOTIENT)
PROBLEMS = {"usual": USUAL, "pooled": POOLED, "large": LARGE, "unused channels": UNUSED_CHANNELS}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_means_on_cuda(cuda: Device, name: str) -> None:
    check(PROBLEMS[name], cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, [head(1, 320, 1280, (7, 7))])


def test_other_layers_give_a_reason(recorder: RecordingDevice) -> None:
    assert "stride (2, 2)" in (ALGORITHM.supports(head(1, 8, 8, (4, 4), stride=(2, 2)), recorder)
                               or "")
    assert ALGORITHM.supports(head(1, 12, 8, (4, 4)), recorder) == (
        "needs a multiple of 8 channels, not 12")
    assert "reads a tensor" in (ALGORITHM.supports(
        head(1, 8, 8, (4, 4), epilogue=BIAS_RESIDUAL), recorder) or "")
    read = FusionProblem(USUAL.parts, USUAL.sources, ((0, 0), (1, 0)))
    assert "read elsewhere" in (ALGORITHM.supports(read, recorder) or "")
    assert "shared memory" in (ALGORITHM.supports(head(1, 16384, 8, (4, 4)), recorder) or "")


def test_channels_that_fit_in_float16_alone_are_computed_in_it() -> None:
    problem, device = head(1, 8192, 8, (4, 4)), RecordingDevice()
    assert ALGORITHM.supports(problem, device) is None
    assert {variant.precision for variant in ALGORITHM.variants(problem, device)} == {"fp16"}
    assert not list(ALGORITHM.variants_in(problem, device, ("fp32",)))


def test_other_means_are_no_such_fusions() -> None:
    convolution = USUAL.parts[0]
    for mean in (ReduceProblem(convolution.outputs[0], "max", (2, 3)),
                 ReduceProblem(convolution.outputs[0], "mean", (2,)),
                 PoolProblem(convolution.outputs[0], "average", (7, 7), pads=(1, 1, 1, 1))):
        assert not ALGORITHM.recognises(
            FusionProblem((convolution, mean), USUAL.sources, ((1, 0),)))
