"""published: convolution by the three kernels of the published OpenCL program.

The kernels write the im2col matrix, multiply it by the weights, and apply bias and activation; see
"The published form" in docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.im2col import (
    cannot_lower,
    gather,
    matrix_bytes,
    packed_rows,
    variant_of,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import KernelAlgorithm
from gossamer.ops.weights import Weights

_LAYOUT = "NCHW"
_WORK_GROUP = 512


class PublishedConvolution(KernelAlgorithm):
    """Convolution by three unfused kernels.

    The first kernel writes the im2col matrix of the images, the second multiplies the weights by
    this matrix, and the third applies bias and activation. The work-groups of the third kernel have
    512 work-items, or fewer if the device allows fewer.
    """

    op = "conv2d"
    name = "published"
    by_name_only = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.compiles:
            return f"{device.name} compiles no kernels"
        if (reason := cannot_lower(problem)) is not None:
            return reason
        return cannot_multiply(problem.group_out_channels,
                               problem.batch * problem.groups, device.limits)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        yield variant_of(problem, published_config(device.limits), _LAYOUT, "fp32",
                         matrix_bytes(problem, 4))

    def kernel_launches(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        rows = packed_rows(weights, problem, _LAYOUT, "float32")
        # one product for each image and group
        product = Product(problem.group_out_channels, problem.image_pixels, problem.depth,
                          problem.batch * problem.groups, problem.groups)
        return [
            *([] if problem.is_pointwise else [gather(problem, variant.inputs[0], device)]),
            multiplication(
                product, variant["tile_k"], rows,
                input_buffer(0) if problem.is_pointwise else workspace_buffer, output_buffer(0),
                device),
            *epilogue_pass_launches(problem.epilogue, weights, device, variant.outputs[0], 1,
                                    min(_WORK_GROUP, device.limits.work_group_size))]


_SOURCE = Path(__file__).with_name("published_gemm.cl")
_TILE = 64
_THREADS = (16, 8)
_DEPTHS = (64, 32, 16)
"""Depths of tiles along K: the published depth, and two for devices with less shared memory."""
_MOST_GROUPS = 65535
"""Maximum number of work-groups along the second and the third dimension of a grid in CUDA."""


@dataclass(frozen=True)
class Product:
    """Products `C = A * B` of row-major matrices.

    rows: number of rows of `A` and `C`.
    columns: number of columns of `B` and `C`.
    depth: number of columns of `A`, and number of rows of `B`.
    members: number of products; their matrices follow one another in memory.
    a_members: number of matrices `A`; product i reads matrix `A` number i % a_members.
    """

    rows: int
    columns: int
    depth: int
    members: int = 1
    a_members: int = 1


def cannot_multiply(rows: int, members: int, limits: Limits) -> str | None:
    """Return why the kernel cannot compute products; None if it can.

    rows: number of rows of each matrix `A`.
    members: number of products.
    """
    if not any(_shared_bytes(depth) <= limits.shared_bytes for depth in _DEPTHS):
        return (f"needs {_shared_bytes(_DEPTHS[-1])} bytes of shared memory, the device has "
                f"{limits.shared_bytes}")
    if limits.work_group_size < _THREADS[0] * _THREADS[1]:
        return (f"needs work-groups of {_THREADS[0] * _THREADS[1]} work-items, the device allows "
                f"{limits.work_group_size}")
    if max(members, -(-rows // _TILE)) > _MOST_GROUPS:
        return f"needs more than {_MOST_GROUPS} work-groups along one dimension of the grid"
    return None


def published_config(limits: Limits) -> tuple[tuple[str, int], ...]:
    """Return the config with the deepest tiles that fit the device."""
    return (("tile_k", next(depth for depth in _DEPTHS
                            if _shared_bytes(depth) <= limits.shared_bytes)),)


def _shared_bytes(tile_k: int) -> int:
    return 4 * _TILE * (2 * tile_k + 4)


def multiplication(product: Product, tile_k: int, a: Buffer | Callable[..., Argument],
                   b: Buffer | Callable[..., Argument], c: Callable[..., Argument],
                   device: Device) -> Launch:
    """Return the launch that computes products.

    a, b, c: the matrices as arguments of a Launch; each is a buffer, or a function that returns a
    buffer when the launch runs.
    """
    kernel = device.compile(KernelSource.of(_SOURCE, "published_gemm", {
        "TILE_K": tile_k,
        "A_VECTOR": 4 if product.depth % 4 == 0 else 1,
        "B_VECTOR": 4 if product.columns % 4 == 0 else 1,
    }))
    groups = (-(-product.columns // _TILE), -(-product.rows // _TILE), product.members)
    return Launch(kernel, groups, (*_THREADS, 1),
                  (a, b, c, product.rows, product.columns, product.depth, product.a_members))
