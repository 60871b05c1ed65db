"""Convolution on CPUs in NHWC, with vectors along the output channels.

LLVM compiles the code. The method is from M. Dukhan, "The Indirect Convolution Algorithm" (2019).
A table lists the offsets of the pixels under each window, so no image is copied or padded. Vectors
run along channels, which are contiguous in memory. The vectors are therefore full even for small
images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gossamer.device.base import Device
from gossamer.device.host import host_array
from gossamer.device.native import processor as native
from gossamer.device.native.processor import function
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.host_direct.algorithm import (
    HostDirect,
    Work,
    refusal,
    shape_of,
    widths_of,
)
from gossamer.ops.conv2d.host_direct.tiles import tiling_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import too_dense
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.strided import in_layout
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_MOST_OFFSETS = 2**20
"""Maximum number of entries of the table. The table has one entry for each tap of each window."""
_MOST_BYTES = 2**31 - 1
"""Maximum number of bytes of an input, because the entries of the table are 32-bit offsets."""
_MOST_TAPS = 81
"""Maximum number of taps of a depthwise window; the loop over taps is fully unrolled."""


class HostIndirect(HostDirect):
    """Convolution with outputs in NHWC and inputs in NHWC or NCHW."""

    name = "host_indirect"
    dense = True
    between_thin = True

    def refused(self, problem: Conv2dProblem) -> str | None:
        if too_dense(problem.weights_info) is None:
            return "has zeros, which host_direct skips"
        if problem.groups > 1:
            return "has groups of channels"
        if problem.image_pixels * problem.taps > _MOST_OFFSETS:
            return f"windows have more than {_MOST_OFFSETS} taps in total"
        if max(4 * spec.size for spec in problem.inputs) > _MOST_BYTES:
            return f"an image has more than {_MOST_BYTES} bytes"
        return refusal(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        (x, *tensors), outputs = in_nhwc(problem.inputs), in_nhwc(problem.outputs)
        for lanes in widths_of(problem.out_channels):
            for threads in thread_configs():
                for source in (x, problem.inputs[0]):
                    yield Variant((("lanes", lanes), *threads), (source, *tensors), outputs)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.indirect_code import indirect

        tiling = tiling_of(problem, variant["lanes"])
        channel, pixel = (4 * variant.inputs[0].strides[axis] for axis in (1, 3))
        code = function("indirect", native.processor(), indirect, shape_of(problem), tiling,
                        channel)
        panels = -(-problem.out_channels // tiling.width)
        zeros = np.zeros((problem.channels - 1) * channel // 4 + 1, np.float32)
        return State(problem, variant, device, data=Work.of(
            code, weights, problem, (_panels(weights, problem, tiling.width),
                                     _offsets(problem, pixel), zeros),
            threads=workers(variant[THREADS]),
            tasks=panels * -(-problem.image_pixels // tiling.pixels)))


class HostIndirectDepthwise(HostDirect):
    """Depthwise convolution in NHWC that reads windows without copying them."""

    name = "host_indirect_depthwise"
    dense = True
    between_thin = True

    def refused(self, problem: Conv2dProblem) -> str | None:
        if not problem.is_depthwise or problem.out_channels != problem.channels:
            return "is not depthwise with one output channel per input channel"
        if problem.taps > _MOST_TAPS or max(problem.pads[1::2]) >= problem.window(1):
            return f"has more than {_MOST_TAPS} taps, or windows that lie entirely in the padding"
        return refusal(problem)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for lanes in widths_of(problem.channels):
            for threads in thread_configs():
                yield Variant((("lanes", lanes), *threads), in_nhwc(problem.inputs),
                              in_nhwc(problem.outputs))

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        from gossamer.ops.conv2d.host_direct.indirect_code import depthwise_rows

        lanes = variant["lanes"]
        code = function("depthwise_rows", native.processor(), depthwise_rows, shape_of(problem),
                        lanes)
        return State(problem, variant, device, data=Work.of(
            code, weights, problem, (_panels(weights, problem, lanes),),
            threads=workers(variant[THREADS]),
            tasks=-(-problem.channels // lanes) * problem.out_height * (problem.out_width > 0)))


def in_nhwc(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs with NHWC as the layout."""
    return tuple(in_layout(spec, "NHWC") for spec in specs)


def _panels(weights: Weights, problem: Conv2dProblem, width: int) -> np.ndarray:
    """Return the weights in the shape (panels, taps, C/groups, width).

    A panel is `width` output channels. The last panel is padded with zeros. All contexts share this
    array.
    """
    panels = -(-problem.out_channels // width)

    def packed(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        padded = np.zeros((panels * width, problem.group_channels, problem.taps), np.float32)
        padded[:problem.out_channels] = np.asarray(arrays["weight"], np.float32).reshape(
            -1, *padded.shape[1:])
        return padded.reshape(panels, width, *padded.shape[1:]).transpose(0, 3, 2, 1)

    return host_array(weights.packed(f"panels of {width} output channels", packed),
                      (panels, problem.taps, problem.group_channels, width), np.float32)


def _offsets(problem: Conv2dProblem, pixel: int) -> np.ndarray:
    """Return the byte offsets of the taps' input pixels; the shape is (output pixels, taps).

    The offset of a tap outside of the image is -1.

    pixel: number of bytes from one pixel to the next.
    """
    sizes, counts = (problem.height, problem.width), (problem.out_height, problem.out_width)
    rows, columns = (
        np.arange(counts[axis])[:, None] * problem.stride[axis]
        + np.arange(problem.kernel[axis]) * problem.dilation[axis] - problem.pads[axis]
        for axis in (0, 1))
    rows, columns = rows[:, None, :, None], columns[None, :, None, :]
    inside = (rows >= 0) & (rows < sizes[0]) & (columns >= 0) & (columns < sizes[1])
    offsets = np.where(inside, (rows * problem.width + columns) * pixel, -1)
    return offsets.astype(np.int32).reshape(-1, problem.taps)
