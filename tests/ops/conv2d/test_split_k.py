"""im2col_gemm with several work-groups for the K range of a tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.fixtures import is_slow
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.harness import check_variants, quick
from tests.ops.recording import RecordingDevice

PROBLEMS = [
    Conv2dProblem(1, 40, 5, 4, 8, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 300, 3, 3, 7, (1, 1), epilogue=BIAS_CLIP),
    Conv2dProblem(1, 132, 3, 2, 6, (2, 2), groups=2),
]


def split(variant: Variant, problem: Conv2dProblem, splits: int) -> Variant:
    """Returns a variant whose K range is shared by so many work-groups."""
    config = tuple((key, splits if key == "split_k" else value) for key, value in variant.config)
    return replace(variant, config=config, workspace=4 * splits * problem.outputs[0].size)


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", PROBLEMS, ids=Conv2dProblem.describe)
def test_sums_of_several_work_groups(compiled_device: Device, problem: Conv2dProblem) -> None:
    algorithm = Im2colGemm()
    whole = [variant for variant in quick(list(algorithm.variants(problem, compiled_device)))
             if variant["split_k"] == 1 and variant["tile_m"] == 16]
    assert len(whole) == 8
    chosen = whole[:: 7 if is_slow(compiled_device) else 1]
    check_variants(algorithm, problem, compiled_device, [
        split(variant, problem, (2, 4)[number % 2]) for number, variant in enumerate(chosen)])


def test_few_pixels_and_many_channels_are_split_on_a_gpu() -> None:
    variants = Im2colGemm().variants(Conv2dProblem(1, 512, 13, 13, 512, (3, 3), pads=(1,) * 4),
                                     RecordingDevice())
    first = next(iter(variants))
    assert first["split_k"] > 1
    assert first.workspace == 4 * first["split_k"] * 512 * 13 * 13
    large = Conv2dProblem(64, 512, 56, 56, 512, (3, 3), pads=(1,) * 4)
    assert all(variant["split_k"] == 1
               for variant in Im2colGemm().variants(large, RecordingDevice()))
