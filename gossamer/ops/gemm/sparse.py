"""Products with pruned weights in CSR.

The algorithms are a kernel for few rows, and SciPy on the host. A product with few rows is
memory-bound: reading the weights determines its time. A nonzero weight with a 16-bit column index
takes 6 bytes; a dense weight takes 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.host import HostProduct
from gossamer.ops.conv2d.sparse.formats import csr, too_dense
from gossamer.ops.epilogue import apply_in_place, epilogue_arguments, epilogue_macros
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("sparse_rows.cl")
_SHORT_DEPTH = 2**16
"""Maximum depth for which column indices fit 16 bits."""


class SparseRows(KernelAlgorithm):
    """A product with few rows that skips zero weights.

    A NaN or infinity in the input does not propagate through a weight that is zero.
    """

    op = "gemm"
    name = "sparse_rows"
    dense = False
    most_rows = 8
    _groups = (64, 32, 128, 256)

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.rows > self.most_rows:
            return f"needs at most {self.most_rows} rows, not {problem.rows}"
        if (reason := too_dense(problem.weights_info)) is not None:
            return reason
        if device.limits.work_group_size < max(self._groups[0], self.most_rows):
            return f"needs work-groups of {self._groups[0]}"
        if problem.columns * problem.depth >= 2**31:
            return "supports fewer than 2^31 weights"
        return None

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for work_group in self._groups:
            if work_group <= device.limits.work_group_size:
                variant = Variant((("work_group", work_group),), problem.inputs, problem.outputs)
                yield from (variant, variant.as_fp16)

    def kernel_launches(self, weights: Weights, problem: GemmProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        short = problem.depth <= _SHORT_DEPTH
        kernel = device.compile(KernelSource.of(_SOURCE, "sparse_rows", {
            "ROWS": problem.rows,
            "WORK_GROUP_SIZE": variant["work_group"],
            "INDEX": "unsigned short" if short else "int",
            "HALVES": int(variant.precision == "fp16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
        }))

        def column_indices(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            return csr(arrays).indices.astype(np.uint16 if short else np.int32)

        return [Launch(
            kernel, (problem.columns,), (variant["work_group"],),
            (input_buffer(0),
             weights.packed("starts of CSR", lambda arrays: csr(arrays).indptr.astype(np.int32)),
             weights.packed("places of CSR", column_indices),
             weights.packed("values of CSR", lambda arrays: csr(arrays).data),
             output_buffer(0), problem.columns, problem.depth,
             *epilogue_arguments(problem.epilogue, weights, 1, problem.columns)))]


class SparseGemm(HostProduct):
    """A product with SciPy. Like sparse_rows, it skips zero weights."""

    op = "gemm"
    name = "sparse_gemm"
    dense = False

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return super().supports(problem, device) or too_dense(problem.weights_info)

    def matrix(self, weights: Weights, problem: GemmProblem) -> Any:
        return csr(weights.arrays)

    def multiply(self, problem: GemmProblem, variant: Variant, matrix: Any, x: np.ndarray,
                 y: np.ndarray, operands: list[np.ndarray], workspace: Buffer | None) -> None:
        y[...] = (matrix @ x.T).T
        apply_in_place(problem.epilogue, y, operands)
