"""Tests the algorithm depthwise_tiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.dense.depthwise_tiled import DepthwiseTiled
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.cubins import check_builds
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import check_variants, random_weights
from tests.ops.recording import RecordingDevice

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
def test_every_variant(cuda: Device, name: str) -> None:
    if (reason := ALGORITHM.supports(PROBLEMS[name], cuda)) is not None:
        pytest.skip(reason)
    check_variants(ALGORITHM, PROBLEMS[name], cuda,
                   list(ALGORITHM.variants(PROBLEMS[name], cuda)))


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), *LAYERS.values()],
                         ids=[*PROBLEMS, *LAYERS])
def test_kernels_do_not_spill(problem: Conv2dProblem) -> None:
    pytest.importorskip("cuda.core")
    pytest.importorskip("gossamer.device.cuda.nvrtc")
    device = RecordingDevice()
    weights = Weights(random_weights(problem), device, "the test")
    for variant in ALGORITHM.variants(problem, device):
        ALGORITHM.prepare(weights, problem, variant, device)
    check_builds(device.sources)


@pytest.mark.parametrize("changes, expected", [
    ({"groups": 1}, "one group a channel"), ({"out_channels": 32}, "outputs of 16 channels"),
    ({"channels": 15, "out_channels": 15, "groups": 15}, "an even number"),
    ({"kernel": (13, 13)}, "taps"), ({"dilation": (1, 20), "width": 60}, "does not fit")])
def test_what_it_does_not_take_is_named(changes: dict[str, object], expected: str) -> None:
    problem = replace(PROBLEMS["3x3"], **changes)  # type: ignore[arg-type]
    assert expected in str(ALGORITHM.supports(problem, RecordingDevice()))
