"""Convolutions on the host by NumPy: im2col and depthwise."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import apply_in_place, buffers_as_arrays, operand_arrays
from gossamer.ops.host_threads import thread_configs, threads_of
from gossamer.ops.weights import Weights

_CACHED_FLOATS = 48 * 1024
"""Number of floats of one block of padded input channels, a rule of thumb. A block, its sums and
its scratch array should fit the L2 cache of a core. If they do not fit, only speed suffers."""


class HostProduct(Algorithm):
    """A product with constant weights on the host, and its epilogue."""

    def supports(self, problem: Any, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else None

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    @abc.abstractmethod
    def matrix(self, weights: Weights, problem: Any) -> Any:
        """Return the weights as `multiply` reads them."""

    @abc.abstractmethod
    def multiply(self, problem: Any, variant: Variant, matrix: Any, x: np.ndarray,
                 y: np.ndarray, operands: list[np.ndarray], workspace: Buffer | None) -> None:
        """Compute the output y from the input x and the operands of the epilogue."""

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        return State(problem, variant, device,
                     data=(self.matrix(weights, problem), float32_operands(weights)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        matrix, constants = state.data
        x, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        problem: Any = state.problem
        operands = operand_arrays(problem.epilogue, constants, tensors, y.ndim)
        self.multiply(problem, state.variant, matrix, x, y, operands, workspace)


class HostIm2col(HostProduct):
    """Product of the weights and the im2col matrix by BLAS.

    There is one product for each group of each image. The im2col matrix has a row for each input
    channel and tap, and a column for each output pixel. For a pointwise convolution, the input
    itself is this matrix.
    """

    op = "conv2d"
    name = "host_im2col"
    polls = True

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        elements = problem.depth * problem.image_pixels
        for config in thread_configs(problem.group_out_channels * elements):
            yield Variant(config, problem.inputs, problem.outputs,
                          workspace=0 if problem.is_pointwise else 4 * elements)

    def matrix(self, weights: Weights, problem: Conv2dProblem) -> np.ndarray:
        weight = np.asarray(weights.arrays["weight"], np.float32)
        return np.ascontiguousarray(
            weight.reshape(problem.groups, problem.group_out_channels, -1))

    def multiply(self, problem: Conv2dProblem, variant: Variant, matrix: np.ndarray, x: np.ndarray,
                 y: np.ndarray, operands: list[np.ndarray], workspace: Buffer | None) -> None:
        if y.size == 0:
            return
        product = y.reshape(problem.batch, problem.groups, -1, problem.image_pixels)
        if problem.depth == 0:
            product[...] = 0
        elif problem.is_pointwise:
            with threads_of(variant):
                np.matmul(matrix, x.reshape(problem.batch, problem.groups, -1,
                                            problem.image_pixels), out=product)
        else:
            assert workspace is not None
            of_groups = _windows_of_groups(x, problem)
            columns = host_array(workspace, of_groups.shape[2:])
            for image, group in np.ndindex(problem.batch, problem.groups):
                columns[...] = of_groups[image, group]
                with threads_of(variant):
                    np.matmul(matrix[group], columns.reshape(problem.depth, -1),
                              out=product[image, group])
        for image in range(problem.batch):
            image_operands = [o if o.shape[0] == 1 else o[image : image + 1] for o in operands]
            apply_in_place(problem.epilogue, y[image : image + 1], image_operands)


class HostDepthwise(HostProduct):
    """Depthwise convolution as a sum over taps.

    For each tap, a whole padded channel of an image is shifted by the position of the tap and
    multiplied by the tap's weight. Channels are computed in blocks that fit a cache.

    Rows of sums are as long as padded rows. The shift by a tap is therefore one offset, and NumPy's
    inner loop runs over the whole channel. The few sums whose windows straddle two rows are dropped
    at the end. With a stride above 1, a channel is first split into parts. Each part has the rows,
    and the columns, that are congruent modulo the stride.
    """

    op = "conv2d"
    name = "host_depthwise"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.compiles and not problem.is_depthwise:
            return (f"needs one group per input channel, has {problem.groups} for "
                    f"{problem.channels} channels")
        return super().supports(problem, device)

    def matrix(self, weights: Weights, problem: Conv2dProblem) -> np.ndarray:
        return np.asarray(weights.arrays["weight"], np.float32).reshape(problem.out_channels, -1)

    def multiply(self, problem: Conv2dProblem, variant: Variant, matrix: np.ndarray, x: np.ndarray,
                 y: np.ndarray, operands: list[np.ndarray], workspace: Buffer | None) -> None:
        multiplier = problem.out_channels // problem.channels
        plane = (problem.height + 4) * (problem.width + 4)
        block = max(1, min(problem.channels, _CACHED_FLOATS // plane))
        for image in range(problem.batch):
            for first in range(0, problem.channels, block):
                part = x[image : image + 1, first : first + block]
                lanes = slice(first * multiplier, (first + block) * multiplier)
                target = y[image : image + 1, lanes]
                _shifted_sums(np.repeat(part, multiplier, axis=1) if multiplier > 1 else part,
                              matrix[lanes], problem, target)
                block_operands = [o[:, lanes] if o.shape[0] == 1 else o[image : image + 1, lanes]
                                  for o in operands]
                apply_in_place(problem.epilogue, target, block_operands)


def _shifted_sums(x: np.ndarray, taps: np.ndarray, problem: Conv2dProblem,
                  target: np.ndarray) -> None:
    """Compute target[0, c]: the sum over taps of taps[c, tap] times x[0, c] shifted by the tap."""
    padded = _padded(x, problem)[0]
    stride_y, stride_x = problem.stride
    height, width = problem.out_height, problem.out_width
    phases: dict[tuple[int, int], np.ndarray] = {}
    row_length = -(-padded.shape[2] // stride_x)
    count = (height - 1) * row_length + width
    sums = np.zeros((len(padded), height * row_length), dtype=np.float32)
    scratch = np.empty((len(padded), count), dtype=np.float32)
    for tap, (r, s) in enumerate(np.ndindex(problem.kernel)):
        y0, x0 = r * problem.dilation[0], s * problem.dilation[1]
        phase = (y0 % stride_y, x0 % stride_x)
        if phase not in phases:
            phases[phase] = _phase(padded, phase, problem.stride, row_length)
        start = y0 // stride_y * row_length + x0 // stride_x
        np.multiply(phases[phase][:, start : start + count], taps[:, tap, None], out=scratch)
        sums[:, :count] += scratch
    target[0] = sums.reshape(-1, height, row_length)[:, :, :width]


def _phase(padded: np.ndarray, phase: tuple[int, int], stride: tuple[int, int],
           row_length: int) -> np.ndarray:
    """Return every stride-th row and column of each channel, with one axis for both.

    Each row is padded with zeros to `row_length` elements.

    phase: the first row and the first column that are returned.
    """
    part = padded[:, phase[0] :: stride[0], phase[1] :: stride[1]]
    if part.shape[2] < row_length:
        part = np.pad(part, ((0, 0), (0, 0), (0, row_length - part.shape[2])))
    return np.ascontiguousarray(part).reshape(len(part), -1)


def float32_operands(weights: Weights) -> dict[str, np.ndarray]:
    """Return the constants of a layer's epilogue in float32."""
    return {name: np.asarray(array, np.float32) for name, array in weights.arrays.items()
            if name != "weight"}


def _padded(x: np.ndarray, problem: Conv2dProblem) -> np.ndarray:
    """Return the zero-padded input."""
    top, left, bottom, right = problem.pads
    if not any(problem.pads):
        return x
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def windows(padded: np.ndarray, problem: Conv2dProblem) -> np.ndarray:
    """Return a view (..., R, S, output rows, output columns) of padded images (..., H, W)."""
    view = sliding_window_view(padded, (problem.window(0), problem.window(1)), axis=(-2, -1))
    strided = view[..., :: problem.stride[0], :: problem.stride[1],
                   :: problem.dilation[0], :: problem.dilation[1]]
    return np.moveaxis(strided, (-2, -1), (-4, -3))


def _windows_of_groups(x: np.ndarray, problem: Conv2dProblem) -> np.ndarray:
    """Return a view of the windows (N, groups, C/groups, R, S, output rows, output columns)."""
    padded = _padded(x, problem)
    return windows(padded.reshape(len(x), problem.groups, problem.group_channels,
                                  *padded.shape[2:]), problem)
