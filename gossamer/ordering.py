"""The sort order of elements along an axis, including NaN and equal elements."""

from __future__ import annotations

import numpy as np


def first_places(x: np.ndarray, axis: int, count: int, *, largest: bool, nan_first: bool,
                 last: bool = False) -> np.ndarray:
    """Return the int64 indices of the first `count` elements in sort order.

    largest: whether the order is descending. If not, the order is ascending.
    nan_first: whether NaN comes before all numbers. If not, NaN comes after all numbers.
    last: whether equal elements, and NaNs, are in descending order of their indices. If not, they
    are in ascending order of their indices.
    """
    length = x.shape[axis]
    if last:
        x = np.flip(x, axis)
    # The bitwise complement reverses the order of integers. So does negation, but it would overflow
    # for the smallest integer.
    key = (np.negative(x) if x.dtype.kind == "f" else np.invert(x)) if largest else x
    is_nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros((), bool)
    if count == 1 and (nan_first or not is_nan.any()):
        places = np.expand_dims(np.argmin(key, axis), axis)
    elif nan_first and is_nan.any():
        places = np.lexsort((key, ~is_nan), axis)
    else:
        places = np.argsort(key, axis, kind="stable")
    places = np.take(places, np.arange(count), axis).astype(np.int64)
    return length - 1 - places if last else places
