"""Errors of results relative to float64 references, and their limits."""

from __future__ import annotations

import math

import numpy as np

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3}
"""The largest accepted normalised error of each precision.

The limits allow for the 11-bit significands of TF32 products and of stored fp16 results. Results
that are integers or bits must equal the reference.
"""


def normalised_error(y: np.ndarray, expected: np.ndarray, images: int | None = None) -> float:
    """Return the largest relative error over all images.

    The error of an image is |y - expected| / |expected| in 2-norms, or |y| if the expected image
    is zero. The result is infinite if a NaN or infinity occurs in only one of the arrays, or at
    different positions.

    images: number of images, stored one after another. By default each row is an image, and a
    one-dimensional array is one image.
    Raises ValueError if the shapes differ.
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
