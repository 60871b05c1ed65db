"""Algorithms launch nothing for no images, and expect more of them to take longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gossamer.facts import PLUS_MINUS_ONE
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.tensor import default_spec
from tests.ops.conv2d.binary.signs import SCALED
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.fused.blocks import block, excited
from tests.ops.fused.test_channel_attention import attention
from tests.ops.fused.test_convolution_pool_mma import RESNET, pooled
from tests.ops.fused.test_pointwise_mean import head
from tests.ops.fused.test_pointwise_pair import pair
from tests.ops.harness import op_of, random_weights
from tests.ops.recording import RecordingDevice

WINDOWS = Conv2dProblem(1, 64, 28, 28, 64, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RESIDUAL_RELU)
OF_BATCH: dict[str, Callable[[int], Problem]] = {
    "windows": lambda n: replace(WINDOWS, batch=n),
    "pruned windows": lambda n: replace(WINDOWS, batch=n, weights_info=WeightsInfo(
        0.3, "a pattern", dense_groups=0.0)),
    "signs": lambda n: replace(WINDOWS, batch=n, weights_info=SCALED, facts=(PLUS_MINUS_ONE,)),
    "depthwise": lambda n: replace(WINDOWS, batch=n, groups=64, epilogue=BIAS_CLIP),
    "pixels": lambda n: replace(WINDOWS, batch=n, kernel=(1, 1), pads=(0,) * 4),
    "first": lambda n: replace(WINDOWS, batch=n, channels=3),
    "product": lambda n: MatmulProblem(default_spec((n, 197, 64)), default_spec((64, 197))),
    "attention": lambda n: attention(n, 16, 4, (28, 28)),
    "convolution and maximum": lambda n: pooled(replace(RESNET, batch=n, height=56, width=56)),
    "block": lambda n: block(n, 16, 32, 16, (28, 28)),
    "squeeze-and-excite": lambda n: excited(block(n, 16, 32, 16, (14, 14)), 4),
    "mean": lambda n: head(n, 320, 1280, (7, 7)),
    "pair": lambda n: pair(n, 128, 512, 128, (28, 28)),
}
CASES = [pytest.param(algorithm, of_batch, id=f"{name} {algorithm.name}")
         for name, of_batch in OF_BATCH.items() for algorithm in op_of(of_batch(1)).algorithms
         if not algorithm.vendor and algorithm.supports(of_batch(1), RecordingDevice()) is None]


@pytest.mark.parametrize(("algorithm", "of_batch"), CASES)
def test_nothing_is_launched_for_no_images(algorithm: Algorithm,
                                           of_batch: Callable[[int], Problem]) -> None:
    device, problem = RecordingDevice(), of_batch(0)
    weights = Weights(random_weights(problem), device, "the test")
    variants = list(algorithm.variants(problem, device))
    assert variants
    for variant in variants:
        assert not algorithm.prepare(weights, problem, variant, device).launches


@pytest.mark.parametrize(("algorithm", "of_batch"), CASES)
def test_more_images_are_expected_to_take_longer(recorder: RecordingDevice, algorithm: Algorithm,
                                                 of_batch: Callable[[int], Problem]) -> None:
    for variant in algorithm.variants(of_batch(1), recorder):
        few, many = (algorithm.expected_us(of_batch(batch), variant, recorder)
                     for batch in (1, 300))
        assert few is None or 0 < few < many, variant.config_text
