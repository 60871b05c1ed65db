"""What is done to samples before a network takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gossamer.errors import InputError

WHITE = 255.0
"""The greatest grey level."""


@dataclass(frozen=True)
class Preparation:
    """Steps in this order: scale: 0 to 255 becomes 0 to 1. threshold: then what is at least so
    much becomes 1, the rest 0. pad: then pictures are centred among zeros up to this height and
    width.

    shape: height and width of a sample that is a picture. grey: whether its numbers are grey
    levels, 0 (black) to 255, so that a file of a picture can be taken too. brightness: their mean
    level, by which a negative is told.
    """

    scale: bool = False
    threshold: float | None = None
    pad: tuple[int, int] | None = None
    shape: tuple[int, int] | None = None
    grey: bool = False
    brightness: float | None = None

    def __call__(self, x: np.ndarray, source: str = "x") -> np.ndarray:
        """(n, inputs) float32, of samples (n, numbers of a sample). Raises InputError, which
        names the source, for numbers outside of what is scaled or binarised, and for pictures
        that cannot be padded."""
        x = np.asarray(x, np.float32)
        if self.scale:
            if x.size and (x.min() < 0 or x.max() > WHITE):
                raise InputError(f"{source}: has numbers from {x.min():g} to {x.max():g}; "
                                 "scaling takes 0 to 255 to 0 to 1")
            x = x / np.float32(WHITE)
        if self.threshold is not None:
            if x.size and (x.min() < 0 or x.max() > 1):
                raise InputError(f"{source}: has numbers from {x.min():g} to {x.max():g}; only "
                                 "such of 0 to 1 are binarised, or of 0 to 255 that are scaled")
            x = (x >= np.float32(self.threshold)).astype(np.float32)
        if self.pad is not None:
            shape, margins = self.picture(x.shape[1], source), self.margins(source)
            x = np.pad(x.reshape(-1, *shape), ((0, 0), *margins)).reshape(len(x), -1)
        return x

    def picture(self, numbers: int, source: str) -> tuple[int, int]:
        """The shape of a sample of so many numbers. Raises InputError where it is no picture."""
        if self.shape is None or math.prod(self.shape) != numbers:
            raise InputError(f"{source}: its samples are {numbers} numbers and no pictures"
                             + (f" of {self.shape[0]}x{self.shape[1]}" if self.shape else "")
                             + ", which could be padded")
        return self.shape

    def margins(self, source: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """The rows that are put before and behind a picture, and the columns. Raises InputError
        where it does not fit."""
        assert self.pad is not None
        if self.shape is None:
            raise InputError(f"{source}: its samples are no pictures, which could be padded")
        rows, columns = (whole - part for whole, part in zip(self.pad, self.shape, strict=True))
        if min(rows, columns) < 0:
            raise InputError(f"{source}: its pictures are {self.shape[0]}x{self.shape[1]}, which "
                             f"cannot be padded to {self.pad[0]}x{self.pad[1]}")
        return (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)
