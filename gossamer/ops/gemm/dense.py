"""Matrix products with dense weights.

The algorithms are kernels of 1x1 convolutions, a kernel for few rows, the matrix product of a
published OpenCL convolution (docs/algorithms.md), and BLAS on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.common import rounded
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.published import (
    Product,
    cannot_multiply,
    multiplication,
    published_config,
)
from gossamer.ops.conv2d.dense.wide_gemm import WideGemm
from gossamer.ops.conv2d.host import HostProduct
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.implicit_gemm import PointwiseMma
from gossamer.ops.epilogue import apply_in_place, epilogue_arguments, epilogue_macros
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.host_threads import thread_configs, threads_of
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import KernelAlgorithm, cannot_compile
from gossamer.ops.weights import Weights
from gossamer.tensor import ROW_MAJOR, TensorSpec

_FEW_ROWS = Path(__file__).with_name("few_rows.cl")
_USUAL_ROWS = 16
"""Assumed number of rows, for which the configs (numbers of threads) of a host product are chosen.
The actual number of rows depends on the batch size; configs must not depend on it."""


class ConvolutionGemm(Algorithm):
    """An algorithm for 1x1 convolutions, applied to images of one pixel."""

    op = "gemm"
    _convolution: ClassVar[Algorithm]
    _layout: ClassVar[str] = "NHWC"
    """Layout of float matrices as inputs of the convolution."""

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return self._convolution.supports(pointwise(problem), device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        # images of one pixel in NHWC and in NCHW become equal matrices; equal variants are merged
        return iter(dict.fromkeys(map(_of_matrices, self._convolution.variants(
            pointwise(problem), device))))

    def expected_us(self, problem: GemmProblem, variant: Variant, device: Device) -> float | None:
        return self._convolution.expected_us(pointwise(problem), self._of_images(variant), device)

    def launch_count(self, variant: Variant) -> int:
        return self._convolution.launch_count(variant)

    def kernel_sources(self, problem: GemmProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return self._convolution.kernel_sources(pointwise(problem), self._of_images(variant),
                                                device)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        state = self._convolution.prepare(weights, pointwise(problem), self._of_images(variant),
                                          device)
        return State(problem, variant, device, state.launches)

    def _of_images(self, variant: Variant) -> Variant:
        """Return a variant with matrices replaced by images of one pixel."""
        return _with_specs(variant, lambda spec: TensorSpec((*spec.shape, 1, 1), replace(
            spec.format, layout=spec.layout if spec.format.is_packed else self._layout)))


def _of_matrices(variant: Variant) -> Variant:
    """Return a variant with images of one pixel replaced by matrices."""
    return _with_specs(variant, lambda spec: TensorSpec(spec.shape[:2], replace(
        spec.format, layout=spec.layout if spec.format.is_packed else ROW_MAJOR)))


def _with_specs(variant: Variant, changed: Callable[[TensorSpec], TensorSpec]) -> Variant:
    return replace(variant, inputs=tuple(map(changed, variant.inputs)),
                   outputs=tuple(map(changed, variant.outputs)))


class WideProduct(ConvolutionGemm):
    """The product of wide_gemm, for the vector registers of CPUs."""

    name = "wide_gemm"
    _convolution = WideGemm()


class TiledGemm(ConvolutionGemm):
    """The tiled product of im2col convolution, applied to images of one pixel."""

    name = "tiled_gemm"
    _convolution = Im2colGemm()


class MmaGemm(ConvolutionGemm):
    """The product of 1x1 convolutions on tensor cores, applied to images of one pixel."""

    name = "gemm_mma"
    _convolution = PointwiseMma()


class FewRows(KernelAlgorithm):
    """A product with at most four rows.

    Each work-group computes one column of the result. The kernel is memory-bound: reading the
    weights determines its time.
    """

    op = "gemm"
    name = "few_rows"
    most_rows = 4
    _groups = (64, 128, 256)
    _most_held = 32

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.rows > self.most_rows:
            return f"needs at most {self.most_rows} rows, not {problem.rows}"
        if device.limits.work_group_size < min(self._groups):
            return f"needs work-groups of {min(self._groups)}"
        if problem.columns * problem.depth >= 2**31:
            return "supports fewer than 2^31 weights"
        return None

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for work_group in self._groups:
            if work_group > device.limits.work_group_size:
                return
            variant = Variant((("work_group", work_group),), problem.inputs, problem.outputs)
            yield from (variant, variant.as_fp16)
            if not problem.epilogue.tensor_count:
                # a variant with float32 results, for the last layer of a network
                yield replace(variant.as_fp16, outputs=problem.outputs)

    def kernel_launches(self, weights: Weights, problem: GemmProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        vector = 4 if problem.depth % 4 == 0 else 1
        chunks = -(-problem.depth // (variant["work_group"] * vector))
        kernel = device.compile(KernelSource.of(_FEW_ROWS, "few_rows", {
            "ROWS": problem.rows,
            "WORK_GROUP_SIZE": variant["work_group"],
            "VECTOR": vector,
            "HELD": max(1, min(chunks, self._most_held // vector)),
            "HALVES": int(variant.precision == "fp16"),
            "ROUNDS": int(variant.outputs[0].dtype == "float16"),
            **epilogue_macros(problem.epilogue, tensor_dtype=variant.outputs[0].dtype),
        }))
        dtype = variant.inputs[0].stored_dtype
        packed = weights.packed(f"rows of {dtype}", lambda arrays: rounded(arrays["weight"], dtype))
        return [Launch(kernel, (problem.columns,), (variant["work_group"],), (
            input_buffer(0), packed, output_buffer(0), problem.columns, problem.depth,
            *epilogue_arguments(problem.epilogue, weights, 1, problem.columns)))]


class HostGemm(HostProduct):
    """A product computed by numpy.matmul."""

    op = "gemm"
    name = "host_gemm"

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for config in thread_configs(_USUAL_ROWS * problem.columns * problem.depth):
            yield Variant(config, problem.inputs, problem.outputs)

    def matrix(self, weights: Weights, problem: GemmProblem) -> np.ndarray:
        return np.asarray(weights.arrays["weight"], np.float32).T

    def multiply(self, problem: GemmProblem, variant: Variant, matrix: np.ndarray, x: np.ndarray,
                 y: np.ndarray, operands: list[np.ndarray], workspace: Buffer | None) -> None:
        with threads_of(variant):
            np.matmul(x, matrix, out=y)
        apply_in_place(problem.epilogue, y, operands)


class PublishedGemm(KernelAlgorithm):
    """A product in tiles of 64 x 64 in shared memory, with 8 x 4 results per work-item.

    A separate kernel applies the epilogue.
    """

    op = "gemm"
    name = "published"
    by_name_only = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.columns * problem.depth >= 2**31:
            return "supports fewer than 2^31 weights"
        return cannot_multiply(problem.rows, 1, device.limits)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        yield Variant(published_config(device.limits), problem.inputs, problem.outputs)

    def kernel_launches(self, weights: Weights, problem: GemmProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        b = packed_by_depth(weights)
        product = Product(problem.rows, problem.columns, problem.depth)
        return [
            multiplication(product, variant["tile_k"], input_buffer(0), b, output_buffer(0),
                           device),
            *epilogue_pass_launches(problem.epilogue, weights, device, variant.outputs[0], 1,
                                    min(512, device.limits.work_group_size))]


def packed_by_depth(weights: Weights) -> Buffer:
    """Return the weights as float32 (depth, columns)."""
    return weights.packed("depth by columns", lambda arrays: np.ascontiguousarray(
        np.asarray(arrays["weight"], np.float32).T))


def pointwise(problem: GemmProblem) -> Conv2dProblem:
    """Return the product as a convolution of images of one pixel."""
    return Conv2dProblem(problem.rows, problem.depth, 1, 1, problem.columns, (1, 1),
                         epilogue=problem.epilogue, weights_info=problem.weights_info,
                         facts=problem.facts, result=problem.result)
