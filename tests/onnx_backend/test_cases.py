"""A few of ONNX's backend tests, drawn by a seed; `make backend-tests` runs all of them."""

from __future__ import annotations

import random

import pytest

from tests.onnx_backend.cases import Case, cases
from tests.onnx_backend.run import PASSED, by_gossamer


def drawn(count: int) -> list[Case]:
    """Returns some of the tests, each as it is or with constants as initializers."""
    rng = random.Random(40)
    return [(rng.random() < 0.5 and case.as_initializers()) or case
            for case in rng.sample(cases(), count)]


@pytest.mark.parametrize("case", drawn(60), ids=lambda case: case.name)
def test_a_case_is_right_or_refused(case: Case) -> None:
    outcome = by_gossamer(case)
    assert outcome == PASSED or outcome.startswith("refused")


@pytest.mark.parametrize("name", [
    "test_relu", "test_conv_with_strides_padding", "test_softmax_axis_1", "test_resnet",
    "test_maxpool_2d_ceil", "test_batchnorm_epsilon", "test_Conv2d", "test_transpose_default"])
def test_cases_that_pass(name: str) -> None:
    found = [case for case in cases() if case.name == name]
    for case in found:
        assert PASSED in (by_gossamer(case), by_gossamer(case.as_initializers() or case))
