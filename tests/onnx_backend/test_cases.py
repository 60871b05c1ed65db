"""A few of ONNX's backend tests, drawn by a seed; `make backend-tests` runs all of them."""

from __future__ import annotations

import random

import pytest

from tests.onnx_backend.run import PASSED, Case, by_gossamer, by_onnxruntime, cases


def drawn(count: int) -> list[Case]:
    """Return some of the tests, each as it is or with constants as initializers."""
    rng = random.Random(40)
    return [(rng.random() < 0.5 and case.as_initializers()) or case
            for case in rng.sample(cases(), count)]


@pytest.mark.parametrize("case", drawn(60), ids=lambda case: case.name)
def test_what_onnxruntime_passes_is_passed(case: Case) -> None:
    outcome = by_gossamer(case)
    assert not outcome.startswith("crashed")
    assert outcome == PASSED or by_onnxruntime(case) != PASSED


@pytest.mark.usefixtures("without_onnxruntime")
@pytest.mark.parametrize("case", drawn(60), ids=lambda case: case.name)
def test_without_onnxruntime_a_case_is_right_or_refused(case: Case) -> None:
    outcome = by_gossamer(case)
    assert outcome == PASSED or outcome.startswith("refused")
