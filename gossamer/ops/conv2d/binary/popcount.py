"""popcount: binary convolution by exclusive or and popcount, for OpenCL and CUDA.

The kernel follows the published method of binary convolutions on GPUs (docs/binary.md). Channels
are packed into words of b = 32 or 64 bits, in the layout N(C/b)HWb. A tile has several output
channels, rows and columns; a work-item computes up to 4 x 4 outputs of one channel. Inputs are
staged in shared memory, and a vote of 32 work-items packs 32 results. In the published method, the
work-items vote on the signs of results. In this implementation, they vote on comparisons of sums
with the integer thresholds of the channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Epilogue, Problem, State, Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.layer import (
    BinaryLayer,
    alphas,
    binary_form,
    float_specs,
    format_macros,
    group_tables,
    packed_variants,
    processor_us,
    sign_words,
    tap_sums,
    words_are_whole,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.thresholds import replaced_epilogue
from gossamer.ops.conv2d.common import config_of, sizes_of, window_macros
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import LaunchWork
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import PackedParts
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("popcount.cl")
WORD_BITS = (32, 64)
_STAGED_BYTES = 8 * 1024
"""Maximum bytes of one plane of inputs that are in shared memory at once. At least one word of each
input pixel is staged, even if these words exceed the limit."""
_WORDS_PER_MICROSECOND = 600
"""64-bit words that a core compares per microsecond, measured at 3.4 GHz with AVX-512 under PoCL.
The tuner's measurements correct this estimate on other CPUs."""
_COUNT_CYCLES, _LOAD_CYCLES = 2, 4
"""Cycles that a multiprocessor of a GPU needs for one instruction of a warp: to count the set bits
of a 32-bit word in each work-item, and to load a word of the weights in each work-item."""
_MOST_ITEMS = 2048
"""Maximum number of work-items that a multiprocessor holds at once."""


@dataclass(frozen=True)
class Tile:
    """The sizes of a work-group's tile.

    tile_m: output channels of a work-group, a multiple of 32.
    patches_y: number of work-items along the height of the tile, for each channel.
    patches_x: number of work-items along the width of the tile, for each channel.
    work_h: rows of outputs that a work-item computes.
    work_w: columns of outputs that a work-item computes.
    """

    tile_m: int
    patches_y: int
    patches_x: int
    work_h: int
    work_w: int

    @property
    def work_group(self) -> int:
        """Work-items of a work-group."""
        return self.tile_m * self.patches_y * self.patches_x

    @property
    def rows(self) -> int:
        """Rows of outputs of a work-group."""
        return self.patches_y * self.work_h

    @property
    def columns(self) -> int:
        """Columns of outputs of a work-group."""
        return self.patches_x * self.work_w

    def staged(self, problem: Conv2dProblem) -> int:
        """Return the number of input pixels that a work-group stages."""
        return problem.window(0, self.rows) * problem.window(1, self.columns)

    def chunk(self, problem: Conv2dProblem, word_bits: int) -> int:
        """Return the number of words of a pixel that are staged at once."""
        fitting = _STAGED_BYTES * 8 // (word_bits * self.staged(problem))
        return max(1, min(fitting, words_of_a_group(problem, word_bits)))

    def shared_bytes(self, problem: Conv2dProblem, word_bits: int) -> int:
        """Return the bytes of shared memory of a work-group."""
        planes = binary_form(problem).planes
        staged = self.staged(problem) * (
            self.chunk(problem, word_bits) * word_bits // 8 * planes + (4 if planes == 2 else 0))
        return staged + 2 * 4 * self.tile_m // 32 * self.rows * self.columns


TILES = (
    Tile(32, 4, 4, 4, 4),
    Tile(64, 2, 2, 4, 4),
    Tile(32, 2, 2, 4, 4),
    Tile(32, 2, 4, 2, 2),
    Tile(64, 2, 2, 2, 2),
    Tile(32, 1, 2, 2, 2),
    Tile(64, 1, 1, 1, 1),
)
"""Candidate tiles: the published one of 16 x 16 outputs, and smaller ones for small images."""


def reason_not_popcount(layer: BinaryLayer, device: Device,
                        tiles: Iterable[Tile] = TILES) -> str | None:
    """Return why the kernel cannot compute a layer; None if it can."""
    if (reason := layer.reason_not_binary()) is not None:
        return reason
    if (reason := cannot_compile(layer.convolution, device)) is not None:
        return reason
    if not fitting(layer.convolution, device, tiles):
        return (f"no tile fits the work-groups of {device.name} and its "
                f"{device.limits.shared_bytes} bytes of shared memory")
    return None


class Popcount(BinaryAlgorithm):
    """Binary convolution on packed words, in tiles.

    A work-item computes one channel of a patch of the tile's output pixels.
    """

    name = "popcount"

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        if layer.has_two_results and not words_are_whole(layer.convolution, max(WORD_BITS)):
            return "a word of the second result would have channels of several groups"
        return reason_not_popcount(layer, device)

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        for tile, word_bits in itertools.product(fitting(layer.convolution, device), WORD_BITS):
            yield from packed_variants(layer, inputs, config_of(tile), word_bits)

    def layer_us(self, layer: BinaryLayer, variant: Variant, device: Device) -> float:
        if device.on_processors:
            return processor_us(layer.convolution, _WORDS_PER_MICROSECOND, device)
        tile = sizes_of(Tile, variant)
        word_bits = 8 * variant.inputs[0].stored_dtype.itemsize
        return _expected_gpu_us(layer.convolution, tile, word_bits, device)

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device, launches(weights, layer, variant, device))


def launches(weights: Weights, layer: BinaryLayer, variant: Variant,
             device: Device) -> list[Launch]:
    """Return one launch, or none if the output is empty.

    If the variant's tensors are matrices, the layer is computed as a convolution of one image. The
    image's pixels are the rows of the input matrix.

    weights: the layer's constants, under their names in the layer's convolution.
    variant: a variant with a tile as its config.
    """
    problem = layer.convolution
    if variant.outputs[0].size == 0:
        return []
    source = variant.inputs[0]
    word_bits = 8 * source.stored_dtype.itemsize
    tile = sizes_of(Tile, variant)
    thresholds, epilogue = replaced_epilogue(weights, layer)
    kernel = device.compile(_source(layer, variant, tile, epilogue, thresholds is not None))
    group_channels = problem.group_out_channels
    out_words = -(-problem.out_channels // word_bits)
    # if there is only one group, its channels are rounded up to whole words, so that a tile also
    # writes the second half of the last word
    channels = group_channels if problem.groups > 1 else out_words * word_bits
    tiles_m = -(-channels // tile.tile_m) * problem.groups
    tiles_y = -(-problem.out_height // tile.rows)
    tiles_x = -(-problem.out_width // tile.columns)
    # run-time operands of the epilogue have the format of a float output
    floats = next(iter(float_specs(variant)), problem.outputs[0])
    return [Launch(
        kernel, (tiles_m * tiles_y * tiles_x * problem.batch,), (tile.work_group,),
        (input_buffer(0),
         weights.packed(f"signs by channels, {word_bits} bits, binary", lambda arrays: np.moveaxis(
             sign_words(arrays, problem, word_bits), 0, -1)),
         *group_tables(weights, problem, word_bits),
         weights.packed("sums of taps by channels, binary",
                        lambda arrays: np.moveaxis(tap_sums(arrays), 0, -1))
         if layer.takes_zeros_back else None,
         weights.packed("alphas, binary", alphas), thresholds, output_buffer(0),
         output_buffer(len(variant.outputs) - 1), problem.depth, problem.channels,
         -(-problem.channels // word_bits), words_of_a_group(problem, word_bits),
         group_channels, problem.out_channels, out_words, problem.height, problem.width,
         problem.out_height, problem.out_width, *problem.pads[:2], tiles_m, tiles_y, tiles_x,
         *(stride * 32 // word_bits for stride in _strides(source)), *_strides(floats),
         *_strides(variant.outputs[-1]),
         *epilogue_arguments(epilogue, weights, 1, problem.out_channels)))]


def _strides(spec: TensorSpec) -> tuple[int, ...]:
    """Return the strides of images, channels, rows and columns.

    Strides of packed tensors are in units of 32 bits. A matrix counts as one image with a single
    row of pixels, which are the rows of the matrix.
    """
    strides = PackedParts.of(spec).strides if spec.format.is_packed else spec.strides
    return strides if len(spec.shape) == 4 else (0, strides[1], 0, strides[0])


def _source(layer: BinaryLayer, variant: Variant, tile: Tile, epilogue: Epilogue,
            thresholds: bool) -> KernelSource:
    problem = layer.convolution
    word_bits = 8 * variant.inputs[0].stored_dtype.itemsize
    return KernelSource.of(_SOURCE, "popcount_conv", {
        "WORD_BITS": word_bits,
        **format_macros(variant, has_thresholds=thresholds),
        "MASKED": int(problem.groups > 1 and problem.group_channels % word_bits != 0),
        "PADDING": layer.padding,
        "TAKE_BACK": int(layer.takes_zeros_back),
        "CHUNK": tile.chunk(problem, word_bits),
        **{key.upper(): value for key, value in config_of(tile)},
        **window_macros(problem),
        **epilogue_macros(epilogue),
    })


def fitting(problem: Conv2dProblem, device: Device,
            tiles: Iterable[Tile] = TILES) -> list[Tile]:
    """Return the tiles that fit a device.

    The tiles are sorted by the number of outputs that a launch computes, including outputs beyond
    the image and beyond the last channel.
    """
    def computed(tile: Tile) -> int:
        return (-(-problem.out_height // tile.rows) * tile.rows
                * -(-problem.out_width // tile.columns) * tile.columns
                * -(-problem.out_channels // tile.tile_m) * tile.tile_m)

    able = [tile for tile in tiles
            if tile.work_group <= device.limits.work_group_size
            and tile.shared_bytes(problem, max(WORD_BITS)) <= device.limits.shared_bytes]
    return sorted(able, key=computed)


def _expected_gpu_us(problem: Conv2dProblem, tile: Tile, word_bits: int, device: Device) -> float:
    """Return the estimated time of a launch on a GPU in microseconds.

    The estimate follows from two times. The busy time of a multiprocessor is the time to count bits
    and to copy words to shared memory for all of its work-groups, including outputs beyond the
    image and beyond the last channel. The waiting time of a work-item is the latency of its counts
    and of the copies of its chunks.
    """
    words = words_of_a_group(problem, word_bits) * word_bits // 32
    taps = words * problem.taps
    counts = tile.work_h * tile.work_w
    chunks = -(-words_of_a_group(problem, word_bits) // tile.chunk(problem, word_bits))
    channels = -(-problem.group_out_channels // tile.tile_m) * problem.groups
    groups = (channels * -(-problem.out_height // tile.rows)
              * -(-problem.out_width // tile.columns) * problem.batch)
    counted = tile.work_group // 32 * taps * (_COUNT_CYCLES * counts + _LOAD_CYCLES)
    return LaunchWork(groups, max(1, _MOST_ITEMS // tile.work_group),
                      busy=counted + 0.05 * words * tile.staged(problem),
                      waited=6 * taps * counts + 1000 * chunks).expected_us(device.limits)
