"""The algorithm sparse_im2col runs a pruned convolution on the host: CSR weights times the im2col
matrix of the input (SciPy)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.common.csr import csr, too_dense
from gossamer.ops.epilogue import apply_in_place, buffers_as_arrays, operand_arrays
from gossamer.ops.weights import Weights

_ROW_FLOATS = 512
"""The fewest output pixels that a product should have, a rule of thumb for any processor. With
this number the arithmetic of a nonzero weight takes longer than its overhead; with many more pixels
the im2col matrix would not stay in the caches."""


class SparseIm2col(Algorithm):
    """Computes a convolution on the host as a product of CSR weights and the im2col matrix. Small
    images are multiplied several at a time, so that the arithmetic of a nonzero weight takes longer
    than its overhead.

    Zeros among the weights are skipped: a NaN or infinity of the input does not reach a result
    whose weights for this input are all zero.
    """

    op = "conv2d"
    name = "sparse_im2col"
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else too_dense(problem.weights_info)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        images = _images(problem)
        columns = 0
        if not _is_im2col_already(problem, images):
            columns = 4 * problem.depth * images * problem.out_height * problem.out_width
        yield Variant((), problem.inputs, problem.outputs, workspace=columns)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        matrix = csr(weights.arrays)
        rows = problem.out_channels // problem.groups
        matrices = [matrix[first : first + rows]
                    for first in range(0, problem.out_channels, rows)]
        constants = {name: np.asarray(array, np.float32)
                     for name, array in weights.arrays.items() if name != "weight"}
        return State(problem, variant, device, data=(matrices, constants))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        matrices, constants = state.data
        x, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        if y.size == 0:
            return
        operands = operand_arrays(problem.epilogue, constants, tensors, 4)
        images = _images(problem)
        if not state.variant.workspace:
            workspace = None  # a plan passes its workspace to every step
        for first in range(0, problem.batch, images):
            span = slice(first, first + images)
            results = y[span].reshape(-1, problem.groups, problem.out_channels // problem.groups,
                                      problem.out_height, problem.out_width)
            windows = _windows(x[span], problem)
            for group, matrix in enumerate(matrices):
                columns = _columns(windows[group], problem, workspace)
                shape = (results.shape[2], *results.shape[:1], *results.shape[3:])
                results[:, group] = (matrix @ columns).reshape(shape).swapaxes(0, 1)
            span_operands = [operand if operand.shape[0] == 1 else operand[span]
                             for operand in operands]
            apply_in_place(problem.epilogue, y[span], span_operands)


def _images(problem: Conv2dProblem) -> int:
    """Returns how many images are multiplied at once."""
    pixels = max(problem.out_height * problem.out_width, 1)
    return max(1, min(problem.batch, -(-_ROW_FLOATS // pixels)))


def _is_im2col_already(problem: Conv2dProblem, images: int) -> bool:
    """Returns whether the input is its own im2col matrix."""
    return problem.is_pointwise and images == 1


def _windows(x: np.ndarray, problem: Conv2dProblem) -> np.ndarray:
    """Returns a view of the padded images as (groups, C/groups, R, S, images, output rows, output
    columns)."""
    top, left, bottom, right = problem.pads
    if any(problem.pads):
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    split = x.reshape(len(x), problem.groups, -1, *x.shape[2:])
    spans = [(taps - 1) * step + 1
             for taps, step in zip(problem.kernel, problem.dilation, strict=True)]
    windows = sliding_window_view(split, spans, axis=(3, 4))
    strided = windows[..., :: problem.stride[0], :: problem.stride[1],
                      :: problem.dilation[0], :: problem.dilation[1]]
    return strided.transpose(1, 2, 5, 6, 0, 3, 4)


def _columns(windows: np.ndarray, problem: Conv2dProblem,
             workspace: Buffer | None) -> np.ndarray:
    """Returns the im2col matrix (C/groups * R * S, images * output pixels) of one group."""
    if workspace is None:
        return windows.reshape(problem.depth, -1)
    columns = host_array(workspace, windows.shape)
    columns[...] = windows
    return columns.reshape(problem.depth, -1)
