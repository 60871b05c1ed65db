"""Tests of depthwise_tiled, winograd, and im2col_gemm whose K range is split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.dense.depthwise import DepthwiseTiled
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.weights import Weights
from tests.fixtures import is_slow
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import (
    check_variants,
    quick,
    random_inputs,
    random_weights,
    run_variant,
)
from tests.ops.recording import RecordingDevice, check_kernels_build
from tests.tolerances import normalised_error, tolerance

ALGORITHM = DepthwiseTiled()


def _square(channels: int, size: int, kernel: int, stride: int, epilogue: Epilogue,
            batch: int = 1) -> Conv2dProblem:
    pad = kernel // 2
    return Conv2dProblem(batch, channels, size, size, channels, (kernel, kernel), (stride, stride),
                         (pad,) * 4, groups=channels, epilogue=epilogue)


PROBLEMS = {
    "large filter": _square(40, 17, 7, 1, BIAS_RESIDUAL_RELU),
    "small image": _square(72, 7, 7, 1, BIAS_CLIP, batch=2),
    "filter larger than the image": _square(24, 8, 9, 1, BIAS_CLIP, batch=2),
    "stride 2": _square(24, 15, 5, 2, BIAS_CLIP),
    "3x3": _square(16, 19, 3, 1, RESIDUAL_FIRST, batch=2),
    "3x3 stride 2": _square(8, 18, 3, 2, BIAS_RESIDUAL_RELU),
    "several chunks": _square(144, 7, 5, 1, BIAS_RESIDUAL_RELU),
    "copies of 8 bytes": _square(12, 9, 3, 1, BIAS_CLIP),
    "copies of 4 bytes": _square(6, 9, 3, 1, BIAS_RESIDUAL_RELU),
    "chunks with missing channels": _square(70, 6, 3, 1, BIAS_CLIP),
    "uneven": Conv2dProblem(2, 10, 11, 8, 10, (5, 3), (2, 1), (2, 1, 0, 1), (1, 2), groups=10,
                            epilogue=BIAS_CLIP),
}

LAYERS = {
    "7x7 of 40 channels": _square(40, 56, 7, 1, BIAS_CLIP, batch=64),
    "7x7 of 320 channels": _square(320, 7, 7, 1, BIAS_CLIP, batch=64),
    "9x9 of 168 channels": _square(168, 8, 9, 1, BIAS_CLIP, batch=64),
    "5x5 with stride 2": _square(144, 56, 5, 2, BIAS_CLIP, batch=64),
    "5x5 of 1152 channels": _square(1152, 7, 5, 1, BIAS_CLIP, batch=64),
    "3x3": _square(144, 56, 3, 1, BIAS_CLIP, batch=64),
    "3x3 with stride 2": _square(96, 112, 3, 2, BIAS_CLIP, batch=64),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_depthwise_tiles(cuda: Device, name: str) -> None:
    if (reason := ALGORITHM.supports(PROBLEMS[name], cuda)) is not None:
        pytest.skip(reason)
    check_variants(ALGORITHM, PROBLEMS[name], cuda)


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), *LAYERS.values()],
                         ids=[*PROBLEMS, *LAYERS])
def test_depthwise_tiles_do_not_spill(problem: Conv2dProblem) -> None:
    check_kernels_build(ALGORITHM, [problem])


@pytest.mark.parametrize("changes, expected", [
    ({"groups": 1}, "one group per input channel"),
    ({"out_channels": 32}, "as many output channels as input channels, has 32 for 16"),
    ({"channels": 15, "out_channels": 15, "groups": 15}, "an even number"),
    ({"kernel": (13, 13)}, "taps"), ({"dilation": (1, 20), "width": 60}, "does not fit")])
def test_reasons_of_depthwise_tiled(changes: dict[str, object], expected: str) -> None:
    problem = replace(PROBLEMS["3x3"], **changes)  # type: ignore[arg-type]
    assert expected in str(ALGORITHM.supports(problem, RecordingDevice()))


DEEP = [
    Conv2dProblem(1, 40, 5, 4, 8, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 300, 3, 3, 7, (1, 1), epilogue=BIAS_CLIP),
    Conv2dProblem(1, 132, 3, 2, 6, (2, 2), groups=2),
]


def split(variant: Variant, problem: Conv2dProblem, splits: int) -> Variant:
    """Returns a variant whose K range is shared by so many work-groups."""
    config = tuple((key, splits if key == "split_k" else value) for key, value in variant.config)
    return replace(variant, config=config, workspace=4 * splits * problem.outputs[0].size)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", DEEP, ids=Conv2dProblem.describe)
def test_sums_of_several_work_groups(compiled_device: Device, problem: Conv2dProblem) -> None:
    algorithm = Im2colGemm()
    whole = [variant for variant in quick(list(algorithm.variants(problem, compiled_device)))
             if variant["split_k"] == 1 and variant["tile_m"] == 16]
    assert len(whole) == 8
    chosen = whole[:: 7 if is_slow(compiled_device) else 1]
    check_variants(algorithm, problem, compiled_device, [
        split(variant, problem, (2, 4)[number % 2]) for number, variant in enumerate(chosen)])


UNEVEN = [
    Conv2dProblem(1, 8, 9, 7, 20, (3, 3), pads=(1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 5, 6, 6, 7, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP),
    Conv2dProblem(1, 4, 3, 3, 4, (3, 3)),
    Conv2dProblem(3, 3, 5, 12, 2, (3, 3), pads=(2, 2, 2, 2)),
]


def tried(problem: Conv2dProblem, device: Device) -> list[Variant]:
    """Returns all configs of winograd, or the first where kernels are interpreted."""
    return list(Winograd().variants(problem, device))[:1 if is_slow(device) else None]


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", UNEVEN, ids=Conv2dProblem.describe)
def test_tiles_that_reach_beyond_the_image(compiled_device: Device,
                                           problem: Conv2dProblem) -> None:
    check_variants(Winograd(), problem, compiled_device, tried(problem, compiled_device))


def test_the_error_of_many_channels_stays_within_the_tolerance(quick_compiled: Device) -> None:
    problem = Conv2dProblem(1, 1024, 8, 8, 16, (3, 3), pads=(1, 1, 1, 1))
    inputs, constants = random_inputs(problem), random_weights(problem)
    (expected,) = reference(problem, inputs, constants)
    weights = Weights(constants, quick_compiled)
    for variant in tried(problem, quick_compiled):
        (actual,) = run_variant(Winograd(), problem, variant, quick_compiled, weights, inputs)
        assert normalised_error(actual, expected) <= tolerance("conv2d") / 2


def test_reasons_of_winograd(compiled_device: Device) -> None:
    for problem in (Conv2dProblem(1, 4, 9, 9, 4, (3, 3), (2, 2)),
                    Conv2dProblem(1, 4, 9, 9, 4, (5, 5)),
                    Conv2dProblem(1, 4, 9, 9, 4, (3, 3), groups=2)):
        reason = Winograd().supports(problem, compiled_device)
        assert reason == "needs a 3x3 window with stride 1, no dilation and one group"
