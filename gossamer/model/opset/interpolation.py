"""Computes the matrices that resize vectors with cubic or linear weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gossamer.resampling import between

_ARRAYS = 8
"""Number of arrays, each as large as the weights, that interpolation() has in memory at once."""


def interpolation(size: int, length: int, scale: float, rule: Mapping[str, Any]) -> np.ndarray:
    """Returns the float64 matrix (size, length) that resizes vectors of `size` elements to `length`
    elements by a product, as ONNX's Resize defines it.

    scale: ratio of output to input.
    rule: attributes of ONNX's Resize by name: "mode", which is "cubic" or "linear"; "coordinates",
    one of gossamer.resampling.COORDINATES; "antialias", whether weights reach further where a
    vector shrinks; "cubic_coefficient"; and "exclude_outside", whether positions outside of the
    vector get no weight, and the other weights are scaled to the sum 1. Without "exclude_outside",
    the first and the last element get the weights of the positions beyond them.
    """
    low, part = between(size, length, scale, rule["coordinates"])
    stretch, reach = _reach(scale, rule)
    taps = np.arange(-reach, reach + 2)
    elements = low[:, None] + taps
    distance = np.abs(part[:, None] - taps) * stretch
    weights = _cubic(distance, rule["cubic_coefficient"]) if rule["mode"] == "cubic" else (
        np.maximum(1 - distance, 0))
    if rule["exclude_outside"] or rule["antialias"]:
        if rule["exclude_outside"]:
            weights[(elements < 0) | (elements >= size)] = 0
        weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((size, length))
    np.add.at(matrix, (np.clip(elements, 0, size - 1), np.arange(length)[:, None]), weights)
    return matrix


def weights_while_computed(length: int, scale: float, rule: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns a shape by which callers check the memory that interpolation() needs: a float64 array
    of this shape is as large as all arrays that interpolation() holds at once, apart from the
    matrix that it returns."""
    return (_ARRAYS, length, 2 * _reach(scale, rule)[1] + 2)


def _reach(scale: float, rule: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the factor that distances are multiplied by, and the largest distance, in elements,
    at which an element may still have a weight."""
    stretch = min(scale, 1.0) if rule["antialias"] else 1.0
    return stretch, math.ceil((2 if rule["mode"] == "cubic" else 1) / stretch)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Returns the weights of the cubic convolution of R. G. Keys (1981) at distances from a
    position."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
