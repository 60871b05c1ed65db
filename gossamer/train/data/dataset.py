"""Samples in memory: their splitting and preparation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError
from gossamer.model.metadata import Column

_LEAST_SIDE = 8
"""Samples with a square number of features count as pictures if the square has sides of at least
this number of pixels."""


@dataclass(frozen=True)
class Dataset:
    """Samples with their labels, or with their regression targets.

    x: (n, features) float32.
    y: (n,) labels, int64 or str; or regression targets, float64.
    shape: height and width of samples that are pictures; None for other samples.
    pixels: whether the numbers are grey levels, 0 to 255.
    source: name of the samples' origin in messages.
    columns: the columns of x; empty if nothing is known of them. Until encoded() of columns.py is
    called, an empty cell is NaN in x, and a text is its index in the column's texts.
    stored_shape: shape of a sample in a .npz file; () for other files.
    """

    x: np.ndarray
    y: np.ndarray
    shape: tuple[int, int] | None
    pixels: bool
    source: str
    columns: tuple[Column, ...] = ()
    stored_shape: tuple[int, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether y holds labels instead of regression targets."""
        return self.y.dtype.kind != "f"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return tuple(map(str, np.unique(self.y)))

    def rows(self, which: np.ndarray | slice) -> Dataset:
        """Return some of the samples."""
        return replace(self, x=self.x[which], y=self.y[which])


def prepared(data: Dataset, preparation: Preparation) -> Dataset:
    """Return the prepared samples. Raises InputError as the preparation does."""
    steps = replace(preparation, shape=data.shape)
    return replace(data, x=steps(data.x, data.source), shape=steps.pad or data.shape,
                   pixels=data.pixels and not steps.scale)


def split(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split off a random fraction of the samples.

    Returns the remaining samples and the samples that were drawn, both in the order of the data.
    Raises InputError if either set is empty.
    """
    count = round(fraction * len(data.x))
    if not 0 < count < len(data.x):
        raise InputError(f"{data.source}: {fraction:g} of its {len(data.x)} samples are {count}; "
                         "expected at least one sample for validation and one for training")
    is_split_off = np.zeros(len(data.x), bool)
    is_split_off[np.random.default_rng(seed).permutation(len(data.x))[:count]] = True
    return data.rows(~is_split_off), replace(data.rows(is_split_off),
                                             source=f"{fraction:g} of {data.source}")


def picture_shape(features: int) -> tuple[int, int] | None:
    """Return the shape of a square picture with this many pixels.

    Returns None if there is no such square, or if its sides are shorter than 8 pixels.
    """
    side = math.isqrt(features)
    return (side, side) if side * side == features and side >= _LEAST_SIDE else None


def are_pixels(x: np.ndarray, shape: tuple[int, int] | None) -> bool:
    """Return whether samples look like pictures of grey levels."""
    return shape is not None and has_grey_levels(x)


def has_grey_levels(x: np.ndarray) -> bool:
    """Return whether numbers look like grey levels.

    True if all numbers are from 0 to 255 and the largest is above 127.5. Numbers from 0 to 1, or
    from 0 to 16, are therefore not taken for grey levels.
    """
    return bool(x.size and x.min() >= 0 and WHITE / 2 < x.max() <= WHITE)


WHITE = 255.0
"""The largest grey level: white."""


@dataclass(frozen=True)
class Preparation:
    """Steps that prepare samples: scaling, then binarising, then padding.

    Parameters
    ----------
    scale : bool
        True to divide numbers from 0 to 255 by 255.
    threshold : float, optional
        Threshold from 0 to 1: numbers at or above the threshold become 1, smaller numbers 0.
    pad : tuple of int, optional
        Height and width to which pictures are padded with zeros on all sides, as evenly as
        possible.
    shape : tuple of int, optional
        Height and width of pictures before they are padded.
    grey : bool
        True if the numbers are grey levels from 0 (black) to 255; the trained network can then also
        be run on picture files.
    brightness : float, optional
        Mean grey level of the samples, by which inverted pictures are recognised.
    columns : tuple of Column
        Columns of the table of samples, which are stored in the network's file so that `gossamer
        evaluate` encodes other tables in the same way.
    """

    scale: bool = False
    threshold: float | None = None
    pad: tuple[int, int] | None = None
    shape: tuple[int, int] | None = None
    grey: bool = False
    brightness: float | None = None
    columns: tuple[Column, ...] = ()

    def __call__(self, x: np.ndarray, source: str = "x") -> np.ndarray:
        """Apply the steps to samples.

        Parameters
        ----------
        x : array_like of float, shape (n, features)
            Unprepared samples.
        source : str
            Name of the samples in error messages.

        Returns
        -------
        numpy.ndarray
            Prepared samples, float32 of shape (n, inputs).

        Raises
        ------
        InputError
            If a number is outside the range for scaling or binarising, or a picture cannot be
            padded.
        """
        x = np.asarray(x, np.float32)
        if self.scale:
            if x.size and (x.min() < 0 or x.max() > WHITE):
                raise InputError(f"{source}: has values from {x.min():g} to {x.max():g}; scaling "
                                 "to [0, 1] expects values from 0 to 255")
            x = x / np.float32(WHITE)
        if self.threshold is not None:
            if x.size and (x.min() < 0 or x.max() > 1):
                raise InputError(f"{source}: has values from {x.min():g} to {x.max():g}; "
                                 "binarising expects values from 0 to 1, or from 0 to 255 with "
                                 "scaling")
            x = (x >= np.float32(self.threshold)).astype(np.float32)
        if self.pad is not None:
            shape, margins = self.picture(x.shape[1], source), self.margins(source)
            padded = np.pad(x.reshape(len(x), *shape), ((0, 0), *margins))
            x = padded.reshape(len(x), math.prod(self.pad))
        return x

    def picture(self, numbers: int, source: str) -> tuple[int, int]:
        """Return the shape of the samples' pictures.

        Parameters
        ----------
        numbers : int
            Number of values in a sample.
        source : str
            Name of the samples in error messages.

        Returns
        -------
        tuple of int
            Height and width before padding.

        Raises
        ------
        InputError
            If the shape is unknown, or does not have `numbers` pixels.
        """
        if self.shape is None or math.prod(self.shape) != numbers:
            shape = f" of {self.shape[0]}x{self.shape[1]}" if self.shape else ""
            raise InputError(f"{source}: its samples have {numbers} values; only images{shape} "
                             "can be padded")
        return self.shape

    def margins(self, source: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the numbers of rows and columns that pad a picture.

        Parameters
        ----------
        source : str
            Name of the samples in error messages.

        Returns
        -------
        tuple of tuple of int
            Rows above and below the picture, and columns left and right of it.

        Raises
        ------
        InputError
            If the samples are not pictures, or are larger than the padded size.
        """
        assert self.pad is not None
        if self.shape is None:
            raise InputError(f"{source}: its samples are not images; only images can be padded")
        rows, columns = (padded - size for padded, size in zip(self.pad, self.shape, strict=True))
        if min(rows, columns) < 0:
            raise InputError(f"{source}: its images are {self.shape[0]}x{self.shape[1]}, which "
                             f"cannot be padded to {self.pad[0]}x{self.pad[1]}")
        return (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)
