"""host_popcount: binary convolution on the host, with NumPy's bitwise_count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Problem, State, Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.layer import (
    BinaryLayer,
    alphas,
    first_words,
    group_masks,
    sign_words,
    tap_sums,
    value_words,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.thresholds import Thresholds, replaced_epilogue
from gossamer.ops.conv2d.host import float32_operands, windows
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import apply_in_place, buffers_as_arrays, operand_arrays
from gossamer.ops.packed import constant_words
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

_WORD_BITS = 64
_WORDS_AT_ONCE = 32 * 1024
"""Number of 64-bit words that are compared at once. The words and their counts must stay in the L2
cache of a core. The number was chosen on two cores of an AMD EPYC; another may be faster on other
CPUs."""
_COUNTS_OF_A_BYTE = 255 // _WORD_BITS
"""Maximum number of 64-bit words whose popcounts can be summed in one byte."""
_PIXELS_AT_ONCE = 1024
"""Maximum total number of output pixels of images that are computed together. A larger image is
computed alone."""
_FEW_PIXELS = 16
"""Below this number of output pixels, NumPy's inner loop runs over the words of one pixel. From
this number on, the loop runs over pixels or channels. The number is a rule of thumb."""


class HostPopcount(BinaryAlgorithm):
    """Binary convolution by NumPy's bitwise_count.

    The exclusive or of the words of inputs and weights has a set bit wherever signs differ. The sum
    of the products is the number of products minus twice the number of set bits.
    """

    name = "host_popcount"

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else layer.reason_not_binary()

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        x, *operands = inputs
        *floats, y = outputs
        targets = [y]
        if layer.form.output is not None:
            targets.append(TensorSpec(y.shape, Format("packed64", layer.form.output)))
        for source in (x, TensorSpec(x.shape, Format("packed64", layer.form.input))):
            for target in targets:
                yield Variant((), (source, *operands), (*floats, target))

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device, data=(layer, Constants.of(weights, layer)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        layer, constants = state.data
        compute(layer, constants, state.variant, inputs, outputs)


def compute(layer: BinaryLayer, constants: Constants, variant: Variant,
            inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
    """Compute a layer, and write the results to `outputs`.

    variant: the formats of inputs and outputs.
    """
    problem = layer.convolution
    x, *tensors = buffers_as_arrays(inputs, variant.inputs)
    targets = buffers_as_arrays(outputs, variant.outputs)
    if targets[0].size == 0:
        return
    planes = _input_planes(x, layer, variant.inputs[0])
    step = max(1, _PIXELS_AT_ONCE // problem.image_pixels)
    accumulators = np.concatenate([
        _accumulators(planes[:, :, first:first + step], layer, constants)
        for first in range(0, problem.batch, step)])
    if constants.thresholds is not None:
        results = [constants.thresholds.apply(accumulators)]
    else:
        values = accumulators.astype(np.float32)
        values *= constants.alphas[:, None, None]
        operands = operand_arrays(problem.epilogue, constants.operands, tensors, 4)
        if layer.has_two_results:
            results = problem.epilogue.expression.evaluate(values, *operands)
        else:
            apply_in_place(problem.epilogue, values, operands)
            results = [values]
    for result, target, spec in zip(results, targets, variant.outputs, strict=True):
        if spec.format.is_packed:
            result = value_words(result, spec.dtype, _WORD_BITS).reshape(target.shape)
        target[...] = result


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
    With two-bit inputs, accumulators start from 0, because _accumulators() adds the number of
    products with nonzero inputs.
    """
    problem = layer.convolution
    shape = (problem.out_channels, problem.out_height, problem.out_width)
    if layer.form.planes == 2:
        return np.zeros((problem.out_channels, 1, 1), np.int32)
    if not (layer.takes_zeros_back and problem.image_pixels):
        return np.full((problem.out_channels, 1, 1), problem.depth, np.int32)
    outside = 1 - _windows(np.ones((1, 1, problem.height, problem.width), np.int32), problem)
    sums = tap_sums(arrays).reshape(problem.out_channels, -1)
    # float64 holds these integers exactly, and BLAS multiplies float64 matrices
    added = sums.astype(np.float64) @ outside.astype(np.float64)
    return (added.astype(np.int32) + np.int32(problem.depth)).reshape(shape)


def _outside(layer: BinaryLayer) -> np.ndarray:
    """Return the words of a padding pixel (words, planes).

    One-bit words cannot hold 0; they hold -1 in place of 0.
    """
    form = Format(f"packed{_WORD_BITS}", layer.form.input)
    value = layer.padding if layer.padding or layer.form.planes == 2 else -1
    return constant_words(value, TensorSpec(layer.convolution.inputs[0].shape, form))


def _input_planes(x: np.ndarray, layer: BinaryLayer, spec: TensorSpec) -> np.ndarray:
    """Return the words of the input (planes, words, N, H, W)."""
    problem, form = layer.convolution, layer.form
    if not spec.format.is_packed:
        x = value_words(x, form.input, _WORD_BITS)
    words = x.reshape(problem.batch, -1, problem.height, problem.width, form.planes)
    return words.transpose(4, 1, 0, 2, 3)


def _windows(planes: np.ndarray, problem: Conv2dProblem,
             outside: np.ndarray | int = 0) -> np.ndarray:
    """Return the values that each tap reads.

    The result has shape (P * taps, N * output pixels).

    planes: P planes of values of the input, of shape (P, N, H, W).
    outside: the value of padding pixels: one value for all planes, or an array (P,) with one value
    per plane.
    """
    top, left, bottom, right = problem.pads
    height, width = planes.shape[2:]
    padded = planes
    if any(problem.pads):
        padded = np.empty((*planes.shape[:2], top + height + bottom, left + width + right),
                          planes.dtype)
        padded[...] = np.reshape(outside, (-1, 1, 1, 1))
        padded[:, :, top:top + height, left:left + width] = planes
    # axes: plane, image, tap's row, tap's column, row, column
    return windows(padded, problem).transpose(0, 2, 3, 1, 4, 5).reshape(
        len(planes) * problem.taps, -1)


def _accumulators(planes: np.ndarray, layer: BinaryLayer, constants: Constants) -> np.ndarray:
    """Return the accumulators (N, M, output rows, output columns) of some images.

    planes: the words of the images (planes, words, N, H, W).
    """
    problem = layer.convolution
    count = words_of_a_group(problem, _WORD_BITS)
    masks = group_masks(problem, _WORD_BITS)
    images = planes.shape[2]
    pixels = problem.image_pixels
    channels = problem.group_out_channels
    result = np.empty((images, problem.groups, channels, pixels), np.int32)
    for group, first in enumerate(first_words(problem, _WORD_BITS)):
        part = planes[:, first:first + count]
        mask = masks[group, :part.shape[1], None, None, None]
        outside = constants.outside[first:first + count] & masks[group, :part.shape[1], None]
        columns = [_windows(plane & mask, problem, outside[:, number])
                   for number, plane in enumerate(part)]
        # the last groups may have fewer than `count` words of the input
        words = constants.words[group].reshape(channels, count, -1)[:, :part.shape[1]]
        sums = _differences(columns, words.reshape(channels, -1))
        sums *= -2
        if len(columns) == 2:
            sums += np.bitwise_count(columns[0]).sum(axis=0, dtype=np.int32)
        result[:, group] = sums.reshape(channels, images, pixels).transpose(1, 0, 2)
    accumulators = result.reshape(images, problem.out_channels, problem.out_height,
                                  problem.out_width)
    accumulators += constants.base
    return accumulators


def _differences(columns: Sequence[np.ndarray], words: np.ndarray) -> np.ndarray:
    """Return the number of products that are -1, for each output (M, pixels).

    columns: arrays of the inputs' words, each of shape (K, pixels), where K is the number of words
    of a window. One-bit inputs have one array with the signs. Two-bit inputs have two arrays. In
    the first, a bit is 1 if the input is not 0; in the second, a bit is 1 if the input is 1.
    words: the signs of the weights (M, K).
    """
    signs, counted = columns[-1], columns[0] if len(columns) == 2 else None
    depth, pixels = signs.shape
    channels = len(words)
    if pixels < _FEW_PIXELS:
        return np.stack([
            np.bitwise_count((words ^ signs[:, pixel]) & (
                ~signs.dtype.type(0) if counted is None else counted[:, pixel]))
            .sum(axis=1, dtype=np.int32) for pixel in range(pixels)], axis=1)
    # NumPy's inner loop runs over the longer axis, along which words are adjacent in memory
    by_pixel = pixels < channels
    outer, inner = (signs.T, np.ascontiguousarray(words.T)) if by_pixel else (words, signs)
    result = np.zeros((len(outer), inner.shape[1]), np.int32)
    step = max(1, _WORDS_AT_ONCE // inner.shape[1])
    for first in range(0, len(outer), step):
        rows = slice(first, first + step)
        different = np.empty((len(outer[rows]), inner.shape[1]), signs.dtype)
        ones, sums = (np.empty(different.shape, np.uint8) for _ in range(2))
        for k in range(depth):
            np.bitwise_xor(outer[rows, k, None], inner[k], out=different)
            if counted is not None:
                different &= counted[k][rows, None] if by_pixel else counted[k]
            np.bitwise_count(different, out=ones)
            if k % _COUNTS_OF_A_BYTE == 0:
                np.copyto(sums, ones)
            else:
                sums += ones
            if k % _COUNTS_OF_A_BYTE == _COUNTS_OF_A_BYTE - 1 or k == depth - 1:
                result[rows] += sums
    return result.T if by_pixel else result
