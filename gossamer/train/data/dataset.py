"""Samples in memory, how they are split, and the steps that prepare them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError
from gossamer.model.metadata import Column

_LEAST_SIDE = 8
"""The smallest side, in pixels, of a picture that is recognised by its number of features."""


@dataclass(frozen=True)
class Dataset:
    """Samples with their labels, or with the numbers to learn.

    x: (n, features) float32.
    y: (n,) labels, int64 or str; or numbers to learn, float64.
    shape: height and width of a sample that is a picture; None for other samples.
    pixels: True where the numbers are grey levels, 0 to 255.
    source: text that says where the samples come from.
    columns: the columns of x; empty where nothing is known of them. Until columns.encoded() is
    called, NaN in x stands for an empty cell, and an index among the texts of its column for a
    text.
    """

    x: np.ndarray
    y: np.ndarray
    shape: tuple[int, int] | None
    pixels: bool
    source: str
    columns: tuple[Column, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether y holds labels, rather than numbers to learn."""
        return self.y.dtype.kind != "f"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return tuple(map(str, np.unique(self.y)))

    def rows(self, which: np.ndarray | slice) -> Dataset:
        """Return some of the samples."""
        return replace(self, x=self.x[which], y=self.y[which])


def prepared(data: Dataset, preparation: Preparation) -> Dataset:
    """Return the samples after a preparation, which may raise InputError."""
    steps = replace(preparation, shape=data.shape)
    return replace(data, x=steps(data.x, data.source), shape=steps.pad or data.shape,
                   pixels=data.pixels and not steps.scale)


def split(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Draw a fraction of the samples at random.

    Returns the samples that were not drawn, and those that were, both in the order of the data.
    Raises InputError where either part has no samples.
    """
    count = round(fraction * len(data.x))
    if not 0 < count < len(data.x):
        raise InputError(f"{data.source}: {fraction:g} of its {len(data.x)} samples are {count}; "
                         "expected at least one to validate on, and one to train on")
    is_split_off = np.zeros(len(data.x), bool)
    is_split_off[np.random.default_rng(seed).permutation(len(data.x))[:count]] = True
    return data.rows(~is_split_off), replace(data.rows(is_split_off),
                                             source=f"{fraction:g} of {data.source}")


def picture_shape(features: int) -> tuple[int, int] | None:
    """Return the sides of the square picture that has this number of pixels.

    Returns None where there is none, or its sides are shorter than 8 pixels.
    """
    side = math.isqrt(features)
    return (side, side) if side * side == features and side >= _LEAST_SIDE else None


def are_pixels(x: np.ndarray, shape: tuple[int, int] | None) -> bool:
    """Return whether numbers of unknown origin look like the grey levels of pictures."""
    return shape is not None and has_grey_levels(x)


def has_grey_levels(x: np.ndarray) -> bool:
    """Return whether numbers look like grey levels: all from 0 to 255, and the largest above 127.5.

    Numbers from 0 to 1, or from 0 to 16, are no grey levels.
    """
    return bool(x.size and x.min() >= 0 and WHITE / 2 < x.max() <= WHITE)


WHITE = 255.0
"""The largest grey level, which stands for white."""


@dataclass(frozen=True)
class Preparation:
    """Steps that prepare samples: scaling, then binarising, then padding.

    Parameters
    ----------
    scale : bool
        True to divide numbers from 0 to 255 by 255.
    threshold : float, optional
        Number from 0 to 1: numbers of at least this become 1, smaller ones become 0.
    pad : tuple of int, optional
        Height and width to which pictures are padded with zeros on all sides, as evenly as
        possible.
    shape : tuple of int, optional
        Height and width of a sample that is a picture, before it is padded.
    grey : bool
        True where the numbers are grey levels from 0 (black) to 255, so that the trained network
        can also be run on picture files.
    brightness : float, optional
        Mean grey level of the samples, by which inverted pictures are recognised.
    columns : tuple of Column
        Columns of the table from which the samples were made. A network's file keeps them, so that
        `gossamer evaluate` turns other tables into numbers in the same way.
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
        x : array_like of float, shape (n, numbers of a sample)
            Samples.
        source : str
            Name of the samples in error messages.

        Returns
        -------
        numpy.ndarray
            Prepared samples, float32 of shape (n, inputs).

        Raises
        ------
        InputError
            If a number is outside the range that is scaled or binarised, or a picture cannot be
            padded.
        """
        x = np.asarray(x, np.float32)
        if self.scale:
            if x.size and (x.min() < 0 or x.max() > WHITE):
                raise InputError(f"{source}: has numbers from {x.min():g} to {x.max():g}; expected "
                                 "0 to 255, which are scaled to 0 to 1")
            x = x / np.float32(WHITE)
        if self.threshold is not None:
            if x.size and (x.min() < 0 or x.max() > 1):
                raise InputError(f"{source}: has numbers from {x.min():g} to {x.max():g}; expected "
                                 "0 to 1 to binarise, or 0 to 255 to scale and binarise")
            x = (x >= np.float32(self.threshold)).astype(np.float32)
        if self.pad is not None:
            shape, margins = self.picture(x.shape[1], source), self.margins(source)
            padded = np.pad(x.reshape(len(x), *shape), ((0, 0), *margins))
            x = padded.reshape(len(x), math.prod(self.pad))
        return x

    def picture(self, numbers: int, source: str) -> tuple[int, int]:
        """Return the shape of a sample that is a picture.

        Parameters
        ----------
        numbers : int
            How many numbers a sample has.
        source : str
            Name of the samples in error messages.

        Returns
        -------
        tuple of int
            Height and width, before the picture is padded.

        Raises
        ------
        InputError
            If a sample of this many numbers is no picture of the known shape.
        """
        if self.shape is None or math.prod(self.shape) != numbers:
            shape = f" of {self.shape[0]}x{self.shape[1]}" if self.shape else ""
            raise InputError(f"{source}: its samples are {numbers} numbers; only pictures{shape} "
                             "can be padded")
        return self.shape

    def margins(self, source: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return how many rows and columns of zeros are put around a picture.

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
            If the samples are no pictures, or are larger than the padded size.
        """
        assert self.pad is not None
        if self.shape is None:
            raise InputError(f"{source}: its samples are no pictures; only pictures can be padded")
        rows, columns = (padded - size for padded, size in zip(self.pad, self.shape, strict=True))
        if min(rows, columns) < 0:
            raise InputError(f"{source}: its pictures are {self.shape[0]}x{self.shape[1]}, which "
                             f"cannot be padded to {self.pad[0]}x{self.pad[1]}")
        return (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)
