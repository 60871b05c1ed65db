from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor import im2col
from gossamer.ops.conv2d.vendor.im2col import MatrixPart
from gossamer.tensor import Format, TensorSpec, pack
from tests.fixtures import is_slow

LAYOUTS = ("NCHW", "NHWC", "CHWN")
PROBLEMS = (
    Conv2dProblem(3, 8, 6, 5, 4, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(2, 3, 7, 6, 4, (3, 2), (2, 1), (0, 2, 1, 0), (2, 3)),
    Conv2dProblem(4, 16, 4, 4, 8, (2, 2), (2, 2), groups=2),
    Conv2dProblem(8, 6, 5, 5, 6, (1, 1), (2, 2), groups=3),
)


def im2col_matrix(problem: Conv2dProblem, x: np.ndarray, layout: str,
                  part: MatrixPart) -> np.ndarray:
    """Returns the im2col matrix of a part in memory order, from a logical (N, C, H, W) array."""
    top, left, bottom, right = problem.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    step_y, step_x = problem.stride
    # axes: image, channel, r, s, out_y, out_x
    windows = np.stack([np.stack([
        padded[:, :, r * problem.dilation[0]:, s * problem.dilation[1]:]
              [:, :, ::step_y, ::step_x][:, :, :problem.out_height, :problem.out_width]
        for s in range(problem.kernel[1])], 2) for r in range(problem.kernel[0])], 2)
    n, c, r, s, _, _ = windows.shape
    columns = windows.reshape(n, c, r, s, -1)
    columns = columns[part.first_image: part.first_image + part.images, ...,
                      part.first_pixel: part.first_pixel + part.pixels]
    if layout == "NCHW":
        return columns
    if layout == "CHWN":
        return columns.transpose(1, 2, 3, 4, 0)
    grouped = columns.reshape(part.images, problem.groups, -1, r, s, part.pixels)
    return grouped.transpose(0, 5, 1, 3, 4, 2)


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=Conv2dProblem.describe)
def test_the_im2col_matrix(compiled_device: Device, problem: Conv2dProblem, layout: str,
                           dtype: str) -> None:
    device = compiled_device
    spec = TensorSpec(problem.inputs[0].shape, Format(layout, dtype))
    # every bit pattern is copied unchanged, also NaNs with payload
    bits = np.random.default_rng(5).integers(0, 256, spec.nbytes, np.uint8)
    x = bits.view(spec.dtype).reshape(spec.shape)
    source = device.upload(pack(x, spec), "a test")
    itemsize = x.dtype.itemsize
    pixels = problem.out_height * problem.out_width
    full = MatrixPart(0, problem.batch, 0, pixels)
    partial = MatrixPart(0 if layout == "CHWN" else 1, problem.batch if layout == "CHWN" else 1, 2,
                         pixels - 3)
    for part in [full] if is_slow(device) else [full, partial]:
        expected = im2col_matrix(problem, x, layout, part)
        nbytes = im2col.matrix_bytes(problem, part, itemsize)
        assert expected.nbytes <= nbytes < expected.nbytes + 256
        memory = np.full(nbytes + 2 * device.alignment, 0xFF, np.uint8)
        guarded = device.upload(memory, "a test")
        matrix = guarded.view(device.alignment, nbytes)
        im2col.gather(problem, spec, part, device).run(device, [source], [], matrix)
        device.read(guarded, memory)
        end = device.alignment + expected.nbytes
        assert (memory[:device.alignment] == 0xFF).all() and (memory[end:] == 0xFF).all()
        assert memory[device.alignment:end].tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("images_at_a_time", [0.5, 1.2, 2.5])
def test_parts_cover_the_problem_once(layout: str, images_at_a_time: float) -> None:
    problem = Conv2dProblem(5, 4, 9, 7, 6, (3, 3))
    bound = int(images_at_a_time * 4 * 36 * problem.out_height * problem.out_width)
    covered = np.zeros(problem.outputs[0].size, int)
    strides = TensorSpec(problem.outputs[0].shape, Format(layout)).strides
    with mock.patch.object(im2col, "_MATRIX_BYTES", bound):
        parts = im2col.parts(problem, layout, 4)
        for part in parts:
            assert 0 < im2col.matrix_bytes(problem, part, 4) < bound + 256
            first = im2col.output_offset(problem, layout, part)
            image, channel, pixel = np.meshgrid(
                np.arange(part.images), np.arange(problem.out_channels), np.arange(part.pixels),
                indexing="ij")
            covered[first + image * strides[0] + channel * strides[1] + pixel * strides[3]] += 1
    assert len(parts) > 1
    assert (covered == 1).all()


def test_a_pointwise_problem_needs_no_matrix() -> None:
    problem = Conv2dProblem(2, 4, 5, 5, 6, (1, 1))
    with mock.patch.object(im2col, "_MATRIX_BYTES", 16):
        (part,) = im2col.parts(problem, "NCHW", 4)
    assert part == MatrixPart(0, 2, 0, 25)
    assert im2col.matrix_bytes(problem, part, 4) == 0
