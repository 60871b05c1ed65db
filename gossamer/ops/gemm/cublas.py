"""cublas: the product by cuBLAS, with as much of the epilogue as it applies itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from gossamer.ops.vendor.nvmath import CUBLAS, dtype_of, loaded_version, unavailable
from gossamer.ops.weights import Weights


class CublasGemm(Algorithm):
    op = "gemm"
    name = "cublas"
    vendor = CUBLAS

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := unavailable(CUBLAS, device)) is not None:
            return reason
        if problem.outputs[0].size >= 2**31:
            return "2^31 results or more"
        return None

    def version(self, device: Device) -> str:
        return loaded_version(CUBLAS, device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        empty = problem.outputs[0].size == 0
        for rank in range(1 if empty else RANKS):
            for precision in PRECISIONS:
                offered = () if empty else offers(_product(problem, precision, device)[0], device)
                if empty or rank < len(offered):
                    dtype = dtype_of(precision)
                    yield Variant(
                        (("rank", rank),),
                        tuple(replace(spec, dtype=dtype) for spec in problem.inputs),
                        tuple(replace(spec, dtype=dtype) for spec in problem.outputs),
                        precision, 0 if empty else offered[rank].workspace)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        y = variant.outputs[0]
        product, whole = _product(problem, variant.precision, device)
        bias = (bias_vector(weights, whole.bias, problem.columns, y.dtype)
                if whole and whole.bias else None)
        rows = weights.packed(f"rows {y.dtype}",
                              lambda arrays: np.asarray(arrays["weight"]).astype(y.dtype))
        state.data = (rows, Multiplication(product, device, bias),
                      offers(product, device)[variant["rank"]])
        if whole is None:
            state.launches = epilogue_pass_launches(problem.epilogue, weights, device, y, 1)
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.data is None:
            return
        device: Any = state.device
        rows, multiplication, offer = state.data
        handles: Any = [*inputs, *outputs]
        x, *residuals, y = (buffer.handle for buffer in handles)
        device.keep(inputs, outputs, workspace, state)
        multiplication.multiply(
            offer, rows.handle, x, y,
            0 if workspace is None else workspace.handle,  # type: ignore[attr-defined]
            device.stream_handle(stream),
            residual=residuals[0] if multiplication.product.residual else None)
        super().launch(state, inputs, outputs, workspace, stream)


def _product(problem: GemmProblem, precision: str,
             device: Device) -> tuple[Product, Fused | None]:
    """The product, transposed since cuBLAS counts by columns, and the epilogue it applies
    itself; None where cuBLAS cannot or offers nothing."""
    def product(whole: Fused) -> Product:
        return Product(precision, problem.columns, problem.rows, problem.depth, True,
                       (problem.depth, problem.depth, problem.columns), bias=bool(whole.bias),
                       residual=whole.residual, relu=whole.relu)

    whole = fused(problem.epilogue)
    if whole is not None and offers(product(whole), device):
        return product(whole), whole
    return product(Fused()), None
