"""direct_sparse: pruned convolution as inner products with the shifted input, nothing lowered.

Source: direct sparse convolution on GPUs (Escoin, 2018). Each filter is stretched over the padded
input: its CSR row holds, for the nonzero of channel c and tap (r, s), the column (c*H + r)*W + s,
and an output is the product of that row with the input from the start of its window on. Here
the strides of the input stand in that sum, so that layouts, dilation and groups fit in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device, KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.csr import SURE_WORK_GROUP, cannot_index, csr, padded_input
from gossamer.ops.copy.problem import convert
from gossamer.ops.copy.strided import copy_launches, copy_walk
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("direct_sparse.cl")
_STRETCH_GROUP = 64
_LAYOUTS = ("NCHW", "CHWN")
_LINE_BYTES = 128


@dataclass(frozen=True)
class PublishedForm:
    """A published form, with the work-items of a group and the output points of a work-item.

    untiled: a work-item walks a row for one point. tiled: a group walks one row together, in
    tiles that lie in shared memory.
    """

    variant: str
    threads: int
    points: int = 1

    @property
    def shared_bytes(self) -> int:
        return 8 * self.threads if self.variant == "tiled" else 0

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        config: tuple[tuple[str, int | str], ...] = (("variant", self.variant),
                                                     ("threads", self.threads))
        return (*config, ("points", self.points)) if self.variant == "tiled" else config


FORMS = (
    *(PublishedForm("tiled", threads) for threads in (1024, 512, 256, 64)),
    *(PublishedForm("tiled", 256, points) for points in (2, 4, 8)),
    *(PublishedForm("untiled", threads) for threads in (256, 64)),
)


class DirectSparse(Algorithm):
    """The published forms of direct sparse convolution, untiled and tiled.

    Zeros among the weights are skipped: a NaN or infinity of the input that only zeros meet
    does not reach the result.
    """

    op = "conv2d"
    name = "direct_sparse"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_index(problem, device)) is not None:
            return reason
        if not _fitting(device):
            return f"{device.name} runs at most {device.limits.work_group_size} work-items a group"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for form in sorted(_fitting(device), key=lambda each: _order(problem, each, device)):
            for layout in _LAYOUTS:
                x, y = (spec.with_layout(layout) for spec in (problem.inputs[0],
                                                              problem.outputs[0]))
                variant = Variant(form.config, (x, *[y] * problem.epilogue.tensor_count), (y,))
                for each in (variant, variant.as_fp16):
                    yield replace(each, workspace=_workspace(problem, each.inputs[0]))

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        """Raises OutOfMemoryError where the stretched columns find no room."""
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        rows, columns, values = (weights.packed(f"{part} of CSR", _pack(part))
                                 for part in ("indptr", "indices", "data"))
        padded = padded_input(x, problem)
        stretched = _stretched(weights, problem, padded, rows, columns, device)
        source, launches = input_buffer(0), []
        if variant.workspace:
            walk = copy_walk(convert(x, padded), x, padded)
            launches = copy_launches(device, x.stored_dtype.itemsize, walk, source,
                                     workspace_buffer)
            source = workspace_buffer
        threads, points = variant["threads"], dict(variant.config).get("points")
        macros = epilogue_macros(problem.epilogue, tensor_dtype=y.dtype)
        kernel = device.compile(KernelSource.of(_SOURCE, variant["variant"], {
            "THREADS": threads, **({} if points is None else {"POINTS": points}),
            "HALVES": int(x.dtype == "float16"), **macros}))
        walked = _Points.of(problem, padded, y, tiled=points is not None)
        work: tuple[Argument, ...] = ()
        if points is None:
            groups = -(-problem.out_channels * walked.count // threads)
        else:
            spans = -(-walked.count // (threads * int(points)))
            groups = spans * problem.out_channels
            work = _work(weights, problem, spans, device)
        launches.append(Launch(
            kernel, (groups,), (threads,),
            (source, rows, stretched, values, output_buffer(0), problem.out_channels,
             *walked.arguments(y), *work,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))))
        return State(problem, variant, device, launches, stretched)


@dataclass(frozen=True)
class _Points:
    """The output points of one channel as (outer, line, place, inner), from the outermost on, and
    how far a step along each moves the window in x and the result in y.

    In CHWN the innermost are images: all, or for the tiled form as many as fill a line of a cache,
    where that divides the batch; neighbouring places, whose windows share inputs, then lie closer
    together."""

    sizes: tuple[int, ...]
    in_x: tuple[int, ...]
    in_y: tuple[int, ...]

    @staticmethod
    def of(problem: Conv2dProblem, x: TensorSpec, y: TensorSpec, tiled: bool) -> _Points:
        together = 1
        if y.layout == "CHWN":
            line = _LINE_BYTES // x.stored_dtype.itemsize
            together = line if tiled and problem.batch % line == 0 else problem.batch
        outer = (problem.batch // together, together * x.strides[0], together * y.strides[0])
        lines = (problem.out_height, problem.stride[0] * x.strides[2], y.strides[2])
        places = (problem.out_width, problem.stride[1] * x.strides[3], y.strides[3])
        inner = (together, x.strides[0], y.strides[0])
        sizes, in_x, in_y = zip(outer, lines, places, inner, strict=True)
        return _Points(sizes, in_x, in_y)

    @property
    def count(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    def arguments(self, y: TensorSpec) -> tuple[int, ...]:
        _, line, place, inner = self.sizes
        return (*divisor(self.count), *divisor(line * place * inner), *divisor(place * inner),
                *divisor(inner), *self.in_x, y.strides[1], *self.in_y)


def _work(weights: Weights, problem: Conv2dProblem, spans: int,
          device: Device) -> tuple[Argument, ...]:
    """What tells a group of the tiled form its row and its span of the output points."""
    units, groups = max(device.limits.compute_units, 1), spans * problem.out_channels
    wanted = max(1, round(units / spans / problem.groups))
    parts = min(wanted, problem.out_channels // problem.groups)
    order = weights.packed(f"rows in {parts} parts", partial(dealt, problem.groups, parts))
    return (order, *divisor(units), groups // units, groups % units)


def dealt(groups: int, parts: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The order in which rows are worked on: those of a group of channels, dealt by their length
    to so many parts of like work, and in a part the longest first, so that neighbours, which run
    at the same time, come to the same input channels at the same time."""
    weight = arrays["weight"]
    lengths = np.count_nonzero(weight.reshape(groups, len(weight) // groups, -1), axis=2)
    order = np.argsort(-lengths, axis=1, kind="stable")
    order += np.arange(groups)[:, None] * lengths.shape[1]
    return np.concatenate([rows[part::parts] for rows in order
                           for part in range(parts)]).astype(np.int32)


def _pack(part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = getattr(csr(arrays), part)
        return array if part == "data" else array.astype(np.int32)
    return pack


def _stretched(weights: Weights, problem: Conv2dProblem, x: TensorSpec, rows: Buffer,
               columns: Buffer, device: Device) -> Buffer:
    """The column of each weight as an offset in the padded input, made on the device. In NCHW they
    are the same for every batch size; in CHWN, where all strides grow with it, they go with the
    state."""
    def stretch(arrays: object) -> Buffer:
        stretched = device.empty(columns.nbytes, f"stretched columns of {weights.layer}")
        kernel = device.compile(KernelSource.of(_SOURCE, "stretch"))
        _, x_channel, x_row, x_column = x.strides
        device.launch(
            kernel, (-(-problem.out_channels // _STRETCH_GROUP),), (_STRETCH_GROUP,),
            (rows, columns, stretched, problem.out_channels,
             problem.out_channels // problem.groups, problem.channels // problem.groups,
             problem.kernel[0] * problem.kernel[1], problem.kernel[1], x_channel,
             problem.dilation[0] * x_row, problem.dilation[1] * x_column))
        # streams that launch the convolution do not wait for this one
        device.synchronize()
        return stretched

    if x.layout == "CHWN":
        return stretch(None)
    return weights.packed(f"stretched columns {x.strides[1:]} {problem.dilation}", stretch)


def _workspace(problem: Conv2dProblem, x: TensorSpec) -> int:
    """Bytes of the padded input; none where there is no padding and x itself is read."""
    return padded_input(x, problem).nbytes if any(problem.pads) else 0


def _fitting(device: Device) -> list[PublishedForm]:
    return [form for form in FORMS if form.threads <= device.limits.work_group_size
            and form.shared_bytes <= device.limits.shared_bytes]


def _order(problem: Conv2dProblem, form: PublishedForm, device: Device) -> tuple[bool, float, int]:
    """Expected order of the forms, not times: for each weight a work-item loads an input for
    each of its points and the weight itself, from shared memory at half the price, and up to 2048
    work-items of a multiprocessor do so at once. What fills no device goes by idle work-items.
    Last comes what may not run."""
    points = problem.pixels
    span = form.threads * form.points
    items = problem.out_channels * -(-points // span) * form.threads
    if form.variant == "untiled":
        items = problem.out_channels * points
    loads = form.points + (1 if form.variant == "tiled" else 2)
    loads_at_once = max(1.0, items / (2048 * max(device.limits.compute_units, 1))) * loads
    return device.api != "cuda" and form.threads > SURE_WORK_GROUP, loads_at_once, items
