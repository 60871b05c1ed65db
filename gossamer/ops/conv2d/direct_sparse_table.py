"""direct_sparse_table: pruned convolution with weights in tables, for several channels at once.

Source: direct sparse convolution on GPUs (Escoin, 2018), whose table form loads an input for every
multiply-add. Here output channels with weights in like places form a block that loads it once, its
sums in registers, and sets of work-items share the columns of a block where points are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device, KernelSource
from gossamer.ops.algorithm import (
    Algorithm,
    Launch,
    State,
    Variant,
    Weights,
    input_buffer,
    output_buffer,
)
from gossamer.ops.conv2d.direct_sparse import too_dense
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse_table import Table, table
from gossamer.ops.conv2d.sparse_table_forms import Division, Form, Walk, costs_of_forms, fitting
from gossamer.ops.copy.problem import convert
from gossamer.ops.copy.strided import copy_launches, copy_walk
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.strided import cannot_compile, divisor
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("direct_sparse_table.cl")
_LAYOUTS = ("NCHW", "CHWN")
_EMPTY = Form(1, 1, 32)


class DirectSparseTable(Algorithm):
    """Nothing is generated for the weights: a kernel serves every layer of its form.

    Columns that no channel of a block has are skipped. A column that one of them has is multiplied
    by zero for the others, so that a NaN or infinity of the input reaches all channels of a block
    (with rows=1: only those whose weights it meets) as NaN; so it does in a dense convolution.
    The other sparse forms keep it from channels where only zeros meet it.
    """

    op = "conv2d"
    name = "direct_sparse_table"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (reason := too_dense(problem)) is not None:
            return reason
        if int(np.prod(_padded(problem.inputs[0], problem).stored_shape, dtype=np.int64)) >= 2**31:
            return "the padded input has 2^31 elements or more: indices are 32-bit"
        if problem.out_channels * problem.depth >= 2**31:
            return "there are 2^31 weights or more: indices are 32-bit"
        if not fitting(device.limits):
            return (f"{device.name} runs at most {device.limits.group_size} work-items a group "
                    f"with {device.limits.local_bytes} bytes of local memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        if problem.outputs[0].size == 0:
            yield Variant(_EMPTY.config, problem.inputs, problem.outputs)
            return
        # the layouts of one image are the same memory
        layouts = _LAYOUTS if problem.batch > 1 else _LAYOUTS[:1]
        offered = sorted((_offered(problem, device, layout) for layout in layouts),
                         key=lambda each: each[0])
        for in_turn in zip_longest(*(variants for _, variants in offered)):
            for variant in in_turn:
                if variant is not None:
                    yield from (variant, replace(variant.halved,
                                                 workspace=variant.workspace // 2))

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        form = Form(**{key: int(value) for key, value in variant.config})
        padded = _padded(x, problem)
        division = Division(form, Walk.of(problem, padded, y))
        walk = division.walk
        kernel = device.compile(KernelSource.of(_SOURCE, "direct_sparse_table", {
            **{key.upper(): value for key, value in variant.config},
            "VECTOR": division.vector, "DISTANCE": division.distance, "LINEAR": int(walk.linear),
            "HALVES": int(x.dtype == "float16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=y.dtype, one_channel=True)}))
        source, launches = input_buffer(0), []
        if variant.workspace:
            launches = copy_launches(device, x.stored_dtype.itemsize,
                                     copy_walk(convert(x, padded), x, padded), source,
                                     _workspace_buffer)
            source = _workspace_buffer
        blocks = -(-problem.out_channels // problem.groups // form.rows) * problem.groups
        parts = -(-blocks // form.blocks)
        launches.append(Launch(
            kernel, (parts * division.tiles * walk.planes,), (form.group,),
            (source, *_tables(weights, problem, form.rows, padded), output_buffer(0),
             *divisor(parts), *divisor(division.tiles), walk.count, *divisor(walk.line),
             *divisor(walk.images), problem.out_width, *walk.in_x, y.strides[1], *walk.in_y,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels))))
        return State(problem, variant, device, launches)


def _offered(problem: Conv2dProblem, device: Device,
             layout: str) -> tuple[float, list[Variant]]:
    """The expected cost of the first, and all, in that order."""
    x, y = (spec.with_layout(layout) for spec in (problem.inputs[0], problem.outputs[0]))
    padded = _padded(x, problem)
    workspace = padded.nbytes if any(problem.pads) else 0
    costs = costs_of_forms(problem, padded, y, device.limits)
    inputs = (x, *[y] * problem.epilogue.tensor_count)
    return (min(costs.values()),
            [Variant(form.config, inputs, (y,), workspace=workspace)
             for form in sorted(costs, key=costs.__getitem__)])


def _tables(weights: Weights, problem: Conv2dProblem, rows: int,
            x: TensorSpec) -> list[Argument]:
    """The kernel's table of the weights, which go into blocks once for all input sizes; the
    offsets of columns are those of the padded input x."""
    @cache
    def made() -> Table:
        return table(weights.arrays["weight"], problem.groups, rows)

    def pack(part: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda arrays: getattr(made(), part)

    def offsets(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        channel, tap = np.divmod(made().columns, problem.kernel[0] * problem.kernel[1])
        row, column = np.divmod(tap, problem.kernel[1])
        _, x_channel, x_row, x_column = x.strides
        return (channel * x_channel + row * (problem.dilation[0] * x_row)
                + column * (problem.dilation[1] * x_column)).astype(np.int32)

    strides = f"{x.strides[1:]} {problem.dilation}"
    return [weights.packed(f"starts of {rows} rows", pack("starts")),
            weights.packed(f"channels of {rows} rows", pack("channels")),
            weights.packed(f"columns of {rows} rows, {strides}", offsets),
            weights.packed(f"values of {rows} rows", pack("values"))]


def _padded(x: TensorSpec, problem: Conv2dProblem) -> TensorSpec:
    """The input with its padding stored."""
    return replace(x, border=problem.pads)


def _workspace_buffer(inputs: object, outputs: object, workspace: Argument) -> Argument:
    return workspace
