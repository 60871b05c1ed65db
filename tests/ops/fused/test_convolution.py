"""Fusions computed as one convolution by NVIDIA GPUs, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.expression import Composer
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.convolution import MergedMma
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.pool.problem import PoolProblem
from tests.ops.fused.blocks import BIAS, BIAS_RELU, BIAS_RESIDUAL
from tests.ops.fused.layers import Layers
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice, check_kernels_build
from tests.ops.test_channel_parts import as_part

ALGORITHM = MergedMma()


def of_averages(channels: int, out_channels: int, size: tuple[int, int], kernel: tuple[int, int],
                epilogue: Epilogue = BIAS_RELU, **attributes: object) -> FusionProblem:
    p = Layers()
    x = p.input((2, channels, *size))
    pool = p.add(PoolProblem(p.spec(x), "average", kernel, **attributes), x)  # type: ignore
    batch, _, *pixels = p.spec(pool).shape
    product = Conv2dProblem(batch, channels, *pixels, out_channels, (1, 1), epilogue=epilogue)
    return p.fusion(p.add(product, pool, *(p.input(spec.shape) for spec in product.inputs[1:])))


def with_norm(convolution: Conv2dProblem) -> FusionProblem:
    """Return a convolution, and the norm of its result with a ReLU."""
    p = Layers()
    y = p.add(convolution, *(p.input(spec.shape) for spec in convolution.inputs))
    channels, c = (1, convolution.out_channels, 1, 1), Composer()
    norm = c.operand("y") * c.operand("s") + c.operand("b")
    return p.fusion(y, p.compute(norm.apply("relu"), y=y, s=channels, b=channels))


def with_difference(convolution: Conv2dProblem) -> FusionProblem:
    """Return a convolution, and another tensor minus its result."""
    p = Layers()
    y = p.add(convolution, *(p.input(spec.shape) for spec in convolution.inputs))
    c, other = Composer(), p.input(p.spec(y).shape)
    return p.fusion(y, p.compute(c.operand("other") - c.operand("y"), y=y, other=other))


WINDOWS = Conv2dProblem(2, 24, 9, 7, 40, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RELU)
DEEP = Conv2dProblem(1, 520, 5, 7, 72, (1, 1), epilogue=BIAS_RESIDUAL)
PROBLEMS = {
    "averages": of_averages(24, 40, (8, 10), (2, 2), stride=(2, 2)),
    "padded averages": of_averages(16, 12, (7, 7), (3, 3), BIAS_RESIDUAL, stride=(2, 2),
                                   pads=(1, 1, 1, 1), count_include_pad=True),
    "norm": with_norm(DEEP), "norm of few": with_norm(replace(WINDOWS, groups=2, out_channels=18)),
    "difference": with_difference(WINDOWS),
    "difference of pixels": with_difference(replace(DEEP, epilogue=BIAS))}


def into_parts(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants with tensors that are parts of the channels of larger tensors."""
    return [replace(variant,
                    inputs=tuple(as_part(spec, 1 + index, 2)
                                 for index, spec in enumerate(variant.inputs)),
                    outputs=tuple(as_part(spec, 3, index)
                                  for index, spec in enumerate(variant.outputs)))
            for variant in variants if variant.inputs[0].layout == "NHWC"]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_both_results_on_cuda(cuda: Device, name: str) -> None:
    variants = list(ALGORITHM.variants(PROBLEMS[name], cuda))
    check_variants(ALGORITHM, PROBLEMS[name], cuda, [*variants, *into_parts(variants[::4])])


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, [
        with_norm(Conv2dProblem(64, 256, 14, 14, 256, (3, 3), pads=(1, 1, 1, 1),
                                epilogue=BIAS_RESIDUAL))])


def test_other_layers_give_a_reason(recorder: RecordingDevice) -> None:
    def reason(problem: FusionProblem) -> str | None:
        return ALGORITHM.supports(problem, recorder)

    assert "at the edges have fewer pixels" in (reason(of_averages(
        16, 12, (7, 7), (3, 3), pads=(1, 1, 1, 1))) or "")
    assert "reach beyond the padding" in (reason(of_averages(
        16, 12, (7, 7), (2, 2), stride=(2, 2), ceil_mode=True)) or "")
    assert "49 pixels, more than 9" in (reason(of_averages(16, 12, (7, 7), (7, 7))) or "")
    assert "reads more than one tensor" in (reason(with_difference(DEEP)) or "")
    assert not ALGORITHM.recognises(replace(PROBLEMS["difference"], exits=((1, 0),)))
