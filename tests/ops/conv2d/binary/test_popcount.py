"""Tests of popcount and of wide_popcount."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.host_direct import HostDirectPopcount
from gossamer.ops.conv2d.binary.popcount import TILES, Popcount
from gossamer.ops.conv2d.binary.wide_popcount import CONFIGS, WidePopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
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
from tests.ops.harness import run_variant
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM, WIDE, HOST = Popcount(), WidePopcount(), HostDirectPopcount()
EITHER = pytest.mark.parametrize("algorithm", [ALGORITHM, WIDE], ids=["popcount", "wide_popcount"])
KNOWN = pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])


def skip_gpus(algorithm: Popcount | WidePopcount, device: Device) -> None:
    if algorithm is WIDE and not device.on_processors:
        pytest.skip("the kernel is made for processors")


@EITHER
@given(problem=problems(), choice=st.integers(0, 83), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_every_bit_of_any_convolution(algorithm: Popcount | WidePopcount, compiled_device: Device,
                                      problem: Conv2dProblem, choice: int, seed: int) -> None:
    skip_gpus(algorithm, compiled_device)
    if is_slow(compiled_device):
        problem = replace(problem, batch=min(1, problem.batch), channels=3 * problem.groups,
                          out_channels=5 * problem.groups)
    assert algorithm.supports(problem, compiled_device) is None
    variants = list(algorithm.variants(problem, compiled_device))
    if is_slow(compiled_device) and algorithm is ALGORITHM:
        variants = small(variants)
    check_exact(algorithm, problem, variants[choice % len(variants)], compiled_device, seed)


@pytest.mark.sanitize
@EITHER
@pytest.mark.parametrize(("number", "epilogue"), [*enumerate((
    BATCH_NORM_BITS, BATCH_NORM_SIGN, RESIDUAL, RESIDUAL_BITS, BAND_SIGN))])
@KNOWN
def test_every_form(algorithm: Popcount | WidePopcount, compiled_device: Device, number: int,
                    epilogue: Epilogue, known: ValueFacts) -> None:
    skip_gpus(algorithm, compiled_device)
    slow = is_slow(compiled_device)
    problem = Conv2dProblem(
        1, 40 if algorithm is ALGORITHM else 70, 4 if slow else 9, 3 if slow else 11, 33, (3, 2),
        (1, 1), (1, 0, 1, 1), (1, 1), 1, epilogue, SCALED,
        (known, *[integers(-9, 9)] * epilogue.tensor_count))
    variants = list(algorithm.variants(problem, compiled_device))
    if algorithm is WIDE:
        variants = [v for v in variants if v.config == CONFIGS[number % 4]][:2 if slow else None]
    elif slow:
        variants = small(variants)[:6]
    else:
        # one variant of some configs, in alternating formats; PoCL takes a second to build each
        configs = [list(group) for _, group in itertools.groupby(variants, lambda v: v.config)]
        variants = [group[(number + index) % len(group)] for index, group in enumerate(configs)
                    if compiled_device.api == "cuda" or (number + index) % 3 == 0]
    for variant in variants:
        check_exact(algorithm, problem, variant, compiled_device)


@pytest.mark.sanitize
@KNOWN
def test_words_with_channels_of_several_groups(compiled_device: Device, known: ValueFacts) -> None:
    for algorithm, channels in ((ALGORITHM, 60), (WIDE, 150)):
        problem = Conv2dProblem(1, channels, 3, 3, 9, (2, 2), (2, 1), (0, 1, 0, 0), (1, 1), 3,
                                weights_info=SCALED, facts=(known,))
        if algorithm.supports(problem, compiled_device) is None:
            variants = list(algorithm.variants(problem, compiled_device))
            for variant in small(variants)[:4] if algorithm is ALGORITHM else variants[:1]:
                check_exact(algorithm, problem, variant, compiled_device)


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
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), pads=(1, 1, 1, 1), epilogue=BATCH_NORM_SIGN,
                            weights_info=SCALED, facts=(TERNARY,))
    check_kernels_build(
        ALGORITHM, [problem], least=len(TILES),
        taken=lambda *given: [variant for variant in ALGORITHM.variants(*given)
                              if variant.outputs[0].layout == "packed32"],
        arrays=lambda problem: weights_of(problem, np.random.default_rng(0)))


def test_groups_of_whole_words_are_packed_on_processors(compiled_device: Device) -> None:
    skip_gpus(WIDE, compiled_device)
    problem = Conv2dProblem(1, 16, 2, 2, 128, (1, 1), groups=2, epilogue=BATCH_NORM_BITS,
                            weights_info=SCALED, facts=(TERNARY,))
    packed = [variant for variant in WIDE.variants(problem, compiled_device)
              if variant.outputs[0].format.is_packed]
    assert len(packed) == len(CONFIGS)
    check_exact(WIDE, problem, packed[0], compiled_device)
    halves = replace(problem, out_channels=64)
    assert not any(variant.outputs[0].format.is_packed
                   for variant in WIDE.variants(halves, compiled_device))


def test_it_is_made_for_processors() -> None:
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    assert "runs on processors only" in WIDE.supports(problem, RecordingDevice())
    assert "any floats" in WIDE.supports(replace(problem, facts=()), RecordingDevice())


def test_many_channels_and_large_sums() -> None:
    problem = Conv2dProblem(1, 1000, 4, 4, 7, (5, 5), pads=(2, 2, 2, 2), weights_info=SCALED,
                            facts=(TERNARY,))
    device = find("host")
    for variant in HOST.variants(problem, device):
        check_exact(HOST, problem, variant, device)
    ones = [np.ones((1, 1000, 4, 4), np.float32)]
    weights = Weights({"weight": np.ones((7, 1000, 5, 5), np.float32)}, device)
    variant = next(iter(HOST.variants(problem, device)))
    (result,) = run_variant(HOST, problem, variant, device, weights, ones)
    assert result.max() == 16000
