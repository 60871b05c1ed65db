"""Tests the kernel of bit_tensor_core in emulation, with tensor cores simulated in memory."""

from __future__ import annotations

import pytest

from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import BitTensorCore, variant_of
from gossamer.ops.conv2d.binary.tensor_core.tiles import MmaTile
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.binary.signs import (
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    RESIDUAL_BITS,
    SCALED,
    check_exact,
)


def borders(epilogue: Epilogue, known: ValueFacts) -> Conv2dProblem:
    return Conv2dProblem(
        2, 70, 5, 4, 72, (3, 2), (1, 2), (1, 0, 1, 2), (2, 1), 1, epilogue, SCALED,
        (known, *[integers(-9, 9)] * epilogue.tensor_count))


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


def test_groups_of_whole_words(emulate: Emulate) -> None:
    problem = Conv2dProblem(1, 64, 3, 4, 96, (2, 2), groups=2, epilogue=BATCH_NORM_BITS,
                            weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    for layout in ("packed32", "NCHW"):
        variant = variant_of(problem, MmaTile(1, 1, 2, 1, 4, 2, 1), 32, layout)
        check_exact(BitTensorCore(), problem, variant, emulate("bounds"))
