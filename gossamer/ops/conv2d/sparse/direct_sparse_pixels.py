"""direct_sparse_pixels: pruned convolution of few images on tensor cores.

One instruction computes several neighbouring output pixels.

Source: direct sparse convolution (X. Chen, "Escoin: efficient sparse convolutional neural network
inference on GPUs", arXiv 1802.10280, 2018). The source finds the input of a column of weights by
shifting the start of a window. In this implementation, shared memory has a copy of the input for
each horizontal shift, so that eight pixels are 16 aligned bytes in float16. 16 rows of the weights
are multiplied together, because a tile of the tensor cores has 16 rows. This resembles the
vector-sparse products of Z. Chen et al., "Efficient tensor core-based GPU kernels for structured
sparsity under reduced precision", SC 2021. But here, weights need not be pruned in blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.common import config_of, rounded, rounded_to_tf32, sizes_of, specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import cluster
from gossamer.ops.conv2d.sparse.pixel_tiling import (
    DEPTH,
    MOST_IMAGES,
    ROWS,
    PixelTile,
    PixelTiling,
    expected_us,
)
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import divisor
from gossamer.ops.weights import Weights

DENSEST = 0.3
"""Maximum density. By a rule of thumb, hardly any column of 16 rows is empty at larger
densities."""
_SOURCE = Path(__file__).with_name("direct_sparse_pixels.cu")
_AHEAD = {"tf32": 2, "fp16": 4}
"""Number of steps that are loaded ahead; a step of TF32 needs twice as many registers as one of
float16."""

_SHAPES = tuple(PixelTile(*numbers) for numbers in (
    (2, 4, 1, 2, 4, 8), (1, 6, 1, 1, 8, 8), (2, 2, 4, 1, 4, 8), (2, 2, 1, 4, 4, 8),
    (2, 4, 2, 1, 4, 8), (2, 4, 2, 1, 8, 8), (1, 4, 1, 2, 8, 8), (1, 2, 1, 4, 8, 8),
    (2, 2, 2, 2, 4, 4), (1, 6, 1, 2, 4, 4), (1, 4, 1, 2, 4, 4), (2, 2, 1, 4, 2, 4),
    (2, 2, 7, 1, 6, 4),
    (2, 4, 1, 2, 4, 1), (1, 4, 1, 4, 2, 1), (2, 2, 1, 4, 2, 1), (1, 2, 1, 8, 2, 1),
    (2, 2, 7, 1, 4, 1)))
"""Candidate shapes. According to the model of an H200 in pixel_tiling.py, the best of them is 1.6%
slower than the best of 1134 shapes, on average over 24 pruned layers. On any device, every shape
that fits may be measured."""


class DirectSparsePixels(Algorithm):
    """Products of blocks of similar output channels and neighbouring pixels.

    The products are computed on tensor cores in TF32 or float16, with float32 sums.

    If any of the 16 or 32 output channels of a block has a nonzero weight in a column, the column
    is multiplied for all channels of the block. A NaN or infinity in the input therefore reaches
    the whole block, including channels with a zero weight in this column. In TF32, inputs are
    rounded.
    """

    op = "conv2d"
    name = "direct_sparse_pixels"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if (density := problem.weights_info.density) > DENSEST:
            return f"needs a density of at most {DENSEST:.0%}, has {density:.0%}"
        if problem.batch > MOST_IMAGES:
            return f"needs a batch of at most {MOST_IMAGES}, has {problem.batch}"
        if not problem.outputs[0].size:
            return None
        if not problem.inputs[0].size:
            return "the input is empty"
        if not _fitting(problem, "tf32", device.limits):
            least = min((PixelTiling(problem, shape, "tf32") for shape in _runnable(device.limits)),
                        key=lambda divided: divided.shared_bytes)
            return least.why_unfit(device.limits)
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield _variant(problem, _SHAPES[-1], "tf32")
            return
        fitting = {precision: _fitting(problem, precision, device.limits)
                   for precision in ("tf32", "fp16")}
        for shape in fitting["tf32"] + [shape for shape in fitting["fp16"]
                                        if shape not in fitting["tf32"]]:
            for precision, shapes in fitting.items():
                if shape in shapes:
                    yield _variant(problem, shape, precision)

    def expected_us(self, problem: Conv2dProblem, variant: Variant, device: Device) -> float | None:
        if variant.outputs[0].size == 0:
            return None
        divided = PixelTiling(problem, sizes_of(PixelTile, variant), variant.precision)
        return expected_us(divided, device.limits)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        shape = sizes_of(PixelTile, variant)
        y = variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        divided = PixelTiling(problem, shape, variant.precision)
        tables = _PixelTables(divided, weights.arrays["weight"])
        parts = [tables.packed(part, weights)
                 for part in ("starts", "offsets", "weights", "channels")]
        kernel = device.compile(KernelSource.of(_SOURCE, "pixels", {
            "HALVES": int(variant.precision == "fp16"),
            **{key.upper(): value for key, value in variant.config},
            "KERNEL_WIDTH": problem.kernel[1], "DEPTH": _AHEAD[variant.precision],
            "BATCH": divided.batch, "STRIDED": int(problem.stride[0] > 1),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype)},
            architectures=("sm_90" if shape.cluster > 1 else "sm_80", "sm_100"),
            dynamic_shared=True))
        group_parts = divided.blocks // shape.blocks
        items = min(divided.items, shape.work_group)
        arguments = (
            input_buffer(0), *parts, output_buffer(0), *divisor(divided.tiles_across),
            divided.lines, *divisor(divided.width), problem.channels,
            problem.group_channels, divided.channels, *divisor(group_parts),
            problem.height, problem.width, problem.out_channels, problem.out_height,
            problem.out_width, *divisor(problem.stride[0]), *divisor(problem.stride[1]),
            problem.dilation[1], *problem.pads[:2], divided.span[0], *divisor(divided.columns),
            *divisor(items), divided.at_once, -(-divided.items // items), divided.batches,
            divided.residue_vectors, divided.tap_vectors, divided.channel_vectors, divided.vectors,
            *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))
        groups = (shape.cluster * group_parts * problem.groups, divided.tiles_down,
                  problem.batch * divided.tiles_across)
        return State(problem, variant, device, [
            Launch(kernel, groups, (shape.work_group,), arguments, divided.shared_bytes)])


def _runnable(limits: Limits) -> list[PixelTile]:
    return [shape for shape in _SHAPES if shape.cluster <= limits.cluster]


def _fitting(problem: Conv2dProblem, precision: str, limits: Limits) -> list[PixelTile]:
    """Return the shapes that the device can run.

    The shapes of each cluster size are sorted by expected time. The sorted lists are interleaved,
    because the cost of a cluster can only be measured.
    """
    by_size: dict[int, list[PixelTiling]] = defaultdict(list)
    for shape in _runnable(limits):
        divided = PixelTiling(problem, shape, precision)
        if divided.why_unfit(limits) is None:
            by_size[shape.cluster].append(divided)
    in_order = (sorted(of_size, key=lambda divided: expected_us(divided, limits))
                for of_size in by_size.values())
    return [divided.shape for one_of_each in zip_longest(*in_order)
            for divided in one_of_each if divided]


def _variant(problem: Conv2dProblem, shape: PixelTile, precision: str) -> Variant:
    variant = Variant(config_of(shape), *specs_in(problem, "NCHW", "NCHW"), precision)
    return variant.as_fp16 if precision == "fp16" else variant


@dataclass(frozen=True)
class _PixelTables:
    """The kernel's tables of the weights, by blocks of output channels.

    Columns are listed separately for each part of the input channels. A part is the input channels
    of one work-group of a cluster.

    divided: the division of the layer among work-groups.
    weight: the layer's weights.

    The tables by name:

    "starts" has the first step of each part of each block, followed by the total number of steps.
    "offsets" has, for each column of a step, the bytes from the first vector in shared memory to
    the column's first vector.
    "weights" has, for each step, tile and instruction, four registers of each of the 32 lanes. A
    step is one instruction in float16, and two instructions of eight columns each in TF32.
    "channels" has, for each row of a block, the row's output channel, or -1.
    """

    divided: PixelTiling
    weight: np.ndarray

    def packed(self, part: str, weights: Weights) -> Buffer:
        """Return a table on the device."""
        d = self.divided
        distances = (d.residue_vectors, d.tap_vectors, d.channel_vectors, d.width)
        return weights.packed(f"{part} of {d.shape.rows} rows, {d.shape.blocks} by "
                              f"{d.shape.cluster}, {distances}, {d.precision}",
                              lambda arrays: self.parts[part])

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The tables by name."""
        divided, problem, shape = self.divided, self.divided.problem, self.divided.shape
        matrix = np.asarray(self.weight, np.float32).reshape(problem.out_channels, -1)
        per_group = problem.group_out_channels
        blocks: list[np.ndarray] = []
        for group in range(problem.groups):
            rows = np.arange(group * per_group, (group + 1) * per_group)
            group_blocks = [rows[members] for members in cluster(matrix[rows] != 0, shape.rows)]
            group_blocks += [rows[:0]] * (divided.blocks - len(group_blocks))
            lengths = [int(matrix[members].any(axis=0).sum()) for members in group_blocks]
            blocks += _dealt(group_blocks, lengths, shape.blocks)
        channels = np.full((len(blocks), shape.rows), -1, np.int32)
        starts, offsets, values = [0], [], []
        part_columns = divided.channels * problem.taps
        for index, members in enumerate(blocks):
            channels[index, :len(members)] = members
            columns = np.flatnonzero(matrix[members].any(axis=0))
            for part in range(shape.cluster):
                in_part = columns[columns // part_columns == part]
                order, of_columns = self._spread(in_part - part * part_columns)
                offsets.append(of_columns)
                value = np.zeros((shape.rows, len(order)), np.float32)
                used = order >= 0
                value[:len(members), used] = matrix[np.ix_(members, in_part[order[used]])]
                values.append(value)
                starts.append(starts[-1] + len(order) // DEPTH)
        # an empty table would have no address
        if not starts[-1]:
            offsets.append(np.zeros(DEPTH, np.int32))
            values.append(np.zeros((shape.rows, DEPTH), np.float32))
        # axes: tile, row, step, instruction, column
        depth = DEPTH if divided.precision == "fp16" else DEPTH // 2
        split = np.concatenate(values, axis=1).reshape(shape.tiles, ROWS, -1, DEPTH // depth, depth)
        all_offsets = np.concatenate(offsets)
        if divided.precision == "tf32":
            all_offsets = np.ascontiguousarray(all_offsets.reshape(-1, 4, 4).swapaxes(1, 2))
        return {"starts": np.array(starts, np.int32), "offsets": all_offsets,
                "weights": _packed_fragments(split.transpose(2, 0, 3, 1, 4), divided.precision),
                "channels": channels}

    def _spread(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the order in which columns fill steps, and the columns' offsets in bytes.

        In the order, an unused position has -1. One load of a step reads `banks` columns at once.
        Where possible, these columns are chosen from different banks.
        """
        divided = self.divided
        channel, tap = np.divmod(columns, divided.problem.taps)
        row, column = np.divmod(tap, divided.problem.kernel[1])
        vectors = divided.first_vectors(channel, row, column)
        sets = -(-len(columns) // DEPTH) * (DEPTH // divided.banks)
        order = np.full(sets * divided.banks, -1)
        order[:len(columns)] = np.argsort(vectors % divided.banks, kind="stable")
        order = order.reshape(divided.banks, sets).T.reshape(-1)
        # an unused position loads the first column of the same load again, which costs nothing
        fillers = np.repeat(order.reshape(-1, divided.banks)[:, 0], divided.banks)
        filled = np.where(order >= 0, order, np.maximum(fillers, 0))
        return order, (divided.vector_bytes * vectors[filled]).astype(np.int32)


def _dealt(blocks: list[np.ndarray], lengths: list[int], together: int) -> list[np.ndarray]:
    """Return the blocks in an order that balances the work-groups.

    The `together` successive blocks of a work-group have about the same total length in every
    work-group. To achieve this, the blocks are sorted by length, the longest first, and assigned to
    the work-groups in rounds; every other round goes through the work-groups in reverse order.
    """
    groups = len(blocks) // together
    order = np.argsort(-np.array(lengths), kind="stable").reshape(together, groups)
    order[1::2] = order[1::2, ::-1]
    return [blocks[index] for index in order.T.reshape(-1)]


def _packed_fragments(values: np.ndarray, precision: str) -> np.ndarray:
    """Return weights in the register layout of mma's left operand.

    values: (..., 16, depth); the depth is 16 for fp16 and 8 for tf32. The result is (..., 32 lanes,
    4 registers).

    Register r of lane l holds weights of row l // 4 + 8 (r % 2). If r < 2, these are weights of the
    first half of the columns, else of the second half. In tf32, the register holds column l % 4 of
    this half. In fp16, it holds columns 2 (l % 4) and 2 (l % 4) + 1 of this half.
    """
    *leading, rows, depth = values.shape
    # axes: half of the rows, row, half of the columns, quarter of the half, column
    split = values.reshape(-1, 2, rows // 2, 2, 4, depth // 8)
    lanes = np.ascontiguousarray(split.transpose(0, 2, 4, 3, 1, 5))
    registers = rounded(lanes).view("<u4") if precision == "fp16" else rounded_to_tf32(lanes)
    return registers.reshape(*leading, 32, 4)
