"""Dataset: samples in memory with their labels, or with the numbers to learn. Functions prepare and
split the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError
from gossamer.model.metadata import Column
from gossamer.train.data.preparation import WHITE, Preparation

_LEAST_SIDE = 8
"""Smallest side of a picture that is recognised by its number of features, in pixels."""


@dataclass(frozen=True)
class Dataset:
    """Samples with their labels, or with the numbers to learn.

    x: (n, features) float32.
    y: (n,) labels, int64 or str; or numbers to learn, float64.
    shape: height and width of a sample that is a picture; None for other samples.
    pixels: True where the numbers are grey levels, 0 to 255.
    source: text that says where the samples come from.
    columns: the columns of x; empty where nothing is known of them. Before columns.encoded() an
    empty cell is NaN in x, and a text is its index among the texts of its column.
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
        """Returns some of the samples."""
        return replace(self, x=self.x[which], y=self.y[which])


def prepared(data: Dataset, preparation: Preparation) -> Dataset:
    """Returns the samples after a preparation. Raises InputError as the preparation does."""
    steps = replace(preparation, shape=data.shape)
    return replace(data, x=steps(data.x, data.source), shape=steps.pad or data.shape,
                   pixels=data.pixels and not steps.scale)


def split(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Draws a fraction of the samples at random. Returns the samples that were not drawn and the
    samples that were drawn, both in the order of the data. Raises InputError where a part has no
    samples."""
    count = round(fraction * len(data.x))
    if not 0 < count < len(data.x):
        raise InputError(f"{data.source}: {fraction:g} of its {len(data.x)} samples are {count}; "
                         "expected some for training and some for validation")
    is_split_off = np.zeros(len(data.x), bool)
    is_split_off[np.random.default_rng(seed).permutation(len(data.x))[:count]] = True
    return data.rows(~is_split_off), replace(data.rows(is_split_off),
                                             source=f"{fraction:g} of {data.source}")


def picture_shape(features: int) -> tuple[int, int] | None:
    """Returns the sides of a square picture with this many pixels; None where the number is no
    square, or too small for a picture."""
    side = math.isqrt(features)
    return (side, side) if side * side == features and side >= _LEAST_SIDE else None


def are_pixels(x: np.ndarray, shape: tuple[int, int] | None) -> bool:
    """Says whether numbers of unknown origin look like the grey levels of pictures."""
    return shape is not None and has_grey_levels(x)


def has_grey_levels(x: np.ndarray) -> bool:
    """Says whether numbers look like grey levels: none is below 0 or above 255, and the largest is
    above 127.5. Numbers from 0 to 1, or from 0 to 16, do not look like grey levels."""
    return bool(x.size and x.min() >= 0 and WHITE / 2 < x.max() <= WHITE)
