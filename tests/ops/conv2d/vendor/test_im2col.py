from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor import im2col
from gossamer.tensor import Format, TensorSpec, pack

LAYOUTS = ("NCHW", "NHWC", "CHWN")
PROBLEMS = (
    Conv2dProblem(3, 8, 6, 5, 4, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(2, 3, 7, 6, 4, (3, 2), (2, 1), (0, 2, 1, 0), (2, 3)),
    Conv2dProblem(4, 16, 4, 4, 8, (2, 2), (2, 2), groups=2),
    Conv2dProblem(8, 6, 5, 5, 6, (1, 1), (2, 2), groups=3),
)


def im2col_matrix(problem: Conv2dProblem, x: np.ndarray, layout: str) -> np.ndarray:
    """Returns the im2col matrix in memory order, from a logical (N, C, H, W) array."""
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
    if layout == "NCHW":
        return columns
    if layout == "CHWN":
        return columns.transpose(1, 2, 3, 4, 0)
    grouped = columns.reshape(n, problem.groups, -1, r, s, columns.shape[-1])
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
    expected = im2col_matrix(problem, x, layout)
    nbytes = im2col.matrix_bytes(problem, itemsize)
    assert expected.nbytes <= nbytes < expected.nbytes + 256
    memory = np.full(nbytes + 2 * device.alignment, 0xFF, np.uint8)
    guarded = device.upload(memory, "a test")
    matrix = guarded.view(device.alignment, nbytes)
    im2col.gather(problem, spec, device).run(device, [source], [], matrix)
    device.read(guarded, memory)
    end = device.alignment + expected.nbytes
    assert (memory[:device.alignment] == 0xFF).all() and (memory[end:] == 0xFF).all()
    assert memory[device.alignment:end].tobytes() == np.ascontiguousarray(expected).tobytes()


def test_a_pointwise_problem_needs_no_matrix() -> None:
    problem = Conv2dProblem(2**10, 2**9, 2**5, 2**5, 6, (1, 1))
    assert im2col.matrix_bytes(problem, 4) == 0
    assert im2col.cannot_lower(problem) is None


def test_a_matrix_that_is_too_large_is_refused() -> None:
    problem = Conv2dProblem(64, 64, 224, 224, 64, (3, 3), pads=(1, 1, 1, 1))
    assert "the im2col matrix has 7398752256 bytes" in (im2col.cannot_lower(problem) or "")
