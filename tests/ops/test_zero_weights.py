"""Tests of layers without any weight left, of which the epilogues alone are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.ops.zero_weights import ZeroConvolution, ZeroProduct, ZeroWeights
from tests.ops.harness import check_variants, random_weights

BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
RESIDUAL = Epilogue(apply("add").then(apply("mul")), ("tensor", "channel"))
EPILOGUES = pytest.mark.parametrize("epilogue", [Epilogue(), BIAS_RELU, RESIDUAL],
                                    ids=["none", "bias", "residual"])
NONE_LEFT = WeightsInfo(0.0, "nothing")


def check(algorithm: ZeroWeights, problem: Conv2dProblem | GemmProblem, device: Device) -> None:
    constants = random_weights(problem)
    constants["weight"] = np.zeros_like(constants["weight"])
    check_variants(algorithm, replace(problem, weights_info=NONE_LEFT), device,
                   list(algorithm.variants(problem, device)), constants)


@pytest.mark.sanitize
@EPILOGUES
@pytest.mark.parametrize("shape", [(2, 4, 6, 5, 8), (1, 2, 3, 3, 3), (0, 2, 3, 3, 4)], ids=str)
def test_convolutions(device: Device, epilogue: Epilogue, shape: tuple[int, ...]) -> None:
    n, c, h, w, out_channels = shape
    check(ZeroConvolution(), Conv2dProblem(n, c, h, w, out_channels, (3, 3), pads=(1, 1, 1, 1),
                                           epilogue=epilogue), device)


@pytest.mark.sanitize
@EPILOGUES
@pytest.mark.parametrize("size", [(3, 8, 5), (1, 7, 1)], ids=str)
def test_products(device: Device, epilogue: Epilogue, size: tuple[int, int, int]) -> None:
    check(ZeroProduct(), GemmProblem(*size, epilogue), device)


def test_layers_with_weights_are_refused(device: Device) -> None:
    problem = GemmProblem(1, 2, 3, weights_info=WeightsInfo(1e-3, "one"))
    assert ZeroProduct().supports(problem, device) == "some weights are not zero"
    assert ZeroProduct().supports(replace(problem, weights_info=NONE_LEFT), device) is None
