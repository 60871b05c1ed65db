"""A layer norm and the product of its rows as one kernel of NVIDIA GPUs, on the GPU where there is
one; tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.normalised import NormalisedMma
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from tests.ops.fused.blocks import BIAS_RELU6, BIAS_RESIDUAL
from tests.ops.fused.layers import Layers
from tests.ops.harness import check_variants, random_inputs
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = NormalisedMma()


def of_tokens(tokens: tuple[int, ...], depth: int, columns: int, *, centred: bool = True,
              epilogue: Epilogue = BIAS_RELU6) -> FusionProblem:
    p = Layers()
    x = p.input((*tokens, depth))
    rows = p.reshape(p.add(LayerNormProblem(p.spec(x), (len(tokens),), 1e-3, centred), x),
                     math.prod(tokens), depth)
    product = GemmProblem(math.prod(tokens), columns, depth, epilogue)
    return p.fusion(p.add(product, rows, *(p.input(spec.shape) for spec in product.inputs[1:])))


def of_images(batch: int, channels: int, out_channels: int, stride: int = 1) -> FusionProblem:
    p = Layers()
    x = p.input((batch, channels, 5, 7))
    return p.fusion(p.add(Conv2dProblem(batch, channels, 5, 7, out_channels, (1, 1),
                                        (stride, stride)),
                          p.add(LayerNormProblem(p.spec(x), (1,)), x)))


PROBLEMS = {"tokens": of_tokens((2, 37), 520, 136), "RMS": of_tokens((50,), 72, 40, centred=False),
            "residual": of_tokens((3, 4, 7), 64, 192, epilogue=BIAS_RESIDUAL),
            "images": of_images(3, 40, 50)}


def check(name: str, device: Device, variants: Sequence[Variant]) -> None:
    """Compare variants with the reference, for rows that are not centred at 0."""
    x, *others = random_inputs(PROBLEMS[name])
    check_variants(ALGORITHM, PROBLEMS[name], device, variants, inputs=[3 * x + 5, *others])


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_products_of_norms_on_cuda(cuda: Device, name: str) -> None:
    check(name, cuda, list(ALGORITHM.variants(PROBLEMS[name], cuda)))


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, [of_tokens((64, 577), 192, 768)])


def test_other_layers_give_a_reason(recorder: RecordingDevice) -> None:
    assert "a multiple of 8 values, not 36" in (
        ALGORITHM.supports(of_tokens((5,), 36, 8), recorder) or "")
    assert not ALGORITHM.recognises(of_images(1, 8, 8, stride=2))
