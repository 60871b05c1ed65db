"""TensorSpec describes the shape, dtype and memory layout of a tensor; all modules use it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

ROW_MAJOR = "row"
"""The layout of a tensor of any rank whose last dimension is contiguous."""

_AXES = {
    "NCHW": (0, 1, 2, 3),
    "NHWC": (0, 2, 3, 1),
    "CHWN": (1, 2, 3, 0),
}
_PACKED_BITS = {"packed32": 32, "packed64": 64}

LAYOUTS = (ROW_MAJOR, *_AXES, *_PACKED_BITS)


@dataclass(frozen=True)
class TensorSpec:
    """The shape, dtype and memory layout of a tensor.

    shape: the logical shape. A rank-4 activation is always (N, C, H, W), whatever the layout.
    dtype: a NumPy dtype name, or "bits" for binary values packed along the channels.
    layout: "row", or for rank 4 "NCHW", "NHWC", "CHWN", "packed32", "packed64" (N(C/b)HWb).
    channel_multiple: number to a multiple of which memory rounds C up; the added channels are zero.
    border: (top, left, bottom, right) numbers of zeros that are stored round H and W.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ROW_MAJOR
    channel_multiple: int = 1
    border: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is none of {', '.join(LAYOUTS)}")
        if self.layout != ROW_MAJOR and len(self.shape) != 4:
            raise ValueError(f"layout {self.layout} needs 4 dimensions, got shape {self.shape}")
        if (self.dtype == "bits") != (self.layout in _PACKED_BITS):
            raise ValueError(f"dtype {self.dtype} does not go with layout {self.layout}: bits are "
                             f"packed, and nothing else is")
        if self.dtype != "bits":
            np.dtype(self.dtype)
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative size in shape {self.shape}")

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    def first(self, count: int) -> TensorSpec:
        """Returns the spec of the first `count` images; images are along the first dimension."""
        return replace(self, shape=(min(count, self.shape[0]), *self.shape[1:]))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory order with paddings, in words for a packed layout."""
        if self.layout == ROW_MAJOR:
            return self.shape
        n, c, h, w = self.shape
        top, left, bottom, right = self.border
        h, w = h + top + bottom, w + left + right
        if self.layout in _PACKED_BITS:
            return (n, math.ceil(c / _PACKED_BITS[self.layout]), h, w)
        padded = (n, math.ceil(c / self.channel_multiple) * self.channel_multiple, h, w)
        return tuple(padded[axis] for axis in _AXES[self.layout])

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype in memory; packed bits are unsigned words."""
        if self.dtype == "bits":
            return np.dtype(f"uint{_PACKED_BITS[self.layout]}")
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensor takes, with paddings."""
        return math.prod(self.stored_shape) * self.stored_dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in elements between neighbours along each logical dimension.
        Raises ValueError for a packed layout."""
        if self.layout in _PACKED_BITS:
            raise ValueError("a packed tensor has no element strides")
        stored = self.stored_shape
        steps = [math.prod(stored[i + 1 :]) for i in range(len(stored))]
        if self.layout == ROW_MAJOR:
            return tuple(steps)
        by_axis = dict(zip(_AXES[self.layout], steps, strict=True))
        return tuple(by_axis[axis] for axis in range(4))

    @property
    def offset(self) -> int:
        """Number of elements that precede logical index (0, 0, 0, 0): those of the border."""
        if self.border == (0, 0, 0, 0):
            return 0
        strides = self.strides
        return self.border[0] * strides[2] + self.border[1] * strides[3]

    def with_layout(self, layout: str) -> TensorSpec:
        """Returns the spec of the same tensor in another layout."""
        return replace(self, layout=layout)

    def same_memory(self, other: TensorSpec) -> bool:
        """Returns whether memory of this spec can be read as the other without moving a byte."""
        if self == other:
            return True
        if (self.size, self.stored_dtype) != (other.size, other.stored_dtype):
            return False
        if "bits" in (self.dtype, other.dtype) or self.shape != other.shape:
            return False
        if self.nbytes != other.nbytes or self.offset != other.offset:
            return False
        return all(
            mine == theirs
            for size, mine, theirs in zip(self.shape, self.strides, other.strides, strict=True)
            if size > 1
        )

    def __str__(self) -> str:
        layout = "" if self.layout == ROW_MAJOR else f" {self.layout}"
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}{layout}"


def to_memory(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns the contiguous array that stores a logical array in the spec's layout and dtype.
    Raises ValueError for a packed layout."""
    _not_packed(spec)
    array = np.asarray(array, dtype=spec.stored_dtype)
    if spec.layout == ROW_MAJOR:
        return np.ascontiguousarray(array)
    axes = _AXES[spec.layout]
    stored = np.zeros(spec.stored_shape, dtype=spec.stored_dtype)
    _logical_view(stored, spec)[...] = array.transpose(axes)
    return stored


def from_memory(stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns the logical array that memory of this spec holds, as a view where possible.
    Raises ValueError for a packed layout."""
    _not_packed(spec)
    stored = stored.reshape(spec.stored_shape)
    if spec.layout == ROW_MAJOR:
        return stored
    axes = _AXES[spec.layout]
    return _logical_view(stored, spec).transpose(np.argsort(axes))


def _not_packed(spec: TensorSpec) -> None:
    if spec.layout in _PACKED_BITS:
        raise ValueError(f"{spec} is packed: its words are not elements")


def _logical_view(stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    _, c, h, w = spec.shape
    top, left = spec.border[:2]
    bounds = (slice(None), slice(0, c), slice(top, top + h), slice(left, left + w))
    return stored[tuple(bounds[axis] for axis in _AXES[spec.layout])]


def default_spec(shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    """Returns the spec in which problems are stated: NCHW at rank 4, row-major otherwise."""
    return TensorSpec(tuple(shape), dtype, "NCHW" if len(shape) == 4 else ROW_MAJOR)
