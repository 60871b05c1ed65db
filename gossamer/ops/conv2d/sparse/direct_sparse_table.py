"""direct_sparse_table: pruned convolution with weights in tables.

Source: direct sparse convolution (X. Chen, "Escoin: efficient sparse convolutional neural network
inference on GPUs", arXiv 1802.10280, 2018). The source loads an input for every multiply-add. In
this implementation, output channels with weights in similar positions form a block. An input is
loaded once for the block, and the block's sums stay in registers. A column of a block is a pair of
an input channel and a tap. If there are few output points, the columns of a block are divided among
several sets of work-items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import config_of, sizes_of, specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.direct_sparse import padded_source
from gossamer.ops.conv2d.sparse.formats import (
    Table,
    cannot_index,
    padded_bytes,
    padded_input,
    table,
)
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, output_buffer
from gossamer.ops.strided import KernelAlgorithm, divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("direct_sparse_table.cl")
_LAYOUTS = ("NCHW", "CHWN")
_MASK_BITS = 16
"""Number of bits of a tap mask for the rows of a window. There are as many bits for its columns."""
# The numbers below follow from the kernel's code and from rates of an H200; none was fitted. On
# other devices, these numbers only decide the order in which variants are tried, because the
# tuner's measurements correct the scale of an algorithm's estimates.
_LOOP = 10
"""Instructions of a loop iteration that are needed whatever the sizes."""
_STORE = 30
"""Instructions to store one point."""
_START = 1500
"""Total cycles to look up a block, to look up its first columns, and to store results."""
_LATENCY = 300
"""Cycles from loading a column's offset to receiving its input, mostly from the L2 cache."""
_LONGEST = 2
"""Number of columns of the longest block, which starts first, divided by the mean number over all
blocks. In real layers the ratio is 1.1 to 3.4."""
_WORK_ITEMS_PER_UNIT = 1024
"""Number of work-items that a multiprocessor holds, limited by the registers that most configs
need."""
_BYTES_PER_CYCLE = 32
"""Bytes that a multiprocessor loads from the L2 cache per cycle."""


@dataclass(frozen=True)
class TableForm:
    """The sizes with which the kernel is compiled.

    rows: number of output channels of a block.
    points: number of output points of a work-item.
    lanes: number of work-items of a set. They multiply the same columns by the inputs of different
    points.
    blocks: number of blocks of a work-group.
    splits: number of sets of work-items among which a block's columns are divided: 1 or a multiple
    of rows.
    masked: 1 if the kernel reads the input without padding and masks taps outside of the image; 0
    if the kernel reads the input with its padding. In the second case, an input that needs padding
    is first copied to the workspace.
    """

    rows: int
    points: int
    lanes: int
    blocks: int = 1
    splits: int = 1
    masked: int = 0

    @property
    def work_group(self) -> int:
        """Work-items of a work-group."""
        return self.lanes * self.blocks * self.splits

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return 4 * self.work_group * self.rows * self.points if self.splits > 1 else 0


FORMS = (
    TableForm(1, 1, 32, splits=8),
    TableForm(4, 1, 32, splits=16),
    TableForm(1, 2, 32, splits=8),
    TableForm(2, 2, 32, splits=8),
    TableForm(4, 2, 32, splits=8),
    TableForm(4, 2, 32, splits=16),
    TableForm(1, 4, 64, splits=4),
    TableForm(2, 4, 64, splits=4),
    TableForm(4, 4, 64, splits=4),
    TableForm(8, 4, 32, splits=8),
    TableForm(1, 2, 32, blocks=8),
    TableForm(2, 2, 32, blocks=8),
    TableForm(4, 2, 32, blocks=8),
    TableForm(2, 4, 64, blocks=4),
    TableForm(4, 4, 64, blocks=8),
    TableForm(8, 4, 64, blocks=4),
    TableForm(1, 8, 64, blocks=4),
    TableForm(2, 8, 64, blocks=8),
    TableForm(4, 8, 64, blocks=4),
)
"""Candidate sizes. TableForm(1, 1, 32, splits=8) works for every problem: each of its work-items
has one point, and its work-groups fit any device."""


@dataclass(frozen=True)
class OutputPlanes:
    """The output points of one channel, plane by plane, in memory order.

    The points of a plane are indexed by (row, column, image). A plane is one image, or all images
    if images are the innermost axis.

    planes: number of planes.
    count: number of points of a plane.
    row: number of points of a row. If the points are linear, this is `images` times the number of
    columns of the input as the kernel reads it. If not, it is `images` times the number of columns
    of the output.
    images: number of images of a plane.
    linear: True if each point's window starts one element after the previous point's window.
    start: offset in x of the first window.
    in_x: strides of the window in x along planes, rows and columns, in elements.
    in_y: strides of the result in y along planes, rows and columns, in elements.
    """

    planes: int
    count: int
    row: int
    images: int
    linear: bool
    start: int
    in_x: tuple[int, int, int]
    in_y: tuple[int, int, int]

    @staticmethod
    def of(problem: Conv2dProblem, form: TableForm, x: TensorSpec, y: TensorSpec) -> OutputPlanes:
        """Return the points of a problem.

        x: the input as the kernel reads it.
        """
        innermost = y.layout == "CHWN"
        images = problem.batch if innermost else 1
        linear = problem.stride == (1, 1) and x.strides[2] >= problem.out_width * images
        row = x.strides[2] if linear else problem.out_width * images
        count = (problem.out_height - 1) * row + problem.out_width * images
        planes = 1 if innermost else problem.batch
        start = 0
        if form.masked:
            start = -(problem.pads[0] * x.strides[2] + problem.pads[1] * x.strides[3])
        return OutputPlanes(planes, count, row, images, linear, start,
                            (x.strides[0], problem.stride[0] * x.strides[2],
                             problem.stride[1] * x.strides[3]),
                            (y.strides[0], y.strides[2], y.strides[3]))


@dataclass(frozen=True)
class TableTiling:
    """The kernel's sizes applied to the output points of a problem.

    form: the sizes.
    walk: the output points of one channel.
    """

    form: TableForm
    walk: OutputPlanes

    @property
    def vector(self) -> int:
        """Number of images that a work-item loads at once."""
        return 4 if self.walk.images % 4 == 0 and self.form.points % 4 == 0 else 1

    @property
    def width(self) -> int:
        """Number of neighbouring points of a set: one vector for each lane."""
        return self.form.lanes * self.vector

    @property
    def vectors(self) -> int:
        """Number of vectors of a work-item."""
        return self.form.points // self.vector

    @property
    def distance(self) -> int:
        """Distance in points from a work-item's point (or vector) to its next point.

        The result is 0 if the sizes do not suit the plane: the kernel would read points outside of
        the plane, or some work-items would have no points. If the plane has fewer points than two
        vectors per lane, some points belong to two vectors.
        """
        if self.form.masked:
            return self.width if self.walk.count > (self.vectors - 1) * self.width else 0
        if not self.walk.linear or self.walk.count >= self.vectors * self.width:
            return self.width
        rest = self.walk.count - self.width
        return rest if self.vectors == 2 and rest > 0 else self.width * (self.vectors == 1)

    @property
    def tiles(self) -> int:
        """Number of work-groups along a plane."""
        return -(-self.walk.count // (self.width + (self.vectors - 1) * self.distance))


class DirectSparseTable(KernelAlgorithm):
    """Sparse convolution by blocks of output channels, with weights in tables.

    The input of a column is loaded once for a block of output channels and multiplied by one weight
    for each channel. The weights are data: the kernel is not compiled for them.

    Columns in which no channel of a block has a weight are skipped. If only some channels have a
    weight in a column, the column is multiplied by zero for the block's other channels. A NaN or
    infinity in the input therefore reaches all channels of a block as NaN, as in a dense
    convolution. With rows=1, the NaN or infinity reaches only channels with a weight in this
    column.
    """

    op = "conv2d"
    name = "direct_sparse_table"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_index(problem, device)) is not None:
            return reason
        if not fitting(device.limits):
            return (f"no config fits the work-groups of {device.name}, with at most "
                    f"{device.limits.work_group_size} work-items and "
                    f"{device.limits.shared_bytes} bytes of shared memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield Variant(config_of(TableForm(1, 1, 32)), problem.inputs, problem.outputs)
            return
        # with one image, both layouts are the same in memory
        layouts = _LAYOUTS if problem.batch > 1 else _LAYOUTS[:1]
        offered = sorted((_offered(problem, device, layout) for layout in layouts),
                         key=lambda layout_offer: layout_offer[0])
        for one_of_each in zip_longest(*(variants for _, variants in offered)):
            for variant in one_of_each:
                if variant is not None:
                    yield from (variant, replace(variant.as_fp16,
                                                 workspace=variant.workspace // 2))

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),) if variant.outputs[0].size else ()

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        y = variant.outputs[0]
        form, read, walk, division = _divided(problem, variant)
        kernel = device.compile(_source(problem, variant))
        source, launches = padded_source(variant, read, device)
        blocks = -(-problem.group_out_channels // form.rows) * problem.groups
        parts = -(-blocks // form.blocks)
        tables, tap_masks = _tables(weights, problem, form.rows, read)
        masking = (tap_masks(), problem.height, problem.width, *problem.kernel, *problem.stride,
                   *problem.pads[:2], *problem.dilation) if form.masked else ()
        launches.append(Launch(
            kernel, (parts * division.tiles * walk.planes,), (form.work_group,),
            (source, *tables, output_buffer(0),
             *divisor(parts), *divisor(division.tiles), walk.count, *divisor(walk.row),
             *divisor(walk.images), problem.out_width, walk.start, *walk.in_x, y.strides[1],
             *walk.in_y, *masking,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))))
        return launches


def _divided(problem: Conv2dProblem,
             variant: Variant) -> tuple[TableForm, TensorSpec, OutputPlanes, TableTiling]:
    """Return how a variant divides a problem.

    The result is the kernel's sizes, the spec of the input as the kernel reads it, the output
    points, and their division among work-items.
    """
    form = sizes_of(TableForm, variant)
    read = variant.inputs[0] if form.masked else padded_input(variant.inputs[0], problem)
    walk = OutputPlanes.of(problem, form, read, variant.outputs[0])
    return form, read, walk, TableTiling(form, walk)


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    _, _, walk, division = _divided(problem, variant)
    return KernelSource.of(_SOURCE, "direct_sparse_table", {
        **{key.upper(): value for key, value in variant.config},
        "VECTOR": division.vector, "DISTANCE": division.distance, "LINEAR": int(walk.linear),
        "HALVES": int(variant.precision == "fp16"),
        **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype,
                          one_channel=True)})


def _offered(problem: Conv2dProblem, device: Device,
             layout: str) -> tuple[tuple[bool, float], list[Variant]]:
    """Return the best sort key of a layout's variants, and the sorted variants.

    A sort key is (whether the work-group may be too large, expected cost).
    """
    inputs, outputs = specs_in(problem, layout, layout)
    costs = {form: (form.work_group > device.limits.sure_work_group_size, cost)
             for form, cost in costs_of_forms(
                 problem, inputs[0], outputs[0], device.limits).items()}
    return (min(costs.values()),
            [Variant(config_of(form), inputs, outputs,
                     workspace=0 if form.masked else padded_bytes(inputs[0], problem))
             for form in sorted(costs, key=costs.__getitem__)])


def _tables(weights: Weights, problem: Conv2dProblem, rows: int,
            x: TensorSpec) -> tuple[list[Argument], Callable[[], Argument]]:
    """Return the kernel's tables of the weights, and a function that returns the tap masks.

    In the tables, a column is an offset in x. The tap mask of a column has two bits set: one for
    the tap's row in the window, and one for the tap's column. All tables are made from one division
    of the weights into blocks, which is computed when it is first needed.

    x: the input as the kernel reads it.
    """
    @cache
    def blocks() -> Table:
        return table(weights.arrays["weight"], problem.groups, rows)

    def pack(part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: getattr(blocks(), part)

    def taps() -> tuple[np.ndarray, ...]:
        channel, tap = np.divmod(blocks().columns, problem.taps)
        return (channel, *np.divmod(tap, problem.kernel[1]))

    def tap_masks(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        _, row, column = taps()
        return (1 << row.astype(np.int64) | 1 << 16 + column.astype(np.int64)).astype(np.uint32)

    def offsets(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        channel, row, column = taps()
        _, x_channel, x_row, x_column = x.strides
        return (channel * x_channel + row * (problem.dilation[0] * x_row)
                + column * (problem.dilation[1] * x_column)).astype(np.int32)

    strides = f"{x.strides[1:]} {problem.dilation}"
    return ([weights.packed(f"starts of {rows} rows", pack("starts")),
             weights.packed(f"channels of {rows} rows", pack("channels")),
             weights.packed(f"columns of {rows} rows, {strides}", offsets),
             weights.packed(f"values of {rows} rows", pack("values"))],
            lambda: weights.packed(f"tap masks of {rows} rows", tap_masks))


def costs_of_forms(problem: Conv2dProblem, x: TensorSpec, y: TensorSpec,
                   limits: Limits) -> dict[TableForm, float]:
    """Return the expected cycles for all sizes that suit the device and the planes.

    x: the input, without stored padding.
    """
    masked = [0]
    if any(problem.pads):
        masked = [1, 0] if max(problem.kernel) <= _MASK_BITS else [0]
    costs = {}
    for form in (replace(form, masked=bit) for form in fitting(limits) for bit in masked):
        source = x if form.masked else padded_input(x, problem)
        division = TableTiling(form, OutputPlanes.of(problem, form, source, y))
        if division.distance:
            costs[form] = _cost(problem, division, source, limits)
    return costs


def fitting(limits: Limits) -> list[TableForm]:
    """Return the sizes with which the device can run the kernel."""
    return [form for form in FORMS
            if form.work_group <= limits.work_group_size
            and form.shared_bytes <= limits.shared_bytes]


def _cost(problem: Conv2dProblem, division: TableTiling, x: TensorSpec, limits: Limits) -> float:
    """Return the expected cycles, assuming that weights are at random positions.

    The estimate is based on counts, not on measurements. The time of four columns of a set is the
    longer of two times: the time to issue their instructions (four per cycle), and the time to load
    their inputs and table entries from the L1 cache (one word per cycle for each lane of a warp).
    The inputs of a work-group are loaded into the L1 cache once. The latency of loads is a lower
    bound on the time of a set.

    x: the input as the kernel reads it.
    """
    form, walk, vectors = division.form, division.walk, division.vectors
    warps, itemsize = form.lanes / 32, x.stored_dtype.itemsize
    columns = _columns(problem, form.rows)
    fours = max(columns / 4, 1) / form.splits
    words = form.points * itemsize + form.rows + 1
    converted = 4 * form.points if itemsize == 2 else 0
    addresses = 2 if walk.linear else 2 * vectors
    masks = form.masked * vectors * (1 + division.vector)
    instructions = (4 * (form.rows * form.points + vectors + addresses + masks) + form.rows
                    + converted + _LOOP)
    copied = 0.0
    if any(problem.pads) and not form.masked:
        copied = _START + 2 * x.nbytes / (_BYTES_PER_CYCLE * max(limits.compute_units, 1))
    store = form.rows * vectors * warps * (_STORE + form.splits * division.vector)
    blocks = -(-problem.group_out_channels // form.rows) * problem.groups
    groups = -(-blocks // form.blocks) * division.tiles * walk.planes
    read = itemsize * min(
        form.lanes * form.points * _columns(problem, form.rows * form.blocks),
        problem.group_channels * (form.lanes * form.points + _halo(problem, walk)))
    per_work_group = max(form.blocks * form.splits * fours * warps * max(instructions / 4, words),
                  read / _BYTES_PER_CYCLE) + form.blocks * store / 4
    units = max(limits.compute_units, 1)
    rounds = -(-groups // (units * max(1, _WORK_ITEMS_PER_UNIT // form.work_group)))
    busy = groups / units * per_work_group
    waiting = rounds * (_START + store) + (rounds - 1 + _LONGEST) * fours * _LATENCY
    return copied + max(busy, waiting) + min(busy, waiting) / 4


def _columns(problem: Conv2dProblem, rows: int) -> float:
    """Return the expected number of columns in which any of `rows` channels has a weight."""
    return float(problem.depth * (1 - (1 - problem.weights_info.density)**rows))


def _halo(problem: Conv2dProblem, walk: OutputPlanes) -> int:
    """Return the number of input points between a window's first and last tap."""
    down, across = ((taps - 1) * step for taps, step in
                    zip(problem.kernel, problem.dilation, strict=True))
    return down * walk.in_x[1] + across * walk.images
