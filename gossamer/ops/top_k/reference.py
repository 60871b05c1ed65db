"""The reference of the greatest or smallest elements, which is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.top_k.problem import TopKProblem


def reference(problem: TopKProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    values, places = first_elements(inputs[0], problem.axis, problem.count, problem.largest)
    return [places] if problem.places_only else [values, places]


def first_elements(x: np.ndarray, axis: int, count: int, largest: bool
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` greatest elements along an axis in descending order, or the smallest in
    ascending order, and their indices as int64."""
    # the bitwise complement reverses the order of integers; negation would overflow at the smallest
    # integer
    key = (np.negative(x) if x.dtype.kind == "f" else np.invert(x)) if largest else x
    if count == 1 and not np.isnan(x).any():
        places = np.expand_dims(np.argmin(key, axis), axis)
    else:
        places = np.take(np.argsort(key, axis, kind="stable"), np.arange(count), axis)
    return np.take_along_axis(x, places, axis), places.astype(np.int64)
