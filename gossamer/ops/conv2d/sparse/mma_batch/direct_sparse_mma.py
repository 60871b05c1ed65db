"""The algorithm direct_sparse_mma computes a pruned convolution on tensor cores and skips the
columns that a block of output channels does not need.

Source: direct sparse convolution (X. Chen, "Escoin: efficient sparse convolutional neural network
inference on GPUs", arXiv 1802.10280, 2018). In the source a column of the stretched weights
addresses one input; here a column addresses a row of shared memory, which has the inputs of several
images. Output channels are multiplied together in the tensor cores' tile of 16, as in vector-sparse
products (Z. Chen et al., "Efficient tensor core-based GPU kernels for structured sparsity under
reduced precision", SC 2021). Here weights need not be pruned in blocks, but a column that one of
16 channels needs costs as much as a column that all of them need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product, zip_longest
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.tensor_cores import (
    CYCLES_PER_MICROSECOND,
    ROWS,
    unsuited,
)
from gossamer.ops.conv2d.sparse.mma_batch.order import KINDS, Kind
from gossamer.ops.conv2d.sparse.mma_batch.tables import (
    ROW_CLASSES,
    BatchTables,
    Geometry,
    block_count,
    phases_of,
)
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import divisor
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("direct_sparse_mma.cu")
_MOST_CHUNK = 16
"""The most channels of a chunk. Chunks are small because a work-group cannot multiply before its
first chunk has arrived."""
_RESERVED_BYTES = 1024
"""Bytes of shared memory that the system reserves for each work-group of a multiprocessor."""
_CONFLICTS = 1.1
"""Factor by which bank conflicts lengthen the reads of shared memory. The conflicts were counted
from the places in the BatchTables of pruned layers of AlexNet and ResNet-50. The factor enters the
expected times, which decide the shapes that are offered and their order."""


@dataclass(frozen=True)
class BatchTile:
    """The work of a work-group and of its warps.

    tiles: tiles of 16 output channels in a block, 1 or 2. The channels of a block are similar. With
    two tiles, columns that both tiles need are multiplied for both, and columns that only one tile
    needs are multiplied for this tile only.
    blocks: blocks of a work-group, which compute the same pixels.
    parts: parts into which the images are divided among warps; 1 in TF32.
    sets: sets of warps of a work-group; each set computes the pixels below the pixels of the
    previous set.
    height: rows of output pixels of a warp.
    width: columns of output pixels of a warp.
    blocks_per_unit: work-groups that a multiprocessor is to hold at once.
    """

    tiles: int
    blocks: int
    parts: int
    sets: int
    height: int
    width: int
    blocks_per_unit: int

    @property
    def points(self) -> int:
        """Output pixels of a warp."""
        return self.height * self.width

    @property
    def warps(self) -> int:
        """Warps of a work-group."""
        return self.blocks * self.parts * self.sets

    def tiles_of(self, problem: Conv2dProblem) -> tuple[int, int]:
        """Returns the numbers of tiles of output pixels along x and along y."""
        return (-(-problem.out_width // self.width),
                -(-problem.out_height // (self.sets * self.height)))

    def geometry(self, problem: Conv2dProblem, limits: Limits) -> Geometry | None:
        """Returns how the input lies in shared memory, or None where shared memory cannot hold a
        tile's input for three chunks: the chunk that is multiplied and the next two."""
        patch = [(points - 1) * stride + (size - 1) * dilation + 1
                 for points, stride, size, dilation in zip(
                     (self.sets * self.height, self.width), problem.stride, problem.kernel,
                     problem.dilation, strict=True)]
        most = ((limits.shared_bytes_opt_in + _RESERVED_BYTES) // self.blocks_per_unit
                - _RESERVED_BYTES)
        channels = max(1, problem.channels // problem.groups)
        for stages, fewest in ((6, 4), (5, 3), (4, 2), (3, 1)):
            for chunk in range(min(_MOST_CHUNK, channels), min(fewest, channels) - 1, -1):
                phases = -(-channels // chunk)
                geometry = Geometry(patch[0], patch[1], -(-channels // phases),
                                    min(stages, phases))
                if geometry.nbytes <= most:
                    return geometry
        return None


_POINTS = {"fp16": {(1, 1): ((1, 1), (1, 2), (1, 3), (2, 2), (1, 4)),
                    (2, 1): ((1, 1), (1, 2)), (2, 2): ((1, 2), (1, 3), (2, 2))},
           "tf32": {(1, 1): ((1, 2), (1, 3), (2, 2), (1, 4), (2, 3), (2, 4)),
                    (2, 1): ((1, 2), (1, 3), (2, 2))}}
"""Heights and widths of a warp's pixels, by precision and by numbers of tiles and of parts."""
_MOST_SHAPES = 5
"""The most shapes with one precision and one number of tiles that are offered for a layer."""
_MOST_SIMILAR = 2
"""The most offered shapes that agree in precision, tiles, parts, height and width."""
_NOMINAL_BATCH = 64
"""The batch size for which shapes are chosen: every batch size is offered the same shapes."""


def _shapes(precision: str) -> list[BatchTile]:
    """Returns the shapes that fill a multiprocessor's registers. The number of warps depends on the
    sums of a work-item: 16 warps with up to 64 sums, 12 warps with up to 96 sums, and 8 warps with
    more sums. With two tiles, 64 sums already take 12 warps."""
    shapes = []
    for (tiles, parts), points in _POINTS[precision].items():
        for height, width in points:
            sums = tiles * height * width * KINDS[precision].vector * 4 // parts
            warps = 8 if sums > 96 else 12 if sums > 64 or (tiles, sums) == (2, 64) else 16
            for blocks, sets in product((2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4)):
                blocks_per_unit, rest = divmod(warps, blocks * parts * sets)
                if rest == 0 and 0 < blocks_per_unit <= 4:
                    shapes.append(BatchTile(tiles, blocks, parts, sets, height, width,
                                            blocks_per_unit))
    return shapes


_SHAPES = {precision: _shapes(precision) for precision in KINDS}


class DirectSparseMma(Algorithm):
    """Computes a convolution on tensor cores in TF32 or float16 with float32 sums: each tile of 16
    similar output channels is multiplied by the columns that any of its channels needs, for several
    images at once.

    A column that one of 16 similar output channels needs is multiplied for all of them: a NaN or
    infinity of the input reaches all 16, even a channel whose weight in this column is zero. In
    TF32 inputs are rounded.
    """

    op = "conv2d"
    name = "direct_sparse_mma"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := unsuited(problem, device)) is not None:
            return reason
        if problem.batch % min(kind.vector for kind in KINDS.values()):
            return f"a batch of {problem.batch}: images are taken four or eight at a time"
        if not _fitting("tf32", problem, device.limits):
            span = " x ".join(str((size - 1) * dilation + 1) for size, dilation
                              in zip(problem.kernel, problem.dilation, strict=True))
            return (f"windows span {span} pixels: 128 bytes of each do not fit shared memory of "
                    f"{device.limits.shared_bytes_opt_in} bytes thrice")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield variant_of(problem, BatchTile(1, 1, 1, 1, 1, 1, 1), "tf32")
            return
        # precisions alternate, so that a search of a few variants has variants of each precision
        for one_of_each in zip_longest(
                *(self._of(precision, problem, device) for precision in KINDS)):
            yield from filter(None, one_of_each)

    def _of(self, precision: str, problem: Conv2dProblem, device: Device) -> list[Variant]:
        """Returns the variants of a precision in the order of their expected times."""
        kind = KINDS[precision]
        if problem.batch % kind.vector:
            return []
        shapes = _fitting(precision, problem, device.limits)

        def order(problem: Conv2dProblem, among: Iterable[BatchTile]) -> list[BatchTile]:
            return sorted(among, key=lambda shape: _cost(problem, shape, kind, shapes[shape],
                                                         device.limits))

        offered: list[BatchTile] = []
        for shape in order(replace(problem, batch=_NOMINAL_BATCH), shapes):
            as_tall = [other for other in offered if other.tiles == shape.tiles]
            similar = [other for other in as_tall if (other.parts, other.height, other.width)
                       == (shape.parts, shape.height, shape.width)]
            if len(as_tall) < _MOST_SHAPES and len(similar) < _MOST_SIMILAR:
                offered.append(shape)
        return [variant_of(problem, shape, precision) for shape in order(problem, offered)]

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float | None:
        shape = BatchTile(**{key: int(value) for key, value in variant.config})
        geometry = shape.geometry(problem, device.limits) if variant.outputs[0].size else None
        if geometry is None:
            return None
        return _cost(problem, shape, KINDS[variant.precision], geometry,
                     device.limits) / CYCLES_PER_MICROSECOND

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        y = variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        shape = BatchTile(**{key: int(value) for key, value in variant.config})
        kind = KINDS[variant.precision]
        geometry = shape.geometry(problem, device.limits)
        assert geometry is not None, f"{variant.config_text} was not among the variants"
        tables = BatchTables(problem, weights, kind, shape.tiles, shape.blocks,
                             shape.parts * shape.sets, geometry)
        parts = [weights.packed(tables.key(part), tables.packing(part))
                 for part in ("starts", "places", "weights", "channels")]
        kernel = device.compile(KernelSource.of(_SOURCE, "columns", {
            "HALVES": int(variant.precision == "fp16"), "TILES": shape.tiles,
            "BLOCKS": shape.blocks, "PARTS": shape.parts, "SETS": shape.sets,
            "HEIGHT": shape.height, "WIDTH": shape.width, "BLOCKS_PER_UNIT": shape.blocks_per_unit,
            "ROW_CLASSES": ROW_CLASSES,
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype, one_channel=True)},
            architectures=("sm_80", "sm_100"),
            dynamic_shared=True))
        tiles_x, tiles_y = shape.tiles_of(problem)
        row_groups = _row_groups(problem, shape)
        arguments = (
            input_buffer(0), *parts, output_buffer(0), *divisor(tiles_x), *divisor(tiles_y),
            *divisor(row_groups), problem.channels // problem.groups, geometry.chunk,
            phases_of(problem, geometry), geometry.stages, geometry.stage_rows,
            *divisor(geometry.pitch), *divisor(geometry.width),
            problem.batch // kind.vector, problem.height, problem.width, problem.out_height,
            problem.out_width, *problem.stride, *problem.pads[:2],
            *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))
        groups = (tiles_x * tiles_y * -(-problem.batch // kind.images),
                  row_groups * problem.groups)
        return State(problem, variant, device, [
            Launch(kernel, groups, (32 * shape.warps,), arguments,
                   max(geometry.nbytes,
                       shape.warps * ROWS * 4 * (kind.images // shape.parts + kind.vector)))])


def _fitting(precision: str, problem: Conv2dProblem, limits: Limits) -> dict[BatchTile, Geometry]:
    """Returns the shapes that fit the device, each with its geometry."""
    geometries = {shape: shape.geometry(problem, limits) for shape in _SHAPES[precision]}
    return {shape: geometry for shape, geometry in geometries.items() if geometry is not None}


def variant_of(problem: Conv2dProblem, shape: BatchTile, precision: str) -> Variant:
    """Returns the variant of a shape, whether it is offered or not."""
    x, y = (spec.with_format(layout="CHWN") for spec in (problem.inputs[0], problem.outputs[0]))
    variant = Variant(tuple(asdict(shape).items()), (x, *[y] * problem.epilogue.tensor_count),
                      (y,), precision)
    return variant.as_fp16 if precision == "fp16" else variant


def _row_groups(problem: Conv2dProblem, shape: BatchTile) -> int:
    """Returns the number of work-groups, along axis 1, of one group of the convolution."""
    return block_count(problem, shape.tiles, shape.blocks) // shape.blocks


def _cost(problem: Conv2dProblem, shape: BatchTile, kind: Kind, geometry: Geometry,
          limits: Limits) -> float:
    """Returns the cycles that a multiprocessor is expected to take for all of its work-groups.

    A work-group takes the longest of four times: of the tensor cores (each of the four takes 8
    cycles for an instruction), of shared memory (128 bytes a cycle), of the schedulers, and of
    reads from the L2 cache (27 bytes a cycle). This time grows by the factor 1 + 0.4 / w, where a
    scheduler has w warps at once: few warps hide little latency. Each wave of work-groups also has
    a start time, in which its first inputs arrive.
    """
    # similar rows share more columns than rows taken at random
    of_tile, of_block = (0.8 * problem.depth * (1 - (1 - problem.weights_info.density) ** rows)
                         for rows in (ROWS, ROWS * shape.tiles))
    # steps and fragments are counts for one block of output channels
    steps = max(1.0, of_block / kind.depth)
    fragments = max(1.0, shape.tiles * of_tile / kind.depth)
    row_groups = _row_groups(problem, shape)
    blocks = block_count(problem, shape.tiles, 1) / row_groups
    channels = problem.channels // problem.groups
    # products and reads are counts for one block and one pixel, over the images of one work-group
    products = fragments * kind.vector
    reads = steps * kind.depth
    pixels = shape.sets * shape.points
    issued = products + (steps * 10 + fragments * 2) * shape.parts + 12 * steps / shape.points
    fetched = (blocks * (512 * fragments + 4 * kind.depth * steps)
               + 128 * channels * geometry.pitch)
    group = max(2 * products * blocks * pixels, issued / 4 * blocks * pixels, fetched / 27,
                _CONFLICTS * reads * blocks * pixels + channels * geometry.pitch)
    tiles_x, tiles_y = shape.tiles_of(problem)
    groups = (tiles_x * tiles_y * -(-problem.batch // kind.images) * row_groups
              * problem.groups)
    groups_per_unit = -(-groups // max(limits.compute_units, 1))
    at_once = min(groups_per_unit, shape.blocks_per_unit) * blocks * shape.parts * shape.sets / 4
    start = 1500 + 128 * geometry.stage_rows / 27
    waves = -(-groups_per_unit // shape.blocks_per_unit)
    return groups_per_unit * group * (1 + 0.4 / at_once) + start * waves
