"""Tests the kernel of popcount_chain, whose clusters send words to one another, in emulation."""

from __future__ import annotations

import pytest

from gossamer.expression import Expression
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.fused.popcount_chain.popcount_chain import PopcountChain
from tests.emulation.test_faults import Emulate
from tests.ops.conv2d.binary.signs import BAND_SIGN, BATCH_NORM_BITS, BATCH_NORM_SIGN
from tests.ops.fused.test_popcount_chain import LINEAR, SIGN, chain, check


@pytest.mark.parametrize("mode, sizes, epilogues, known, signs, layouts", [
    ("bounds", [70, 300, 10], [BATCH_NORM_SIGN, LINEAR], TERNARY, SIGN, ("row", "row")),
    ("bounds", [200, 65, 70], [BATCH_NORM_BITS] * 2, PLUS_MINUS_ONE, None,
     ("packed64", "packed64")),
    ("bounds", [33, 40, 96], [BAND_SIGN, BATCH_NORM_SIGN], TERNARY, None,
     ("packed32", "packed64")),
    ("bounds", [64, 1100, 40], [BATCH_NORM_BITS, BATCH_NORM_SIGN], TERNARY, None,
     ("packed64", "packed32")),
    ("races", [70, 300, 80, 10], [BATCH_NORM_SIGN] * 2 + [LINEAR], TERNARY, SIGN, ("row", "row")),
    ("races", [40, 64, 600], [BATCH_NORM_BITS] * 2, PLUS_MINUS_ONE, None,
     ("packed32", "packed32")),
])
def test_it_computes_the_chain(emulate: Emulate, mode: str, sizes: list[int],
                               epilogues: list[Epilogue], known: ValueFacts,
                               signs: Expression | None, layouts: tuple[str, str]) -> None:
    device = emulate(mode, schedule=2)
    problem = chain(sizes, epilogues, rows=2, known=known, signs=signs)
    chosen = [variant for variant in PopcountChain().variants(problem, device)
              if (variant.inputs[0].layout, variant.outputs[0].layout) == layouts]
    assert len(chosen) == 2
    for variant in chosen[:1 if mode == "races" else 2]:
        check(problem, variant, device)
