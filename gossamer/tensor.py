"""Memory formats of tensors, and conversions to and from logical arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossamer.hashed_once import HashedOnce

ROW_MAJOR = "row"
"""The layout of a tensor of any rank whose last dimension is contiguous."""

AXES = {
    "NCHW": (0, 1, 2, 3),
    "NHWC": (0, 2, 3, 1),
    "CHWN": (1, 2, 3, 0),
}
"""The layouts of rank-4 tensors: logical axes in memory order, outermost first."""

BFLOAT16 = "bfloat16"
"""The dtype bfloat16, the upper 16 bits of a float32. NumPy lacks it: arrays store uint16."""

_WORD_BITS = {"packed32": 32, "packed64": 64}
"""Number of bits of a word in each packed layout."""


@dataclass(frozen=True)
class PackedDtype:
    """A dtype of a few bits per value, packed along the channels.

    The bits of padding channels are 0.

    values: all values that the dtype can represent.
    planes: number of bits of a value.
    bits: function that returns the bits of logical values along a new last axis of length `planes`.
    numbers: function that returns the float32 values of such bits.
    """

    values: tuple[float, ...]
    planes: int
    bits: Callable[[np.ndarray], np.ndarray]
    numbers: Callable[[np.ndarray], np.ndarray]


PACKED_DTYPES = {
    "bits": PackedDtype(
        (-1.0, 1.0), 1, lambda values: (values > 0)[..., None],
        lambda bits: np.where(bits[..., 0], np.float32(1), np.float32(-1))),
    "trits": PackedDtype(
        (-1.0, 0.0, 1.0), 2, lambda values: np.stack([values != 0, values > 0], axis=-1),
        lambda bits: np.where(bits[..., 0], np.where(bits[..., 1], np.float32(1), np.float32(-1)),
                              np.float32(0))),
}
"""The packed dtypes by name.

A value of "bits" is one bit, which is set for the value 1 and clear for -1. A value of "trits" is
two bits: the first is set for nonzero values, the second for 1.
"""


@dataclass(frozen=True)
class Format(HashedOnce):
    """The memory format of a tensor, independent of its shape.

    layout: "row"; for rank 4 also "NCHW", "NHWC" or "CHWN"; for packed dtypes "packed32" or
    "packed64". Packed tensors are stored as N(C/b)HWb: each b-bit word contains one bit of each of
    b channels, and the words of several bit planes are adjacent. A matrix (N, C) is packed as N
    images of one pixel.
    dtype: a NumPy dtype name, BFLOAT16, or one of PACKED_DTYPES.
    channel_multiple: C is rounded up in memory to a multiple of this number; added channels are 0.
    border: numbers of rows and columns of zeros stored around each image (top, left, bottom,
    right); for a packed dtype, these are words with all bits 0.
    other_channels: for a slice of a larger NHWC tensor, the numbers of channels of other tensors
    before and after this tensor's channels in each pixel; (0, 0) for any other tensor.
    """

    layout: str = ROW_MAJOR
    dtype: str = "float32"
    channel_multiple: int = 1
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    other_channels: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        layouts = (ROW_MAJOR, *AXES, *_WORD_BITS)
        if self.layout not in layouts:
            raise ValueError(f"layout {self.layout!r} is none of {', '.join(layouts)}")
        if self.is_packed != (self.layout in _WORD_BITS):
            raise ValueError(f"dtype {self.dtype} with layout {self.layout}: expected a packed "
                             f"layout for {' and '.join(PACKED_DTYPES)}, and only for these")
        if not self.is_packed and self.dtype != BFLOAT16:
            np.dtype(self.dtype)
        if self.channel_multiple < 1 or min(self.border) < 0:
            raise ValueError(f"channel_multiple {self.channel_multiple} and border {self.border}: "
                             "expected a multiple of 1 or more, and a border of 0 or more")
        if self.layout == ROW_MAJOR and (self.channel_multiple, *self.border) != (1, 0, 0, 0, 0):
            raise ValueError(f"layout {ROW_MAJOR!r} has no paddings, got channel_multiple "
                             f"{self.channel_multiple} and border {self.border}")
        if any(self.other_channels) and (self.layout != "NHWC" or self.channel_multiple > 1
                                         or min(self.other_channels) < 0):
            raise ValueError(f"other_channels {self.other_channels}: expected layout NHWC with "
                             "channel_multiple 1, and numbers of 0 or more")

    @property
    def is_packed(self) -> bool:
        """Whether the dtype is packed: memory then stores words instead of elements."""
        return self.dtype in PACKED_DTYPES

    @property
    def images_are_apart(self) -> bool:
        """Whether each image is contiguous in memory."""
        return self.layout not in AXES or AXES[self.layout][0] == 0

    @functools.cached_property
    def stored_dtype(self) -> np.dtype:
        """The dtype in memory; packed values are stored in unsigned words."""
        if self.dtype == BFLOAT16:
            return np.dtype("uint16")
        return np.dtype(f"uint{_WORD_BITS[self.layout]}" if self.is_packed else self.dtype)

    @functools.cached_property
    def logical_dtype(self) -> np.dtype:
        """The dtype of logical arrays; packed values and bfloat16 values are float32."""
        return np.dtype("float32" if self.is_packed or self.dtype == BFLOAT16 else self.dtype)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in memory order, in words for a packed layout.

        The shape includes padding, borders and the channels of other tensors.
        """
        if self.layout == ROW_MAJOR:
            return shape
        n, c, h, w = image_shape(shape)
        top, left, bottom, right = self.border
        h, w = h + top + bottom, w + left + right
        if self.is_packed:
            bits = _WORD_BITS[self.layout]
            words = rounded_up(c, math.lcm(bits, self.channel_multiple)) // bits
            planes = PACKED_DTYPES[self.dtype].planes
            return (n, words, h, w) if planes == 1 else (n, words, h, w, planes)
        padded = (n, rounded_up(c, self.channel_multiple) + sum(self.other_channels), h, w)
        return tuple(padded[axis] for axis in AXES[self.layout])

    def holds(self, values: np.ndarray) -> bool:
        """Return whether the dtype can represent these values, ignoring float rounding."""
        return not self.is_packed or bool(np.isin(values, PACKED_DTYPES[self.dtype].values).all())

    def differences(self, other: Format) -> list[str]:
        """Return the properties that differ from another format, for messages."""
        return [text for text, mine, theirs in (
            (self.layout, self.layout, other.layout),
            (self.dtype, self.dtype, other.dtype),
            (f"c{self.channel_multiple}", self.channel_multiple, other.channel_multiple),
            (f"b{','.join(map(str, self.border))}", self.border, other.border),
            (f"o{','.join(map(str, self.other_channels))}", self.other_channels,
             other.other_channels)) if mine != theirs]

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        """The text that identifies the format.

        Examples are 'NCHW', and 'NHWC float16 c8 b1,1,1,1' for channels rounded up to a multiple
        of 8 and a border of 1.
        """
        return " ".join([self.layout, *self.differences(Format(self.layout, "float32"))]
                        if not self.is_packed else
                        [self.layout, self.dtype,
                         *self.differences(Format(self.layout, self.dtype))])


@functools.lru_cache(maxsize=1024)
def _changed(format: Format, changes: tuple[tuple[str, Any], ...]) -> Format:
    """Return the format with some fields changed.

    Equal results are the same object, so that their cached properties are computed only once.
    """
    return replace(format, **dict(changes))


@dataclass(frozen=True)
class TensorSpec(HashedOnce):
    """The shape and the memory format of a tensor.

    shape: the logical shape. A rank-4 activation is always (N, C, H, W), whatever the layout.
    """

    shape: tuple[int, ...]
    format: Format = field(default_factory=Format)

    def __post_init__(self) -> None:
        ranks = (2, 4) if self.format.is_packed else (4,)
        if self.layout != ROW_MAJOR and len(self.shape) not in ranks:
            raise ValueError(f"layout {self.layout} needs {' or '.join(map(str, ranks))} "
                             f"dimensions, got shape {self.shape}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative size in shape {self.shape}")

    @property
    def layout(self) -> str:
        """The layout of the format."""
        return self.format.layout

    @property
    def dtype(self) -> str:
        """The dtype of the format."""
        return self.format.dtype

    @functools.cached_property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    def first(self, count: int) -> TensorSpec:
        """Return the spec of the first `count` images (first dimension)."""
        return replace(self, shape=(min(count, self.shape[0]), *self.shape[1:]))

    @functools.cached_property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory; see `Format.stored_shape`."""
        return self.format.stored_shape(self.shape)

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype in memory; packed values are stored in unsigned words."""
        return self.format.stored_dtype

    @property
    def logical_dtype(self) -> np.dtype:
        """The dtype of logical arrays; packed and bfloat16 values are float32."""
        return self.format.logical_dtype

    @functools.cached_property
    def nbytes(self) -> int:
        """Size in bytes, including padding.

        For a slice of a larger tensor, this is the size of the larger tensor.
        """
        return math.prod(self.stored_shape) * self.stored_dtype.itemsize

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements along each logical dimension.

        Raises ValueError for a packed layout.
        """
        if self.format.is_packed:
            raise ValueError("a packed tensor has no element strides")
        stored = self.stored_shape
        steps = [math.prod(stored[i + 1 :]) for i in range(len(stored))]
        if self.layout == ROW_MAJOR:
            return tuple(steps)
        by_axis = dict(zip(AXES[self.layout], steps, strict=True))
        return tuple(by_axis[axis] for axis in range(4))

    @property
    def offset(self) -> int:
        """Number of elements before logical index (0, 0, 0, 0).

        These elements belong to the border and to other tensors.
        """
        top, left = self.format.border[:2]
        before = self.format.other_channels[0]
        if (top, left, before) == (0, 0, 0):
            return 0
        strides = self.strides
        return before + top * strides[2] + left * strides[3]

    def with_format(self, **changes: object) -> TensorSpec:
        """Return the same spec with some fields of the format replaced."""
        return TensorSpec(self.shape, _changed(self.format, tuple(changes.items())))

    def same_memory(self, other: TensorSpec) -> bool:
        """Return whether both specs describe the same memory layout of the tensor."""
        if self == other:
            return True
        if self.format.is_packed or other.format.is_packed or self.shape != other.shape:
            return False
        if (self.nbytes, self.stored_dtype) != (other.nbytes, other.stored_dtype):
            return False
        if self.offset != other.offset:
            return False
        return all(
            mine == theirs
            for size, mine, theirs in zip(self.shape, self.strides, other.strides, strict=True)
            if size > 1
        )

    @property
    def is_default(self) -> bool:
        """Whether the memory layout equals that of the default format."""
        return not self.format.is_packed and self.same_memory(default_spec(self.shape, self.dtype))

    def __str__(self) -> str:
        layout = "" if self.layout == ROW_MAJOR else f" {self.layout}"
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}{layout}"


def pack(array: np.ndarray, spec: TensorSpec, *, check: bool = True) -> np.ndarray:
    """Return a logical array as a contiguous array in the spec's format.

    check: whether to raise ValueError for a value that a packed dtype cannot represent. If not, an
    arbitrary value is stored instead.
    """
    if spec.format.is_packed:
        if check and not spec.format.holds(array):
            values = ", ".join(f"{value:g}" for value in PACKED_DTYPES[spec.dtype].values)
            raise ValueError(f"dtype {spec.dtype} holds only the values {values}")
        return _pack_words(array, spec)
    array = (bfloat16_bits(array) if spec.dtype == BFLOAT16
             else np.asarray(array, dtype=spec.stored_dtype))
    if spec.layout == ROW_MAJOR:
        return np.ascontiguousarray(array)
    stored = np.zeros(spec.stored_shape, dtype=spec.stored_dtype)
    logical_view(stored, spec)[...] = array
    return stored


def unpack(stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return the logical array of a stored array, as a view where possible.

    Packed and bfloat16 values become float32.
    """
    stored = stored.reshape(spec.stored_shape)
    if spec.dtype == BFLOAT16:
        return of_bfloat16_bits(logical_view(stored, spec))
    return _unpack_words(stored, spec) if spec.format.is_packed else logical_view(stored, spec)


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Return each number rounded to bfloat16, as uint16 bits; NaN stays NaN."""
    numbers = np.ascontiguousarray(array, np.float32).reshape(np.shape(array))
    bits = numbers.view(np.uint32)
    # round to nearest, ties to even: add just under half a unit of the last kept bit, plus 1 if
    # that bit is set
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, nearest).astype(np.uint16)


def of_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """Convert bfloat16 bits to float32 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def held(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return a logical float array with its values rounded to the spec's dtype."""
    if spec.dtype == BFLOAT16:
        return of_bfloat16_bits(bfloat16_bits(array))
    return array.astype(spec.logical_dtype, copy=False)


def logical_view(stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """View a stored array as the logical array, without padding.

    The view is writable. bfloat16 numbers are uint16 bits. Raises ValueError for a packed layout,
    because its words are not elements.
    """
    if spec.format.is_packed:
        raise ValueError(f"{spec} is packed: its words are not elements")
    stored = stored.reshape(spec.stored_shape)
    if spec.layout == ROW_MAJOR:
        return stored
    _, c, h, w = spec.shape
    top, left = spec.format.border[:2]
    before = spec.format.other_channels[0]
    bounds = (slice(None), slice(before, before + c), slice(top, top + h), slice(left, left + w))
    axes = AXES[spec.layout]
    return stored[tuple(bounds[axis] for axis in axes)].transpose(np.argsort(axes))


def _pack_words(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    n, words, h, w, planes = _word_shape(spec)
    _, c, height, width = image_shape(spec.shape)
    top, left = spec.format.border[:2]
    word_bits = _WORD_BITS[spec.layout]
    bits = np.zeros((n, words * word_bits, h, w, planes), bool)
    bits[:, :c, top:top + height, left:left + width] = PACKED_DTYPES[spec.dtype].bits(
        np.asarray(array).reshape(image_shape(spec.shape)))
    # the first channel is the lowest bit of its word
    by_word = bits.reshape(n, words, word_bits, h, w, planes).transpose(0, 1, 3, 4, 5, 2)
    by_byte = np.packbits(np.ascontiguousarray(by_word), axis=-1, bitorder="little")
    stored = by_byte.view(spec.stored_dtype.newbyteorder("<")).astype(spec.stored_dtype)
    return stored.reshape(spec.stored_shape)


def _unpack_words(stored: np.ndarray, spec: TensorSpec) -> np.ndarray:
    n, words, h, w, planes = _word_shape(spec)
    _, c, height, width = image_shape(spec.shape)
    top, left = spec.format.border[:2]
    word_bits = _WORD_BITS[spec.layout]
    by_byte = np.ascontiguousarray(stored.reshape(n, words, h, w, planes, 1).astype(
        spec.stored_dtype.newbyteorder("<"))).view(np.uint8)
    bits = np.unpackbits(by_byte, axis=-1, bitorder="little").astype(bool)
    channels = bits.transpose(0, 1, 5, 2, 3, 4).reshape(n, words * word_bits, h, w, planes)
    return PACKED_DTYPES[spec.dtype].numbers(
        channels[:, :c, top:top + height, left:left + width]).reshape(spec.shape)


def _word_shape(spec: TensorSpec) -> tuple[int, int, int, int, int]:
    n, words, h, w, *planes = spec.stored_shape
    return n, words, h, w, planes[0] if planes else 1


def rounded_up(number: int, multiple: int) -> int:
    """Round a number up to a multiple."""
    return -(-number // multiple) * multiple


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the shape (N, C, H, W); a matrix has images of one pixel."""
    n, c, h, w = shape if len(shape) == 4 else (*shape, 1, 1)
    return n, c, h, w


def default_format(shape: tuple[int, ...], dtype: str = "float32") -> Format:
    """Return the default format: NCHW for rank 4, otherwise row-major."""
    return _of_layout("NCHW" if len(shape) == 4 else ROW_MAJOR, dtype)


@functools.lru_cache(maxsize=256)
def _of_layout(layout: str, dtype: str) -> Format:
    return Format(layout, dtype)


def default_spec(shape: Sequence[int], dtype: str = "float32") -> TensorSpec:
    """Return the spec of a tensor in the default format."""
    return _default_spec(tuple(map(int, shape)), dtype)


@functools.lru_cache(maxsize=4096)
def _default_spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape, default_format(shape, dtype))


@functools.lru_cache(maxsize=4096)
def memory_format(spec: TensorSpec) -> Format:
    """Return the canonical format among those with the same memory layout.

    For example, CHWN and NCHW are identical in memory for one image. If the default format has the
    same memory layout, it is the canonical one. A packed format is returned unchanged.
    """
    own = spec.format
    if own.is_packed:
        return own
    if spec.is_default:
        return default_format(spec.shape, spec.dtype)
    channels, stored = spec.shape[1], rounded_up(spec.shape[1], own.channel_multiple)
    multiple = 1 if stored == channels else stored & -stored
    return next((other for layout in AXES
                 if (other := _format_or_none(own, layout, multiple)) is not None
                 and spec.same_memory(TensorSpec(spec.shape, other))), own)


def _format_or_none(own: Format, layout: str, multiple: int) -> Format | None:
    """Return the format with another layout and channel multiple.

    Returns None if the format contains channels of other tensors, because these fix the layout and
    the channel multiple.
    """
    if any(own.other_channels) and (layout, multiple) != (own.layout, own.channel_multiple):
        return None
    return replace(own, layout=layout, channel_multiple=multiple)
