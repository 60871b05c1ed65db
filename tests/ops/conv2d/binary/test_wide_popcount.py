from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.wide_popcount import CONFIGS, WidePopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.fixtures import is_slow
from tests.ops.conv2d.binary.signs import (
    BAND_SIGN,
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    RESIDUAL_BITS,
    SCALED,
    check_exact,
    problems,
)
from tests.ops.recording import RecordingDevice

ALGORITHM = WidePopcount()


@pytest.fixture(scope="module")
def processors(compiled_device: Device) -> Device:
    if not compiled_device.on_processors:
        pytest.skip("the kernel is made for processors")
    return compiled_device


@given(problem=problems(), choice=st.integers(0, 15), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_every_bit_of_any_convolution(processors: Device, problem: Conv2dProblem, choice: int,
                                      seed: int) -> None:
    if is_slow(processors):
        problem = replace(problem, batch=min(1, problem.batch), channels=3 * problem.groups,
                          out_channels=5 * problem.groups)
    assert ALGORITHM.supports(problem, processors) is None
    variants = list(ALGORITHM.variants(problem, processors))
    check_exact(ALGORITHM, problem, variants[choice % len(variants)], processors, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize(("number", "epilogue"), [
    (0, BATCH_NORM_BITS), (1, BATCH_NORM_SIGN), (2, RESIDUAL), (3, RESIDUAL_BITS), (0, BAND_SIGN)])
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_every_form(processors: Device, number: int, epilogue: Epilogue,
                    known: ValueFacts) -> None:
    slow = is_slow(processors)
    problem = Conv2dProblem(
        1, 70, 4 if slow else 9, 3 if slow else 11, 33, (3, 2), (1, 1), (1, 0, 1, 1), (1, 1), 1,
        epilogue, SCALED, (known, *[integers(-9, 9)] * epilogue.tensor_count))
    variants = [variant for variant in ALGORITHM.variants(problem, processors)
                if variant.config == CONFIGS[number]]
    for variant in variants[:2] if slow else variants:
        check_exact(ALGORITHM, problem, variant, processors)


@pytest.mark.sanitize
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_words_with_channels_of_several_groups(processors: Device, known: ValueFacts) -> None:
    problem = Conv2dProblem(1, 150, 3, 3, 9, (2, 2), (2, 1), (0, 1, 0, 0), (1, 1), 3,
                            weights_info=SCALED, facts=(known,))
    check_exact(ALGORITHM, problem, next(ALGORITHM.variants(problem, processors)), processors)


def test_groups_of_whole_words_are_packed(processors: Device) -> None:
    problem = Conv2dProblem(1, 16, 2, 2, 128, (1, 1), groups=2, epilogue=BATCH_NORM_BITS,
                            weights_info=SCALED, facts=(TERNARY,))
    packed = [variant for variant in ALGORITHM.variants(problem, processors)
              if variant.outputs[0].format.is_packed]
    assert len(packed) == len(CONFIGS)
    check_exact(ALGORITHM, problem, packed[0], processors)
    halves = replace(problem, out_channels=64)
    assert not any(variant.outputs[0].format.is_packed
                   for variant in ALGORITHM.variants(halves, processors))


def test_it_is_made_for_processors() -> None:
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    assert "made for processors" in ALGORITHM.supports(problem, RecordingDevice())
    assert "any floats" in ALGORITHM.supports(replace(problem, facts=()), RecordingDevice())


def test_more_images_are_expected_to_take_longer(processors: Device) -> None:
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    variant = next(ALGORITHM.variants(problem, processors))
    times = [ALGORITHM.expected_us(replace(problem, batch=batch), variant, processors)
             for batch in (1, 100)]
    assert np.isclose(times[1], 100 * times[0])
