"""Matrix products by NumPy, and by kernels with tiles in shared memory or registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import rounded
from gossamer.ops.host_threads import thread_configs
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.matmul.problem import MatmulProblem, operands
from gossamer.ops.strided import (
    HostAlgorithm,
    KernelAlgorithm,
    broadcast_strides,
    cannot_compile,
    merge,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("tiled.cl")
_WIDE = Path(__file__).with_name("wide.cl")
_TRANSPOSE = Path(__file__).with_name("transpose.cl")
_ROWS = 6
"""Number of rows per tile of WideMatmul."""
_SIDE = 16
"""Number of rows and columns of the blocks in which WideMatmul transposes `b`."""

LaunchArgument = Argument | Callable[..., Argument]
"""An argument of a launch, or a function that returns the argument at each launch."""
Batch = list[tuple[int, int, int]]
"""For each merged batch dimension, its size and the strides of `a` and `b`."""


class NumpyMatmul(HostAlgorithm):
    """Products with numpy.matmul."""

    op = "matmul"

    def compute(self, problem: MatmulProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        a, b = operands(problem, inputs, weights)
        return [np.asarray(a @ b)]

    def variants(self, problem: MatmulProblem, device: Device) -> Iterable[Variant]:
        return [Variant(config, problem.inputs, problem.outputs) for config in thread_configs()]


class DeviceMatmul(KernelAlgorithm):
    """An algorithm in which each work-group computes one tile."""

    op = "matmul"

    def supports(self, problem: MatmulProblem, device: Device) -> str | None:
        if (problem.a.dtype, problem.b.dtype) != ("float32", "float32"):
            return f"needs float32 operands, not {problem.a.dtype} and {problem.b.dtype}"
        if max(problem.a.size, problem.b.size) >= 2**31:
            return f"{problem.a} @ {problem.b} is too large for 32-bit indices"
        if len(_batch(problem)) > 3:
            return "supports at most three batch dimensions after merging"
        return cannot_compile(problem, device)

    def _launch(self, weights: Weights, problem: MatmulProblem, variant: Variant, device: Device,
                source: KernelSource, tile: tuple[int, int], work_group: int,
                strides: tuple[int, ...], shared_bytes: int = 0,
                b: LaunchArgument | None = None) -> Launch:
        """Return a launch that computes the product.

        tile: numbers of rows and columns per tile.
        strides: kernel arguments that describe the memory layouts of `a` and `b`.
        b: kernel argument for the operand `b`; by default the operand's own memory.
        """
        rows, inner = problem.matrix_a[-2:]
        columns = problem.matrix_b[-1]
        groups = math.prod(problem.batch) * -(-rows // tile[0]) * -(-columns // tile[1])
        run_time = iter(range(len(problem.inputs)))
        dtype = "float16" if variant.precision == "fp16" else "float32"
        operands: list[LaunchArgument] = [
            weights.packed(f"operand{i} {dtype}", lambda arrays, i=i: rounded(  # type: ignore[misc]
                np.asarray(arrays[f"operand{i}"]), dtype))
            if i in problem.constants else input_buffer(next(run_time))
            for i in range(2 if b is None else 1)]
        if b is not None:
            operands.append(b)
        batch = _batch(problem)
        numbers = [n for dim in [(1, 0, 0)] * (3 - len(batch)) + batch for n in dim]
        return Launch(device.compile(source), (groups,), (work_group,), (
            *operands, output_buffer(0), rows, columns, inner, *strides, *numbers), shared_bytes)


class TiledMatmul(DeviceMatmul):
    """Products in tiles, with the operands in shared memory."""

    name = "tiled"

    def variants(self, problem: MatmulProblem, device: Device) -> Iterable[Variant]:
        small = min(problem.matrix_a[-2], problem.matrix_b[-1]) <= 32
        return [Variant((("tile", tile),), problem.inputs, problem.outputs)
                for tile in ((16, 64) if small else (64, 16))]

    def kernel_launches(self, weights: Weights, problem: MatmulProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        tile = variant["tile"]
        source = KernelSource.of(_SOURCE, "matmul", {
            "TILE": tile,
            "A_BY_K": int(0 not in problem.transposed),
            "B_BY_K": int(1 in problem.transposed),
        })
        return [self._launch(weights, problem, variant, device, source, (tile, tile), 256,
                             _strides(problem))]


class WideMatmul(DeviceMatmul):
    """Products in tiles, with the sums in the vector registers of a CPU.

    On CPUs, the algorithm `tiled` would spend most of its time in barriers.
    """

    name = "wide"

    def supports(self, problem: MatmulProblem, device: Device) -> str | None:
        if device.compiles and not device.on_processors:
            return "needs a processor, whose vector registers hold a tile"
        return super().supports(problem, device)

    def variants(self, problem: MatmulProblem, device: Device) -> Iterable[Variant]:
        order = (1, 2) if problem.matrix_b[-1] <= 16 else (2, 1)
        workspace = 4 * problem.b.size if 1 in problem.transposed and (
            1 not in problem.constants) else 0
        return [Variant((("vectors", vectors),), problem.inputs, problem.outputs,
                        workspace=workspace) for vectors in order]

    def kernel_launches(self, weights: Weights, problem: MatmulProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        vectors = variant["vectors"]
        source = KernelSource.of(_WIDE, "wide_matmul", {"ROWS": _ROWS, "VECTORS": vectors})
        b: LaunchArgument | None = None
        if 1 in problem.transposed:
            # transposing `b` and then reading rows is faster than gathering the columns of `b`
            b = workspace_buffer if 1 not in problem.constants else weights.packed(
                "operand1 transposed", lambda arrays: np.ascontiguousarray(
                    np.swapaxes(arrays["operand1"], -1, -2), np.float32))
        product = self._launch(weights, problem, variant, device, source, (_ROWS, 16 * vectors), 1,
                               _strides(problem)[:2], b=b)
        return [_transposing(problem, device), product] if b is workspace_buffer else [product]


def _transposing(problem: MatmulProblem, device: Device) -> Launch:
    """Return the launch that transposes `b` into the workspace."""
    rows, columns = problem.b.shape[-2:]
    blocks = -(-rows // _SIDE) * -(-columns // _SIDE)
    kernel = device.compile(KernelSource.of(_TRANSPOSE, "transpose_matrices", {"SIDE": _SIDE}))
    return Launch(kernel, (math.prod(problem.b.shape[:-2]) * blocks,), (1,), (
        input_buffer(len(problem.inputs) - 1), workspace_buffer, rows, columns))


def _strides(problem: MatmulProblem) -> tuple[int, int, int, int]:
    """Return the row and column strides of `a`, then those of `b`."""
    a = (1, problem.matrix_a[-2]) if 0 in problem.transposed else (problem.matrix_a[-1], 1)
    b = (1, problem.matrix_b[-2]) if 1 in problem.transposed else (problem.matrix_b[-1], 1)
    return *a, *b


def _batch(problem: MatmulProblem) -> Batch:
    walks = []
    # a transposition does not change the batch strides
    for shape in (problem.matrix_a, problem.matrix_b):
        strides = broadcast_strides(TensorSpec(shape), (*problem.batch, *shape[-2:]))
        walks.append(strides[:-2])
    sizes, (a, b), _ = merge(problem.batch, walks)
    return list(zip(sizes, a, b, strict=True))
