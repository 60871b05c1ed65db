from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.popcount import TILES, Popcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.cubins import build_info
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
    small,
    weights_of,
)
from tests.ops.recording import RecordingDevice

ALGORITHM = Popcount()


@given(problem=problems(), choice=st.integers(0, 83), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_every_bit_of_any_convolution(compiled_device: Device, problem: Conv2dProblem, choice: int,
                                      seed: int) -> None:
    if is_slow(compiled_device):
        problem = replace(problem, batch=min(1, problem.batch), channels=3 * problem.groups,
                          out_channels=5 * problem.groups)
    assert ALGORITHM.supports(problem, compiled_device) is None
    variants = list(ALGORITHM.variants(problem, compiled_device))
    if is_slow(compiled_device):
        variants = small(variants)
    check_exact(ALGORITHM, problem, variants[choice % len(variants)], compiled_device, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize(("number", "epilogue"), [
    (0, BATCH_NORM_BITS), (1, BATCH_NORM_SIGN), (2, RESIDUAL), (3, RESIDUAL_BITS), (4, BAND_SIGN)])
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_every_form(compiled_device: Device, number: int, epilogue: Epilogue,
                    known: ValueFacts) -> None:
    slow = is_slow(compiled_device)
    problem = Conv2dProblem(
        1, 40, 4 if slow else 9, 3 if slow else 11, 33, (3, 2), (1, 1), (1, 0, 1, 1), (1, 1), 1,
        epilogue, SCALED, (known, *[integers(-9, 9)] * epilogue.tensor_count))
    variants = list(ALGORITHM.variants(problem, compiled_device))
    if slow:
        variants = small(variants)[:6]
    else:
        # one variant of some configs, in alternating formats; PoCL takes a second to build each
        configs = [list(group) for _, group in itertools.groupby(variants, lambda v: v.config)]
        variants = [group[(number + index) % len(group)] for index, group in enumerate(configs)
                    if compiled_device.api == "cuda" or (number + index) % 3 == 0]
    for variant in variants:
        check_exact(ALGORITHM, problem, variant, compiled_device)


@pytest.mark.sanitize
def test_words_with_channels_of_several_groups(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 60, 3, 3, 9, (2, 2), (2, 1), (0, 1, 0, 0), (1, 1), 3,
                            weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    for known in (PLUS_MINUS_ONE, TERNARY):
        problem = replace(problem, facts=(known,))
        for variant in small(list(ALGORITHM.variants(problem, compiled_device)))[:4]:
            check_exact(ALGORITHM, problem, variant, compiled_device)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_whole_words_are_packed(compiled_device: Device, groups: int) -> None:
    problem = Conv2dProblem(1, 8 * groups, 2, 2, 32 * groups, (1, 1), groups=groups,
                            epilogue=BATCH_NORM_BITS, weights_info=SCALED, facts=(TERNARY,))
    packed = [v for v in ALGORITHM.variants(problem, compiled_device)
              if v.outputs[0].format.is_packed]
    assert packed and all(v.outputs[0].layout == "packed32" for v in packed)
    for variant in small(packed):
        check_exact(ALGORITHM, problem, variant, compiled_device)


def test_windows_beyond_shared_memory_are_refused(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 32, 4000, 4000, 32, (2, 2), dilation=(3000, 3000),
                            weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    assert "shared memory" in ALGORITHM.supports(problem, compiled_device)


def test_every_config_builds_for_cuda_without_spills() -> None:
    pytest.importorskip("cuda.core")
    pytest.importorskip("gossamer.device.cuda.nvrtc")
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), pads=(1, 1, 1, 1), epilogue=BATCH_NORM_SIGN,
                            weights_info=SCALED, facts=(TERNARY,))
    device = RecordingDevice()
    weights = Weights(weights_of(problem, np.random.default_rng(0)), device)
    for variant in ALGORITHM.variants(problem, device):
        if variant.outputs[0].layout == "packed32":
            ALGORITHM.prepare(weights, problem, variant, device)
    assert len(device.sources) == len(TILES)
    for source in device.sources:
        info = build_info(source, source.architectures[-1])
        assert info.spill_bytes == 0, f"{source} spills"
        assert "warning" not in info.log, info.log


def test_more_images_are_expected_to_take_longer(compiled_device: Device) -> None:
    for device in (RecordingDevice(), compiled_device):
        problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                                facts=(PLUS_MINUS_ONE,))
        for variant in ALGORITHM.variants(problem, device):
            times = [ALGORITHM.expected_us(replace(problem, batch=batch), variant, device)
                     for batch in (1, 1000)]
            assert times[1] > 10 * times[0]
