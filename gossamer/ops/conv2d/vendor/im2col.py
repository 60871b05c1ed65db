"""The im2col matrix of a convolution, in parts, and the packed weights.

Source: the framework Caffe, which computes a convolution as the product of the weights and the
im2col matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.launch import Launch, input_buffer, workspace_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, divisor, groups_for
from gossamer.ops.vendor.libraries import dtype_of
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec

_SOURCE = Path(__file__).with_name("im2col.cl")
_MATRIX_BYTES = 2**31
"""Maximum bytes of an im2col matrix; a larger matrix is computed in parts."""
_ORDERS = {"NCHW": 0, "NHWC": 1, "CHWN": 2}


@dataclass(frozen=True)
class MatrixPart:
    """A part of the im2col matrix, gathered by one launch.

    first_image: first image of the part.
    images: number of images.
    first_pixel: first output pixel of the part.
    pixels: number of output pixels of each image.
    """

    first_image: int
    images: int
    first_pixel: int
    pixels: int


def variant_of(problem: Conv2dProblem, config: Iterable[tuple[str, int | str]], layout: str,
               precision: str, workspace: int) -> Variant:
    """Return a variant with all tensors in one layout and the precision's dtype."""
    x, y = (TensorSpec(spec.shape, Format(layout, dtype_of(precision)))
            for spec in (problem.inputs[0], problem.outputs[0]))
    return Variant(tuple(config), (x, *[y] * problem.epilogue.tensor_count), (y,), precision,
                   workspace)


def matrix_rows(problem: Conv2dProblem) -> int:
    """Return the number of rows of the im2col matrix, for all groups together."""
    return problem.depth * problem.groups


def parts(problem: Conv2dProblem, layout: str, itemsize: int) -> list[MatrixPart]:
    """Divide a problem into parts whose im2col matrices have at most _MATRIX_BYTES.

    In NCHW and NHWC, a part is one or more whole images, or some pixels of one image if an image is
    too large. In CHWN, a part is some pixels of all images. A pointwise problem is not divided,
    because the input is its own im2col matrix.
    """
    images, pixels = problem.batch, problem.image_pixels
    everything = MatrixPart(0, images, 0, pixels)
    column = matrix_rows(problem) * itemsize
    if problem.is_pointwise or column * images * pixels <= _MATRIX_BYTES:
        return [everything]
    if layout == "CHWN":
        return [MatrixPart(0, images, first, count)
                for first, count in _ranges(pixels, _MATRIX_BYTES // (column * images))]
    if column * pixels <= _MATRIX_BYTES:
        return [MatrixPart(first, count, 0, pixels)
                for first, count in _ranges(images, _MATRIX_BYTES // (column * pixels))]
    return [MatrixPart(image, 1, first, count) for image in range(images)
            for first, count in _ranges(pixels, _MATRIX_BYTES // column)]


def _ranges(total: int, most: int) -> list[tuple[int, int]]:
    """Return ranges (first, count) of nearly the same size, at most max(`most`, 1) each."""
    size = -(-total // -(-total // max(most, 1)))
    return [(first, min(size, total - first)) for first in range(0, total, size)]


def matrix_bytes(problem: Conv2dProblem, part: MatrixPart, itemsize: int) -> int:
    """Return the bytes of a part's im2col matrix, rounded up to a multiple of 256.

    The result is 0 for a pointwise problem, because the input itself is the matrix.
    """
    if problem.is_pointwise:
        return 0
    return -(-matrix_rows(problem) * part.images * part.pixels * itemsize // 256) * 256


def output_offset(problem: Conv2dProblem, layout: str, part: MatrixPart) -> int:
    """Return the offset of a part's first result in the output, in elements."""
    if layout == "CHWN":
        return part.first_pixel * problem.batch
    pixels = problem.image_pixels
    if layout == "NHWC":
        return (part.first_image * pixels + part.first_pixel) * problem.out_channels
    return part.first_image * problem.out_channels * pixels + part.first_pixel


def gather(problem: Conv2dProblem, x: TensorSpec, part: MatrixPart, device: Device,
           matrix: Callable[..., Argument] = workspace_buffer) -> Launch:
    """Return the launch that gathers a part of the im2col matrix.

    x: spec of input 0.
    matrix: kernel argument for the buffer that the kernel writes, by default the workspace.
    """
    itemsize = x.stored_dtype.itemsize
    images, pixels, channels = part.images, part.pixels, problem.channels
    group_channels = channels // problem.groups
    window = problem.taps
    along = {"NCHW": itemsize, "NHWC": group_channels * itemsize, "CHWN": images * itemsize}
    unit_bytes = next(size for size in (16, 4, 2) if along[x.layout] % size == 0
                      and (size == itemsize or x.layout != "NCHW"))
    step = unit_bytes // itemsize
    if x.layout == "NCHW":
        sizes = (pixels, channels, images)
        to = (channels * window * pixels, 1, 0, window * pixels, pixels)
    elif x.layout == "NHWC":
        channels, group_channels = channels // step, group_channels // step
        sizes = (channels, pixels, images)
        to = (pixels * window * channels, window * channels, window * group_channels, 1,
              group_channels)
    else:
        images //= step
        sizes = (images, pixels, channels)
        to = (1, images, 0, window * pixels * images, pixels * images)
    if x.layout != "NHWC":
        # in NCHW and CHWN, the matrix has the rows of all groups in the order of channels, as if
        # there were one group
        group_channels = channels
    strides = [stride if stride == 1 else stride // step for stride in x.strides]
    kernel = device.compile(KernelSource.of(_SOURCE, "im2col", {
        "ORDER": _ORDERS[x.layout], "UNIT_BYTES": unit_bytes}))
    items = sizes[0] * sizes[1] * sizes[2]
    return Launch(kernel, groups_for(items), (WORK_GROUP_SIZE,), (
        input_buffer(0), matrix, items,
        *divisor(sizes[0]), *divisor(sizes[1]), *divisor(problem.out_width),
        *divisor(group_channels), part.first_image, part.first_pixel, problem.height,
        problem.width, *problem.kernel, *problem.stride, *problem.pads[:2], *problem.dilation,
        *strides, *to))


def packed_rows(weights: Weights, problem: Conv2dProblem, layout: str, dtype: str) -> Buffer:
    """Return the weights on the device, in the shape (output channels, K of a group).

    K is in the order of the rows of the layout's im2col matrix.
    """
    def rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        weight = np.asarray(arrays["weight"], np.float32)
        if tap_order(layout) == "rsc":
            weight = weight.transpose(0, 2, 3, 1)
        return weight.reshape(problem.out_channels, problem.depth).astype(dtype)

    return weights.packed(f"rows of {tap_order(layout)} {dtype}", rows)


def tap_order(layout: str) -> str:
    """Return the order of channel c and tap (r, s) along K in a layout: "rsc" or "crs"."""
    return "rsc" if layout == "NHWC" else "crs"
