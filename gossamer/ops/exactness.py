"""Precisions that change nothing: integers that the operands of a less precise form hold exactly,
whose products are summed in float32 as ever."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.facts import REAL, ValueFacts, integers
from gossamer.ops.weights import WeightsInfo

LARGEST = 2048
"""The largest magnitude up to which float16, and the operands of TF32, have all integers."""
BYTES, NARROW = integers(-255, 255), integers(-LARGEST, LARGEST)
"""Differences of two integers of 8 bits with one sign, and all integers that float16 has."""


def in_float16(facts: ValueFacts) -> bool:
    """Returns whether float16 holds all values that the facts allow, as integers."""
    return facts.is_integer and facts.largest <= LARGEST


def sums_integers(facts: tuple[ValueFacts, ...], weights: WeightsInfo) -> bool:
    """Returns whether a layer sums products of integers, which in float32 are exact.

    facts: of its run-time inputs, as its problem states them.
    """
    return bool(facts) and facts[0].is_integer and weights.facts.is_integer


def precision_of_products(facts: tuple[ValueFacts, ...], weights: WeightsInfo,
                          result: ValueFacts) -> str:
    """Returns the least precise of the precisions in which a layer that sums products gives what it
    gives in float32.

    facts: of its run-time inputs.
    result: of its output.
    """
    if not facts or not in_float16(facts[0]) or not in_float16(weights.facts):
        return "fp32"
    return "fp16" if all(map(in_float16, (*facts, result))) else "tf32"


def precision_of_values(facts: Iterable[ValueFacts]) -> str:
    """Returns the least precise of the precisions in which an op that moves or compares values of
    these facts, or computes others of them, gives what it gives in float32."""
    known = list(facts)
    return "fp16" if known and all(map(in_float16, known)) else "fp32"


def shared_facts(facts: ValueFacts) -> ValueFacts:
    """Returns the facts that problems state for the facts of a value. Values that algorithms use in
    the same way have the same stated facts, so that layers share measurements. REAL stands for more
    than a few different values."""
    if facts.few_values and facts.is_integer and (facts.count or 0) > 3:
        return next((wider for wider in (BYTES, NARROW) if facts.largest <= wider.largest), facts)
    return facts if facts.few_values else REAL
