"""The algorithm `published` computes a convolution by the steps of the published OpenCL program: a
kernel writes the im2col matrix, another one multiplies it, and a third one applies bias and
activation."""

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
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.im2col import (
    MatrixPart,
    gather,
    matrix_bytes,
    output_offset,
    packed_rows,
    parts,
    variant_of,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.launch import input_buffer, output_buffer, workspace_buffer
from gossamer.ops.strided import too_large
from gossamer.ops.weights import Weights

_LAYOUT = "NCHW"
_WORK_GROUP = 512


class PublishedConvolution(Algorithm):
    """Computes a convolution in three kernels that are not fused: the first writes the im2col
    matrix of the images, the second multiplies the weights with this matrix, and the third applies
    bias and activation. The work-groups of the third kernel have 512 work-items, or fewer where the
    device allows fewer."""

    op = "conv2d"
    name = "published"
    by_name_only = True

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.compiles:
            return f"{device.name} compiles no kernels"
        if (reason := too_large(problem)) is not None:
            return reason
        return cannot_multiply(problem.out_channels // problem.groups,
                               problem.batch * problem.groups, device.limits)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        workspace = max((matrix_bytes(problem, part, 4) for part in parts(problem, _LAYOUT, 4)),
                        default=0)
        yield variant_of(problem, config(device.limits), _LAYOUT, "fp32", workspace)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        x, y = variant.inputs[0], variant.outputs[0]
        if y.size == 0:
            return state
        rows = packed_rows(weights, problem, _LAYOUT, "float32")
        for part in parts(problem, _LAYOUT, 4):
            if not problem.is_pointwise:
                state.launches.append(gather(problem, x, part, device))
            state.launches.append(multiplication(
                _product(problem, part), variant["tile_k"], rows,
                input_buffer(0) if problem.is_pointwise else workspace_buffer, output_buffer(0),
                device))
        state.launches += epilogue_pass_launches(
            problem.epilogue, weights, device, y, 1,
            min(_WORK_GROUP, device.limits.work_group_size))
        return state


def _product(problem: Conv2dProblem, part: MatrixPart) -> Product:
    """Returns the products of the weights with a part's matrix, one for each image and group."""
    return Product(problem.out_channels // problem.groups, part.pixels, problem.depth,
                   part.pixels, problem.out_height * problem.out_width,
                   part.images * problem.groups, problem.groups,
                   output_offset(problem, _LAYOUT, part))
