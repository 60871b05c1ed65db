"""Tests grouped_mma: the kernel on a GPU, its builds, its weights and its reasons;
tests/emulation/test_convolutions.py runs the kernel anywhere."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.conv2d.grouped.grouped_mma import GroupedMma, pack
from gossamer.ops.conv2d.grouped.tiling import GroupedTile, Work, layout_of
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.weights import Weights
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import check_variants, random_weights
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = GroupedMma()
PROBLEMS = {
    "pairs": Conv2dProblem(2, 24, 7, 9, 24, (3, 3), pads=(1, 1, 1, 1), groups=12,
                           epilogue=BIAS_CLIP),
    "fours": Conv2dProblem(1, 32, 9, 11, 32, (3, 3), pads=(1, 1, 1, 1), groups=8,
                           epilogue=BIAS_RESIDUAL_RELU),
    "eights, stride 2": Conv2dProblem(2, 48, 12, 15, 48, (3, 3), (2, 2), (1, 1, 1, 1), groups=6,
                                      epilogue=BIAS_CLIP),
    "sixteens, uneven window": Conv2dProblem(1, 32, 11, 10, 32, (5, 2), (1, 3), (2, 0, 1, 1),
                                             groups=2, epilogue=RESIDUAL_FIRST),
    "thirty-twos": Conv2dProblem(3, 96, 7, 7, 96, (3, 3), pads=(1, 1, 1, 1), groups=3,
                                 epilogue=BIAS_RESIDUAL_RELU),
    "sixty-fours, 1x1": Conv2dProblem(2, 128, 5, 4, 128, (1, 1), groups=2, epilogue=BIAS_CLIP),
    "groups across units": Conv2dProblem(1, 72, 6, 8, 72, (3, 3), pads=(1, 1, 1, 1), groups=3,
                                         epilogue=BIAS_CLIP),
    "fewer outputs": Conv2dProblem(1, 48, 8, 8, 12, (3, 3), pads=(1, 1, 1, 1), groups=6),
    "more outputs, dilation": Conv2dProblem(1, 8, 10, 9, 32, (3, 3), (2, 1), (2, 3, 2, 3), (2, 3),
                                            groups=2, epilogue=BIAS_CLIP),
    "7x7": Conv2dProblem(1, 16, 12, 8, 16, (7, 7), pads=(3, 3, 3, 3), groups=2, epilogue=BIAS_CLIP),
}

LAYERS = [
    Conv2dProblem(64, channels, size, size, channels, (kernel, kernel), (stride, stride),
                  (kernel // 2,) * 4, groups=groups, epilogue=BIAS_CLIP)
    for channels, groups, size, kernel, stride in [
        (128, 32, 56, 3, 1), (256, 32, 56, 3, 2), (1024, 32, 7, 3, 1), (64, 32, 28, 5, 1),
        (128, 2, 28, 3, 1), (128, 2, 14, 7, 1), (240, 10, 28, 1, 1)]]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_convolution_on_cuda(cuda: Device, name: str) -> None:
    check_variants(ALGORITHM, PROBLEMS[name], cuda)


@pytest.mark.parametrize("problem", [*PROBLEMS.values(), *LAYERS], ids=Conv2dProblem.describe)
def test_it_builds_without_spills(problem: Conv2dProblem) -> None:
    check_kernels_build(ALGORITHM, [problem])


@pytest.mark.parametrize(("changes", "reason"), [
    ({"groups": 1}, "several groups"),
    ({"groups": 32}, "idle with fewer than two input channels"),
    ({"channels": 0}, "idle with fewer than two input channels"),
    ({"out_channels": 0}, "a multiple of 4 output channels, has 0"),
    ({"channels": 30, "groups": 2}, "a multiple of 4 input channels, has 30"),
    ({"out_channels": 30, "groups": 2}, "a multiple of 4 output channels, has 30"),
    ({"kernel": (3, 8)}, "at most 7 rows and columns, has 3x8"),
    ({"dilation": (100, 100), "height": 900, "width": 900}, "do not fit"),
])
def test_other_convolutions_give_a_reason(changes: dict[str, object], reason: str) -> None:
    problem = replace(PROBLEMS["fours"], **changes)  # type: ignore[arg-type]
    assert reason in str(ALGORITHM.supports(problem, RecordingDevice()))


def test_float16_needs_whole_words_of_a_pixel() -> None:
    problem = Conv2dProblem(1, 12, 6, 6, 12, (3, 3), groups=3)
    precisions = {variant.precision for variant in ALGORITHM.variants(problem, RecordingDevice())}
    assert precisions == {"tf32"}


@pytest.mark.parametrize("changes", [{"batch": 0}, {"height": 2, "pads": (0, 0, 0, 0)}])
def test_empty_outputs_are_not_launched(changes: dict[str, object]) -> None:
    problem = replace(PROBLEMS["fours"], **changes)  # type: ignore[arg-type]
    device = RecordingDevice()
    assert problem.outputs[0].size == 0 and ALGORITHM.supports(problem, device) is None
    variant = next(iter(ALGORITHM.variants(problem, device)))
    weights = Weights(random_weights(problem), device, "the test")
    ALGORITHM.prepare(weights, problem, variant, device)
    assert not device.sources


@st.composite
def problems(draw: st.DrawFn) -> Conv2dProblem:
    """Draws groups of any numbers of channels, as long as all channels are multiples of 8."""
    inputs, outputs = draw(st.integers(2, 40), "inputs"), draw(st.integers(1, 40), "outputs")
    groups = draw(st.integers(1, 4), "groups") * 8
    for number in (2, 4):
        if inputs % number == outputs % number == 0:
            groups //= 2
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)), "kernel")
    return Conv2dProblem(1, inputs * groups, 1, 1, outputs * groups, kernel,
                         pads=(0, 0, kernel[0] - 1, kernel[1] - 1), groups=groups)


@hypothesis.settings(max_examples=25)
@hypothesis.given(problems(), st.sampled_from(["fp16", "tf32"]), st.sampled_from([2, 4]))
def test_products_with_packed_weights_are_the_convolution(problem: Conv2dProblem, precision: str,
                                                          tiles: int) -> None:
    """What each lane of each mma has, by the PTX ISA, multiplied by the words of one pixel."""
    layout = layout_of(problem, precision, tiles)
    arrays = {"weight": np.random.default_rng(0).integers(
        -8, 9, problem.weight_shapes["weight"]).astype(np.float32)}
    numbers, words = layout.word_channels // 4, layout.word_channels
    packed = pack(arrays, layout, layout.units + 1).astype(np.float32).reshape(
        layout.units + 1, problem.kernel[1], layout.span // 2, problem.kernel[0], tiles // 2, 32,
        2, 2, numbers)
    assert not packed[-1].any()
    x = np.zeros(problem.channels + layout.span * words)
    x[:problem.channels] = np.random.default_rng(1).integers(-8, 9, problem.channels)
    # only the first tap meets the pixel
    found = np.zeros(layout.units * layout.unit)
    for unit in range(layout.units):
        begin = layout.first_word(unit) * words
        for (step, pair, lane, tile, word, number), factor in np.ndenumerate(packed[unit, 0, :, 0]):
            column = lane // 4
            channel = (column // 2 * 2 * tiles + 2 * (2 * pair + tile) + column % 2)
            place = begin + (2 * step + word) * words + lane % 4 * numbers + number
            found[unit * layout.unit + channel] += factor * x[place]
    (expected,) = reference(problem, [x[:problem.channels].reshape(1, -1, 1, 1)], arrays)
    assert (found[:problem.out_channels] == expected[0, :, 0, 0]).all()
    assert not found[problem.out_channels:].any()


@hypothesis.given(problems(), st.sampled_from(["fp16", "tf32"]), st.integers(1, 4))
def test_work_groups_read_all_channels_of_their_units(problem: Conv2dProblem, precision: str,
                                                      units: int) -> None:
    layout = layout_of(problem, precision, 2)
    work = Work(layout, GroupedTile(1, 1, 7, units, 2, 1))
    for channel in range(problem.out_channels):
        unit = channel // layout.unit
        group = channel // problem.group_out_channels
        first = layout.first_word(unit) * layout.word_channels
        assert first <= group * problem.group_channels
        assert ((group + 1) * problem.group_channels
                <= first + layout.span * layout.word_channels)
        of_work_group = layout.first_word(unit // units * units)
        assert layout.first_word(unit) + layout.span <= of_work_group + work.pieces


@pytest.mark.parametrize("name", PROBLEMS)
def test_all_precisions_have_variants(name: str) -> None:
    problem, device = PROBLEMS[name], RecordingDevice()
    assert ALGORITHM.supports(problem, device) is None
    for precision in ("fp16", "tf32"):
        variants = list(ALGORITHM.variants_in(problem, device, (precision,)))
        assert variants or problem.channels % 8
        times = [ALGORITHM.expected_us(problem, variant, device) for variant in variants]
        assert times == sorted(times)
