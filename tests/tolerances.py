"""Every tolerance of the tests. Floats are judged by normalised error against a float64
reference; integers and bits must be equal."""

from __future__ import annotations

import numpy as np

from gossamer.accuracy import LARGEST_ERROR

FLOAT32 = LARGEST_ERROR["fp32"]
"""The tolerance of every op without its own entry."""

BY_OP: dict[str, float] = {
    "conv2d": FLOAT32,
    "conv_transpose2d": FLOAT32,
    "gemm": FLOAT32,
    "matmul": FLOAT32,
    "batch_norm": FLOAT32,
    "elementwise": FLOAT32,
    "pool": FLOAT32,
    "reduce": FLOAT32,
    "resize": FLOAT32,
    "softmax": FLOAT32,
    "network": FLOAT32,
}

WHOLE_NETWORK = {"fp32": 1e-4, "tf32": 2e-3, "fp16": 2e-3}
"""The errors of whole networks that are allowed however exact another library is."""

WORSE_THAN_OTHERS = 2
"""How many times as far from float64 as another evaluation in the same precision a whole network's
result may be."""


def tolerance(op: str, precision: str = "fp32") -> float:
    """Returns the largest normalised error that is allowed for the float results of an op."""
    return BY_OP.get(op, FLOAT32) if precision == "fp32" else LARGEST_ERROR[precision]


def normalised_error(y: np.ndarray, reference: np.ndarray) -> float:
    """Returns the largest relative error of an image (first dimension): |y - r| / |r| in 2-norms.

    It is 0 for an empty array, |y| where the reference of an image is zero, and infinite where a
    number that is not finite differs.
    """
    y, reference = np.asarray(y, np.float64), np.asarray(reference, np.float64)
    if y.shape != reference.shape:
        raise AssertionError(f"shape {y.shape} where the reference has {reference.shape}")
    if reference.size == 0:
        return 0.0
    images = reference.shape[0] if reference.ndim > 1 else 1
    y, reference = y.reshape(images, -1), reference.reshape(images, -1)
    finite = np.isfinite(reference)
    if not np.array_equal(y[~finite], reference[~finite], equal_nan=True):
        return float("inf")
    y, reference = np.where(finite, y, 0), np.where(finite, reference, 0)
    difference = np.linalg.norm(y - reference, axis=1)
    size = np.linalg.norm(reference, axis=1)
    error = np.where(size > 0, difference / np.where(size > 0, size, 1), difference)
    return float("inf") if np.isnan(error).any() else float(error.max())
