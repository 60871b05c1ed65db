from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.problem import reference as convolution
from gossamer_bench.published_steps.im2col import Im2colProblem, reference
from tests.ops.harness import check, random_inputs, random_weights
from tests.tolerances import normalised_error

CONVOLUTIONS = [
    Conv2dProblem(2, 3, 7, 6, 4, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(1, 4, 9, 8, 6, (3, 2), (2, 1), (1, 0, 2, 1), (2, 3), 2),
    Conv2dProblem(3, 2, 4, 5, 1, (1, 1)),
]


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=Conv2dProblem.describe)
def test_taps_of_every_pixel(device: Device, problem: Conv2dProblem) -> None:
    check(Im2colProblem(problem), device)


def test_no_images_give_nothing(device: Device) -> None:
    check(Im2colProblem(Conv2dProblem(0, 3, 7, 6, 4, (3, 3))), device)


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=Conv2dProblem.describe)
def test_the_product_with_the_weights_is_the_convolution(problem: Conv2dProblem) -> None:
    inputs, weights = random_inputs(problem), random_weights(problem)
    (matrix,) = reference(Im2colProblem(problem), inputs, {})
    rows = weights["weight"].astype(np.float64).reshape(problem.groups, -1, problem.depth)
    products = rows @ matrix.reshape(problem.batch, problem.groups, problem.depth, -1)
    (expected,) = convolution(problem, inputs, weights)
    assert normalised_error(products.reshape(expected.shape), expected) < 1e-12
