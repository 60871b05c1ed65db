"""Labelled samples in memory, and how they become what a network takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError
from gossamer.train.data.preparation import WHITE, Preparation

_LEAST_SIDE = 8


@dataclass(frozen=True)
class Dataset:
    """x: (n, features) float32. y: (n,) labels, int64 or str. shape: height and width of a sample
    that is a picture. pixels: whether the numbers are grey levels, 0 to 255. source: where they
    come from."""

    x: np.ndarray
    y: np.ndarray
    shape: tuple[int, int] | None
    pixels: bool
    source: str

    @property
    def names(self) -> tuple[str, ...]:
        """The classes' names, in the order of their labels."""
        return tuple(map(str, np.unique(self.y)))

    def rows(self, which: np.ndarray | slice) -> Dataset:
        """Some of the samples."""
        return replace(self, x=self.x[which], y=self.y[which])


def prepared(data: Dataset, preparation: Preparation) -> Dataset:
    """The samples as a network takes them. Raises InputError as a Preparation does."""
    own = replace(preparation, shape=data.shape)
    return replace(data, x=own(data.x, data.source), shape=own.pad or data.shape,
                   pixels=data.pixels and not own.scale)


def split(data: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """The samples without a randomly chosen fraction of them, and that fraction; both in the
    order in which they were."""
    count = round(fraction * len(data.x))
    if not 0 < count < len(data.x):
        raise InputError(f"{data.source}: {fraction:g} of its {len(data.x)} samples are {count}; "
                         "expected some for training and some for validation")
    held = np.zeros(len(data.x), bool)
    held[np.random.default_rng(seed).permutation(len(data.x))[:count]] = True
    return data.rows(~held), replace(data.rows(held), source=f"{fraction:g} of {data.source}")


def picture_shape(features: int) -> tuple[int, int] | None:
    """The sides of a square picture of so many numbers, where they can be one."""
    side = math.isqrt(features)
    return (side, side) if side * side == features and side >= _LEAST_SIDE else None


def are_pixels(x: np.ndarray, shape: tuple[int, int] | None) -> bool:
    """Whether numbers of no known origin look like the grey levels of pictures."""
    return shape is not None and has_grey_levels(x)


def has_grey_levels(x: np.ndarray) -> bool:
    """Whether numbers reach from 0 to 255, or near it; those of 0 and 1, or of 0 to 16, do not."""
    return bool(x.size and x.min() >= 0 and WHITE / 2 < x.max() <= WHITE)
