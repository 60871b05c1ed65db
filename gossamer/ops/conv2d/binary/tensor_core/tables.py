"""The tables that binary convolutions on tensor cores read.

The tables hold the offsets of a window's words, the weights in the order of the instruction's
operands, and the constants that convert counts of set bits to results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.conv2d.binary.layer import BinaryLayer, sign_words, tap_sums, words_of_a_group
from gossamer.ops.conv2d.binary.thresholds import Thresholds, thresholds_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights

STEP_BITS = 256
"""Bits of an inner product that one instruction multiplies."""
LARGEST_DISTANCE = 2**15 - 1
"""A distance in rows that is outside of any image."""
MOST_HALO_TAPS = 31
"""Maximum number of taps of a window that is read from a halo. A 32-bit word has one bit for
each tap, 1 if the tap is inside of the image, and one more bit that stays 0."""
_NEVER = 2**28
"""A bound that no count of set bits reaches."""


@dataclass(frozen=True)
class Tables:
    """The tables of a layer for words of `word_bits` bits.

    unit: number of channels of a unit. One warp (mma) or one warpgroup (wgmma) computes a unit.
    Four lanes share a pixel. Of each 8 columns of a product, lane `quarter` holds columns
    2 * quarter and 2 * quarter + 1. Channels are permuted so that each lane holds consecutive
    channels: channel quarter * (unit / 4) + 2 * i + e of a unit, where e is 0 or 1, is column
    8 * i + 2 * quarter + e.
    units: number of units of each group of the convolution.
    together: number of units that a work-group computes; their weights are adjacent in each step.
    steps: number of 256-bit steps of an inner product, rounded up to whole phases.
    by_registers: True if lanes load weights to registers, in the order of mma.sync's operands;
    False if tensor cores read weights from shared memory, in matrices of 8 x 128 bits.
    """

    layer: BinaryLayer
    word_bits: int
    unit: int
    units: int
    together: int
    steps: int
    by_registers: bool

    @property
    def problem(self) -> Conv2dProblem:
        """The layer's convolution."""
        return self.layer.convolution

    @property
    def tile_channels(self) -> int:
        """Number of channels of all groups, each group rounded up to whole units."""
        return self.problem.groups * self.units * self.unit

    @cached_property
    def _geometry(self) -> str:
        """Text that identifies the problem's windows in the names of packed tables."""
        problem = self.problem
        return (f"{problem.height}x{problem.width} {problem.kernel} {problem.stride} "
                f"{problem.pads} {problem.dilation}")

    def taps(self, weights: Weights) -> Buffer:
        """Return the distances of a window's words from its first word.

        The table (words, 2) in int32 holds the distance in words, and the distance in pixels as
        rows << 16 | columns.
        """
        problem = self.problem
        return self._word_table(
            weights, f"bit taps of {self._geometry}", LARGEST_DISTANCE << 16,
            lambda rows, columns, words: (
                (words * problem.height + rows * problem.dilation[0]) * problem.width
                + columns * problem.dilation[1],
                rows * problem.dilation[0] << 16 | columns * problem.dilation[1]))

    def halo_taps(self, weights: Weights, line_bytes: int, pixel_bytes: int) -> Buffer:
        """Return the positions of a window's words in a halo.

        The table (words, 2) in int32 holds the distance in bytes from the window's first word, and
        the index of the word's tap. Padding words of the last step have the index MOST_HALO_TAPS,
        which stands for a tap outside of the image.
        """
        problem = self.problem
        return self._word_table(
            weights, f"bit taps in halos of {line_bytes} of {self._geometry}", MOST_HALO_TAPS,
            lambda rows, columns, words: (
                words * line_bytes + pixel_bytes * (
                    rows * problem.dilation[0] * problem.width + columns * problem.dilation[1]),
                rows * problem.kernel[1] + columns))

    def _word_table(self, weights: Weights, name: str, filler: int,
                    of_words: Callable[[np.ndarray, np.ndarray, np.ndarray],
                                       tuple[np.ndarray, np.ndarray]]) -> Buffer:
        """Return a table with two numbers for each word of a window.

        filler: the second number of each word that only pads the last step.
        of_words: function that computes both numbers from a word's tap row, its tap column, and its
        index within the pixel.
        """
        def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            table = np.zeros((self.steps * STEP_BITS // self.word_bits, 2), np.int32)
            table[:, 1] = filler
            words = np.indices((*self.problem.kernel, words_of_a_group(
                self.problem, self.word_bits))).reshape(3, -1)
            table[:words.shape[1]] = np.stack(of_words(*words), axis=1)
            return table

        return weights.packed(f"{name}, {self.word_bits} bits, {self.steps} steps", pack)

    def weights(self, weights: Weights) -> Buffer:
        """Return the bits of the weights in the order of the instruction's operands."""
        form = "registers" if self.by_registers else "memory"
        return weights.packed(
            f"bits for {form}, {self.word_bits} bits, {self.units} units of {self.unit}, "
            f"{self.together} together, {self.steps} steps", self._packed_weights)

    def _packed_weights(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        problem = self.problem
        words = np.moveaxis(sign_words(arrays, problem, self.word_bits), 1, -1)
        words = self._in_units(words.reshape(problem.out_channels, -1))
        planes = [words] if self.layer.form.planes == 1 else [words, ~words]
        words = np.stack(planes, axis=1)
        missing = self.steps * STEP_BITS // self.word_bits - words.shape[-1]
        words = np.pad(words, ((0, 0), (0, 0), (0, missing)))
        # axes: unit, quarter, group of 8 columns, one of 2 columns, plane, step, one of 4 pairs of
        # halves, half
        parts = np.ascontiguousarray(words).view("<u4").reshape(
            -1, 4, self.unit // 8, 2, len(planes), self.steps, STEP_BITS // 32)
        halves = (4, 2) if self.word_bits == 64 else (2, 4)
        parts = parts.reshape(*parts.shape[:-1], *halves)
        if self.word_bits == 32:
            parts = parts.swapaxes(-1, -2)
        if not self.by_registers:
            return parts.transpose(0, 5, 4, 7, 2, 1, 3, 6)
        # a lane's operand has both halves of a column; operands of two tiles of 8 columns are
        # adjacent
        pairs = parts.reshape(-1, self.together, 4, self.unit // 16, 2, *parts.shape[3:])
        return pairs.transpose(0, 7, 1, 6, 3, 2, 5, 8, 4, 9)

    def constants(self, weights: Weights, with_thresholds: bool) -> Buffer:
        """Return the constants of each class of pixels, (classes, channels) in int32.

        Without thresholds, the constants are added to the sums. With thresholds, each constant is
        the largest value of `2 * ones - counted` (see bits.h) for which the sum is below the upper
        threshold.
        """
        def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            problem = self.problem
            rows, columns = _taps_inside(problem)[:2]
            sums = tap_sums(arrays).reshape(problem.out_channels, *problem.kernel)
            inside = np.einsum("yr,xs,mrs->yxm", rows, columns, sums).reshape(
                -1, problem.out_channels)
            added = self.layer.padding * (sums.sum(axis=(1, 2)) - inside)
            scale = 3 - self.layer.form.planes
            if scale == 2:
                added -= inside
            if is_uniform(self.layer):
                added = added[:1]
            if with_thresholds:
                added = -((added - self._thresholds(arrays).upper) // scale) - 1
            return np.stack([self._in_units(row, _NEVER if with_thresholds else 0)
                             for row in added]).astype(np.int32)

        form = f" for {self.problem.epilogue}" if with_thresholds else ""
        return weights.packed(f"bit constants{form} of {self._geometry} in "
                              f"{self.layer.padding}, {self.units} units of {self.unit}", pack)

    def flips(self, weights: Weights) -> Buffer:
        """Return a bit for each channel: 1 if the result falls as the sum rises."""
        def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            falls = self._thresholds(arrays).direction < 0
            return np.packbits(self._in_units(falls), bitorder="little")

        return weights.packed(f"bit flips for {self.problem.epilogue}, {self.units} units of "
                              f"{self.unit}", pack)

    def classes(self, weights: Weights) -> Buffer:
        """Return the class of each row and then of each column of the output, in int32.

        A pixel's class is the class of its row times `column_classes`, plus the class of its
        column.
        """
        def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            of_row, of_column = _taps_inside(self.problem)[2:]
            classes = np.concatenate([of_row, of_column]).astype(np.int32)
            return np.zeros_like(classes) if self.column_classes == 0 else classes

        return weights.packed(f"bit classes of {self._geometry} in {self.layer.padding}", pack)

    @cached_property
    def column_classes(self) -> int:
        """Number of classes of output columns; 0 if all pixels are in one class."""
        return 0 if is_uniform(self.layer) else len(_taps_inside(self.problem)[1])

    def _thresholds(self, arrays: Mapping[str, np.ndarray]) -> Thresholds:
        found = thresholds_of(arrays, self.problem.epilogue, self.problem.depth)
        assert found is not None
        return found

    def _in_units(self, channels: np.ndarray, filler: int = 0) -> np.ndarray:
        """Return an array (M, ...) with the channels of each group padded to whole units."""
        groups = channels.reshape(self.problem.groups, -1, *channels.shape[1:])
        missing = self.units * self.unit - groups.shape[1]
        filled = np.pad(groups, ((0, 0), (0, missing), *[(0, 0)] * (channels.ndim - 1)),
                        constant_values=filler)
        return filled.reshape(self.tile_channels, *channels.shape[1:])


def is_uniform(layer: BinaryLayer) -> bool:
    """Return whether the same constant is added to the sums of all pixels.

    True if two-bit inputs are padded with 0, or if one-bit inputs are padded with -1, which is
    stored as bits of 0.
    """
    return layer.padding == (-1 if layer.form.planes == 1 else 0)


def pixel_classes(layer: BinaryLayer) -> int:
    """Return the number of classes of output pixels.

    In all windows of a class, the same taps lie inside of the image. There is only one class if
    padding does not change the constants.
    """
    if is_uniform(layer):
        return 1
    rows, columns = _taps_inside(layer.convolution)[:2]
    return len(rows) * len(columns)


@lru_cache(maxsize=256)
def halo_pixels(problem: Conv2dProblem, tile: int) -> int:
    """Return the maximum number of input pixels that the windows of a tile span.

    Pixels are counted in memory order, across rows and images, from the first pixel to the last
    pixel that the windows read. The result is 0 if the window of any output pixel begins before the
    window of an earlier output pixel.

    tile: output pixels of a tile.
    """
    rows = np.arange(problem.out_height) * problem.stride[0] * problem.width
    columns = np.arange(problem.out_width) * problem.stride[1]
    plane = problem.height * problem.width
    # after `period` images, an image and a tile again begin at the same output pixel, so the spans
    # of tiles repeat
    period = tile // math.gcd(tile, len(rows) * len(columns))
    images = np.arange(min(problem.batch, period + 1)) * plane
    corners = np.add.outer(np.add.outer(images, rows), columns).reshape(-1)
    if (np.diff(corners) < 0).any():
        return 0
    first = np.arange(0, len(corners), tile)
    span = (corners[np.minimum(first + tile, len(corners)) - 1] - corners[first]).max()
    return int(span) + ((problem.kernel[0] - 1) * problem.dilation[0] * problem.width
                        + (problem.kernel[1] - 1) * problem.dilation[1] + 1)


def _taps_inside(problem: Conv2dProblem
                 ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return which taps lie inside of the image for each class, and the class of each output.

    The first two arrays are (classes, R) for the classes of output rows, and (classes, S) for the
    classes of output columns. The last two hold the class of each output row and of each output
    column.
    """
    kinds, of_output = [], []
    for axis, (size, outputs) in enumerate(((problem.height, problem.out_height),
                                            (problem.width, problem.out_width))):
        at = (np.arange(outputs)[:, None] * problem.stride[axis] - problem.pads[axis]
              + np.arange(problem.kernel[axis]) * problem.dilation[axis])
        unique, classes = np.unique((at >= 0) & (at < size), axis=0, return_inverse=True)
        kinds.append(unique.astype(np.int64))
        of_output.append(classes.reshape(-1))
    return kinds[0], kinds[1], of_output[0], of_output[1]
