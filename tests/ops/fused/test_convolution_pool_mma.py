"""A first convolution and the maximum behind it as one kernel of NVIDIA GPUs, on the GPU where
there is one; tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, apply
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.convolution_pool import (
    ConvolutionPoolMma,
    PoolTile,
    convolution_pool_of,
    tilings,
)
from gossamer.ops.fused.problem import ENTRY, FusionProblem, entry
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import Format
from tests.ops.fused.blocks import BIAS, BIAS_RELU, BIAS_RESIDUAL, BIAS_SILU, changed, given_as
from tests.ops.harness import (
    check_variants,
    random_inputs,
    random_weights,
    run_variant,
    with_tile,
)
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = ConvolutionPoolMma()
check = partial(check_variants, ALGORITHM)


def pooled(convolution: Conv2dProblem, kernel: tuple[int, int] = (3, 3),
           stride: tuple[int, int] = (2, 2), pads: tuple[int, int, int, int] = (1, 1, 1, 1),
           **options: object) -> FusionProblem:
    """Return a convolution and the maximum over windows of its result."""
    pool = PoolProblem(convolution.outputs[0], "max", kernel, stride, pads, **options)
    others = tuple(map(entry, range(1, len(convolution.inputs))))
    return FusionProblem((convolution, pool), ((ENTRY, *others), ((0, 0),)), ((1, 0),))


RESNET = Conv2dProblem(2, 3, 29, 37, 64, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=BIAS_RELU)
SMALL = Conv2dProblem(1, 3, 13, 19, 16, (3, 3), (1, 1), (1, 1, 1, 1), epilogue=BIAS_RELU)
PROBLEMS = {
    "resnet": pooled(RESNET),
    "two tiles across": pooled(replace(RESNET, batch=1, height=23, width=151)),
    "unlike pads": pooled(Conv2dProblem(1, 3, 21, 30, 48, (5, 7), (2, 2), (3, 1, 0, 2),
                                        epilogue=BIAS), (3, 3), (2, 2), (0, 1, 2, 0)),
    "yolo": pooled(SMALL, (2, 2), (2, 2), (0, 0, 0, 0)),
    "up to the end": pooled(replace(SMALL, height=14, width=20), (3, 3), (2, 2), (0, 0, 0, 0),
                            ceil_mode=True),
    "steps of one": pooled(replace(SMALL, batch=2, channels=4, kernel=(2, 4), out_channels=24,
                                   epilogue=BIAS_SILU), (2, 3), (1, 1), (1, 1, 0, 1)),
    "gaps": pooled(Conv2dProblem(1, 1, 26, 40, 40, (4, 6), (1, 3), (1, 2, 2, 1),
                                 epilogue=BIAS_RELU), (2, 1), (3, 2), (0, 0, 0, 0)),
    "large steps": pooled(Conv2dProblem(1, 2, 39, 70, 32, (8, 8), (4, 4), (2, 2, 2, 2),
                                        epilogue=Epilogue()), (3, 2), (2, 1), (1, 0, 1, 1)),
    "single column": pooled(Conv2dProblem(1, 4, 9, 6, 8, (3, 1), (2, 1), (1, 0, 1, 0),
                                          epilogue=BIAS_RELU), (3, 3), (3, 3), (1, 1, 1, 1)),
}
GIVEN = {
    "bytes": given_as(PROBLEMS["resnet"], Format("NHWC", "uint8")),
    "planes": given_as(PROBLEMS["yolo"], Format("NCHW", "uint8"), apply("mul")),
    "halves": given_as(PROBLEMS["unlike pads"], Format("NHWC", "float16"), Expression(1)),
    "bfloats": given_as(PROBLEMS["gaps"], Format("NCHW", "bfloat16")),
    "floats": given_as(PROBLEMS["large steps"], Format("NHWC"), apply("add"))}
ALL = {**PROBLEMS, **GIVEN}


def with_both_instructions(problem: FusionProblem, device: Device) -> list[Variant]:
    """Return the variants that are offered, and those of a device that multiplies by mma."""
    layers = convolution_pool_of(problem)
    assert layers is not None
    without = tilings(layers.convolution, layers.pool, replace(device.limits, wgmma=False))
    return list(dict.fromkeys([*ALGORITHM.variants(problem, device), *(
        with_tile(ALGORITHM, problem, device, each.tile) for each in without)]))


def check_bias(device: Device, tile: PoolTile) -> None:
    """Check sums with numbers a channel that are much larger or smaller than what they are added
    to."""
    problem = pooled(replace(SMALL, epilogue=BIAS_RELU))
    arrays = random_weights(problem)
    arrays["0.weight"] /= 16
    arrays["0.operand0"][:] = np.linspace(-1, 1, 16)
    arrays["0.operand0"][:4] = -0.3, 0.30001, 1000.3, 1e-5
    check_variants(ALGORITHM, problem, device, [with_tile(ALGORITHM, problem, device, tile)],
                   arrays)


def check_not_finite(device: Device, tile: PoolTile) -> None:
    """Check that an infinity, and what is not a number, reach the results under which they are, and
    no others."""
    problem = pooled(Conv2dProblem(1, 3, 18, 40, 16, (3, 5), (2, 2), (1, 2, 1, 2)))
    arrays = random_weights(problem)
    for value in (np.inf, np.nan):
        x = random_inputs(problem)[0]
        x[0, 1, 8, 20] = value
        (y,) = run_variant(ALGORITHM, problem, with_tile(ALGORITHM, problem, device, tile), device,
                           Weights(arrays, device, "the test"), [x])
        reached = np.zeros(y.shape, bool)
        # rows and columns 4 of the convolution, of 8 and 10 in x, and its columns 9 to 11
        reached[:, :, 2:3, 4:7] = True
        assert np.isfinite(y[~reached]).all()
        assert np.isnan(y[reached]).all() if np.isnan(value) else np.isinf(y[reached]).any()


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ALL)
def test_a_tile_of_each_instruction_on_cuda(cuda: Device, name: str) -> None:
    tiles = {variant["wgmma"]: variant for variant in with_both_instructions(ALL[name], cuda)}
    check(ALL[name], cuda, list(tiles.values()))


@pytest.mark.parametrize("name", ALL)
def test_it_computes_both_layers_on_cuda(cuda: Device, name: str) -> None:
    check(ALL[name], cuda, with_both_instructions(ALL[name], cuda))


@pytest.mark.parametrize("batch", [1, 3])
def test_it_computes_the_first_layers_of_resnet_50(cuda: Device, batch: int) -> None:
    problem = pooled(replace(RESNET, batch=batch, height=224, width=224))
    check(problem, cuda, with_both_instructions(problem, cuda))


@pytest.mark.parametrize("wgmma", [0, 1])
def test_unusual_numbers_on_cuda(cuda: Device, wgmma: int) -> None:
    if wgmma and not cuda.limits.wgmma:
        pytest.skip("the device has no wgmma")
    check_not_finite(cuda, PoolTile(2, 16, wgmma))
    check_bias(cuda, PoolTile(2, 16, wgmma))


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, ALL.values(), taken=with_both_instructions, least=2 * len(ALL))


@pytest.mark.parametrize(("problem", "bias", "folded"), [
    (PROBLEMS["resnet"], 3.0, True), (PROBLEMS["unlike pads"], 3.0, True),
    (PROBLEMS["resnet"], 7e4, False), (PROBLEMS["resnet"], np.nan, False),
    (PROBLEMS["steps of one"], 3.0, False),
    (pooled(replace(RESNET, kernel=(7, 8))), 3.0, False),
    (pooled(replace(SMALL, channels=1, kernel=(1, 3))), 3.0, False)])
def test_tensor_cores_add_what_float16_holds(problem: FusionProblem, bias: float,
                                             folded: bool) -> None:
    device, arrays = RecordingDevice(), random_weights(problem)
    arrays["0.operand0"][-1] = bias
    variant = next(iter(ALGORITHM.variants(problem, device)))
    ALGORITHM.prepare(Weights(arrays, device), problem, variant, device)
    (source,) = device.sources
    assert dict(source.defines)["FOLDED"] == str(int(folded))


def test_few_tiles_are_offered_and_mma_only_without_wgmma(recorder: RecordingDevice) -> None:
    for wgmma in (True, False):
        recorder.limits = replace(recorder.limits, wgmma=wgmma)
        for problem in ALL.values():
            variants = list(ALGORITHM.variants(problem, recorder))
            expected = [ALGORITHM.expected_us(problem, each, recorder) for each in variants]
            assert 0 < len(variants) <= 5 and expected == sorted(expected)
            many = problem.parts[-2].out_channels % 16 == 0
            assert {each["wgmma"] for each in variants} == {int(wgmma and many)}


@pytest.mark.parametrize("name", ALL)
def test_images_are_read_as_they_are_given(name: str) -> None:
    problem = ALL[name]
    (y,) = problem.outputs
    for variant in ALGORITHM.variants(problem, RecordingDevice()):
        assert variant.inputs == problem.inputs
        assert variant.outputs == (y.with_format(layout="NHWC", dtype="float16"),)


@pytest.mark.parametrize(("problem", "reason"), [
    (pooled(replace(SMALL, out_channels=20)), "needs a multiple of 8 output channels, not 20"),
    (pooled(replace(SMALL, dilation=(1, 2))), "needs windows without dilation"),
    (pooled(SMALL, dilation=(2, 2)), "needs windows without dilation"),
    (pooled(replace(SMALL, kernel=(3, 9))), "needs windows of at most 8 columns, not 9"),
    (pooled(SMALL, (3, 3), (1, 1)),
     "needs pooling windows of at most twice their stride, not 3 rows with a stride of 1"),
    (pooled(SMALL, (3, 3), (2, 2), (3, 0, 0, 0)),
     "a pooling window may lie entirely in the padding"),
    (pooled(replace(SMALL, epilogue=BIAS_RESIDUAL)), "the convolution's epilogue reads a tensor"),
    (replace(PROBLEMS["yolo"], exits=((0, 0), (1, 0))),
     "a value between the layers is read elsewhere"),
    (replace(GIVEN["bytes"], exits=((0, 0), (2, 0))),
     "a value between the layers is read elsewhere"),
    (pooled(replace(SMALL, height=400, stride=(60, 1), pads=(0, 0, 0, 0))),
     "the tiles do not fit shared memory or registers"),
])
def test_what_it_does_not_compute_gives_a_reason(problem: FusionProblem, reason: str) -> None:
    assert ALGORITHM.recognises(problem)
    assert ALGORITHM.supports(problem, RecordingDevice()) == reason


def test_other_layers_are_not_recognised() -> None:
    average = changed(PROBLEMS["yolo"], 1, kind="average")
    wide = pooled(replace(SMALL, channels=8))
    _, convolution, pool = GIVEN["bytes"].parts
    total = ElementwiseProblem((convolution.inputs[0],) * 2, apply("add"))
    images = FusionProblem((total, convolution, pool),
                           ((ENTRY, entry(1)), *GIVEN["bytes"].sources[1:]), GIVEN["bytes"].exits)
    assert not any(map(ALGORITHM.recognises, (average, wide, images)))
