"""Source indices of resized axes, by the rules of ONNX's Resize and of PyTorch.

The NumPy reference, the tables of kernels and the weight matrices all use this module.
"""

from __future__ import annotations

import numpy as np

COORDINATES = ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
               "align_corners", "pytorch_nearest")
"""The rules that map positions on the resized axis to positions on the original axis.

The names are ONNX's, except "pytorch_nearest". This is the rule of PyTorch's mode "nearest", which
multiplies by 1 / scale, rounded to float32.
"""
NEAREST_MODES = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def nearest(size: int, length: int, scale: float, coordinates: str,
            nearest_mode: str) -> np.ndarray:
    """Return the index of the original element for each resized element.

    size, length: numbers of elements of the original and of the resized axis.
    scale: the scale in the file, or length / size if the file states a size. With a scale from the
    file, positions are computed in float32, the dtype of the scale; with length / size, they are
    exact.
    """
    position, unit = _positions(size, length, scale, coordinates)
    if nearest_mode == "floor":
        rounded = position // unit
    elif nearest_mode == "ceil":
        rounded = -(-position // unit)
    elif nearest_mode == "round_prefer_floor":
        rounded = -((unit - 2 * position) // (2 * unit))
    else:
        rounded = (2 * position + unit) // (2 * unit)
    return np.clip(rounded, 0, size - 1).astype(np.int32)


def between(size: int, length: int, scale: float,
            coordinates: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower source index of each resized element, and the distance to it.

    Each element of the resized axis has a position on the original axis. The index is the floor of
    this position, and may be out of range. The distance is the position minus the index, in
    [0, 1). For the arguments see `nearest`.
    """
    position, unit = _positions(size, length, scale, coordinates)
    low = position // unit
    return low.astype(np.int64), (position - low * unit) / unit


def _positions(size: int, length: int, scale: float,
               coordinates: str) -> tuple[np.ndarray, int]:
    """Return the positions on the original axis as numerators and one denominator."""
    if coordinates == "pytorch_nearest":
        inverse = np.float32(1 / scale)
        return (np.arange(length, dtype=np.float32) * inverse).astype(np.float64), 1
    x = np.arange(length, dtype=np.int64)
    if length == 1 and coordinates in ("align_corners", "pytorch_half_pixel"):
        return np.zeros_like(x), 1
    if coordinates == "align_corners":
        return x * (size - 1), length - 1
    if size and scale == length / size:
        if coordinates == "asymmetric":
            return x * size, length
        return (2 * x + 1) * size - length, 2 * length
    ratio, half = np.float32(scale), np.float32(0.5)
    if coordinates == "asymmetric":
        position = x.astype(np.float32) / ratio
    else:
        position = (x.astype(np.float32) + half) / ratio
        if coordinates == "half_pixel_symmetric":
            covered = np.float32(length) / (ratio * np.float32(size))
            position += half * np.float32(size) * (1 - covered)
        position -= half
    return position.astype(np.float64), 1
