"""Convolutions on the host: im2col with BLAS, and depthwise convolution by shifted channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import apply_in_place, buffers_as_arrays, operand_arrays
from gossamer.ops.host_threads import thread_configs, threads_of
from gossamer.ops.weights import Weights

_CACHED_FLOATS = 48 * 1024
"""Number of floats of one block of padded input channels. The number is a rule of thumb: a block,
its sums and its scratch array should fit the L2 cache of a core. On a core with a smaller cache,
blocks only take longer."""


class HostIm2col(Algorithm):
    """Computes a convolution image by image and group by group as a BLAS product of the weights
    with the im2col matrix, which has a row for each input channel and tap and a column for each
    output pixel. A pointwise convolution multiplies the input itself."""

    op = "conv2d"
    name = "host_im2col"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        columns = 0
        if not problem.is_pointwise:
            columns = 4 * problem.depth * problem.out_height * problem.out_width
        rows = problem.out_channels // problem.groups
        for config in thread_configs(rows * problem.depth * problem.out_height
                                     * problem.out_width):
            yield Variant(config, problem.inputs, problem.outputs, workspace=columns)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        weight = np.asarray(weights.arrays["weight"], np.float32)
        matrix = weight.reshape(problem.groups, problem.out_channels // problem.groups, -1)
        return State(problem, variant, device,
                     data=(np.ascontiguousarray(matrix), _float32(weights)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        matrix, constants = state.data
        x, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        if y.size == 0:
            return
        plane = problem.out_height * problem.out_width
        product = y.reshape(problem.batch, problem.groups, -1, plane)
        if problem.depth == 0:
            product[...] = 0
        elif problem.is_pointwise:
            with threads_of(state.variant):
                np.matmul(matrix, x.reshape(problem.batch, problem.groups, -1, plane), out=product)
        else:
            assert workspace is not None
            columns = host_array(workspace, (problem.depth, plane))
            for image, results in zip(_padded(x, problem), product, strict=True):
                per_group = problem.channels // problem.groups
                for group in range(problem.groups):
                    part = image[group * per_group : (group + 1) * per_group]
                    _fill_im2col(part, problem, columns)
                    with threads_of(state.variant):
                        np.matmul(matrix[group], columns, out=results[group])
        operands = operand_arrays(problem.epilogue, constants, tensors, 4)
        for image in range(problem.batch):
            image_operands = [o if o.shape[0] == 1 else o[image : image + 1] for o in operands]
            apply_in_place(problem.epilogue, y[image : image + 1], image_operands)


class HostDepthwise(Algorithm):
    """Computes a depthwise convolution as a sum over taps: the weight of each tap is multiplied
    with a whole padded channel of an image, shifted by the tap. Channels are computed in blocks
    that fit a cache.

    Rows of sums are as long as padded rows, so that the shift by a tap is one offset and NumPy's
    inner loop runs over the whole channel. The few sums that straddle two rows are dropped at the
    end. With stride 2 a channel is first split by the parity of its rows and columns."""

    op = "conv2d"
    name = "host_depthwise"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        if not problem.is_depthwise:
            return f"needs one group a channel, has {problem.groups} for {problem.channels}"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        taps = np.asarray(weights.arrays["weight"], np.float32).reshape(problem.out_channels, -1)
        return State(problem, variant, device, data=(taps, _float32(weights)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        taps, constants = state.data
        x, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        operands = operand_arrays(problem.epilogue, constants, tensors, 4)
        multiplier = problem.out_channels // problem.channels
        plane = (problem.height + 4) * (problem.width + 4)
        block = max(1, min(problem.channels, _CACHED_FLOATS // plane))
        for image in range(problem.batch):
            for first in range(0, problem.channels, block):
                part = x[image : image + 1, first : first + block]
                lanes = slice(first * multiplier, (first + block) * multiplier)
                target = y[image : image + 1, lanes]
                _shifted_sums(np.repeat(part, multiplier, axis=1) if multiplier > 1 else part,
                              taps[lanes], problem, target)
                block_operands = [o[:, lanes] if o.shape[0] == 1 else o[image : image + 1, lanes]
                                  for o in operands]
                apply_in_place(problem.epilogue, target, block_operands)


def _float32(weights: Weights) -> dict[str, np.ndarray]:
    """Returns the epilogue's constants of a layer in float32."""
    return {name: np.asarray(array, np.float32) for name, array in weights.arrays.items()
            if name != "weight"}


def _padded(x: np.ndarray, problem: Conv2dProblem) -> np.ndarray:
    """Returns the input with the problem's zeros around it."""
    top, left, bottom, right = problem.pads
    if problem.pads == (0, 0, 0, 0):
        return x
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _fill_im2col(image: np.ndarray, problem: Conv2dProblem, columns: np.ndarray) -> None:
    """Fills the im2col matrix (channels * taps, output pixels) of one padded image."""
    height, width = problem.out_height, problem.out_width
    target = columns.reshape(-1, *problem.kernel, height, width)
    for r in range(problem.kernel[0]):
        for s in range(problem.kernel[1]):
            y0, x0 = r * problem.dilation[0], s * problem.dilation[1]
            target[:, r, s] = image[:, y0 : y0 + (height - 1) * problem.stride[0] + 1
                                    : problem.stride[0],
                                    x0 : x0 + (width - 1) * problem.stride[1] + 1
                                    : problem.stride[1]]


def _shifted_sums(x: np.ndarray, taps: np.ndarray, problem: Conv2dProblem,
                  target: np.ndarray) -> None:
    """Computes target[0, c] = sum over taps of taps[c, tap] * x[0, c] shifted by the tap."""
    padded = _padded(x, problem)[0]
    stride_y, stride_x = problem.stride
    height, width = problem.out_height, problem.out_width
    phases: dict[tuple[int, int], np.ndarray] = {}
    row_length = -(-padded.shape[2] // stride_x)
    count = (height - 1) * row_length + width
    sums = np.zeros((len(padded), height * row_length), dtype=np.float32)
    scratch = np.empty((len(padded), count), dtype=np.float32)
    for r in range(problem.kernel[0]):
        for s in range(problem.kernel[1]):
            y0, x0 = r * problem.dilation[0], s * problem.dilation[1]
            phase = (y0 % stride_y, x0 % stride_x)
            if phase not in phases:
                phases[phase] = _phase(padded, phase, problem.stride, row_length)
            start = y0 // stride_y * row_length + x0 // stride_x
            tap = taps[:, r * problem.kernel[1] + s, None]
            np.multiply(phases[phase][:, start : start + count], tap, out=scratch)
            sums[:, :count] += scratch
    target[0] = sums.reshape(-1, height, row_length)[:, :, :width]


def _phase(padded: np.ndarray, phase: tuple[int, int], stride: tuple[int, int],
           row_length: int) -> np.ndarray:
    """Returns every stride-th row and column of each channel, beginning with the row and the column
    that `phase` states, as one sequence of rows of row_length numbers."""
    part = padded[:, phase[0] :: stride[0], phase[1] :: stride[1]]
    if part.shape[2] < row_length:
        part = np.pad(part, ((0, 0), (0, 0), (0, row_length - part.shape[2])))
    return np.ascontiguousarray(part).reshape(len(part), -1)
