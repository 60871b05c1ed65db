"""The algorithm wide_popcount computes a convolution of signs on processors through OpenCL. A
vector has a word of each of eight output channels, and a processor counts the ones of all eight
words at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, Epilogue, State, Variant
from gossamer.ops.conv2d.binary.form import alphas
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.packing import (
    first_words,
    group_masks,
    sign_words,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.thresholds import packed_thresholds
from gossamer.ops.conv2d.binary.variants import packed_variants, processor_us
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import PackedParts, constant_words
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES

_SOURCE = Path(__file__).with_name("wide_popcount.cl")
WORD_BITS = 64
CONFIGS = tuple((("pixels", pixels), ("vectors", vectors))
                for pixels, vectors in ((4, 4), (2, 8), (2, 4), (1, 8)))
"""Numbers of output pixels, and of vectors of 8 output channels, of a work-item."""
_WORDS_PER_MICROSECOND = 4000
"""Words of 64 bits that a processor compares in a microsecond, measured at 3.4 GHz with AVX-512
under PoCL. On another processor the tuner corrects the estimate by its measurements."""


def reason_not_wide(layer: BinaryLayer, device: Device) -> str | None:
    """Returns why the kernel cannot compute a layer, as shown to the user; None where it can."""
    if (reason := layer.reason_not_binary()) is not None:
        return reason
    if not device.compiles:
        return f"{device.name} compiles no kernels"
    if not device.on_processors:
        return "made for processors, whose vector registers hold the counts"
    problem = layer.convolution
    if max(spec.size for spec in (*problem.inputs, *problem.outputs)) >= 2**31:
        return "a tensor has 2^31 elements or more"
    return None


class WidePopcount(Algorithm):
    """Computes a convolution of signs on processors. A work-item compares the words of a tile of
    output pixels by output channels."""

    op = "conv2d"
    name = "wide_popcount"
    exact = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        return reason_not_wide(BinaryLayer(problem), device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for config in CONFIGS:
            yield from packed_variants(BinaryLayer(problem), problem.inputs, config, WORD_BITS)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float:
        return processor_us(problem, _WORDS_PER_MICROSECOND, device)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device,
                     launches(weights, BinaryLayer(problem), variant, device))


def launches(weights: Weights, layer: BinaryLayer, variant: Variant,
             device: Device) -> list[Launch]:
    """Returns the launches (none or one) that compute a layer in a variant. weights: the layer's
    constants, under their names in the layer's convolution."""
    problem = layer.convolution
    if variant.outputs[0].size == 0:
        return []
    source = variant.inputs[0]
    lanes = 8 * variant["vectors"]
    thresholds = None if layer.has_two_results else packed_thresholds(
        weights, problem.epilogue, problem.depth)
    epilogue = problem.epilogue if thresholds is None else Epilogue()
    channels, per_group = (count // problem.groups
                           for count in (problem.channels, problem.out_channels))
    out_words = -(-problem.out_channels // WORD_BITS)
    # where there is only one group, its blocks cover whole words of the output, the last word
    # included
    blocks = -(-(per_group if problem.groups > 1 else out_words * WORD_BITS) // lanes)
    x_image, x_word, x_row, x_column = (
        stride // (WORD_BITS // 32) for stride in PackedParts.of(source).strides)
    form = "64 bits, binary"
    # one-bit words have -1 in place of 0 outside of the image; the kernel does not count products
    # with a -1 that stands for 0
    outside = layer.padding if layer.padding or layer.form.planes == 2 else -1
    return [Launch(
        device.compile(_source(layer, variant, epilogue, thresholds is not None)),
        (-(-problem.pixels // variant["pixels"]) * blocks, problem.groups), (1, 1),
        (input_buffer(0),
         weights.packed(f"signs in {blocks} panels of {lanes}, {form}",
                        lambda arrays: _panels(arrays, problem, blocks, lanes)),
         weights.packed(f"masks of groups, {form}",
                        lambda arrays: group_masks(problem, WORD_BITS)),
         weights.packed(f"first words of groups, {form}", lambda arrays: first_words(
             problem, WORD_BITS).astype(np.int32)),
         weights.packed(f"pixels of {outside}, {layer.form.input}",
                        lambda arrays: constant_words(outside, source)),
         weights.packed("alphas, binary", alphas), thresholds, output_buffer(0),
         output_buffer(len(variant.outputs) - 1), problem.pixels, channels,
         -(-problem.channels // WORD_BITS), words_of_a_group(problem, WORD_BITS), per_group,
         problem.out_channels, out_words, problem.height, problem.width, problem.out_width,
         problem.out_height * problem.out_width, *problem.kernel, *problem.stride,
         *problem.pads[:2], *problem.dilation, blocks, x_image, x_word, x_row, x_column,
         *epilogue_arguments(epilogue, weights, 1, problem.out_channels)))]


def _source(layer: BinaryLayer, variant: Variant, epilogue: Epilogue,
            thresholds: bool) -> KernelSource:
    problem, source, target = layer.convolution, variant.inputs[0], variant.outputs[-1]
    # run-time operands of the epilogue lie in memory like a float output
    floats = next((spec for spec in (*variant.inputs[1:], *variant.outputs)
                   if not spec.format.is_packed), problem.outputs[0])
    return KernelSource.of(_SOURCE, "wide_popcount", {
        "PIXELS": variant["pixels"],
        "VECTORS": variant["vectors"],
        "PLANES": PACKED_DTYPES[source.dtype].planes,
        "OUTPUT_PLANES": PACKED_DTYPES[target.dtype].planes if target.format.is_packed else 0,
        "FLOATS": int(not variant.outputs[0].format.is_packed),
        "THRESHOLDS": int(thresholds),
        "MASKED": int(problem.groups > 1 and problem.channels // problem.groups % WORD_BITS != 0),
        "SKIP_OUTSIDE": int(layer.takes_zeros_back),
        "OUT_HALVES": WORD_BITS // 32,
        "OUT_NHWC": int(floats.layout == "NHWC" or problem.out_height * problem.out_width == 1),
        **epilogue_macros(epilogue),
    })


def _panels(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem, blocks: int,
            lanes: int) -> np.ndarray:
    """Returns the signs of the weights as words (groups, blocks of output channels, taps, words of
    a group, lanes), with zeros after the last output channel of a group."""
    words = sign_words(arrays, problem, WORD_BITS)
    per_group = problem.out_channels // problem.groups
    split = words.reshape(problem.groups, per_group, words.shape[1], -1)
    padded = np.zeros((problem.groups, blocks * lanes, *split.shape[2:]), words.dtype)
    padded[:, :per_group] = split
    by_block = padded.reshape(problem.groups, blocks, lanes, *split.shape[2:])
    return np.ascontiguousarray(by_block.transpose(0, 1, 4, 3, 2))
