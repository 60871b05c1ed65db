"""The matrix product of a published convolution in OpenCL (docs/algorithms.md), as an algorithm of
gemm."""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.dense.published_gemm import (
    Product,
    cannot_multiply,
    config,
    multiplication,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.gemm.dense import packed_by_depth
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.launch import input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights


class PublishedGemm(Algorithm):
    """Multiplies tiles of 64 x 64 in shared memory, with 8 x 4 results for each work-item. A
    separate kernel applies the epilogue."""

    op = "gemm"
    name = "published"
    by_name_only = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.columns * problem.depth >= 2**31:
            return "2^31 weights or more"
        return cannot_multiply(problem.rows, 1, device.limits)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        yield Variant(config(device.limits), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        b, columns = packed_by_depth(weights), problem.columns
        product = Product(problem.rows, columns, problem.depth, columns, columns)
        state.launches = [
            multiplication(product, variant["tile_k"], input_buffer(0), b, output_buffer(0),
                           device),
            *epilogue_pass_launches(problem.epilogue, weights, device, variant.outputs[0], 1,
                                    min(512, device.limits.work_group_size))]
        return state
