"""In which ways direct_sparse_table divides a convolution, and what each is expected to cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from gossamer.device.base import Limits
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class TableForm:
    """rows: output channels of a block. points: output points of a work-item. lanes: work-items
    that go over a block's columns together. blocks: of a work-group. splits: sets of work-items
    that share a block's columns, 1 or a multiple of rows. masked: 1 where the input is read as it
    is and what lies outside of it is left out, 0 where its padding is stored first."""

    rows: int
    points: int
    lanes: int
    blocks: int = 1
    splits: int = 1
    masked: int = 0

    @property
    def work_group(self) -> int:
        return self.lanes * self.blocks * self.splits

    @property
    def shared_bytes(self) -> int:
        return 4 * self.work_group * self.rows * self.points if self.splits > 1 else 0

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
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
"""The first works for every problem: its work-items have one point, its groups fit any device."""


@dataclass(frozen=True)
class OutputPlanes:
    """The output points of one channel, plane by plane: (lines, places, images) in the order of
    memory, a plane being an image, or all of them where these lie innermost.

    line: points of a line; where windows start one element further from point to point (linear),
    places of an input line, else of an output line, times images. start: where the first window
    begins. in_x, in_y: how far a step along planes, lines and places moves window and result.
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
        """x: the input as it is read."""
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
    """A form applied to a walk."""

    form: TableForm
    walk: OutputPlanes

    @property
    def vector(self) -> int:
        """Images that are loaded at once."""
        return 4 if self.walk.images % 4 == 0 and self.form.points % 4 == 0 else 1

    @property
    def width(self) -> int:
        """Neighbouring points that the lanes have at once."""
        return self.form.lanes * self.vector

    @property
    def vectors(self) -> int:
        return self.form.points // self.vector

    @property
    def distance(self) -> int:
        """From a work-item's point (or vector) to its next; 0 where the plane has too few points
        for all that are read to lie within, or for a work-item to have all of its own. Two may
        cover a smaller plane by overlapping."""
        if self.form.masked:
            return self.width if self.walk.count > (self.vectors - 1) * self.width else 0
        if not self.walk.linear or self.walk.count >= self.vectors * self.width:
            return self.width
        over = self.walk.count - self.width
        return over if self.vectors == 2 and over > 0 else self.width * (self.vectors == 1)

    @property
    def tiles(self) -> int:
        """Of a plane."""
        return -(-self.walk.count // (self.width + (self.vectors - 1) * self.distance))


def costs_of_forms(problem: Conv2dProblem, x: TensorSpec, y: TensorSpec,
                   limits: Limits) -> dict[TableForm, float]:
    """The forms that fit the device and the planes, with what they are expected to cost. x: the
    input as it is given."""
    masked = [0]
    if any(problem.pads):
        masked = [1, 0] if max(problem.kernel) <= _MASK_BITS else [0]
    found = {}
    for form in (replace(each, masked=bit) for each in fitting(limits) for bit in masked):
        source = as_read(x, problem, form)
        division = TableTiling(form, OutputPlanes.of(problem, form, source, y))
        if division.distance:
            found[form] = _cost(problem, division, source, limits)
    return found


def as_read(x: TensorSpec, problem: Conv2dProblem, form: TableForm) -> TensorSpec:
    """The input with its padding stored, unless the form needs none."""
    return x if form.masked else replace(x, border=problem.pads)


def fitting(limits: Limits) -> list[TableForm]:
    return [form for form in FORMS
            if form.work_group <= limits.work_group_size and form.shared_bytes <= limits.shared_bytes]


def _cost(problem: Conv2dProblem, division: TableTiling, x: TensorSpec, limits: Limits) -> float:
    """Expected cycles, from counts and not from measurements. Columns are reckoned as if weights
    lay anywhere. Four columns cost a multiprocessor a set's instructions, four a cycle, or the
    words of input and table that its cache gives out, one of every lane of a warp a cycle; what a
    work-group reads comes into that cache once; and no set is faster than waiting for it allows."""
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
        copied = _START + 2 * x.nbytes / (_BYTES_A_CYCLE * max(limits.compute_units, 1))
    store = form.rows * vectors * warps * (_STORE + form.splits * division.vector)
    blocks = -(-problem.out_channels // problem.groups // form.rows) * problem.groups
    groups = -(-blocks // form.blocks) * division.tiles * walk.planes
    read = itemsize * min(
        form.lanes * form.points * _columns(problem, form.rows * form.blocks),
        problem.channels // problem.groups * (form.lanes * form.points + _halo(problem, walk)))
    a_group = max(form.blocks * form.splits * fours * warps * max(instructions / 4, words),
                  read / _BYTES_A_CYCLE) + form.blocks * store / 4
    units = max(limits.compute_units, 1)
    rounds = -(-groups // (units * max(1, _BLOCKS_PER_UNIT // form.work_group)))
    busy = groups / units * a_group
    alone = rounds * (_START + store) + (rounds - 1 + _LONGEST) * fours * _LATENCY
    return copied + max(busy, alone) + min(busy, alone) / 4


def _columns(problem: Conv2dProblem, rows: int) -> float:
    """Expected columns where any of so many channels has a weight."""
    return float(problem.depth * (1 - (1 - problem.weights_info.density)**rows))


def _halo(problem: Conv2dProblem, walk: OutputPlanes) -> int:
    """Points of the input that windows reach beyond their start."""
    down, across = ((taps - 1) * step for taps, step in
                    zip(problem.kernel, problem.dilation, strict=True))
    return down * walk.in_x[1] + across * walk.images


_MASK_BITS = 16
"""For the rows of a window, and for its columns."""

_LOOP = 10
"""Instructions of a loop's turn that are not for its columns."""

_STORE = 30
"""Instructions of a stored point."""

_START = 1500
"""Cycles to find a block, its first columns and where they lie, and to store."""

_LATENCY = 300
"""Cycles from a column's number to its input, mostly out of the second cache."""

_LONGEST = 2
"""Columns of the longest block, which begins first, over the mean: 1.1 to 3.4 in real layers."""

_BLOCKS_PER_UNIT = 1024
"""Work-items of a multiprocessor, by the registers that most forms need."""

_BYTES_A_CYCLE = 32
"""From the second cache into a multiprocessor's."""
