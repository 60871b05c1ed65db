"""MobileNet blocks in one kernel on tensor cores of NVIDIA GPUs.

The algorithms are inverted_residual_mma, separable_mma, stem_mma and squeeze_excite_mma.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gossamer.device.base import Argument, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import PRECISIONS, State, Variant
from gossamer.ops.conv2d.common import channels_in_memory, config_of, sizes_of
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.inverted_residual.block import (
    EXCITED_PATTERNS,
    Block,
    block_of,
    excited_block_of,
    of_batch,
    reason_unfused,
    stem_block_of,
)
from gossamer.ops.fused.inverted_residual.packing import (
    block_macros,
    pack_chunks,
    pack_constants,
    pack_excite,
    pack_small_constants,
    pack_squeeze,
)
from gossamer.ops.fused.inverted_residual.tiling import (
    BATCHES,
    BlockTile,
    BlockTiling,
    has_tile,
    tilings,
)
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.image import given_arguments
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("inverted_residual_mma.cu")
_CONFIGS = 4
"""Number of candidate tiles for each batch size in BATCHES."""
_LARGE_CONFIGS = 3
"""Number of further candidate tiles with clusters of more than _SURE_CLUSTER work-groups."""
_SURE_CLUSTER = 8
"""The largest cluster size, in work-groups, that every device with clusters supports."""
_MULTIPLE = 8
"""The numbers of input and output channels must be multiples of this number, so that no load of 16
bytes spans two pixels."""


class _FusedBlockMma(FusionAlgorithm, abc.ABC):
    """A block in one kernel, which is launched in clusters of work-groups."""

    writes_parts = True

    @abc.abstractmethod
    def block_of(self, problem: FusionProblem) -> Block | None:
        """Return a fusion as a block of the algorithm's kind; None if it is not one."""

    def recognises(self, problem: FusionProblem) -> bool:
        return self.block_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        block = self.block_of(problem)
        if block is None:
            return "the layers are not a block of this kind"
        if (reason := reason_unfused(block)) is not None:
            return reason
        channels = (block.channels, block.out_channels)
        if any(count % _MULTIPLE for count in channels[block.gathers:]):
            return (f"needs multiples of {_MULTIPLE} channels, has {channels[0]} input and "
                    f"{channels[1]} output channels")
        if not problem.outputs[0].size or any(has_tile(block, precision, device.limits)
                                              for precision in reversed(PRECISIONS)):
            return None
        p, sizes = block.depthwise, (f"{block.channels} channels by {block.hidden} hidden and "
                                     f"{block.out_channels} output channels")
        if block.excite is None:
            return f"{sizes} do not fit the shared memory and registers of a work-group"
        return (f"{sizes} of a whole image of {p.out_height}x{p.out_width} do not fit the shared "
                f"memory and registers of a cluster of {device.limits.cluster} work-groups")

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        return self._variants(problem, device, PRECISIONS, PRECISIONS)

    def variants_in(self, problem: FusionProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        block = self.block_of(problem)
        assert block is not None
        fitting = [precision for precision in dict.fromkeys((precisions[-1], *precisions))
                   if has_tile(block, precision, device.limits)]
        # fitting[0] is precisions[-1] if any tile fits in this precision. The best tiles in the
        # precision fitting[0] are candidates in all precisions. Another precision adds its own best
        # tiles in two cases: if none of the best tiles of fitting[0] fits in the other precision,
        # or if the block has squeeze-and-excite, where each tile is a whole image.
        ranked = [precision for precision in fitting
                  if precision == fitting[0] or block.excite is not None or not any(
                      BlockTiling(block, tile, precision).fits(device.limits)
                      for tile in _offered(block, fitting[0], device.limits))]
        return self._variants(problem, device, precisions, ranked)

    def _variants(self, problem: FusionProblem, device: Device, precisions: Sequence[str],
                  ranked: Sequence[str]) -> Iterator[Variant]:
        """Yield the variants in the given precisions.

        ranked: the precisions whose expected times determine the candidate tiles.
        """
        block = self.block_of(problem)
        assert block is not None
        for tile in _tiles(block, ranked, device.limits):
            (plain,) = layout_variants(problem, ("NHWC",), config_of(tile))
            for precision in precisions:
                if BlockTiling(block, tile, precision).fits(device.limits):
                    variant = (plain.as_fp16 if precision == "fp16" else
                               replace(plain, precision=precision))
                    # the kernel reads a network's input in the caller's format
                    yield (replace(variant, inputs=problem.inputs) if block.gathers else variant)

    def _divided(self, problem: FusionProblem, variant: Variant) -> BlockTiling:
        block = self.block_of(problem)
        assert block is not None
        tile = sizes_of(BlockTile, variant)
        return BlockTiling(block, tile, variant.precision)

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float | None:
        if not problem.outputs[0].size:
            return None
        return self._divided(problem, variant).expected_us(device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        if not problem.outputs[0].size:
            return State(problem, variant, device)
        divided = self._divided(problem, variant)
        block, tile, p = divided.block, divided.tile, divided.block.depthwise
        # every device with clusters supports bulk copies (cp.async.bulk)
        bulk = device.limits.cluster > 1
        architectures = (("sm_90a",) if tile.wgmma else
                         ("sm_90" if bulk else "sm_80", "sm_100"))
        kernel = device.compile(KernelSource.of(
            _SOURCE, "inverted_residual_mma",
            block_macros(divided, variant.outputs[0].dtype, bulk=bulk),
            architectures=architectures, dynamic_shared=True))
        chunks = weights.packed(f"chunks of {tile.chunk}, {variant.precision}, {tile.wgmma}",
                                lambda arrays: pack_chunks(divided, arrays))
        constants = weights.packed("constants of the results",
                                   lambda arrays: pack_constants(block, arrays))
        groups = (tile.cluster * -(-p.out_width // tile.columns), -(-p.out_height // tile.rows),
                  p.batch)
        small: tuple[Argument, ...] = ()
        if block.excite is not None:
            of_layer = f"{divided.hidden} channels, {variant.precision}"
            small = (
                weights.packed(f"squeeze {of_layer}",
                               lambda arrays: pack_squeeze(divided, arrays)),
                weights.packed(f"excite {of_layer}", lambda arrays: pack_excite(divided, arrays)),
                weights.packed(f"constants of squeeze and excite, {divided.hidden}",
                               lambda arrays: pack_small_constants(divided, arrays)))
        image: tuple[Argument, ...] = ()
        if block.expand is not None and block.gathers:
            image = (block.expand.height, block.expand.width, *block.expand.pads[:2],
                     *given_arguments(weights, block.given))
        (y,) = variant.outputs
        arguments = (input_buffer(0), chunks, constants, output_buffer(0), y.offset,
                     channels_in_memory(y), block.hidden, p.height, p.width, p.out_height,
                     p.out_width, *p.pads[:2], *small, *image)
        return State(problem, variant, device, [
            Launch(kernel, groups, (32 * tile.warps, 1, 1), arguments, divided.shared_bytes)])


class InvertedResidualMma(_FusedBlockMma):
    """An expansion, a depthwise convolution and a projection in one kernel.

    The expanded tensor stays in shared memory. The hidden channels are divided among the
    work-groups of a cluster.
    """

    name = "inverted_residual_mma"
    patterns = (("conv2d", "conv2d", "conv2d"),)

    def block_of(self, problem: FusionProblem) -> Block | None:
        return block_of(problem, expands=True)


class SeparableMma(_FusedBlockMma):
    """A depthwise convolution and a 1x1 convolution in one kernel.

    The tensor between them stays in shared memory. Its channels are divided among the work-groups
    of a cluster.
    """

    name = "separable_mma"
    patterns = (("conv2d", "conv2d"),)

    def block_of(self, problem: FusionProblem) -> Block | None:
        return block_of(problem, expands=False)


class StemMma(_FusedBlockMma):
    """A first convolution and a separable convolution in one kernel.

    The kernel reads the network's input. This is a float32 image in NCHW, or other values, such as
    bytes in NHWC, from which the kernel computes the image.
    """

    name = "stem_mma"
    patterns = (("conv2d", "conv2d", "conv2d"), ("elementwise", "conv2d", "conv2d", "conv2d"))

    def block_of(self, problem: FusionProblem) -> Block | None:
        return stem_block_of(problem)


class SqueezeExciteMma(_FusedBlockMma):
    """A block with a squeeze-and-excite layer in one kernel.

    A cluster of work-groups keeps the hidden channels of a whole image in shared memory.
    """

    name = "squeeze_excite_mma"
    patterns = EXCITED_PATTERNS

    def block_of(self, problem: FusionProblem) -> Block | None:
        return excited_block_of(problem)


def _tiles(block: Block, ranked: Sequence[str], limits: Limits) -> Iterator[BlockTile]:
    """Yield the candidate tiles of the precisions in `ranked`, each tile once.

    The tiles of the first precision come first. For an empty batch one arbitrary tile is yielded.
    """
    if not block.depthwise.outputs[0].size:
        yield BlockTile(1, 1, 16, 1, 1)
        return
    known = set[BlockTile]()
    for precision in ranked:
        for tile in _offered(block, precision, limits):
            if tile not in known:
                known.add(tile)
                yield tile


def _offered(block: Block, precision: str, limits: Limits) -> Iterator[BlockTile]:
    """Yield the candidate tiles of a precision.

    The candidates are the tiles with the lowest expected times at each batch size in BATCHES. The
    candidates for the batch size nearest to that of the block come first. The others are computed
    only if the caller continues the iteration.
    """
    known = set[BlockTile]()
    for batch in sorted(BATCHES, key=lambda other: abs(other - block.depthwise.batch)):
        order = [tile for tile in _best(block, batch, precision, limits) if tile not in known]
        # Without measurements, the first tile is used. Its cluster size must be one that every
        # device with clusters supports.
        yield from sorted(order, key=lambda tile: tile is not next(
            (sure for sure in order if sure.cluster <= _SURE_CLUSTER), None))
        known.update(order)


def _best(block: Block, batch: int, precision: str, limits: Limits) -> list[BlockTile]:
    """Return the tiles with the lowest expected times.

    There is one tile for each number of outputs and each instruction (wgmma or mma). With
    squeeze-and-excite, where each tile is a whole image, there is one tile for each cluster size
    and each instruction. A few further tiles have clusters of more than _SURE_CLUSTER work-groups.
    """
    best: dict[bool, dict[tuple[int, int], BlockTile]] = {False: {}, True: {}}
    for divided in tilings(of_batch(block, batch), precision, limits):
        tile = divided.tile
        best[tile.cluster > _SURE_CLUSTER].setdefault(
            (tile.rows * tile.columns if block.excite is None else tile.cluster, tile.wgmma), tile)
    sure, large = (list(tiles.values()) for tiles in best.values())
    return [*sure[:_CONFIGS], *large[:_CONFIGS - len(sure[:_CONFIGS]) + _LARGE_CONFIGS]]
