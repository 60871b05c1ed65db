"""Blocks of MobileNet as one kernel of NVIDIA GPUs, on the GPU where there is one; elsewhere
tests/emulation/test_fusions.py runs the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, apply
from gossamer.ops.algorithm import Epilogue, Problem, Variant
from gossamer.ops.conv2d.common import config_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import (
    InvertedResidualMma,
    SeparableMma,
    SqueezeExciteMma,
    StemMma,
)
from gossamer.ops.fused.inverted_residual.tiling import BlockTile
from gossamer.ops.fused.problem import ENTRY, FusionProblem, Source, entry
from gossamer.ops.weights import Weights
from gossamer.tensor import Format
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_HARD_SWISH,
    BIAS_RELU,
    BIAS_SIGMOID,
    BIAS_SILU,
    QUOTIENT,
    block,
    excited,
    given_as,
    stem,
)
from tests.ops.harness import check_variants, random_weights, run_variant
from tests.ops.recording import RecordingDevice, check_kernels_build
from tests.ops.test_channel_parts import as_part

RESIDUAL = block(2, 24, 40, 24, (9, 10))
STRIDED = block(1, 16, 48, 40, (11, 9), stride=(2, 2), activation=BIAS_SILU)
LARGE_FILTER = block(1, 8, 32, 16, (7, 12), kernel=(5, 5), stride=(1, 2), pads=(2, 1, 2, 3),
                     activation=BIAS_HARD_SWISH)
UNUSED_CHANNELS = block(1, 16, 56, 8, (6, 6), activation=QUOTIENT)
SEPARABLE = block(1, 0, 40, 24, (9, 7), stride=(2, 1), expands=False)
SEPARABLE_RESIDUAL = block(2, 0, 64, 64, (6, 5), expands=False)
WIDE = block(1, 72, 160, 80, (5, 6))
NARROW = block(1, 16, 32, 16, (6, 6))
EXCITED = excited(block(2, 16, 40, 16, (7, 6)), 10)
EXCITED_STRIDED = excited(
    block(1, 8, 96, 24, (9, 12), kernel=(5, 5), stride=(2, 2), activation=BIAS_SILU), 6,
    inner=BIAS_SILU, gate=BIAS_SIGMOID, gates_first=True, pooled=True)
EXCITED_SEPARABLE = excited(block(2, 0, 48, 48, (6, 5), expands=False), 13,
                            scale=apply("mul").then(apply("relu")))
EXCITED_UNUSED_CHANNELS = excited(block(1, 16, 56, 8, (6, 6), activation=QUOTIENT), 4,
                                  gate=BIAS_SIGMOID, scale=apply("div"))
STEM = stem(block(2, 0, 32, 16, (9, 11), expands=False), 3, (18, 21))
LARGE_STEM = stem(block(1, 0, 24, 8, (7, 8), kernel=(5, 5), stride=(2, 1), expands=False),
                  2, (12, 10), kernel=(5, 4), stride=(1, 1), pads=(2, 1, 1, 3), dilation=(2, 2))
STEM_OF_BYTES = given_as(STEM, Format("NHWC", "uint8"))
STEM_OF_PLANES = given_as(STEM, Format("NCHW", "uint8"), apply("mul"))
STEM_OF_BFLOATS = given_as(STEM, Format("NHWC", "bfloat16"), apply("add"))
STEM_OF_HALVES = given_as(LARGE_STEM, Format("NHWC", "float16"), Expression(1))
EVEN_FILTER = block(2, 8, 32, 16, (9, 10), kernel=(4, 4), stride=(2, 2), activation=BIAS_RELU)
FLAT_FILTER = block(1, 16, 24, 8, (6, 11), kernel=(1, 3), stride=(1, 2), activation=Epilogue(
    apply("add").then(apply("clip", -1.0, 6.0)), ("channel",)))
TALL_FILTER = block(1, 8, 48, 24, (11, 7), kernel=(5, 3), stride=(2, 1), activation=BIAS)
PROBLEMS = {"residual": RESIDUAL, "strided": STRIDED, "large filter": LARGE_FILTER,
            "even filter": EVEN_FILTER, "flat filter": FLAT_FILTER, "tall filter": TALL_FILTER,
            "unused channels": UNUSED_CHANNELS, "separable": SEPARABLE,
            "separable residual": SEPARABLE_RESIDUAL, "stem": STEM, "large stem": LARGE_STEM,
            "stem of bytes": STEM_OF_BYTES, "stem of planes": STEM_OF_PLANES,
            "stem of halves": STEM_OF_HALVES, "stem of bfloats": STEM_OF_BFLOATS,
            "wide": WIDE, "narrow": NARROW, "excited": EXCITED,
            "excited strided": EXCITED_STRIDED, "excited separable": EXCITED_SEPARABLE,
            "excited unused channels": EXCITED_UNUSED_CHANNELS}

WARPGROUP_TILES = [
    ("residual", BlockTile(9, 10, 16, 2, 4, wgmma=1)),
    ("residual", BlockTile(5, 4, 32, 1, 8, wgmma=1)),
    ("strided", BlockTile(3, 3, 48, 1, 8, wgmma=1)),
    ("strided", BlockTile(6, 5, 16, 3, 4, wgmma=1)),
    ("separable residual", BlockTile(6, 5, 16, 1, 8, wgmma=1)),
    ("unused channels", BlockTile(6, 3, 32, 2, 4, wgmma=1)),
    ("stem", BlockTile(9, 11, 16, 1, 16, wgmma=1)),
    ("large filter", BlockTile(7, 6, 16, 2, 8, wgmma=1)),
    ("wide", BlockTile(3, 3, 128, 1, 4, wgmma=1)),
    ("wide", BlockTile(5, 3, 64, 2, 4, wgmma=1))]


def algorithm_of(problem: FusionProblem
                 ) -> InvertedResidualMma | SeparableMma | StemMma | SqueezeExciteMma:
    return next(algorithm for algorithm in (InvertedResidualMma(), SeparableMma(), StemMma(),
                                            SqueezeExciteMma())
                if len(problem.parts) in map(len, algorithm.patterns)
                and algorithm.recognises(problem))


def check(problem: FusionProblem, device: Device, variants: Sequence[Variant],
          weights: Mapping[str, np.ndarray] | None = None) -> None:
    """Compare the outputs of variants with the reference.

    Divisors of random weights are at least 1/2, since those near 0 multiply the errors of any
    arithmetic.
    """
    arrays = dict(random_weights(problem) if weights is None else weights)
    for number, part in enumerate(problem.parts if weights is None else ()):
        if isinstance(part, Conv2dProblem) and part.epilogue is QUOTIENT:
            divisors = arrays[f"{number}.operand0"]
            divisors += np.copysign(0.5, divisors, dtype=np.float32)
    check_variants(algorithm_of(problem), problem, device, variants, arrays)


def check_nan(device: Device, variants: Sequence[Variant]) -> None:
    """Fails unless images of the NaN that GPUs compute, whose bits are all 1 but for the sign,
    become NaN."""
    weights = Weights(random_weights(STEM), device, "the test")
    images = np.full(STEM.inputs[0].shape, 0x7fffffff, np.uint32).view(np.float32)
    for variant in variants:
        (actual,) = run_variant(algorithm_of(STEM), STEM, variant, device, weights, [images])
        assert np.isnan(actual).all(), f"{variant.config_text} in {variant.precision}"


def variants_of(problem: FusionProblem, device: Device, tile: BlockTile,
                precisions: Sequence[str]) -> list[Variant]:
    """Return the variants of a tile, whether or not it is among those that are offered."""
    algorithm = algorithm_of(problem)
    offered = {variant.precision: variant for variant in algorithm.variants(problem, device)}
    return [replace(offered[precision], config=config_of(tile)) for precision in precisions]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_block_on_cuda(cuda: Device, name: str) -> None:
    problem = PROBLEMS[name]
    check(problem, cuda, list(algorithm_of(problem).variants(problem, cuda)))


def into_parts(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants with results that are parts of the channels of larger tensors."""
    return [replace(variant, outputs=(as_part(variant.outputs[0], 3, 1),)) for variant in variants]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["residual", "separable residual", "stem", "excited"])
def test_it_writes_parts_of_larger_tensors_on_cuda(cuda: Device, name: str) -> None:
    problem = PROBLEMS[name]
    check(problem, cuda, into_parts(list(algorithm_of(problem).variants(problem, cuda))))


@pytest.mark.sanitize
@pytest.mark.parametrize("name, tile", WARPGROUP_TILES)
def test_warpgroups_compute_the_block_on_cuda(cuda: Device, name: str, tile: BlockTile) -> None:
    if not cuda.limits.wgmma or tile.cluster > cuda.limits.cluster:
        pytest.skip("the device has no wgmma, or no such clusters")
    problem = PROBLEMS[name]
    check(problem, cuda, variants_of(problem, cuda, tile, ["tf32", "fp16"]))


def test_a_nan_stays_a_nan(cuda: Device) -> None:
    variants = {variant.precision: variant for variant in StemMma().variants(STEM, cuda)}
    check_nan(cuda, list(variants.values()))


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    for problem in (RESIDUAL, SEPARABLE, STEM, STEM_OF_BYTES,
                    block(64, 96, 576, 160, (14, 14), stride=(2, 2)), EXCITED_SEPARABLE,
                    excited(block(64, 80, 480, 112, (14, 14), kernel=(5, 5),
                                  activation=BIAS_SILU), 20)):
        variants = list(algorithm_of(problem).variants(problem, RecordingDevice()))
        check_kernels_build(algorithm_of(problem), [problem],
                            taken=lambda *_, variants=variants: [*variants[:3], variants[-1]])


@pytest.mark.slow
@pytest.mark.parametrize("problem", [
    block(64, 160, 960, 160, (7, 7)), block(64, 96, 576, 160, (14, 14), stride=(2, 2)),
    block(1, 48, 288, 96, (14, 14), kernel=(5, 5), activation=BIAS_SILU)])
def test_what_is_offered_for_warpgroups_builds_without_spills(problem: FusionProblem) -> None:
    def taken(problem: FusionProblem, device: Device) -> list[Variant]:
        offered = [variant for variant in InvertedResidualMma().variants(problem, device)
                   if variant["wgmma"] and variant.precision == "fp16"]
        return [*offered[:2], *(variant for variant in offered if variant["warps"] == 16)]

    check_kernels_build(InvertedResidualMma(), [problem], taken=taken)


def test_channels_that_fit_in_clusters_alone_are_shared_by_them() -> None:
    problem, device = block(1, 1280, 64, 64, (6, 6)), RecordingDevice()
    assert InvertedResidualMma().supports(problem, device) is None
    strict = list(InvertedResidualMma().variants_in(problem, device, ("fp32",)))
    assert strict and all(variant["cluster"] > 1 for variant in strict)


def test_channels_that_fit_in_float16_alone_are_computed_in_it() -> None:
    problem, device = block(1, 1792, 64, 64, (6, 6)), RecordingDevice()
    assert InvertedResidualMma().supports(problem, device) is None
    for variants in (InvertedResidualMma().variants(problem, device),
                     InvertedResidualMma().variants_in(problem, device, ("fp32", "fp16"))):
        assert {variant.precision for variant in variants} == {"fp16"}
    assert not list(InvertedResidualMma().variants_in(problem, device, ("fp32",)))


@pytest.mark.parametrize("of_batch", [
    lambda batch: block(batch, 64, 384, 64, (14, 14)),
    lambda batch: excited(block(batch, 80, 480, 80, (14, 14)), 20)], ids=["plain", "excited"])
def test_every_config_serves_every_batch(of_batch: Callable[[int], FusionProblem]) -> None:
    """A plan for another batch size takes the config of the nearest one."""
    algorithm = algorithm_of(of_batch(1))
    configs = [{(variant.config, variant.precision)
                for variant in algorithm.variants(of_batch(batch), RecordingDevice())}
               for batch in (1, 3, 64, 200)]
    assert configs[0] and all(of_size == configs[0] for of_size in configs)


@pytest.mark.parametrize(("problem", "reason"), [
    (block(1, 12, 32, 8, (6, 6)),
     "needs multiples of 8 channels, has 12 input and 8 output channels"),
    (excited(block(1, 12, 32, 8, (6, 6)), 4),
     "needs multiples of 8 channels, has 12 input and 8 output channels"),
    (block(1, 4096, 4096, 4096, (6, 6)), "do not fit the shared memory"),
    (excited(block(1, 16, 96, 24, (112, 112)), 4), "of a whole image of 112x112 do not fit"),
    (excited(block(1, 8, 32, 8, (9, 9), dilation=(2, 2), pads=(2, 2, 2, 2)), 4),
     "dilation (2, 2)")])
def test_blocks_that_do_not_fit_give_a_reason(problem: FusionProblem, reason: str) -> None:
    assert reason in str(algorithm_of(problem).supports(problem, RecordingDevice()))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_saved_plan_finds_the_config_of_every_variant(name: str) -> None:
    """A plan lists the variants of allowed precisions, and its file is read with those of each
    step's precision and then with all."""
    problem, device = PROBLEMS[name], RecordingDevice()
    algorithm = algorithm_of(problem)
    known = set(algorithm.variants(problem, device))
    for precisions in (("fp32",), ("fp32", "tf32"), ("fp16",), ("fp32", "tf32", "fp16")):
        listed = list(algorithm.variants_in(problem, device, precisions))
        assert {variant.precision for variant in listed} == set(precisions)
        assert known.issuperset(listed)


_EXPAND, _DEPTHWISE, _PROJECT = RESIDUAL.parts
_ADDED_TWICE = Epilogue(apply("add").then(apply("add")), ("tensor", "tensor"))


@pytest.mark.parametrize(("parts", "first", "last", "reason"), [
    (RESIDUAL.parts, (), (entry(1),), "combined with a tensor other than its input"),
    ((replace(_EXPAND, epilogue=_PROJECT.epilogue), _DEPTHWISE, _PROJECT), (entry(1),), (ENTRY,),
     "an epilogue inside the block reads a tensor"),
    ((_EXPAND, _DEPTHWISE, replace(_PROJECT, epilogue=_ADDED_TWICE)), (), (ENTRY, ENTRY),
     "combined with its input more than once"),
    ((_EXPAND, _DEPTHWISE, replace(_PROJECT, stride=(2, 2), epilogue=Epilogue())), (), (),
     "projects with stride (2, 2)"),
    ((_EXPAND, replace(_DEPTHWISE, out_channels=80), replace(_PROJECT, channels=80)), (), (ENTRY,),
     "not 80 outputs of 40 channels")])
def test_blocks_that_compute_something_else_give_a_reason(
        parts: tuple[Problem, ...], first: tuple[Source, ...], last: tuple[Source, ...],
        reason: str) -> None:
    other = FusionProblem(parts, ((ENTRY, *first), ((0, 0),), ((1, 0), *last)), RESIDUAL.exits)
    assert reason in str(InvertedResidualMma().supports(other, RecordingDevice()))
