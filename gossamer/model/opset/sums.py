"""Derives the value facts of weighted sums, which convolutions and matrix products compute."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gossamer.facts import (
    REAL,
    ValueFacts,
    common,
    fits_multiples,
    grid,
    point,
    unit,
)


def weighted_sums(values: ValueFacts, known: ValueFacts, weights: np.ndarray) -> ValueFacts:
    """Returns the facts of the sums of weights[m, k] * x[k] over k for every m; REAL where a
    product or a partial sum may be rounded.

    values: facts of each x[k].
    known: facts of the weights.
    weights: an array with m along its first dimension and k along all other dimensions together.
    """
    if not weights.size:
        return point(0.0)
    weights = weights.reshape(len(weights), -1)
    if values.count is None or known.count is None or not np.isfinite(weights).all():
        return REAL
    low, high, step = map(Fraction, (values.low, values.high, values.step))
    of_values, of_weights = common(low, step), common(Fraction(known.low), Fraction(known.step))
    if not of_values or not of_weights:
        return point(0.0)
    if max(-known.low, known.high) > of_weights * (1 << 24):
        return REAL
    whole = np.rint(weights.astype(np.float64) / float(of_weights)).astype(np.int64)
    scale = of_values * of_weights
    largest = int(np.abs(whole).sum(axis=1).max()) * max(abs(low), abs(high)) / of_values
    if not fits_multiples(unit(scale), largest * scale):
        return REAL
    positive, negative = np.maximum(whole, 0).sum(axis=1), np.minimum(whole, 0).sum(axis=1)
    first, last = int(low / of_values), int(high / of_values)
    lowest, highest = (positive * a + negative * b for a, b in ((first, last), (last, first)))
    steps = np.gcd.reduce(np.concatenate([
        lowest - lowest[0], whole.ravel() * int(step / of_values)]))
    return grid(int(lowest.min()) * scale, int(highest.max()) * scale, int(steps) * scale)
