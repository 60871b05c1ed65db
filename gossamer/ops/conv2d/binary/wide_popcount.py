"""wide_popcount: binary convolution on CPUs through OpenCL.

A vector holds one word of each of eight output channels, so the CPU counts the set bits of all
eight words at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Epilogue, Problem, State, Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.layer import (
    BinaryLayer,
    alphas,
    float_specs,
    format_macros,
    group_tables,
    packed_variants,
    processor_us,
    sign_words,
    words_are_whole,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.thresholds import replaced_epilogue
from gossamer.ops.conv2d.common import panels
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import PackedParts, constant_words
from gossamer.ops.strided import too_large
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("wide_popcount.cl")
WORD_BITS = 64
CONFIGS = tuple((("pixels", pixels), ("vectors", vectors))
                for pixels, vectors in ((4, 4), (2, 8), (2, 4), (1, 8)))
"""Tile sizes of a work-item: output pixels, and vectors of 8 output channels."""
_WORDS_PER_MICROSECOND = 4000
"""64-bit words that a core compares per microsecond, measured at 3.4 GHz with AVX-512 under PoCL.
The tuner's measurements correct this estimate on other CPUs."""


class WidePopcount(BinaryAlgorithm):
    """Binary convolution on CPUs.

    A work-item computes a tile of output pixels by output channels.
    """

    name = "wide_popcount"

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        if layer.has_two_results and not words_are_whole(layer.convolution, WORD_BITS):
            return "a word of the second result would have channels of several groups"
        if (reason := layer.reason_not_binary()) is not None:
            return reason
        if not device.compiles:
            return f"{device.name} compiles no kernels"
        if not device.on_processors:
            return "runs on processors only: their vector registers hold the counts"
        return too_large(layer.convolution)

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        for config in CONFIGS:
            yield from packed_variants(layer, inputs, config, WORD_BITS)

    def layer_us(self, layer: BinaryLayer, variant: Variant, device: Device) -> float:
        return processor_us(layer.convolution, _WORDS_PER_MICROSECOND, device)

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device, launches(weights, layer, variant, device))


def launches(weights: Weights, layer: BinaryLayer, variant: Variant,
             device: Device) -> list[Launch]:
    """Return one launch, or none if the output is empty.

    weights: the layer's constants, under their names in the layer's convolution.
    """
    problem = layer.convolution
    if variant.outputs[0].size == 0:
        return []
    source = variant.inputs[0]
    lanes = 8 * variant["vectors"]
    thresholds, epilogue = replaced_epilogue(weights, layer)
    per_group = problem.group_out_channels
    out_words = -(-problem.out_channels // WORD_BITS)
    # if there is only one group, its blocks cover all words of the output, including an incomplete
    # last word
    blocks = -(-(per_group if problem.groups > 1 else out_words * WORD_BITS) // lanes)
    x_image, x_word, x_row, x_column = (
        stride // (WORD_BITS // 32) for stride in PackedParts.of(source).strides)
    # one-bit words cannot hold 0, so padding pixels hold -1 instead; the kernel skips the products
    # with these pixels
    outside = layer.padding if layer.padding or layer.form.planes == 2 else -1
    return [Launch(
        device.compile(_source(layer, variant, epilogue, thresholds is not None)),
        (-(-problem.pixels // variant["pixels"]) * blocks, problem.groups), (1, 1),
        (input_buffer(0),
         weights.packed(f"signs in {blocks} panels of {lanes}, 64 bits, binary",
                        lambda arrays: panels(sign_words(arrays, problem, WORD_BITS).reshape(
                            problem.groups, per_group, -1, problem.taps), blocks, lanes)),
         *group_tables(weights, problem, WORD_BITS),
         weights.packed(f"pixels of {outside}, {layer.form.input}",
                        lambda arrays: constant_words(outside, source)),
         weights.packed("alphas, binary", alphas), thresholds, output_buffer(0),
         output_buffer(len(variant.outputs) - 1), problem.pixels, problem.group_channels,
         -(-problem.channels // WORD_BITS), words_of_a_group(problem, WORD_BITS), per_group,
         problem.out_channels, out_words, problem.height, problem.width, problem.out_width,
         problem.image_pixels, *problem.kernel, *problem.stride,
         *problem.pads[:2], *problem.dilation, blocks, x_image, x_word, x_row, x_column,
         *epilogue_arguments(epilogue, weights, 1, problem.out_channels)))]


def _source(layer: BinaryLayer, variant: Variant, epilogue: Epilogue,
            thresholds: bool) -> KernelSource:
    problem = layer.convolution
    # run-time operands of the epilogue have the format of a float output
    floats = next(iter(float_specs(variant)), problem.outputs[0])
    return KernelSource.of(_SOURCE, "wide_popcount", {
        "PIXELS": variant["pixels"],
        "VECTORS": variant["vectors"],
        **format_macros(variant, has_thresholds=thresholds),
        "MASKED": int(problem.groups > 1 and problem.group_channels % WORD_BITS != 0),
        "SKIP_OUTSIDE": int(layer.takes_zeros_back),
        "OUT_HALVES": WORD_BITS // 32,
        "OUT_NHWC": int(floats.layout == "NHWC" or problem.image_pixels == 1),
        **epilogue_macros(epilogue),
    })
