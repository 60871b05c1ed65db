"""Products with dense weights: tiled products by the kernels of 1x1 convolutions, a kernel for few
rows, and BLAS on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.mma.algorithms import PointwiseMma
from gossamer.ops.conv2d.dense.wide_gemm import WideGemm
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import (
    apply_in_place,
    buffers_as_arrays,
    epilogue_arguments,
    epilogue_macros,
    operand_arrays,
)
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.host_threads import thread_configs, threads_of
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights
from gossamer.tensor import ROW_MAJOR

_FEW_ROWS = Path(__file__).with_name("few_rows.cl")
_USUAL_ROWS = 16
"""The number of rows that is assumed when the configs of a product on the host (numbers of threads)
are listed. The actual number of rows depends on the batch size, and configs must not depend on the
batch size."""


class _PointwiseGemm(Algorithm):
    """A product by an algorithm for 1x1 convolutions, applied to images of one pixel."""

    op = "gemm"
    _convolution: ClassVar[Algorithm]

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return self._convolution.supports(pointwise(problem), device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for variant in self._convolution.variants(pointwise(problem), device):
            if {spec.layout for spec in (*variant.inputs, *variant.outputs)} == {"NHWC"}:
                yield _over(problem, variant, ROW_MAJOR)

    def expected_us(self, problem: GemmProblem, variant: Variant, device: Device) -> float | None:
        convolution = pointwise(problem)
        return self._convolution.expected_us(convolution, _over(convolution, variant, "NHWC"),
                                             device)

    def launch_count(self, variant: Variant) -> int:
        return self._convolution.launch_count(variant)

    def kernel_sources(self, problem: GemmProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        convolution = pointwise(problem)
        return self._convolution.kernel_sources(
            convolution, _over(convolution, variant, "NHWC"), device)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        convolution = pointwise(problem)
        state = self._convolution.prepare(weights, convolution,
                                          _over(convolution, variant, "NHWC"), device)
        return State(problem, variant, device, state.launches)


class WideProduct(_PointwiseGemm):
    """The product of wide_gemm, which processors compute in vector registers, applied to images of
    one pixel."""

    name = "wide_gemm"
    _convolution = WideGemm()


class TiledGemm(_PointwiseGemm):
    """The tiled product of im2col convolution, applied to images of one pixel."""

    name = "tiled_gemm"
    _convolution = Im2colGemm()


class MmaGemm(_PointwiseGemm):
    """The product of 1x1 convolutions on tensor cores, applied to images of one pixel."""

    name = "gemm_mma"
    _convolution = PointwiseMma()


class FewRows(Algorithm):
    """A product of at most four rows. Each column of the result has a work-group of its own. The
    kernel is memory-bound: its time is the time of reading the weights."""

    op = "gemm"
    name = "few_rows"
    most_rows = 4
    _groups = (64, 128, 256)
    _most_held = 32

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.rows > self.most_rows:
            return f"{problem.rows} rows, takes at most {self.most_rows}"
        if device.limits.work_group_size < min(self._groups):
            return f"needs work-groups of {min(self._groups)}"
        if problem.columns * problem.depth >= 2**31:
            return "2^31 weights or more"
        return None

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for work_group in self._groups:
            if work_group > device.limits.work_group_size:
                return
            variant = Variant((("work_group", work_group),), problem.inputs, problem.outputs)
            yield from (variant, variant.as_fp16)
            if not problem.epilogue.tensor_count:
                # the product may be a network's output, which is float32
                yield replace(variant.as_fp16, outputs=problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        if problem.rows == 0:
            return State(problem, variant, device)
        vector = 4 if problem.depth % 4 == 0 else 1
        pieces = -(-problem.depth // (variant["work_group"] * vector))
        kernel = device.compile(KernelSource.of(_FEW_ROWS, "few_rows", {
            "ROWS": problem.rows,
            "WORK_GROUP_SIZE": variant["work_group"],
            "VECTOR": vector,
            "HELD": max(1, min(pieces, self._most_held // vector)),
            "HALVES": int(variant.precision == "fp16"),
            "ROUNDS": int(variant.outputs[0].dtype == "float16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
        }))
        dtype = variant.inputs[0].stored_dtype
        packed = weights.packed(f"rows of {dtype}", lambda arrays: _rows(arrays["weight"], dtype))
        launch = Launch(kernel, (problem.columns,), (variant["work_group"],),
                        (input_buffer(0), packed, output_buffer(0), problem.columns,
                         problem.depth,
                         *epilogue_arguments(problem.epilogue, weights, 1, problem.columns)))
        return State(problem, variant, device, [launch])


class HostGemm(Algorithm):
    """A product by numpy.matmul."""

    op = "gemm"
    name = "host_gemm"

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else None

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for config in thread_configs(_USUAL_ROWS * problem.columns * problem.depth):
            yield Variant(config, problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        arrays = {name: np.asarray(a, np.float32) for name, a in weights.arrays.items()}
        return State(problem, variant, device, data=arrays)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        problem: GemmProblem = state.problem  # type: ignore[assignment]
        x, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        with threads_of(state.variant):
            np.matmul(x, state.data["weight"].T, out=y)
        operands = operand_arrays(problem.epilogue, state.data, tensors, 2)
        apply_in_place(problem.epilogue, y, operands)


def _rows(weight: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the weights in the dtype of the tensors."""
    with np.errstate(over="ignore"):
        return weight.astype(dtype)


def packed_by_depth(weights: Weights) -> Buffer:
    """Returns the weights as float32 (K, columns)."""
    return weights.packed("depth by columns", lambda arrays: np.ascontiguousarray(
        np.asarray(arrays["weight"], np.float32).T))


def pointwise(problem: GemmProblem) -> Conv2dProblem:
    """Returns the product as a convolution of images of one pixel."""
    return Conv2dProblem(problem.rows, problem.depth, 1, 1, problem.columns, (1, 1),
                         epilogue=problem.epilogue, weights_info=problem.weights_info,
                         facts=problem.facts, result=problem.result)


def _over(problem: GemmProblem | Conv2dProblem, variant: Variant, layout: str) -> Variant:
    """Returns a variant of `problem` with the config and precision of a variant of another problem.
    layout: the layout of all tensors of the returned variant."""
    inputs, outputs = (tuple(spec.with_format(layout=layout) for spec in specs)
                       for specs in (problem.inputs, problem.outputs))
    same_config = replace(variant, inputs=inputs, outputs=outputs)
    return same_config.as_fp16 if variant.precision == "fp16" else same_config
