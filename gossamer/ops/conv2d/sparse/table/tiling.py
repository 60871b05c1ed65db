"""Lists the ways in which direct_sparse_table divides a convolution, with their expected costs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from gossamer.device.limits import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class TableForm:
    """The sizes with which the kernel is compiled.

    rows: output channels of a block.
    points: output points of a work-item.
    lanes: work-items of a set. They multiply the same columns with the inputs of different points.
    blocks: blocks of a work-group.
    splits: sets of work-items among which a block's columns are divided: 1 or a multiple of rows.
    masked: 1 where the kernel reads the input without padding and masks taps outside of the image,
    0 where the input is first copied with its padding.
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

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes as the config of a variant."""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


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
"""The sizes that are offered. TableForm(1, 1, 32, splits=8) works for every problem: its work-items
have one point each, and its work-groups fit any device."""


@dataclass(frozen=True)
class OutputPlanes:
    """The output points of one channel, plane by plane, indexed by (lines, places, images) in the
    order of memory. A plane is one image, or all images where images are innermost. Lines are rows
    of output pixels, and places are positions along a line.

    planes: number of planes.
    count: points of a plane.
    line: points of a line: images times the places of an input line where the points are linear,
    else images times the places of an output line.
    images: images of a place.
    linear: true where each point's window starts one element after the previous point's window.
    start: offset in x of the first window.
    in_x: elements by which a step along planes, lines and places moves the window in x.
    in_y: elements by which a step along planes, lines and places moves the result in y.
    """

    planes: int
    count: int
    line: int
    images: int
    linear: bool
    start: int
    in_x: tuple[int, int, int]
    in_y: tuple[int, int, int]

    @staticmethod
    def of(problem: Conv2dProblem, form: TableForm, x: TensorSpec, y: TensorSpec) -> OutputPlanes:
        """Returns the points of a problem; x is the input as it is read."""
        innermost = y.layout == "CHWN"
        images = problem.batch if innermost else 1
        linear = problem.stride == (1, 1) and x.strides[2] >= problem.out_width * images
        line = x.strides[2] if linear else problem.out_width * images
        count = (problem.out_height - 1) * line + problem.out_width * images
        planes = 1 if innermost else problem.batch
        start = 0
        if form.masked:
            start = -(problem.pads[0] * x.strides[2] + problem.pads[1] * x.strides[3])
        return OutputPlanes(planes, count, line, images, linear, start,
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
        """Images that a work-item loads at once."""
        return 4 if self.walk.images % 4 == 0 and self.form.points % 4 == 0 else 1

    @property
    def width(self) -> int:
        """Neighbouring points that the lanes of a set compute with one vector each."""
        return self.form.lanes * self.vector

    @property
    def vectors(self) -> int:
        """Vectors of a work-item."""
        return self.form.points // self.vector

    @property
    def distance(self) -> int:
        """Distance in points from a work-item's point (or vector) to its next point; 0 where the
        kernel's sizes do not suit the plane: the kernel would read points outside of the plane, or
        work-items would have no points. Where the plane is smaller than two vectors of all lanes,
        the two vectors may overlap."""
        if self.form.masked:
            return self.width if self.walk.count > (self.vectors - 1) * self.width else 0
        if not self.walk.linear or self.walk.count >= self.vectors * self.width:
            return self.width
        rest = self.walk.count - self.width
        return rest if self.vectors == 2 and rest > 0 else self.width * (self.vectors == 1)

    @property
    def tiles(self) -> int:
        """Work-groups along a plane."""
        return -(-self.walk.count // (self.width + (self.vectors - 1) * self.distance))


def costs_of_forms(problem: Conv2dProblem, x: TensorSpec, y: TensorSpec,
                   limits: Limits) -> dict[TableForm, float]:
    """Returns the expected costs in cycles of the sizes that suit the device and the planes. x: the
    input before padding is stored."""
    masked = [0]
    if any(problem.pads):
        masked = [1, 0] if max(problem.kernel) <= _MASK_BITS else [0]
    costs = {}
    for form in (replace(form, masked=bit) for form in fitting(limits) for bit in masked):
        source = as_read(x, problem, form)
        division = TableTiling(form, OutputPlanes.of(problem, form, source, y))
        if division.distance:
            costs[form] = _cost(problem, division, source, limits)
    return costs


def as_read(x: TensorSpec, problem: Conv2dProblem, form: TableForm) -> TensorSpec:
    """Returns the spec of the input as the kernel reads it: padded, unless the kernel masks
    taps."""
    return x if form.masked else x.with_format(border=problem.pads)


def fitting(limits: Limits) -> list[TableForm]:
    """Returns the sizes with which the device can run the kernel."""
    return [form for form in FORMS
            if form.work_group <= limits.work_group_size
            and form.shared_bytes <= limits.shared_bytes]


def _cost(problem: Conv2dProblem, division: TableTiling, x: TensorSpec, limits: Limits) -> float:
    """Returns the expected cycles, from counts and not from measurements, as if weights were at
    random positions. For four columns of a set a multiprocessor takes the longer of two times: the
    time of the columns' instructions, four in a cycle, or the time of loading words of the input
    and of the table from the L1 cache, one word in a cycle for each lane of a warp. The inputs of a
    work-group are loaded into the L1 cache once, and latency bounds the speed of a set."""
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
    blocks = -(-problem.out_channels // problem.groups // form.rows) * problem.groups
    groups = -(-blocks // form.blocks) * division.tiles * walk.planes
    read = itemsize * min(
        form.lanes * form.points * _columns(problem, form.rows * form.blocks),
        problem.channels // problem.groups * (form.lanes * form.points + _halo(problem, walk)))
    per_work_group = max(form.blocks * form.splits * fours * warps * max(instructions / 4, words),
                  read / _BYTES_PER_CYCLE) + form.blocks * store / 4
    units = max(limits.compute_units, 1)
    rounds = -(-groups // (units * max(1, _WORK_ITEMS_PER_UNIT // form.work_group)))
    busy = groups / units * per_work_group
    waiting = rounds * (_START + store) + (rounds - 1 + _LONGEST) * fours * _LATENCY
    return copied + max(busy, waiting) + min(busy, waiting) / 4


def _columns(problem: Conv2dProblem, rows: int) -> float:
    """Returns the expected number of columns where any of `rows` channels has a weight."""
    return float(problem.depth * (1 - (1 - problem.weights_info.density)**rows))


def _halo(problem: Conv2dProblem, walk: OutputPlanes) -> int:
    """Returns the number of points of the input by which a window extends beyond its start."""
    down, across = ((taps - 1) * step for taps, step in
                    zip(problem.kernel, problem.dilation, strict=True))
    return down * walk.in_x[1] + across * walk.images


_MASK_BITS = 16
"""Bits of a mask for the rows of a window; the columns of the window have the same number of
bits."""

# The numbers below follow from the kernel's code and from rates of an H200; none was fitted. On
# another device they only decide the order in which variants are tried: the tuner corrects the
# scale of an algorithm's estimates by its measurements.
_LOOP = 10
"""Instructions of an iteration of the loop that do not depend on its columns."""

_STORE = 30
"""Instructions that storing one point takes."""

_START = 1500
"""Cycles to look up a block and its first columns, and to store results."""

_LATENCY = 300
"""Cycles from loading a column's offset to having its input, mostly from the L2 cache."""

_LONGEST = 2
"""Columns of the longest block, which starts first, divided by the mean over all blocks: 1.1 to 3.4
in real layers."""

_WORK_ITEMS_PER_UNIT = 1024
"""Work-items of a multiprocessor, as limited by the registers that the kernel needs with most
sizes."""

_BYTES_PER_CYCLE = 32
"""Bytes that a multiprocessor loads from the L2 cache in a cycle."""
