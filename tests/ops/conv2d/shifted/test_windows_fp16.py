"""Tests shifted_gemm_mma: places, packed weights and reasons everywhere, and the kernel on a GPU;
tests/emulation/test_convolutions.py runs the kernel anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.shifted.product import Places, stage_order
from gossamer.ops.conv2d.shifted.windows_fp16 import (
    ShiftedGemmMma,
    ShiftedTile,
    packed_stages,
)
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST
from tests.ops.harness import check_variants, random_inputs, random_weights
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

ALGORITHM = ShiftedGemmMma()
check = partial(check_variants, ALGORITHM)
SAME = Conv2dProblem(3, 64, 9, 7, 64, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RESIDUAL_RELU)
SLICES = Conv2dProblem(1, 136, 6, 11, 72, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP)
DEEP = Conv2dProblem(2, 192, 7, 7, 136, (3, 3), pads=(1, 1, 1, 1), epilogue=RESIDUAL_FIRST)
UNEVEN = Conv2dProblem(2, 24, 8, 13, 40, (2, 4), pads=(1, 0, 2, 3), epilogue=RESIDUAL_FIRST)
LARGE_WINDOW = Conv2dProblem(1, 8, 12, 10, 8, (5, 5), pads=(2, 2, 2, 2), epilogue=BIAS_CLIP)
ROW = Conv2dProblem(1, 48, 5, 30, 264, (1, 3), pads=(0, 1, 0, 1), epilogue=BIAS_RESIDUAL_RELU)
NO_PADS = Conv2dProblem(2, 32, 8, 9, 96, (2, 2), epilogue=Epilogue())
WIDE_PADS = Conv2dProblem(2, 16, 4, 5, 32, (1, 2), pads=(2, 3, 1, 2), epilogue=BIAS_CLIP)
STRIDES = Conv2dProblem(2, 72, 9, 12, 72, (3, 3), stride=(2, 2), pads=(1, 1, 1, 1),
                        epilogue=BIAS_RESIDUAL_RELU)
DILATED = Conv2dProblem(2, 24, 9, 7, 40, (3, 3), pads=(2, 3, 2, 3), dilation=(2, 3),
                        epilogue=BIAS_CLIP)
STRIDES_AND_DILATION = Conv2dProblem(2, 64, 13, 11, 24, (3, 4), stride=(3, 2), pads=(3, 2, 1, 2),
                                     dilation=(2, 2), epilogue=RESIDUAL_FIRST)
PATCHES = Conv2dProblem(3, 16, 8, 9, 64, (2, 2), stride=(4, 3), epilogue=BIAS_CLIP)
PROBLEMS = {"same": SAME, "slices": SLICES, "deep": DEEP, "uneven": UNEVEN,
            "large window": LARGE_WINDOW, "row": ROW, "no pads": NO_PADS, "wide pads": WIDE_PADS,
            "strides": STRIDES, "dilated": DILATED, "strides and dilation": STRIDES_AND_DILATION,
            "patches": PATCHES}


def by_places(problem: Conv2dProblem, arrays: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Returns the convolution, without its epilogue, as the sum of shifted products of places and
    packed weights in float64."""
    tile = ShiftedTile(64, 1, 1, 32, 2, 1)
    places, slices = Places(problem), tile.slices(problem)
    packed = packed_stages(arrays, problem, tile).astype(np.float64)
    parts, stages = packed.shape[:2]
    # axes: part, stage, chunk, block, fragment, lane % 4, value of a pair, value
    split = packed.reshape(*packed.shape[:3], -1, 4, 4, 2, 8)
    weight = split.transpose(1, 2, 7, 0, 3, 5, 4, 6).reshape(stages, 32, parts * 64)
    pixels = np.zeros((problem.batch, problem.height, problem.width, slices * 32))
    pixels[..., :problem.channels] = x.transpose(0, 2, 3, 1)
    count = problem.batch * places.image
    image, in_image = np.divmod(np.arange(count), places.image)
    sums = np.zeros((count, parts * 64))
    for stage, (_, part_slice, *tap) in enumerate(stage_order(problem, slices).T):
        line, shifts = np.zeros((count + places.halo, 32)), []
        inside, at = image >= 0, []
        for axis, lines in enumerate((places.rows, places.columns)):
            shift, remainder = np.divmod(tap[axis], lines.remainders)
            pixel = (np.divmod(in_image, places.pitch)[axis] * problem.stride[axis]
                     + remainder * problem.dilation[axis] - problem.pads[axis])
            inside &= (pixel >= 0) & (pixel < (problem.height, problem.width)[axis])
            at.append(pixel)
            shifts.append(shift * lines.step)
        line[:count][inside] = pixels[image[inside], at[0][inside], at[1][inside],
                                      32 * part_slice:32 * part_slice + 32]
        shift = shifts[0] * places.pitch + shifts[1]
        assert 0 <= shift <= places.halo
        sums += line[shift:shift + count] @ weight[stage]
    y = sums.reshape(problem.batch, places.rows.count, places.pitch, -1).transpose(0, 3, 1, 2)
    return y[:, :problem.out_channels, :problem.out_height, :problem.out_width]


@given(batch=st.integers(1, 3), channels=st.sampled_from([8, 40]),
       out_channels=st.sampled_from([8, 72]), height=st.integers(5, 8), width=st.integers(5, 8),
       kernel=st.tuples(*[st.integers(1, 4)] * 2), stride=st.tuples(*[st.integers(1, 4)] * 2),
       dilation=st.tuples(*[st.integers(1, 3)] * 2), pads=st.tuples(*[st.integers(0, 4)] * 4))
@settings(max_examples=100)
def test_places_and_stages_state_the_convolution(
        batch: int, channels: int, out_channels: int, height: int, width: int,
        kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int],
        pads: tuple[int, int, int, int]) -> None:
    problem = Conv2dProblem(batch, channels, height, width, out_channels, kernel, stride=stride,
                            dilation=dilation, pads=pads)
    assume(problem.out_height > 0 and problem.out_width > 0)
    arrays = random_weights(problem)
    x = random_inputs(problem)[0]
    (expected,) = reference(problem, [x], arrays)
    assert normalised_error(by_places(problem, arrays, x), expected) <= tolerance("conv2d", "fp16")


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(SAME, groups=2), "needs one group, has 2"),
    (replace(SAME, kernel=(1, 1)), "more than one tap"),
    (replace(SAME, channels=20), "has 20 input and 64 output channels"),
    (replace(SAME, out_channels=12), "needs multiples of 8 channels"),
    (replace(SAME, height=9, width=4000), "up to 8004 pixels, including padding, which do not fit"),
    (replace(SAME, height=99, width=99, pads=(40, 40, 40, 40), dilation=(40, 40)),
     "do not fit the shared memory"),
    (Conv2dProblem(2**24, 8, 1, 1, 8, (9, 9), pads=(8, 8, 0, 0)), "pixels, including padding"),
])
def test_other_convolutions_give_a_reason(problem: Conv2dProblem, reason: str) -> None:
    assert reason in (ALGORITHM.supports(problem, RecordingDevice()) or "")
