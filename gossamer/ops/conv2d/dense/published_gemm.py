"""Launches the matrix product of the published convolution in OpenCL, which has tiles of 64 x 64 in
shared memory and 8 x 4 results for each work-item. No tile is loaded while another one is
multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.launch import Launch

_SOURCE = Path(__file__).with_name("published_gemm.cl")
_TILE = 64
_THREADS = (16, 8)
_DEPTHS = (64, 32, 16)
"""Depths of the tiles: the published depth, and two for devices with less shared memory."""
_MOST_GROUPS = 65535
"""The most work-groups that CUDA allows along the second and the third dimension of a grid."""


@dataclass(frozen=True)
class Product:
    """Products C = A * B of row-major matrices.

    rows: rows of A and C.
    columns: columns of B and C.
    depth: columns of A and rows of B.
    b_stride: elements from a row of B to the next.
    c_stride: elements from a row of C to the next.
    members: number of products; their matrices follow one another in memory.
    a_members: number of matrices A; product i reads matrix i % a_members.
    first: elements of C before the first result.
    """

    rows: int
    columns: int
    depth: int
    b_stride: int
    c_stride: int
    members: int = 1
    a_members: int = 1
    first: int = 0


def cannot_multiply(rows: int, members: int, limits: Limits) -> str | None:
    """Returns why the kernel cannot compute `members` products with matrices A of `rows` rows, as
    shown to the user; None where it can."""
    if not any(_shared_bytes(depth) <= limits.shared_bytes for depth in _DEPTHS):
        return f"needs {_shared_bytes(_DEPTHS[-1])} bytes of shared memory"
    if limits.work_group_size < _THREADS[0] * _THREADS[1]:
        return f"needs work-groups of {_THREADS[0] * _THREADS[1]}"
    if max(members, -(-rows // _TILE)) > _MOST_GROUPS:
        return f"more than {_MOST_GROUPS} work-groups along one dimension"
    return None


def config(limits: Limits) -> tuple[tuple[str, int], ...]:
    """Returns the config with the deepest tiles that fit the device."""
    return (("tile_k", next(depth for depth in _DEPTHS
                            if _shared_bytes(depth) <= limits.shared_bytes)),)


def _shared_bytes(tile_k: int) -> int:
    return 4 * _TILE * (2 * tile_k + 4)


def multiplication(product: Product, tile_k: int, a: Buffer | Callable[..., Argument],
                   b: Buffer | Callable[..., Argument], c: Callable[..., Argument],
                   device: Device) -> Launch:
    """Returns the launch of products. a, b, c: the matrices as arguments of a Launch; each is
    a buffer, or a function that returns a buffer when the launch runs."""
    aligned = all(size % 4 == 0 for size in (product.columns, product.b_stride, product.c_stride,
                                             product.first))
    kernel = device.compile(KernelSource.of(_SOURCE, "published_gemm", {
        "TILE_K": tile_k,
        "A_VECTOR": 4 if product.depth % 4 == 0 else 1,
        "B_VECTOR": 4 if aligned else 1,
    }))
    groups = (-(-product.columns // _TILE), -(-product.rows // _TILE), product.members)
    return Launch(kernel, groups, (*_THREADS, 1),
                  (a, b, c, product.rows, product.columns, product.depth, product.b_stride,
                   product.c_stride, product.a_members, product.first))
