"""The algorithm bottleneck_mma computes a bottleneck block of ResNet as one kernel for NVIDIA GPUs,
with tensor cores that skip columns of zeros.

Source: rows are multiplied together in the tensor cores' tile of 16, as in vector-sparse products
(Z. Chen et al., "Efficient tensor core-based GPU kernels for structured sparsity under reduced
precision", SC 2021), without pruning in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from gossamer.device.base import Argument, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.sparse.common.tensor_cores import CYCLES_PER_MICROSECOND
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.bottleneck.block import Bottleneck, bottleneck_of, of_batch, reason_apart
from gossamer.ops.fused.bottleneck.tables import BottleneckTables
from gossamer.ops.fused.bottleneck.tiling import BottleneckTile, BottleneckTiling, tilings
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("bottleneck_mma.cu")
_MULTIPLE = 8
"""Number of which channels in memory are a multiple, so that 16 bytes hold neighbouring ones."""
_BATCHES = (1, 64)
"""Batch sizes of which the best tiles are offered at any batch size, so that a plan for one serves
others."""
_CONFIGS = 4
"""Tiles that are offered for each of these batch sizes."""
_LAYERS = ("FIRST_", "SECOND_", "LAST_")


class BottleneckMma(FusionAlgorithm):
    """Computes a block in float16 with float32 sums; the tensors between its layers stay in shared
    memory, as float16.

    A column that one of a block of 16 or 32 output channels needs is multiplied for all of them: a
    NaN or infinity reaches each of these, even where only zeros meet it.
    """

    name = "bottleneck_mma"
    patterns = (("conv2d", "conv2d", "conv2d"),)
    dense = False
    by_name_only = True

    def recognises(self, problem: FusionProblem) -> bool:
        return bottleneck_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if not device.limits.mma:
            return f"{device.name} has no tensor cores for float16 (sm_80 or newer)"
        block = bottleneck_of(problem)
        if block is None:
            return "the layers are no bottleneck block"
        if (reason := cannot_compile(problem, device) or reason_apart(block)) is not None:
            return reason
        first, window, last = block.layers
        if first.channels % _MULTIPLE or last.out_channels % _MULTIPLE:
            return (f"{first.channels} to {last.out_channels} channels, takes multiples of "
                    f"{_MULTIPLE}")
        if problem.outputs[0].size and not tilings(block, device.limits):
            return (f"{window.channels} and {window.out_channels} channels between the layers do "
                    "not fit the shared memory and registers of a work-group")
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        block = bottleneck_of(problem)
        assert block is not None
        tiles = (_offered(block, device.limits) if problem.outputs[0].size
                 else [BottleneckTile(1, 1, 32, 1, 8, 0)])
        for tile in tiles:
            (plain,) = layout_variants(problem, ("NHWC",), tuple(asdict(tile).items()))
            yield plain.as_fp16

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float | None:
        if not problem.outputs[0].size:
            return None
        return _divided(problem, variant).cycles(device.limits) / CYCLES_PER_MICROSECOND

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        divided = _divided(problem, variant)
        block, window = divided.block, divided.block.window
        tables = BottleneckTables(divided, weights.arrays)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "bottleneck_mma", _macros(divided), architectures=("sm_80", "sm_90", "sm_100"),
            dynamic_shared=True, begins_early=True))
        parts = [weights.packed(tables.key(part), tables.packing(part))
                 for part in ("starts", "columns", "weights")]
        operands: list[Argument | Callable[..., Argument]] = []
        for number in (0, 1):
            operands += [weights.packed(*tables.constants(number, operand)) for operand
                         in range(len(block.layers[number].epilogue.operands))]
        last = block.layers[2]
        operands += epilogue_arguments(last.epilogue, weights, block.added_input,
                                       last.out_channels, prefix="2.")
        arguments = (input_buffer(0), *parts, output_buffer(0), window.height, window.width,
                     window.out_height, window.out_width, *window.pads[:2], *operands)
        return State(problem, variant, device, [Launch(
            kernel, divided.grid, (32 * divided.tile.warps,), arguments, divided.shared_bytes)])


def _divided(problem: FusionProblem, variant: Variant) -> BottleneckTiling:
    block = bottleneck_of(problem)
    assert block is not None
    return BottleneckTiling(block, BottleneckTile(
        **{key: int(value) for key, value in variant.config}))


def _offered(block: Bottleneck, limits: Limits) -> list[BottleneckTile]:
    """Returns the tiles that are offered: for each batch size the tiles that are expected to be
    fastest, but only one for each number of outputs and tiles; all in the order in which they are
    at the block's own."""
    batch = block.window.batch
    found: dict[BottleneckTile, None] = {}
    for size in dict.fromkeys((batch, *_BATCHES)):
        best: dict[tuple[int, int, int], BottleneckTile] = {}
        for divided in tilings(of_batch(block, size), limits):
            tile = divided.tile
            best.setdefault((tile.rows, tile.fragment_stride, tile.tiles), tile)
        found.update(dict.fromkeys(list(best.values())[:_CONFIGS]))
    return [divided.tile for divided in tilings(block, limits) if divided.tile in found]


def _macros(divided: BottleneckTiling) -> dict[str, object]:
    """Returns the macros that bottleneck_mma.cu describes."""
    tile, layers, shared = divided.tile, divided.block.layers, divided.divided
    assert shared is not None
    macros: dict[str, object] = {
        "HALVES": 1, "WARPS": tile.warps, "TILES": tile.tiles, "TILE_H": tile.rows,
        "FRAGMENT_STRIDE": tile.fragment_stride, "CHUNK": tile.chunk, "TRANSPOSED": tile.transposed,
        "KERNEL_H": layers[1].kernel[0], "KERNEL_W": layers[1].kernel[1],
        "CHANNELS": layers[0].channels,
        "X_ROW": divided.pieces[0], "FIRST_ROW": divided.pieces[1],
        "SECOND_ROW": divided.pieces[2], "INPUTS_AT": divided.inputs_at,
        "STARTS_AT": divided.starts_at,
        "EPILOGUES": " ".join(f"{prefix}EPILOGUE_PARAMETERS" for prefix in _LAYERS)}
    for prefix, layer, division in zip(_LAYERS, layers, shared, strict=True):
        macros[prefix.removesuffix("_")] = layer.out_channels
        macros[f"{prefix}FRAGMENTS"] = division.fragments
        macros.update(epilogue_macros(layer.epilogue, tensor_dtype="float16", prefix=prefix))
    return macros
