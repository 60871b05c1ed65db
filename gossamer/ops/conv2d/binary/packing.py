"""Packs the signs of a convolution's weights into words, and computes which words and bits of a
pixel hold a group's channels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import PACKED_DTYPES


def first_words(problem: Conv2dProblem, word_bits: int) -> np.ndarray:
    """Returns, for each group, the index of the first word with channels of the group, among the
    words of an input pixel."""
    return np.arange(problem.groups) * _group_channels(problem) // word_bits


def words_of_a_group(problem: Conv2dProblem, word_bits: int) -> int:
    """Returns the largest number of words over which the channels of one group extend."""
    first = first_words(problem, word_bits)
    end = -(-np.arange(1, problem.groups + 1) * _group_channels(problem) // word_bits)
    return int((end - first).max())


def group_masks(problem: Conv2dProblem, word_bits: int) -> np.ndarray:
    """Returns masks (groups, words of a group): words whose bits are 1 for the group's channels."""
    return _words(_placed(np.ones((problem.groups, _group_channels(problem)), bool),
                          np.arange(problem.groups), problem, word_bits), word_bits)


def sign_words(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
               word_bits: int) -> np.ndarray:
    """Returns the signs of the weights as words (M, words of a group, R, S). A bit is 1 where the
    weight is positive; bits of other groups' channels are 0."""
    signs = arrays["weight"] > 0
    groups = np.arange(problem.out_channels) // (problem.out_channels // problem.groups)
    return _words(_placed(signs, groups, problem, word_bits), word_bits)


def tap_sums(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the sum of each tap's signs over the input channels, in int32 of shape (M, R, S). A
    pixel whose bits are all 0 stands for -1 in every channel: a tap that reads this pixel adds the
    negative of the tap's sum."""
    return np.where(arrays["weight"] > 0, 1, -1).sum(axis=1).astype(np.int32)


def value_words(values: np.ndarray, dtype: str, word_bits: int) -> np.ndarray:
    """Returns values (N, C, H, W) of a packed dtype as words (N, words, H, W, planes). Unlike
    `gossamer.tensor.pack`, value_words() does not check for values that the dtype cannot hold; a
    NaN becomes -1."""
    bits = PACKED_DTYPES[dtype].bits(values)
    n, c, *rest = bits.shape
    padded = np.zeros((n, -(-c // word_bits) * word_bits, *rest), bool)
    padded[:, :c] = bits
    return _words(padded, word_bits)


def _group_channels(problem: Conv2dProblem) -> int:
    return problem.channels // problem.groups


def _placed(bits: np.ndarray, groups: np.ndarray, problem: Conv2dProblem,
            word_bits: int) -> np.ndarray:
    """Returns rows of bits (rows, C/groups, ...) with each bit moved to the position of its
    channel among the bits of the group's words. groups: the group of each row."""
    channels = _group_channels(problem)
    width = words_of_a_group(problem, word_bits) * word_bits
    placed = np.zeros((len(bits), width, *bits.shape[2:]), bool)
    # groups whose channels begin at the same bit of a word are placed at once
    offsets = groups * channels % word_bits
    for offset in np.unique(offsets):
        placed[offsets == offset, offset:offset + channels] = bits[offsets == offset]
    return placed


def _words(bits: np.ndarray, word_bits: int) -> np.ndarray:
    """Returns bits (rows, words * word_bits, ...) as words (rows, words, ...)."""
    rows, width, *rest = bits.shape
    by_word = np.moveaxis(bits.reshape(rows, width // word_bits, word_bits, *rest), 2, -1)
    packed = np.packbits(np.ascontiguousarray(by_word), axis=-1, bitorder="little")
    return packed.view(f"<u{word_bits // 8}")[..., 0].astype(f"u{word_bits // 8}")
