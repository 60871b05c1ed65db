"""Determine which lower precisions leave all results unchanged.

Products are accumulated in float32 in every precision. So a lower precision leaves results
unchanged if all operands are integers that the precision represents exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.facts import ValueFacts, integers
from gossamer.ops.weights import WeightsInfo

LARGEST = 2048
"""float16 and TF32 represent all integers up to this magnitude exactly."""
BYTES, NARROW = integers(-255, 255), integers(-LARGEST, LARGEST)
"""BYTES: the possible differences of two 8-bit integers that are both signed or both unsigned.
NARROW: the integers of magnitude up to LARGEST."""


def in_float16(facts: ValueFacts) -> bool:
    """Return whether the values are integers that float16 represents exactly."""
    return facts.is_integer and facts.largest <= LARGEST


def sums_integers(facts: tuple[ValueFacts, ...], weights: WeightsInfo) -> bool:
    """Return whether a layer accumulates products of integers.

    Sums of integers are exact in float32 as long as their magnitudes stay within 2^24.

    facts: the value facts of the layer's run-time inputs.
    weights: the facts about the layer's weights.
    """
    return bool(facts) and facts[0].is_integer and weights.facts.is_integer


def precision_of_products(facts: tuple[ValueFacts, ...], weights: WeightsInfo,
                          result: ValueFacts) -> str:
    """Return the lowest precision that does not change the results of an op with products.

    facts: the value facts of the layer's run-time inputs.
    weights: the facts about the layer's weights.
    result: the value facts of the layer's output.
    """
    if not facts or not in_float16(facts[0]) or not in_float16(weights.facts):
        return "fp32"
    return "fp16" if all(map(in_float16, (*facts, result))) else "tf32"


def precision_of_values(facts: Iterable[ValueFacts]) -> str:
    """Return the lowest precision that does not change the results of an op without products.

    facts: the value facts of all values that the op reads or writes.
    """
    known = list(facts)
    return "fp16" if known and all(map(in_float16, known)) else "fp32"
