"""Which elements of an axis the elements of the resized axis are made of, by the rules of ONNX's
Resize and of PyTorch. NumPy, the kernels' tables and the matrices of weights all follow it."""

from __future__ import annotations

import numpy as np

COORDINATES = ("asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
               "align_corners", "pytorch_nearest")
"""The rules that map positions on the resized axis to positions on the axis before. They have
ONNX's names but for the last: torch's mode "nearest" multiplies by the inverse of the scale, which
it rounds to float32."""
NEAREST_MODES = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def nearest(size: int, length: int, scale: float, coordinates: str,
            nearest_mode: str) -> np.ndarray:
    """Return for each element of the resized axis the element before that it copies.

    size, length: elements before and after.
    scale: ratio of length to size. Positions are exact where it is this ratio, as where a file
    states sizes. A scale of a file is a float32, and so are the positions that it gives.
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
    """Return for each element of the resized axis the last element before that is not beyond its
    position, and the distance of the position from this element. Elements may lie outside of the
    axis. Arguments as for `nearest`."""
    position, unit = _positions(size, length, scale, coordinates)
    low = position // unit
    return low.astype(np.int64), (position - low * unit) / unit


def _positions(size: int, length: int, scale: float,
               coordinates: str) -> tuple[np.ndarray, int]:
    """Return the position of each element of the resized axis on the axis before, in units of
    1 / the returned number."""
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
        position = (x.astype(np.float32) + half) / ratio - half
    if coordinates == "half_pixel_symmetric":
        position += half * (np.float32(size) - np.float32(length) / ratio)
    return position.astype(np.float64), 1
