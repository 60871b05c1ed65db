"""InputFormat: the format in which callers pass an input, and how its values are normalised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gossamer.errors import InputError, check_choice, quoted
from gossamer.model.metadata import ModelMetadata
from gossamer.tensor import (
    AXES,
    BFLOAT16,
    ROW_MAJOR,
    Format,
    bfloat16_bits,
    of_bfloat16_bits,
)

if TYPE_CHECKING:
    from gossamer.io.images import Preprocessing

_Dimension = TypeVar("_Dimension", int | None, str)

DTYPES = ("float32", "float16", BFLOAT16, "uint8")
"""The dtypes in which inputs are accepted."""
LAYOUTS = ("NCHW", "NHWC")
"""The orders of the axes in which images are accepted."""


@dataclass(frozen=True)
class InputFormat:
    """The format in which a plan accepts an input.

    The network's input is `(x * scale - mean) / std` for the values x that the caller passes. The
    device computes this expression in the first layer's kernel where possible, else in a separate
    kernel.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16", "uint8"}, default "float32"
        The dtype of the arrays that callers pass. An array of bfloat16 may also be a uint16 array
        with the same bits, because NumPy has no bfloat16.
    layout : {"NCHW", "NHWC"}, default "NCHW"
        The order of the axes of an input with four axes: (N, channels, height, width) or
        (N, height, width, channels), the order of decoded photos.
    scale, mean, std : float or sequence of float, default 1, 0 and 1
        One number, or one per channel in the network's order of channels.

    Raises
    ------
    InputError
        If the dtype or layout is unknown, a number is not finite, or scale or std is 0.
    """

    dtype: str = "float32"
    layout: str = "NCHW"
    scale: float | Sequence[float] = 1.0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        """Check the fields, and turn the numbers into tuples."""
        for name, known in (("dtype", DTYPES), ("layout", LAYOUTS)):
            check_choice(name, getattr(self, name), known)
        for name in ("scale", "mean", "std"):
            numbers = _numbers(name, getattr(self, name))
            if name != "mean" and 0.0 in numbers:
                raise InputError(f"{name} {_text(numbers)}: expected numbers other than 0")
            object.__setattr__(self, name, numbers)
        counts = {name: len(self._parameter(name)) for name in ("scale", "mean", "std")
                  if len(self._parameter(name)) > 1}
        if len(set(counts.values())) > 1:
            raise InputError(" and ".join(f"{name} has {count} numbers"
                                          for name, count in counts.items())
                             + "; expected one number, or as many as the input has channels")
        if not np.isfinite([*self.factors, *self.shifts]).all():
            scale, mean, std = (_text(self._parameter(name)) for name in ("scale", "mean", "std"))
            raise InputError(f"scale {scale}, mean {mean} and std {std}: their quotients are too "
                             "large for float32")

    @classmethod
    def from_metadata(cls, source: ModelMetadata | Preprocessing | Mapping[str, Any], *,
                      dtype: str = "uint8", layout: str = "NHWC") -> InputFormat:
        """Create the format that normalises photos for a network.

        Parameters
        ----------
        source : ModelMetadata, Preprocessing or mapping
            The metadata of a graph from `gossamer.load`; or the `preprocessing` of such metadata;
            or the mapping that `timm.data.resolve_data_config` returns, whose mean and std are for
            values from 0 to 1.
        dtype, layout : str
            As for InputFormat; by default the dtype and layout of decoded photos. The channels have
            the network's order, which may be BGR.

        Returns
        -------
        InputFormat
            The format of photos with values from 0 to 255.

        Raises
        ------
        InputError
            If the source does not say how photos are prepared, or says that photos are rounded.
        """
        if isinstance(source, Mapping):
            if "mean" not in source or "std" not in source:
                raise InputError("the data config has no mean and std; expected the mapping that "
                                 "timm.data.resolve_data_config returns")
            return cls(dtype, layout, 1 / 255, source["mean"], source["std"])
        preprocessing = source.preprocessing if isinstance(source, ModelMetadata) else source
        if preprocessing is None:
            raise InputError("the network does not say how photos are prepared for it; pass "
                             "InputFormat('uint8', 'NHWC', scale=, mean=, std=)")
        if preprocessing.rounding != "none":
            raise InputError(f"this network needs photos rounded to {preprocessing.rounding}, "
                             "which InputFormat does not support; pass prepared photos, without "
                             "`inputs`")
        return cls(dtype, layout, preprocessing.scale, preprocessing.mean, preprocessing.std)

    @cached_property
    def factors(self) -> tuple[float, ...]:
        """The factor of each channel, in float32; a single number if all factors are equal."""
        return self._float32(lambda scale, mean, std: scale / std)

    @cached_property
    def shifts(self) -> tuple[float, ...]:
        """The offset of each channel, in float32; a single number if all offsets are equal.

        An offset is added after the multiplication by the channel's factor.
        """
        return self._float32(lambda scale, mean, std: -mean / std)

    @property
    def changes_values(self) -> bool:
        """Whether normalisation changes the values that callers pass."""
        return self.factors != (1.0,) or self.shifts != (0.0,)

    @property
    def is_default(self) -> bool:
        """Whether the network accepts arrays of this format without a conversion."""
        return (self.dtype, self.layout) == ("float32", "NCHW") and not self.changes_values

    @property
    def array_dtype(self) -> str:
        """The NumPy dtype of the arrays that callers pass."""
        return "uint16" if self.dtype == BFLOAT16 else self.dtype

    def format(self, rank: int) -> Format:
        """Return the format of an input of `rank` dimensions in callers' memory."""
        return Format(self.layout if rank == 4 else ROW_MAJOR, self.dtype)

    def ordered(self, dimensions: Sequence[_Dimension]) -> tuple[_Dimension, ...]:
        """Reorder entries, one per dimension, from the network's axes to those of callers' arrays.

        dimensions: entries such as sizes, in the order of the network's axes.
        """
        if len(dimensions) != 4:
            return tuple(dimensions)
        return tuple(dimensions[axis] for axis in AXES[self.layout])

    def as_network_takes(self, array: np.ndarray) -> np.ndarray:
        """Return the network's float32 input for an array that a caller passes."""
        x = np.asarray(array)
        if self.dtype == BFLOAT16 and x.dtype == np.uint16:
            x = of_bfloat16_bits(x)
        x = x.astype(np.float32, copy=False)
        if x.ndim == 4:
            x = x.transpose(np.argsort(AXES[self.layout]))
        if self.changes_values:
            factors, shifts = (np.asarray(numbers, np.float32).reshape(
                (-1, *(1,) * max(x.ndim - 2, 0)) if len(numbers) > 1 else ())
                for numbers in (self.factors, self.shifts))
            x = x * factors + shifts
        return np.ascontiguousarray(x)

    def arranged(self, array: np.ndarray) -> np.ndarray:
        """Return an array in the format's dtype and layout, without normalising it.

        array: images (N, C, H, W), or an array of another rank.
        """
        if array.ndim == 4:
            array = array.transpose(AXES[self.layout])
        if self.dtype == BFLOAT16:
            return bfloat16_bits(array)
        return np.ascontiguousarray(array, self.dtype)

    def check(self, name: str, shape: Sequence[int | None], dtype: str) -> None:
        """Raise InputError unless an input with this name, shape and dtype can have this format."""
        if dtype != "float32":
            raise InputError(f"inputs: input {quoted(name)} is {dtype}, and only float32 inputs, "
                             "such as images, can have a format; do not set its format")
        counts = {name: len(self._parameter(name)) for name in ("scale", "mean", "std")}
        if len(shape) != 4 and (max(counts.values()) > 1 or self.layout != "NCHW"):
            what = f"layout {self.layout}" if self.layout != "NCHW" else "one number per channel"
            raise InputError(f"inputs: input {quoted(name)} has {len(shape)} dimensions; a format "
                             f"with {what} needs an input of 4 dimensions")
        for option, count in counts.items():
            if count > 1 and count != shape[1]:
                raise InputError(f"inputs: {option} has {count} numbers, input {quoted(name)} has "
                                 f"{shape[1]} channels; expected 1 or {shape[1]}")

    def __str__(self) -> str:
        """Return the dtype, and the layout, scale, mean and std that differ from the defaults."""
        parts = [self.dtype, *([self.layout] if self.layout != "NCHW" else [])]
        for name, neutral in (("scale", (1.0,)), ("mean", (0.0,)), ("std", (1.0,))):
            if (numbers := self._parameter(name)) != neutral:
                parts.append(f"{name} {_text(numbers)}")
        return " ".join(parts)

    def _parameter(self, name: str) -> tuple[float, ...]:
        """Return scale, mean or std, which __post_init__ turned into a tuple."""
        return tuple(getattr(self, name))

    def _float32(self, function: Any) -> tuple[float, ...]:
        """Return the float32 results of a function of scale, mean and std.

        The function is computed in float64. A single number is returned if all results are equal.
        """
        with np.errstate(all="ignore"):
            parameters = (np.asarray(self._parameter(name)) for name in ("scale", "mean", "std"))
            numbers = np.atleast_1d(function(*parameters))
            numbers = numbers.astype(np.float32).astype(np.float64) + 0.0
        values = tuple(numbers.tolist())
        return values[:1] if len(set(values)) == 1 else values


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Return one number, or one for each channel, as floats.

    Raises InputError for other values, and for numbers that are not finite.
    """
    try:
        numbers = tuple(map(float, np.atleast_1d(np.asarray(value, np.float64)).tolist()))
    except (TypeError, ValueError):
        raise InputError(f"{name} {quoted(value)}: expected a number, or one for each channel"
                         ) from None
    if not numbers or not all(map(math.isfinite, numbers)):
        raise InputError(f"{name} {_text(numbers)}: expected one finite number, or one for each "
                         "channel")
    return numbers


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers) or "()"
