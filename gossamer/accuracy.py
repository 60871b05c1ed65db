"""How far a result may be from its float64 reference, and how that is measured."""

from __future__ import annotations

import math

import numpy as np

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3}
"""The largest normalised error of right results, by precision: tf32 multiplies significands of 11
bits, and fp16 stores results of as many. Integers and bits must be equal."""


def normalised_error(y: np.ndarray, expected: np.ndarray, images: int | None = None) -> float:
    """The largest, over the images, of |y - expected| / |expected| in 2-norms; of |y| itself
    where an image's is 0; infinite where a number of one is not finite and the other's is not
    the same.

    images: that lie one after another; None: one in each row, or a single one of one dimension.
    Raises ValueError where the shapes differ.
    """
    if y.shape != expected.shape:
        raise ValueError(f"the output has shape {y.shape}, expected {expected.shape}")
    if not y.size:
        return 0.0
    if images is None:
        images = len(y) if y.ndim > 1 else 1
    y, expected = (each.astype(np.float64).reshape(images, -1) for each in (y, expected))
    finite = np.isfinite(expected)
    if not (np.array_equal(y[~finite], expected[~finite], equal_nan=True)
            and np.isfinite(y[finite]).all()):
        return math.inf
    y, expected = np.where(finite, y, 0.0), np.where(finite, expected, 0.0)
    difference, size = (np.linalg.norm(each, axis=1) for each in (y - expected, expected))
    return float((difference / np.where(size > 0, size, 1.0)).max())
