"""Tests the kernel of few_channels_mma in emulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.tensor_core.test_few_channels import (
    ALGORITHM,
    GREY,
    LARGE_FILTER,
    LONG_LINES,
    ODD,
    STEM,
    WIDE,
    check,
)
from tests.ops.fused import test_first_convolution
from tests.ops.harness import random_inputs, random_weights, run_variant


@pytest.mark.parametrize("mode, problem, config", [
    ("plain", WIDE, 0), ("bounds", STEM, 0), ("bounds", LARGE_FILTER, 1), ("bounds", GREY, 2),
    ("bounds", WIDE, 3), ("bounds", LONG_LINES, 4), ("bounds", ODD, 2), ("bounds", ODD, 7),
    ("races", STEM, 2), ("races", ODD, 0)])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, problem: Conv2dProblem,
                                     config: int) -> None:
    device = emulate(mode, schedule=1)
    check(problem, device, list(ALGORITHM.variants(problem, device))[config:config + 1])


@pytest.mark.parametrize("mode, name, config", [
    ("bounds", "bytes", 0), ("races", "bytes", 2), ("bounds", "planes", 1), ("plain", "halves", 2),
    ("bounds", "bfloats", 1), ("bounds", "floats", 2)])
def test_it_makes_the_image_of_what_is_given(emulate: Emulate, mode: str, name: str,
                                             config: int) -> None:
    device = emulate(mode, schedule=1)
    problem = test_first_convolution.PROBLEMS[name]
    variants = list(test_first_convolution.ALGORITHM.variants(problem, device))
    test_first_convolution.check(problem, device, variants[config:config + 1])


def test_what_is_off_the_window_counts_for_nothing(emulate: Emulate) -> None:
    """The last step of inputs is longer than a window; infinities beside it do no harm."""
    device = emulate("plain", schedule=1)
    problem = replace(STEM, batch=1, epilogue=Epilogue())
    arrays = random_weights(problem)
    x = random_inputs(problem)[0]
    x[0, 0, 0, 0] = np.inf
    variant = next(iter(ALGORITHM.variants(problem, device)))
    (actual,) = run_variant(ALGORITHM, problem, variant, device,
                            Weights(arrays, device, "the test"), [x])
    assert np.isfinite(actual[0, :, 1:]).all() and np.isfinite(actual[0, :, :, 1:]).all()
    assert not np.isfinite(actual[0, :, 0, 0]).any()
