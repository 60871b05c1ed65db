"""The constants of binary layers on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.device.host import host_array
from gossamer.ops.conv2d.binary.layer import (
    BinaryLayer,
    alphas,
    sign_words,
    tap_sums,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.thresholds import Thresholds, replaced_epilogue
from gossamer.ops.conv2d.host import float32_operands, windows
from gossamer.ops.packed import constant_words
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

_WORD_BITS = 64


@dataclass(frozen=True)
class Constants:
    """A layer's constants as NumPy arrays.

    words: signs of the weights, of shape (groups, M/groups, words of a group * R * S).
    base: initial accumulators of shape (M, output rows, output columns), or (M, 1, 1) if they are
    the same for all pixels of a channel.
    outside: the words of a padding pixel, of shape (words, planes).
    alphas: magnitude of each channel's weights.
    thresholds: integers that replace the epilogue, or None.
    operands: the epilogue's constants.
    """

    words: np.ndarray
    base: np.ndarray
    outside: np.ndarray
    alphas: np.ndarray
    thresholds: Thresholds | None
    operands: Mapping[str, np.ndarray]

    @staticmethod
    def of(weights: Weights, layer: BinaryLayer) -> Constants:
        """Return the constants of a layer.

        weights: the layer's constants, under their names in the layer's convolution.
        """
        problem = layer.convolution
        channels = problem.group_out_channels
        count = words_of_a_group(problem, _WORD_BITS) * problem.taps
        words = weights.packed("signs by channels, binary on the host",
                               lambda arrays: sign_words(arrays, problem, _WORD_BITS))
        table, _ = replaced_epilogue(weights, layer)
        return Constants(
            host_array(words, (problem.groups, channels, count), np.uint64),
            _base(weights.arrays, layer), _outside(layer), alphas(weights.arrays),
            None if table is None else Thresholds(
                *host_array(table, (3, problem.out_channels), np.int32)),
            float32_operands(weights))


def _base(arrays: Mapping[str, np.ndarray], layer: BinaryLayer) -> np.ndarray:
    """Return the initial accumulators.

    An accumulator is the number of products minus twice the number of products that are -1. With
    one-bit inputs, accumulators therefore start from the number of products. Zero padding is stored
    as bits of 0, which represent -1; the initial accumulators compensate for the wrong products.
    With two-bit inputs, accumulators start from 0, because kernels add the number of products with
    nonzero inputs.
    """
    problem = layer.convolution
    shape = (problem.out_channels, problem.out_height, problem.out_width)
    if layer.form.planes == 2:
        return np.zeros((problem.out_channels, 1, 1), np.int32)
    if not (layer.takes_zeros_back and problem.image_pixels):
        return np.full((problem.out_channels, 1, 1), problem.depth, np.int32)
    (top, left, bottom, right), size = problem.pads, (problem.height, problem.width)
    inside = np.pad(np.ones(size), ((top, bottom), (left, right)))
    outside = 1 - windows(inside, problem).reshape(problem.taps, -1)
    sums = tap_sums(arrays).reshape(problem.out_channels, -1)
    # float64 holds these integers exactly, and BLAS multiplies float64 matrices
    added = sums.astype(np.float64) @ outside
    return (added.astype(np.int32) + np.int32(problem.depth)).reshape(shape)


def _outside(layer: BinaryLayer) -> np.ndarray:
    """Return the words of a padding pixel (words, planes).

    One-bit words cannot hold 0; they hold -1 in place of 0.
    """
    form = Format(f"packed{_WORD_BITS}", layer.form.input)
    value = layer.padding if layer.padding or layer.form.planes == 2 else -1
    return constant_words(value, TensorSpec(layer.convolution.inputs[0].shape, form))
