"""Labelled samples in memory, and how they become what a network takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError

_LEAST_SIDE, _WHITE = 8, 255.0


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


def prepared(data: Dataset, *, scale: bool = False, pad: tuple[int, int] | None = None,
             threshold: float | None = None) -> Dataset:
    """The samples as a network takes them: 0 to 255 scaled to 0 to 1; then 1 from the threshold
    up and 0 below; then pictures centred among zeros up to a height and width."""
    x, shape = data.x, data.shape
    if scale:
        if x.size and (x.min() < 0 or x.max() > _WHITE):
            raise InputError(f"{data.source}: has numbers from {x.min():g} to {x.max():g}; "
                             "scaling takes 0 to 255 to 0 to 1")
        x = x / np.float32(_WHITE)
    if threshold is not None:
        if x.size and (x.min() < 0 or x.max() > 1):
            raise InputError(f"{data.source}: has numbers from {x.min():g} to {x.max():g}; only "
                             "such of 0 to 1 are binarised, or of 0 to 255 that are scaled")
        x = (x >= np.float32(threshold)).astype(np.float32)
    if pad is not None:
        if shape is None:
            raise InputError(f"{data.source}: its samples are {x.shape[1]} numbers and no "
                             "pictures, which could be padded")
        if pad[0] < shape[0] or pad[1] < shape[1]:
            raise InputError(f"{data.source}: its pictures are {shape[0]}x{shape[1]}, which "
                             f"cannot be padded to {pad[0]}x{pad[1]}")
        top, left = ((whole - part) // 2 for whole, part in zip(pad, shape, strict=True))
        padded = np.zeros((len(x), *pad), np.float32)
        padded[:, top:top + shape[0], left:left + shape[1]] = x.reshape(-1, *shape)
        x, shape = padded.reshape(len(x), -1), pad
    return replace(data, x=x, shape=shape, pixels=data.pixels and not scale)


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
    return bool(x.size and x.min() >= 0 and _WHITE / 2 < x.max() <= _WHITE)
