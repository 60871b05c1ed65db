"""Which lower precisions change no result.

They change none where the operands are integers that the lower precision holds exactly, as the
products are summed in float32 anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.facts import ValueFacts, integers
from gossamer.ops.weights import WeightsInfo

LARGEST = 2048
"""The largest integer up to which float16 and the operands of TF32 hold all integers exactly."""
BYTES, NARROW = integers(-255, 255), integers(-LARGEST, LARGEST)
"""BYTES: the differences of two integers of 8 bits, both signed or both unsigned. NARROW: the
integers up to LARGEST of either sign."""


def in_float16(facts: ValueFacts) -> bool:
    """Return whether float16 holds all values that the facts allow.

    The values have to be integers.
    """
    return facts.is_integer and facts.largest <= LARGEST


def sums_integers(facts: tuple[ValueFacts, ...], weights: WeightsInfo) -> bool:
    """Return whether a layer sums products of integers.

    In float32 such sums are exact as long as their magnitudes stay within 2^24.

    facts: the value facts of the layer's run-time inputs, as its problem states them.
    weights: the facts about the layer's weights.
    """
    return bool(facts) and facts[0].is_integer and weights.facts.is_integer


def precision_of_products(facts: tuple[ValueFacts, ...], weights: WeightsInfo,
                          result: ValueFacts) -> str:
    """Return the lowest precision in which a layer of products has the results of float32.

    facts: the value facts of the layer's run-time inputs.
    weights: the facts about the layer's weights.
    result: the value facts of the layer's output.
    """
    if not facts or not in_float16(facts[0]) or not in_float16(weights.facts):
        return "fp32"
    return "fp16" if all(map(in_float16, (*facts, result))) else "tf32"


def precision_of_values(facts: Iterable[ValueFacts]) -> str:
    """Return the lowest precision in which an op without products has the results of float32.

    facts: the value facts of all values that the op reads or writes.
    """
    known = list(facts)
    return "fp16" if known and all(map(in_float16, known)) else "fp32"
