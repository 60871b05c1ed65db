"""Tests the kernels of convolutions of signs in emulation, on tensor cores and by popcount."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.expression import Expression
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers, point
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.popcount import Popcount
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import (
    BitTensorCore,
    variant_of,
    with_float16,
)
from gossamer.ops.conv2d.binary.tensor_core.tiles import MmaTile, WgmmaTile
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.binary import BitTensorCoreFusion
from gossamer.ops.gemm.binary import BitTensorCoreGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from tests.emulation.device import Emulate
from tests.ops.conv2d.binary.signs import (
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    RESIDUAL_BITS,
    SCALED,
    check_exact,
    small,
)
from tests.ops.recording import RecordingDevice
from tests.ops.test_binary_fusions import ABOVE, check_variant, fusion


def borders(epilogue: Epilogue, known: ValueFacts, groups: int = 1) -> Conv2dProblem:
    channels = 70 if groups == 1 else 64 * groups
    return Conv2dProblem(
        2, channels, 5, 4, 72 * groups, (3, 2), (1, 2), (1, 0, 1, 2), (2, 1), groups, epilogue,
        SCALED, (known, *[integers(-9, 9)] * epilogue.tensor_count))


@pytest.mark.parametrize("mode, tile, word_bits, epilogue, known, packed", [
    ("bounds", MmaTile(1, 2, 2, 1, 4, 2, 1), 64, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
    ("bounds", MmaTile(2, 1, 1, 1, 8, 3, 1), 32, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
    ("bounds", MmaTile(1, 1, 4, 2, 4, 3, 1), 64, BATCH_NORM_SIGN, TERNARY, True),
    ("bounds", MmaTile(1, 4, 1, 1, 8, 2, 1), 32, RESIDUAL, TERNARY, False),
    ("races", MmaTile(1, 2, 2, 2, 4, 2, 1), 64, RESIDUAL_BITS, PLUS_MINUS_ONE, True),
    ("races", MmaTile(1, 1, 2, 1, 8, 4, 1), 32, BATCH_NORM_BITS, TERNARY, False),
])
def test_it_computes_the_convolution(emulate: Emulate, mode: str, tile: MmaTile, word_bits: int,
                                     epilogue: Epilogue, known: ValueFacts, packed: bool) -> None:
    problem = borders(epilogue, known)
    layout = f"packed{word_bits}" if packed else "NHWC"
    check_exact(BitTensorCore(), problem, variant_of(problem, tile, word_bits, layout),
                emulate(mode, schedule=2))


@pytest.mark.parametrize("mode, tile, word_bits, epilogue, known, packed", [
    ("bounds", WgmmaTile(64, 2, 0, 3, 1), 64, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
    ("bounds", WgmmaTile(128, 1, 1, 2, 1), 32, BATCH_NORM_SIGN, TERNARY, True),
    ("races", WgmmaTile(64, 2, 1, 3, 1), 64, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
    ("races", WgmmaTile(64, 1, 0, 4, 1), 32, RESIDUAL, PLUS_MINUS_ONE, False),
    ("bounds", WgmmaTile(64, 2, 1, 2, 1, 1), 64, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
    ("bounds", WgmmaTile(64, 1, 1, 3, 1, 1), 64, RESIDUAL, TERNARY, False),
    ("races", WgmmaTile(64, 2, 0, 2, 1), 64, RESIDUAL, PLUS_MINUS_ONE, False),
    ("races", WgmmaTile(64, 1, 1, 2, 1), 64, RESIDUAL_BITS, PLUS_MINUS_ONE, False),
    ("races", WgmmaTile(128, 1, 1, 2, 1, 1), 64, BATCH_NORM_BITS, PLUS_MINUS_ONE, True),
])
def test_warpgroups_compute_the_convolution(
        emulate: Emulate, mode: str, tile: WgmmaTile, word_bits: int, epilogue: Epilogue,
        known: ValueFacts, packed: bool) -> None:
    """There is but one multiprocessor, so that each warpgroup has several tiles."""
    problem = replace(borders(epilogue, known), batch=5, height=10, width=9)
    assert problem.pixels > 2 * tile.pixels
    device = emulate(mode, schedule=2, compute_units=2)
    layout = f"packed{word_bits}" if packed else "NHWC"
    check_exact(BitTensorCore(), problem, variant_of(problem, tile, word_bits, layout), device)


@pytest.mark.parametrize("mode, tile, epilogue, packed, groups", [
    ("bounds", MmaTile(1, 4, 1, 1, 8, 2, 1), RESIDUAL, False, 1),
    ("races", MmaTile(1, 2, 2, 2, 4, 2, 1), RESIDUAL_BITS, True, 1),
    ("bounds", MmaTile(1, 1, 2, 1, 8, 4, 1), BATCH_NORM_BITS, False, 1),
    ("races", WgmmaTile(64, 1, 0, 4, 1), RESIDUAL, False, 1),
    ("races", WgmmaTile(64, 2, 1, 2, 1), RESIDUAL_BITS, True, 1),
    ("bounds", WgmmaTile(128, 1, 1, 2, 1, 1), RESIDUAL, False, 1),
    ("bounds", WgmmaTile(64, 1, 0, 3, 1), RESIDUAL, False, 2),
    ("bounds", MmaTile(1, 2, 2, 1, 4, 2, 1), RESIDUAL, False, 2),
])
def test_16_bit_floats(emulate: Emulate, mode: str, tile: MmaTile | WgmmaTile, epilogue: Epilogue,
                       packed: bool, groups: int) -> None:
    problem = borders(epilogue, PLUS_MINUS_ONE, groups)
    plain = variant_of(problem, tile, 64, "packed64" if packed else "NHWC")
    (halves,) = [variant for variant in with_float16(BinaryLayer(problem), plain)
                 if variant.precision == "fp16"]
    check_exact(BitTensorCore(), problem, halves, emulate(mode, schedule=2))


@pytest.mark.parametrize("channels, weights, operand, is_rounded", [
    (64, PLUS_MINUS_ONE, integers(-900, 900), False),
    (128, PLUS_MINUS_ONE, integers(-900, 900), True),
    (64, PLUS_MINUS_ONE, integers(-2000, 2000), True),
    (64, PLUS_MINUS_ONE, integers(-40_000, 40_000), True),
    (64, ValueFacts(-5, 5, 10), integers(-9, 9), True),
    (64, PLUS_MINUS_ONE, point(3000.0), True),
    (128, PLUS_MINUS_ONE, REAL, False),
    (128, REAL, integers(-900, 900), False),
])
def test_integers_that_float16_would_round_stay_float32(
        channels: int, weights: ValueFacts, operand: ValueFacts, is_rounded: bool) -> None:
    problem = Conv2dProblem(
        1, channels, 8, 8, 64, (3, 3), epilogue=RESIDUAL,
        weights_info=WeightsInfo(facts=weights, scaled_signs=True), facts=(PLUS_MINUS_ONE, operand))
    precisions = {variant.precision
                  for variant in BitTensorCore().variants(problem, RecordingDevice())}
    assert precisions == ({"fp32"} if is_rounded else {"fp32", "fp16"})


def test_operands_behind_which_signs_are_packed_are_all_that_may_be_rounded() -> None:
    """A bound of 1152 for the products, which are not written, and 2000 for the operand."""
    info = WeightsInfo(facts=PLUS_MINUS_ONE, scaled_signs=True)
    for epilogue, halves in ((RESIDUAL_BITS, {"packed32", "packed64", "NHWC"}), (RESIDUAL, set())):
        problem = Conv2dProblem(1, 128, 8, 8, 64, (3, 3), epilogue=epilogue, weights_info=info,
                                facts=(PLUS_MINUS_ONE, integers(-2000, 2000)))
        assert {variant.outputs[0].layout
                for variant in BitTensorCore().variants(problem, RecordingDevice())
                if variant.precision == "fp16"} == halves


def test_channels_that_are_no_multiple_of_8_have_no_16_bit_floats() -> None:
    problem = Conv2dProblem(1, 64, 8, 8, 60, (3, 3), epilogue=RESIDUAL, weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE,))
    assert {variant.precision for variant in BitTensorCore().variants(
        problem, RecordingDevice())} == {"fp32"}


def test_rows_state_float16_where_sums_are() -> None:
    convolution = borders(RESIDUAL, PLUS_MINUS_ONE)
    product = GemmProblem(19, 40, 330, RESIDUAL, SCALED, (PLUS_MINUS_ONE, integers(-4, 4)))
    of_fusion = fusion(PLUS_MINUS_ONE, RESIDUAL, signs=ABOVE, out_channels=64)
    for algorithm, problem in ((BitTensorCore(), convolution), (BitTensorCoreGemm(), product),
                               (BitTensorCoreFusion(), of_fusion)):
        assert {(variant.precision, algorithm.stated_precision(variant))
                for variant in algorithm.variants(problem, RecordingDevice())} == {
                    ("fp32", "b1"), ("fp16", "fp16")}


def test_groups_of_whole_words(emulate: Emulate) -> None:
    problem = Conv2dProblem(1, 64, 3, 4, 96, (2, 2), groups=2, epilogue=BATCH_NORM_BITS,
                            weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    for layout in ("packed32", "NCHW"):
        variant = variant_of(problem, MmaTile(1, 1, 2, 1, 4, 2, 1), 32, layout)
        check_exact(BitTensorCore(), problem, variant, emulate("bounds"))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_images_of_a_few_pixels(emulate: Emulate, layout: str, width: int) -> None:
    """In NCHW a channel is as far from the next one as the image has pixels."""
    problem = Conv2dProblem(2, 64, 1, width, 64, (1, 1), epilogue=RESIDUAL, weights_info=SCALED,
                            facts=(PLUS_MINUS_ONE, integers(-9, 9)))
    variant = variant_of(problem, MmaTile(1, 1, 2, 1, 4, 2, 1), 64, layout)
    check_exact(BitTensorCore(), problem, variant, emulate("bounds"))


@pytest.mark.parametrize("mode, tile, known, pad, signs, out_channels", [
    ("bounds", MmaTile(1, 2, 2, 1, 4, 2, 1), PLUS_MINUS_ONE, 1.0, None, 33),
    ("bounds", MmaTile(1, 1, 2, 1, 4, 3, 1), TERNARY, -1.0, ABOVE, 36),
    ("races", MmaTile(2, 1, 2, 1, 4, 3, 1), PLUS_MINUS_ONE, None, ABOVE, 33),
    ("races", MmaTile(1, 1, 1, 1, 8, 3, 1), PLUS_MINUS_ONE, -1.0, ABOVE, 64),
])
def test_it_computes_fusions(emulate: Emulate, mode: str, tile: MmaTile, known: ValueFacts,
                             pad: float | None, signs: Expression | None,
                             out_channels: int) -> None:
    algorithm, device = BitTensorCoreFusion(), emulate(mode, schedule=2)
    problem = fusion(known, RESIDUAL if signs else BATCH_NORM_BITS, pad=pad, signs=signs,
                     out_channels=out_channels)
    for variant in algorithm.variants(problem, device):
        if variant.inputs[0].layout == f"packed{32 if pad else 64}":
            check_variant(algorithm, problem, replace(variant, config=tile.config), device)


@pytest.mark.parametrize("mode, rows, epilogue", [
    ("bounds", 1, BATCH_NORM_BITS), ("races", 19, RESIDUAL)])
def test_it_computes_matrix_products(emulate: Emulate, mode: str, rows: int,
                                     epilogue: Epilogue) -> None:
    algorithm, device = BitTensorCoreGemm(), emulate(mode, schedule=2)
    problem = GemmProblem(rows, 40, 330, epilogue, SCALED,
                          (PLUS_MINUS_ONE, *[integers(-4, 4)] * epilogue.tensor_count))
    tile = MmaTile(1, 1, 2, 1, 4, 3, 1)
    tested = {replace(variant, config=tile.config)
              for variant in algorithm.variants(problem, device)}
    for variant in tested:
        check_exact(algorithm, problem, variant, device)


def test_popcount_has_no_race(emulate: Emulate) -> None:
    device = emulate("races")
    problem = Conv2dProblem(1, 33, 4, 3, 33, (3, 1), pads=(1, 0, 0, 0), epilogue=BATCH_NORM_SIGN,
                            weights_info=SCALED, facts=(TERNARY,))
    for known in (PLUS_MINUS_ONE, TERNARY):
        problem = replace(problem, facts=(known,))
        for variant in small(list(Popcount().variants(problem, device)))[:3]:
            check_exact(Popcount(), problem, variant, device)
