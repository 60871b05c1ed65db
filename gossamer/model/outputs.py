"""Interprets outputs of a network: class scores, ranks, summaries, and rows that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_MOST_SEARCHED = 32
"""Maximum number of best classes that are found one by one, each by a search for the greatest
remaining score. If more classes are requested, all scores are sorted. For 1000 scores, a search
takes 0.3 us and a sort 50 us."""


def is_class_scores(output: np.ndarray, rows: int) -> bool:
    """Return whether an output can be read as scores of classes.

    Such an output holds floats of shape (rows, classes[, 1, 1]), with two or more classes.
    """
    return (output.ndim >= 2 and len(output) == rows and output.shape[1] > 1
            and math.prod(output.shape[2:]) == 1 and np.issubdtype(output.dtype, np.floating))


def best_classes(scores: np.ndarray, count: int, names: Sequence[str] | None,
                 independent: bool = False) -> list[dict[str, Any]]:
    """Return the `count` best classes of one input, as best_classes_of_each() does."""
    return best_classes_of_each(scores.reshape(1, -1), count, names, independent)[0]


def best_classes_of_each(scores: np.ndarray, count: int, names: Sequence[str] | None,
                         independent: bool = False) -> list[list[dict[str, Any]]]:
    """Return the `count` classes with the highest scores of each input, best first.

    Among equal scores the class with the lowest number comes first.

    Each class is a dict with its index ("class"), its "name" and its "probability". The probability
    is the softmax of the scores, or the score itself if the scores are probabilities already. If
    the scores are independent of each other, the dict has the key "score" instead of "probability".

    scores: (inputs, classes[, 1, 1]).
    """
    scores = scores.reshape(len(scores), -1)
    scores = scores.astype(np.promote_types(scores.dtype, np.float32), copy=False)
    order = _best_indices(scores, count)
    best = np.take_along_axis(scores, order, axis=1).astype(np.float64)
    if not independent:
        greatest = scores.max(axis=1, keepdims=True)
        powers = np.subtract(scores, greatest, dtype=np.float64)
        np.exp(powers, out=powers)
        are_probabilities = (scores.min(axis=1, keepdims=True) >= 0) & (
            abs(scores.sum(axis=1, keepdims=True, dtype=np.float64) - 1) < 1e-3)
        best = np.where(are_probabilities, best,
                        np.exp(best - greatest) / powers.sum(axis=1, keepdims=True))
    what = "score" if independent else "probability"
    return [[{"class": index, "name": names[index] if names else None, what: value}
             for index, value in zip(indices, values, strict=True)]
            for indices, values in zip(order.tolist(), best.tolist(), strict=True)]


def _best_indices(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest numbers of each row, largest first.

    Of equal numbers the smaller index comes first, and NaN is less than any number.
    """
    if count > _MOST_SEARCHED or not np.isfinite(scores).all():
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    left = scores.copy()
    every = np.arange(len(scores))
    found = np.empty((len(scores), min(count, scores.shape[1])), np.intp)
    for rank in range(found.shape[1]):
        found[:, rank] = left.argmax(axis=1)
        left[every, found[:, rank]] = -np.inf
    return found


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the rank of each row's right class, as integers (rows,).

    The rank is the number of classes that best_classes() puts before the right class.

    scores: (rows, classes[, 1, 1]).
    right: (rows,) index of the right class of each row.
    """
    scores = scores.reshape(len(scores), -1)
    of_right = scores[np.arange(len(scores)), right][:, None]
    before = np.arange(scores.shape[1]) < right[:, None]
    # Comparisons with NaN are false. A class counts as better unless a comparison shows that it is
    # worse. A right class with a NaN score therefore has a bad rank.
    return (~(scores < of_right) & ~((scores == of_right) & ~before)).sum(axis=1)


def summary(output: np.ndarray) -> dict[str, Any]:
    """Return an output's shape, dtype, minimum and maximum.

    Minimum and maximum are None for booleans and for an output without elements.
    """
    has_numbers = output.size and output.dtype != np.bool_
    return {"shape": list(output.shape), "dtype": str(output.dtype),
            "min": output.min() if has_numbers else None,
            "max": output.max() if has_numbers else None}


def is_finite(output: np.ndarray) -> bool:
    """Return whether an output holds neither NaN nor infinity."""
    return not np.issubdtype(output.dtype, np.floating) or bool(np.isfinite(output).all())


def broken_rows(output: np.ndarray, rows: int) -> list[int]:
    """Return the rows of a floating-point output that hold NaN or infinity.

    The list is empty if the output does not have one row for each of the `rows` inputs.
    """
    if not output.ndim or len(output) != rows:
        return []
    finite = np.isfinite(output.reshape(len(output), -1)).all(axis=1)
    return np.flatnonzero(~finite).tolist()
