"""The error of a result compared with its float64 reference, and the largest accepted errors."""

from __future__ import annotations

import math

import numpy as np

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3}
"""The largest accepted normalised error of each precision. Significands have 11 bits in the
products of tf32, and in the stored results of fp16. Integers and bits must equal the reference."""


def normalised_error(y: np.ndarray, expected: np.ndarray, images: int | None = None) -> float:
    """Return the largest relative error of an image: |y - expected| / |expected| in 2-norms.

    The error of an image is |y| where the expected image is zero. The result is infinite where
    either has a NaN or infinity that the other does not have at the same place.

    images: number of images, which lie one after another. By default each row is an image, and an
    array of one dimension is one image.
    Raises ValueError where the shapes differ.
    """
    if y.shape != expected.shape:
        raise ValueError(f"the output has shape {y.shape}, expected {expected.shape}")
    if not y.size:
        return 0.0
    if images is None:
        images = len(y) if y.ndim > 1 else 1
    y, expected = (array.astype(np.float64).reshape(images, -1) for array in (y, expected))
    finite = np.isfinite(expected)
    if not (np.array_equal(y[~finite], expected[~finite], equal_nan=True)
            and np.isfinite(y[finite]).all()):
        return math.inf
    y, expected = np.where(finite, y, 0.0), np.where(finite, expected, 0.0)
    difference, size = (np.linalg.norm(array, axis=1) for array in (y - expected, expected))
    return float((difference / np.where(size > 0, size, 1.0)).max())
