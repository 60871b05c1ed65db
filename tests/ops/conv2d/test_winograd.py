from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.reference import reference
from gossamer.ops.weights import Weights
from tests.fixtures import is_slow
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.harness import check_variants, random_inputs, random_weights, run_variant
from tests.tolerances import normalised_error, tolerance

PROBLEMS = [
    Conv2dProblem(1, 8, 9, 7, 20, (3, 3), pads=(1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 5, 6, 6, 7, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP),
    Conv2dProblem(1, 4, 3, 3, 4, (3, 3)),
    Conv2dProblem(3, 3, 5, 12, 2, (3, 3), pads=(2, 2, 2, 2)),
]


def by_output(problem: Conv2dProblem, device: Device) -> list[Variant]:
    """Returns the first config of each size of tiles, or all configs."""
    variants = list(Winograd().variants(problem, device))
    if not is_slow(device):
        return variants
    return list({variant["output"]: variant for variant in reversed(variants)}.values())


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", PROBLEMS, ids=Conv2dProblem.describe)
def test_tiles_that_reach_beyond_the_image(compiled_device: Device,
                                           problem: Conv2dProblem) -> None:
    check_variants(Winograd(), problem, compiled_device, by_output(problem, compiled_device))


def test_small_tiles_are_exact_for_small_integers(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 4, 6, 6, 4, (3, 3), pads=(1, 1, 1, 1))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, (1, 4, 6, 6)).astype(np.float32)]
    constants = {"weight": rng.integers(-4, 5, (4, 4, 3, 3)).astype(np.float32)}
    (expected,) = reference(problem, inputs, constants)
    weights = Weights(constants, compiled_device)
    for variant in by_output(problem, compiled_device):
        if variant["output"] == 2:
            (actual,) = run_variant(Winograd(), problem, variant, compiled_device, weights, inputs)
            np.testing.assert_array_equal(actual, expected)


def test_the_error_of_many_channels_stays_within_the_tolerance(compiled_device: Device) -> None:
    if is_slow(compiled_device):
        pytest.skip("Oclgrind interprets: small shapes only")
    problem = Conv2dProblem(1, 1024, 8, 8, 16, (3, 3), pads=(1, 1, 1, 1))
    inputs, constants = random_inputs(problem), random_weights(problem)
    (expected,) = reference(problem, inputs, constants)
    weights = Weights(constants, compiled_device)
    for variant in by_output(problem, compiled_device):
        (actual,) = run_variant(Winograd(), problem, variant, compiled_device, weights, inputs)
        assert normalised_error(actual, expected) <= tolerance("conv2d") / 2


def test_reasons_are_given(compiled_device: Device) -> None:
    for problem in (Conv2dProblem(1, 4, 9, 9, 4, (3, 3), (2, 2)),
                    Conv2dProblem(1, 4, 9, 9, 4, (5, 5)),
                    Conv2dProblem(1, 4, 9, 9, 4, (3, 3), groups=2)):
        reason = Winograd().supports(problem, compiled_device)
        assert reason == "needs a 3x3 window without stride, dilation and groups"
