"""direct_sparse: pruned convolution as inner products with the shifted input.

Source: X. Chen, "Escoin: efficient sparse convolutional neural network inference on GPUs", arXiv
1802.10280, 2018. Each filter is a row of a CSR matrix and is stretched over the padded input. For a
nonzero of channel c and tap (r, s), the row holds the column (c*H + r)*W + s. This column is the
offset of the nonzero's input from the start of a window. An output is the inner product of the row
with the inputs at these offsets from the start of the output's window. Unlike in the source,
columns are computed with the strides of the input. This allows several layouts, dilation and
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.common import specs_in
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import cannot_index, csr, padded_bytes, padded_input
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
"""Bytes of a cache line."""


@dataclass(frozen=True)
class PublishedForm:
    """One of the two published kernels, with its sizes.

    variant: "untiled" or "tiled". In the untiled kernel, each work-item computes one output from
    one CSR row. In the tiled kernel, the work-items of a work-group share one CSR row and read it
    from shared memory in tiles.
    threads: number of work-items of a work-group.
    points: number of output points of a work-item.
    """

    variant: str
    threads: int
    points: int = 1

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a work-group."""
        return 8 * self.threads if self.variant == "tiled" else 0

    @property
    def config(self) -> tuple[tuple[str, int | str], ...]:
        """The kernel and its sizes as the config of a variant."""
        config: tuple[tuple[str, int | str], ...] = (("variant", self.variant),
                                                     ("threads", self.threads))
        return (*config, ("points", self.points)) if self.variant == "tiled" else config


FORMS = (
    *(PublishedForm("tiled", threads) for threads in (1024, 512, 256, 64)),
    *(PublishedForm("tiled", 256, points) for points in (2, 4, 8)),
    *(PublishedForm("untiled", threads) for threads in (256, 64)),
)


class DirectSparse(Algorithm):
    """The published kernels of direct sparse convolution, untiled and tiled.

    Each row of the CSR weights is multiplied by the inputs of a window.

    Zero weights are skipped: a NaN or infinity in the input does not reach an output whose weights
    for that input are all zero.
    """

    op = "conv2d"
    name = "direct_sparse"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_index(problem, device)) is not None:
            return reason
        if not _fitting(device):
            return (f"no config fits the work-groups of {device.name}, with at most "
                    f"{device.limits.work_group_size} work-items and "
                    f"{device.limits.shared_bytes} bytes of shared memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for form in sorted(_fitting(device), key=lambda form: _order(problem, form, device)):
            for layout in _LAYOUTS:
                variant = Variant(form.config, *specs_in(problem, layout, layout))
                for of_dtype in (variant, variant.as_fp16):
                    yield replace(of_dtype, workspace=padded_bytes(of_dtype.inputs[0], problem))

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (_source(problem, variant),)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        """Prepare the launches.

        Raises OutOfMemoryError if device memory has no room for the stretched columns.
        """
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        rows, columns, values = (weights.packed(f"{part} of CSR", _pack(part))
                                 for part in ("indptr", "indices", "data"))
        padded = padded_input(x, problem)
        stretched = _stretched(weights, problem, padded, rows, columns, device)
        source, launches = padded_source(variant, padded, device)
        threads, points = variant["threads"], dict(variant.config).get("points")
        kernel = device.compile(_source(problem, variant))
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


def _source(problem: Conv2dProblem, variant: Variant) -> KernelSource:
    points = dict(variant.config).get("points")
    return KernelSource.of(_SOURCE, variant["variant"], {
        "THREADS": variant["threads"], **({} if points is None else {"POINTS": points}),
        "HALVES": int(variant.precision == "fp16"),
        **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype)})


def padded_source(variant: Variant, padded: TensorSpec,
                  device: Device) -> tuple[Callable[..., Argument], list[Launch]]:
    """Return the argument for the padded input, and the launches that write it to the workspace.

    If the variant has no workspace, the argument is the input itself, and there are no launches.
    """
    x = variant.inputs[0]
    if not variant.workspace:
        return input_buffer(0), []
    return workspace_buffer, copy_launches(
        device, x.stored_dtype.itemsize, copy_walk(convert(x, padded), x, padded),
        input_buffer(0), workspace_buffer)


@dataclass(frozen=True)
class _Points:
    """The output points of one channel, indexed by (outer, row, column, inner).

    In NCHW, `inner` is always 0. In CHWN, `inner` counts the images of the batch. There is one
    exception: if n images fill a cache line and the batch is a multiple of n, `inner` counts only n
    images in the tiled kernel. Work-items of neighbouring columns, whose windows share inputs, are
    then closer together.

    sizes: number of values of each index.
    in_x: stride of the window in x along each index, in elements.
    in_y: stride of the result in y along each index, in elements.
    """

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
        rows = (problem.out_height, problem.stride[0] * x.strides[2], y.strides[2])
        columns = (problem.out_width, problem.stride[1] * x.strides[3], y.strides[3])
        inner = (together, x.strides[0], y.strides[0])
        sizes, in_x, in_y = zip(outer, rows, columns, inner, strict=True)
        return _Points(sizes, in_x, in_y)

    @property
    def count(self) -> int:
        """Number of output points of one channel."""
        return int(np.prod(self.sizes, dtype=np.int64))

    def arguments(self, y: TensorSpec) -> tuple[int, ...]:
        """Return the kernel arguments that describe the points."""
        _, rows, columns, inner = self.sizes
        return (*divisor(self.count), *divisor(rows * columns * inner), *divisor(columns * inner),
                *divisor(inner), *self.in_x, y.strides[1], *self.in_y)


def _work(weights: Weights, problem: Conv2dProblem, spans: int,
          device: Device) -> tuple[Argument, ...]:
    """Return the arguments from which a work-group of the tiled kernel finds its row and points.

    spans: number of spans of points; a work-group computes one span for one row.
    """
    units, groups = max(device.limits.compute_units, 1), spans * problem.out_channels
    parts_to_fill = max(1, round(units / spans / problem.groups))
    parts = min(parts_to_fill, problem.group_out_channels)
    order = weights.packed(f"rows in {parts} parts", partial(dealt, problem.groups, parts))
    return (order, *divisor(units), groups // units, groups % units)


def dealt(groups: int, parts: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the order in which rows are multiplied.

    The rows of a group of channels are sorted by length, the longest first, and assigned in turn to
    `parts` parts, so that the parts have similar work. Rows that are neighbours in this order run
    at the same time. Such rows have similar lengths, so they read the same input channels at about
    the same time.
    """
    weight = arrays["weight"]
    lengths = np.count_nonzero(weight.reshape(groups, len(weight) // groups, -1), axis=2)
    order = np.argsort(-lengths, axis=1, kind="stable")
    order += np.arange(groups)[:, None] * lengths.shape[1]
    return np.concatenate([rows[part::parts] for rows in order
                           for part in range(parts)]).astype(np.int32)


def _pack(part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function that computes one array of the CSR matrix from a layer's arrays.

    part: the name of the CSR matrix's array: "indptr", "indices" or "data".
    """
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = getattr(csr(arrays), part)
        return array if part == "data" else array.astype(np.int32)
    return pack


def _stretched(weights: Weights, problem: Conv2dProblem, x: TensorSpec, rows: Buffer,
               columns: Buffer, device: Device) -> Buffer:
    """Compute the offset of each weight's input in the padded input.

    The device computes these offsets, the stretched columns. In NCHW, they are the same for every
    batch size and are cached with the weights. In CHWN, all strides depend on the batch size, so
    the columns are kept in the State.
    """
    def stretch(arrays: object) -> Buffer:
        stretched = device.empty(columns.nbytes, f"stretched columns of {weights.layer}")
        kernel = device.compile(KernelSource.of(_SOURCE, "stretch"))
        _, x_channel, x_row, x_column = x.strides
        device.launch(
            kernel, (-(-problem.out_channels // _STRETCH_GROUP),), (_STRETCH_GROUP,),
            (rows, columns, stretched, problem.out_channels,
             problem.group_out_channels, problem.group_channels,
             problem.taps, problem.kernel[1], x_channel,
             problem.dilation[0] * x_row, problem.dilation[1] * x_column))
        # streams that launch the convolution do not wait for the stream of this launch
        device.synchronize()
        return stretched

    if x.layout == "CHWN":
        return stretch(None)
    return weights.packed(f"stretched columns {x.strides[1:]} {problem.dilation}", stretch)


def _fitting(device: Device) -> list[PublishedForm]:
    """Return the published kernels, with their sizes, that the device can run."""
    return [form for form in FORMS if form.threads <= device.limits.work_group_size
            and form.shared_bytes <= device.limits.shared_bytes]


def _order(problem: Conv2dProblem, form: PublishedForm, device: Device) -> tuple[bool, float, int]:
    """Return a sort key of kernels; the fastest expected kernel has the lowest key.

    The key is not a time. Its main part counts the loads of a work-item per weight: one for the
    input of each point, plus one for the weight if weights are in shared memory, or two if weights
    are in device memory. If there are n > 2048 work-items per multiprocessor, the count is
    multiplied by n / 2048. Among kernels with equal counts, the kernel with the fewest work-items
    comes first. Kernels that the device may not be able to run come last.
    """
    points = problem.pixels
    span = form.threads * form.points
    items = problem.out_channels * -(-points // span) * form.threads
    if form.variant == "untiled":
        items = problem.out_channels * points
    loads = form.points + (1 if form.variant == "tiled" else 2)
    loads_at_once = max(1.0, items / (2048 * max(device.limits.compute_units, 1))) * loads
    return form.threads > device.limits.sure_work_group_size, loads_at_once, items
