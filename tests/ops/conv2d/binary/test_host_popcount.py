from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.registry import find
from gossamer.facts import PLUS_MINUS_ONE, TERNARY
from gossamer.ops.conv2d.binary.host import HostPopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.conv2d.binary.signs import (
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    SCALED,
    check_exact,
    problems,
)
from tests.ops.harness import run_variant

ALGORITHM = HostPopcount()


@given(problem=problems(largest=130), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_bit_of_any_convolution(problem: Conv2dProblem, seed: int) -> None:
    device = find("host")
    assert ALGORITHM.supports(problem, device) is None
    for variant in ALGORITHM.variants(problem, device):
        check_exact(ALGORITHM, problem, variant, device, seed)


@pytest.mark.parametrize(("epilogue", "dtype"), [(BATCH_NORM_BITS, "bits"),
                                                 (BATCH_NORM_SIGN, "trits")])
def test_packed_and_float_tensors_are_offered(epilogue, dtype: str) -> None:
    problem = Conv2dProblem(1, 64, 5, 5, 32, (3, 3), epilogue=epilogue, weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    variants = list(ALGORITHM.variants(problem, find("host")))
    assert [(v.inputs[0].dtype, v.outputs[0].dtype) for v in variants] == [
        ("float32", "float32"), ("float32", dtype), ("bits", "float32"), ("bits", dtype)]


def test_many_channels_and_large_sums() -> None:
    problem = Conv2dProblem(1, 1000, 4, 4, 7, (5, 5), pads=(2, 2, 2, 2), weights_info=SCALED,
                            facts=(TERNARY,))
    device = find("host")
    for variant in ALGORITHM.variants(problem, device):
        check_exact(ALGORITHM, problem, variant, device)
    ones = [np.ones((1, 1000, 4, 4), np.float32)]
    weights = Weights({"weight": np.ones((7, 1000, 5, 5), np.float32)}, device)
    variant = next(iter(ALGORITHM.variants(problem, device)))
    (result,) = run_variant(ALGORITHM, problem, variant, device, weights, ones)
    assert result.max() == 16000
