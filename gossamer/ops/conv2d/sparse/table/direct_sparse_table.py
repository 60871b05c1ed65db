"""The algorithm direct_sparse_table computes a pruned convolution with weights in tables, for
several output channels at once.

Source: direct sparse convolution (X. Chen, "Escoin: efficient sparse convolutional neural network
inference on GPUs", arXiv 1802.10280, 2018). The source loads an input for every multiply-add. Here
output channels with weights in similar positions form a block. An input is loaded once for a block,
and the block's sums stay in registers. Where output points are few, several sets of work-items
share the columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.csr import cannot_index
from gossamer.ops.conv2d.sparse.common.row_blocks import Table, table
from gossamer.ops.conv2d.sparse.table.tiling import (
    OutputPlanes,
    TableForm,
    TableTiling,
    as_read,
    costs_of_forms,
    fitting,
)
from gossamer.ops.copy.problem import convert
from gossamer.ops.copy.strided import copy_launches, copy_walk
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import divisor
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("direct_sparse_table.cl")
_LAYOUTS = ("NCHW", "CHWN")
_EMPTY = TableForm(1, 1, 32)


class DirectSparseTable(Algorithm):
    """Computes a convolution from tables of weights. The input of a column is loaded once for a
    block of output channels, and is multiplied by one weight for each channel. The kernel does not
    depend on the weights.

    Columns in which no channel of a block has a weight are skipped. A column in which only some
    channels have a weight is multiplied by zero for the block's other channels. So a NaN or
    infinity of the input reaches all channels of a block as NaN, as in a dense convolution; with
    rows=1 it reaches only channels with a weight in this column.
    """

    op = "conv2d"
    name = "direct_sparse_table"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_index(problem, device)) is not None:
            return reason
        if not fitting(device.limits):
            return (f"{device.name} runs at most {device.limits.work_group_size} work-items a "
                    f"group with {device.limits.shared_bytes} bytes of shared memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield Variant(_EMPTY.config, problem.inputs, problem.outputs)
            return
        # with one image both layouts are the same in memory
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

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        form, read, walk, division = _divided(problem, variant)
        kernel = device.compile(_source(problem, variant))
        source, launches = input_buffer(0), []
        if variant.workspace:
            launches = copy_launches(device, x.stored_dtype.itemsize,
                                     copy_walk(convert(x, read), x, read), source,
                                     workspace_buffer)
            source = workspace_buffer
        blocks = -(-problem.out_channels // problem.groups // form.rows) * problem.groups
        parts = -(-blocks // form.blocks)
        tables, tap_masks = _tables(weights, problem, form.rows, read)
        masking = (tap_masks(), problem.height, problem.width, *problem.kernel, *problem.stride,
                   *problem.pads[:2], *problem.dilation) if form.masked else ()
        launches.append(Launch(
            kernel, (parts * division.tiles * walk.planes,), (form.work_group,),
            (source, *tables, output_buffer(0),
             *divisor(parts), *divisor(division.tiles), walk.count, *divisor(walk.line),
             *divisor(walk.images), problem.out_width, walk.start, *walk.in_x, y.strides[1],
             *walk.in_y, *masking,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))))
        return State(problem, variant, device, launches)


def _divided(problem: Conv2dProblem,
             variant: Variant) -> tuple[TableForm, TensorSpec, OutputPlanes, TableTiling]:
    """Returns the sizes in a variant's config, the spec of the input as the kernel reads it, the
    output points, and their division among work-items."""
    form = TableForm(**{key: int(value) for key, value in variant.config})
    read = as_read(variant.inputs[0], problem, form)
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
    """Returns the sort key of a layout's best variant (whether its work-group may be too large, and
    its expected cost), and the layout's variants in the order of their sort keys."""
    x, y = (spec.with_format(layout=layout) for spec in (problem.inputs[0], problem.outputs[0]))
    costs = {form: (form.work_group > device.limits.sure_work_group_size, cost)
             for form, cost in costs_of_forms(problem, x, y, device.limits).items()}
    inputs = (x, *[y] * problem.epilogue.tensor_count)
    return (min(costs.values()),
            [Variant(form.config, inputs, (y,), workspace=_workspace(problem, x, form))
             for form in sorted(costs, key=costs.__getitem__)])


def _workspace(problem: Conv2dProblem, x: TensorSpec, form: TableForm) -> int:
    """Returns the bytes of the padded input; 0 where the kernel reads x itself."""
    read = as_read(x, problem, form)
    return 0 if read == x else read.nbytes


def _tables(weights: Weights, problem: Conv2dProblem, rows: int,
            x: TensorSpec) -> tuple[list[Argument], Callable[[], Argument]]:
    """Returns the kernel's tables of the weights, and a function that returns the table of tap
    masks (for each column, a bit for the row and a bit for the column of its tap). In the first
    tables, a column is an offset in x, the input as the kernel reads it. Weights are put into
    blocks once for all input sizes."""
    @cache
    def blocks() -> Table:
        return table(weights.arrays["weight"], problem.groups, rows)

    def pack(part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: getattr(blocks(), part)

    def places() -> tuple[np.ndarray, ...]:
        channel, tap = np.divmod(blocks().columns, problem.kernel[0] * problem.kernel[1])
        return (channel, *np.divmod(tap, problem.kernel[1]))

    def tap_masks(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        _, row, column = places()
        return (1 << row.astype(np.int64) | 1 << 16 + column.astype(np.int64)).astype(np.uint32)

    def offsets(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        channel, row, column = places()
        _, x_channel, x_row, x_column = x.strides
        return (channel * x_channel + row * (problem.dilation[0] * x_row)
                + column * (problem.dilation[1] * x_column)).astype(np.int32)

    strides = f"{x.strides[1:]} {problem.dilation}"
    return ([weights.packed(f"starts of {rows} rows", pack("starts")),
             weights.packed(f"channels of {rows} rows", pack("channels")),
             weights.packed(f"columns of {rows} rows, {strides}", offsets),
             weights.packed(f"values of {rows} rows", pack("values"))],
            lambda: weights.packed(f"tap masks of {rows} rows", tap_masks))
