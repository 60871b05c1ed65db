"""Matrix products with constant weights, computed by cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.vendor.cublas import (
    RANKS,
    Fused,
    Multiplication,
    Product,
    bias_vector,
    fused,
    offers,
)
from gossamer.ops.vendor.libraries import CUBLAS, dtype_of, loaded_version, unavailable
from gossamer.ops.weights import Weights


class CublasGemm(Algorithm):
    """A product computed by cuBLAS.

    If cuBLAS does not support the epilogue, a separate kernel applies it.
    """

    op = "gemm"
    name = "cublas"
    rounds_sums = True
    vendor = CUBLAS

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := unavailable(CUBLAS, device)) is not None:
            return reason
        if problem.outputs[0].size >= 2**31:
            return "supports fewer than 2^31 results"
        return None

    def version(self, device: Device) -> str:
        return loaded_version(CUBLAS, device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        empty = problem.outputs[0].size == 0
        for rank in range(1 if empty else RANKS):
            for precision in PRECISIONS:
                algorithms = () if empty else offers(
                    _product(problem, precision, device)[0], device)
                if empty or rank < len(algorithms):
                    dtype = dtype_of(precision)
                    yield Variant(
                        (("rank", rank),),
                        tuple(spec.with_format(dtype=dtype) for spec in problem.inputs),
                        tuple(spec.with_format(dtype=dtype) for spec in problem.outputs),
                        precision, 0 if empty else algorithms[rank].workspace)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        y = variant.outputs[0]
        product, fusion = _product(problem, variant.precision, device)
        bias = (bias_vector(weights, fusion.bias, problem.columns, y.dtype)
                if fusion and fusion.bias else None)
        rows = weights.packed(f"rows {y.dtype}",
                              lambda arrays: np.asarray(arrays["weight"]).astype(y.dtype))
        state.data = (rows, Multiplication(product, device, bias),
                      offers(product, device)[variant["rank"]])
        if fusion is None:
            state.launches = epilogue_pass_launches(problem.epilogue, weights, device, y, 1)
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.data is None:
            return
        device = state.device
        rows, multiplication, offer = state.data
        x, *residuals, y = (buffer.address for buffer in (*inputs, *outputs))
        device.keep(inputs, outputs, workspace, state)
        multiplication.multiply(
            offer, rows.address, x, y, 0 if workspace is None else workspace.address,
            device.stream_handle(stream),
            residual=residuals[0] if multiplication.product.residual else None)
        super().launch(state, inputs, outputs, workspace, stream)


def _product(problem: GemmProblem, precision: str,
             device: Device) -> tuple[Product, Fused | None]:
    """Return the product for cuBLAS, and the epilogue that cuBLAS fuses.

    The product is transposed, because matrices are column-major in cuBLAS. The epilogue is None if
    cuBLAS does not support the problem's epilogue or has no algorithm that fuses it.
    """
    def product(fusion: Fused) -> Product:
        return Product(precision, problem.columns, problem.rows, problem.depth, True,
                       (problem.depth, problem.depth, problem.columns), bias=bool(fusion.bias),
                       residual=fusion.residual, relu=fusion.relu)

    fusion = fused(problem.epilogue)
    if fusion is not None and offers(product(fusion), device):
        return product(fusion), fusion
    return product(Fused()), None
