"""Tests of popcount, of wide_popcount and of host_popcount."""

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
from gossamer.ops.conv2d.binary.host import HostPopcount
from gossamer.ops.conv2d.binary.popcount import TILES, Popcount
from gossamer.ops.conv2d.binary.wide_popcount import CONFIGS, WidePopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.cubins import check_builds
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
    check_builds(device.sources)


def test_more_images_are_expected_to_take_longer(compiled_device: Device) -> None:
    for device in (RecordingDevice(), compiled_device):
        problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                                facts=(PLUS_MINUS_ONE,))
        for variant in ALGORITHM.variants(problem, device):
            times = [ALGORITHM.expected_us(replace(problem, batch=batch), variant, device)
                     for batch in (1, 1000)]
            assert times[1] > 10 * times[0]


WIDE = WidePopcount()


@pytest.fixture(scope="module")
def processors(compiled_device: Device) -> Device:
    if not compiled_device.on_processors:
        pytest.skip("the kernel is made for processors")
    return compiled_device


@given(problem=problems(), choice=st.integers(0, 15), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_every_bit_of_any_convolution_on_processors(
        processors: Device, problem: Conv2dProblem, choice: int, seed: int) -> None:
    if is_slow(processors):
        problem = replace(problem, batch=min(1, problem.batch), channels=3 * problem.groups,
                          out_channels=5 * problem.groups)
    assert WIDE.supports(problem, processors) is None
    variants = list(WIDE.variants(problem, processors))
    check_exact(WIDE, problem, variants[choice % len(variants)], processors, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize(("number", "epilogue"), [
    (0, BATCH_NORM_BITS), (1, BATCH_NORM_SIGN), (2, RESIDUAL), (3, RESIDUAL_BITS), (0, BAND_SIGN)])
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_every_form_on_processors(processors: Device, number: int, epilogue: Epilogue,
                                  known: ValueFacts) -> None:
    slow = is_slow(processors)
    problem = Conv2dProblem(
        1, 70, 4 if slow else 9, 3 if slow else 11, 33, (3, 2), (1, 1), (1, 0, 1, 1), (1, 1), 1,
        epilogue, SCALED, (known, *[integers(-9, 9)] * epilogue.tensor_count))
    variants = [variant for variant in WIDE.variants(problem, processors)
                if variant.config == CONFIGS[number]]
    for variant in variants[:2] if slow else variants:
        check_exact(WIDE, problem, variant, processors)


@pytest.mark.sanitize
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_words_of_several_groups_on_processors(processors: Device, known: ValueFacts) -> None:
    problem = Conv2dProblem(1, 150, 3, 3, 9, (2, 2), (2, 1), (0, 1, 0, 0), (1, 1), 3,
                            weights_info=SCALED, facts=(known,))
    check_exact(WIDE, problem, next(WIDE.variants(problem, processors)), processors)


def test_groups_of_whole_words_are_packed_on_processors(processors: Device) -> None:
    problem = Conv2dProblem(1, 16, 2, 2, 128, (1, 1), groups=2, epilogue=BATCH_NORM_BITS,
                            weights_info=SCALED, facts=(TERNARY,))
    packed = [variant for variant in WIDE.variants(problem, processors)
              if variant.outputs[0].format.is_packed]
    assert len(packed) == len(CONFIGS)
    check_exact(WIDE, problem, packed[0], processors)
    halves = replace(problem, out_channels=64)
    assert not any(variant.outputs[0].format.is_packed
                   for variant in WIDE.variants(halves, processors))


def test_it_is_made_for_processors() -> None:
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    assert "runs on processors only" in WIDE.supports(problem, RecordingDevice())
    assert "any floats" in WIDE.supports(replace(problem, facts=()), RecordingDevice())


def test_more_images_are_expected_to_take_longer_on_processors(processors: Device) -> None:
    problem = Conv2dProblem(1, 64, 20, 20, 64, (3, 3), weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    variant = next(WIDE.variants(problem, processors))
    times = [WIDE.expected_us(replace(problem, batch=batch), variant, processors)
             for batch in (1, 100)]
    assert np.isclose(times[1], 100 * times[0])


HOST = HostPopcount()


@given(problem=problems(largest=130), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_bit_of_any_convolution_on_the_host(problem: Conv2dProblem, seed: int) -> None:
    device = find("host")
    assert HOST.supports(problem, device) is None
    for variant in HOST.variants(problem, device):
        check_exact(HOST, problem, variant, device, seed)


@pytest.mark.parametrize(("epilogue", "dtype"), [(BATCH_NORM_BITS, "bits"),
                                                 (BATCH_NORM_SIGN, "trits")])
def test_packed_and_float_tensors_are_offered(epilogue, dtype: str) -> None:
    problem = Conv2dProblem(1, 64, 5, 5, 32, (3, 3), epilogue=epilogue, weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    variants = list(HOST.variants(problem, find("host")))
    assert [(v.inputs[0].dtype, v.outputs[0].dtype) for v in variants] == [
        ("float32", "float32"), ("float32", dtype), ("bits", "float32"), ("bits", dtype)]


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
