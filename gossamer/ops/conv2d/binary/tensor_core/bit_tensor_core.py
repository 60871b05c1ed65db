"""bit_tensor_core: binary convolution on NVIDIA tensor cores, which multiply single bits.

The algorithm is an implicit GEMM: rows are output pixels, columns are output channels, and K runs
over the words of a pixel's window. On tensor cores the product of two bits is 1 if both bits are 1;
bits.h explains how to compute sums of products of signs from products of bits.

The use of 1-bit tensor core instructions for binary convolutions was published by A. Li and S. Su,
"Accelerating binarized neural networks via bit-tensor-cores in Turing GPUs", IEEE TPDS 32(7), 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Problem, State, Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.layer import (
    BinaryLayer,
    alphas,
    binary_form,
    float_specs,
    format_macros,
    words_are_whole,
    words_of_a_group,
)
from gossamer.ops.conv2d.binary.tensor_core.tables import LARGEST_DISTANCE
from gossamer.ops.conv2d.binary.tensor_core.tiles import Tile, fitting_tiles, tile_of
from gossamer.ops.conv2d.binary.thresholds import replaced_epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import (
    epilogue_arguments,
    epilogue_macros,
    epilogue_macros_of_eight,
)
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

_WORD_BITS = (64, 32)
_HALVES = 8
"""Number of 16-bit floats that are read or written at once: 16 bytes."""


class BitTensorCore(BinaryAlgorithm):
    """Binary convolution on packed words by tensor cores that multiply bits."""

    name = "bit_tensor_core"

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        problem = layer.convolution
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for bits (sm_80 or newer)"
        if (reason := layer.reason_not_binary()) is not None:
            return reason
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        padded_sizes = (problem.height + problem.pads[0] + problem.pads[2],
                        problem.width + problem.pads[1] + problem.pads[3])
        if max(padded_sizes) >= LARGEST_DISTANCE:
            return (f"needs padded images of at most {LARGEST_DISTANCE - 1} rows and columns, has "
                    f"{max(padded_sizes)}")
        channels = problem.group_channels
        if problem.groups > 1 and channels % min(_WORD_BITS):
            return (f"needs groups with a multiple of {min(_WORD_BITS)} channels, has {channels} "
                    "channels per group")
        if layer.has_two_results and not words_are_whole(problem, min(_WORD_BITS)):
            return "a word of the second result would have channels of several groups"
        return None

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        for tile, word_bits in tiles_and_words(layer, device):
            for layout in output_layouts(layer, word_bits):
                yield from with_float16(layer, variant_of(layer.convolution, tile, word_bits,
                                                          layout))

    def layer_us(self, layer: BinaryLayer, variant: Variant, device: Device) -> float:
        word_bits = 8 * variant.inputs[0].stored_dtype.itemsize
        return tile_of(variant).expected_us(layer, word_bits, device.limits)

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device, launches(weights, layer, variant, device))


def tiles_and_words(layer: BinaryLayer, device: Device) -> Iterator[tuple[Tile, int]]:
    """Yield each tile that fits, with the number of bits of the words that it reads.

    The tiles of each word size are sorted by their expected times.
    """
    problem = layer.convolution
    for word_bits in _WORD_BITS:
        # the kernels require that a word holds channels of one group only
        if problem.groups > 1 and problem.group_channels % word_bits:
            continue
        if layer.has_two_results and not words_are_whole(problem, word_bits):
            continue
        for tile in fitting_tiles(layer, word_bits, device.limits):
            yield tile, word_bits


def output_layouts(layer: BinaryLayer, word_bits: int) -> tuple[str, ...]:
    """Return the possible layouts of the output.

    The last layout is packed if the results fit a packed dtype and each word holds channels of only
    one group.
    """
    packs = layer.form.output is not None and words_are_whole(layer.convolution, word_bits)
    return ("NHWC", "NCHW", f"packed{word_bits}") if packs else ("NHWC", "NCHW")


def with_float16(layer: BinaryLayer, variant: Variant) -> Iterator[Variant]:
    """Yield a variant and, where possible, the same variant with float16 tensors.

    float16 is possible if the variant reads or writes floats, if all of these floats are in NHWC,
    if a group has a multiple of _HALVES output channels, and if float16 does not round values that
    are known to be integers.
    """
    yield variant
    problem = layer.convolution
    floats = float_specs(variant)
    if not floats or problem.group_out_channels % _HALVES or any(
            spec.layout != "NHWC" for spec in floats):
        return
    if not layer.rounds_integers(not variant.outputs[0].format.is_packed):
        yield variant.as_fp16


def launches(weights: Weights, layer: BinaryLayer, variant: Variant,
             device: Device) -> list[Launch]:
    """Return one launch, or none if the output is empty.

    weights: the layer's constants, under their names in the layer's convolution.
    variant: a variant with a tile as its config.
    """
    problem = layer.convolution
    source, target = variant.inputs[0], variant.outputs[-1]
    if target.size == 0:
        return []
    word_bits = 8 * source.stored_dtype.itemsize
    tile = tile_of(variant)
    thresholds, epilogue = replaced_epilogue(weights, layer)
    macros = format_macros(variant, has_thresholds=thresholds is not None)
    folded = thresholds is not None and macros["OUTPUT_PLANES"] == 1
    # run-time operands of the epilogue have the format of a float output
    all_floats = float_specs(variant)
    floats = all_floats[0] if all_floats else problem.outputs[0]
    halves = floats.dtype == "float16"
    # whether channels are adjacent in memory and can be accessed four at a time
    fours = floats.strides[1] == 1 and problem.group_out_channels % 4 == 0
    operands = [f"operand{i}" for i, kind in enumerate(epilogue.operands) if kind == "tensor"]
    exchange_bytes = 0
    if all_floats and floats.layout == "NHWC" and (halves or fours) and len(operands) <= 1:
        exchange_bytes = tile.exchange_bytes(layer, word_bits, floats.stored_dtype.itemsize,
                                             device.limits)
    tables = tile.tables(layer, word_bits)
    kernel = device.compile(KernelSource.of(tile.path, tile.path.stem, {
        **{key.upper(): value for key, value in variant.config if key != "instruction"},
        **tile.macros(layer),
        "AT_ONCE": tile.at_once(layer, word_bits),
        "CONSTANT_CLASSES": tile.constant_classes(layer),
        "WORD_BITS": word_bits, **macros, "HALVES": int(halves),
        "VECTOR": _HALVES if halves else 4 if fours else 1,
        **(epilogue_macros_of_eight(epilogue) if halves else epilogue_macros(epilogue)),
        "EPILOGUE_ARGUMENTS": "".join(f", operand{i}" for i in range(len(epilogue.operands))),
        "EXCHANGES": int(exchange_bytes > 0),
        **({"EXCHANGED_OPERAND": operands[0]} if exchange_bytes and operands else {}),
        }, architectures=tile.architectures,
        dynamic_shared=True))
    tiles = tile.channel_tiles(layer)
    return [Launch(
        kernel, (tile.pixel_groups(layer, device.limits), tiles * problem.groups),
        (tile.work_group,),
        (input_buffer(0), tile.taps(layer, word_bits, weights), tables.weights(weights),
         tables.constants(weights, folded), tables.flips(weights) if folded else None,
         thresholds, weights.packed("alphas, binary", alphas), tables.classes(weights),
         output_buffer(0), output_buffer(len(variant.outputs) - 1),
         problem.pixels, tile.phases(layer, word_bits),
         *divisor(problem.image_pixels), *divisor(problem.out_width),
         *divisor(tiles), source.stored_shape[1], words_of_a_group(problem, word_bits),
         problem.height, problem.width, *problem.stride, *problem.pads[:2],
         problem.group_out_channels, tables.tile_channels, problem.out_channels,
         -(-problem.out_channels // word_bits), tables.column_classes, *floats.strides,
         *epilogue_arguments(epilogue, weights, 1, problem.out_channels)),
        tile.shared_bytes(layer, word_bits) + exchange_bytes)]


def variant_of(problem: Conv2dProblem, tile: Tile, word_bits: int, layout: str) -> Variant:
    """Return a tile's variant that reads words of `word_bits` bits and writes `layout`.

    Run-time operands are in the same layout, or in NHWC if the output is packed.
    """
    form = binary_form(problem)
    x, *operands = problem.inputs
    source = TensorSpec(x.shape, Format(f"packed{word_bits}", form.input))
    (y,) = problem.outputs
    floats = y.with_format(layout="NHWC" if layout.startswith("packed") else layout)
    target = floats
    if layout.startswith("packed"):
        assert form.output is not None
        target = TensorSpec(y.shape, Format(layout, form.output))
    return Variant(tile.config, (source, *[floats] * len(operands)), (target,))
