"""cublas-lowering: convolution as a product of the weights and the im2col matrix by cuBLAS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.im2col import (
    cannot_lower,
    gather,
    matrix_bytes,
    matrix_rows,
    packed_rows,
    variant_of,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.launch import Launch
from gossamer.ops.vendor.cublas import (
    ALIGNMENT,
    RANKS,
    CublasOffer,
    Fused,
    Multiplication,
    Product,
    bias_vector,
    fused,
    offers,
)
from gossamer.ops.vendor.libraries import CUBLAS, loaded_version, unavailable
from gossamer.ops.weights import Weights

_LAYOUTS = ("NHWC", "NCHW", "CHWN")


@dataclass(frozen=True)
class _Products:
    """The products that compute a problem in one precision and layout.

    product: shape of the product.
    offsets: for each repetition of the product, the offsets of its operands A and B and of its
    result D, in elements.
    fused: the epilogue that the products apply; None if a separate kernel applies the epilogue.
    """

    product: Product
    offsets: tuple[tuple[int, int, int], ...]
    fused: Fused | None


@dataclass(frozen=True)
class _Work:
    """What a launch needs.

    rows: the weights.
    gathering: launch that gathers the im2col matrix; None if the input itself is the matrix.
    multiplication: the product, described to cuBLAS.
    offer: the algorithm of cuBLAS.
    offsets: for each repetition of the product, the offsets of its operands A and B and of its
    result D, in elements.
    """

    rows: Buffer
    gathering: Launch | None
    multiplication: Multiplication
    offer: CublasOffer
    offsets: tuple[tuple[int, int, int], ...]


class Im2colCublas(Algorithm):
    """Product of the weights and the gathered im2col matrix by cuBLAS.

    cuBLAS applies the epilogues that it supports; a separate kernel applies the others.
    """

    op = "conv2d"
    name = "cublas-lowering"
    rounds_sums = True
    vendor = CUBLAS

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := unavailable(CUBLAS, device)) is not None:
            return reason
        if problem.is_depthwise:
            return (f"is depthwise: each of the {problem.channels} channels would be a separate "
                    "product of few rows")
        return cannot_lower(problem)

    def version(self, device: Device) -> str:
        return loaded_version(CUBLAS, device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        forms = [(precision, layout) for precision in PRECISIONS for layout in _LAYOUTS]
        if problem.outputs[0].size == 0:
            for precision, layout in forms:
                yield variant_of(problem, (("rank", 0),), layout, precision, 0)
            return
        offers_of = {form: offers(_products(problem, *form, device).product, device)
                     for form in forms}
        for rank in range(RANKS):
            for precision, layout in forms:
                offered = offers_of[precision, layout]
                if rank < len(offered):
                    workspace = (matrix_bytes(problem, _itemsize(precision))
                                 + offered[rank].workspace)
                    yield variant_of(problem, (("rank", rank),), layout, precision, workspace)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        x, y = variant.inputs[0], variant.outputs[0]
        products = _products(problem, variant.precision, x.layout, device)
        bias = (bias_vector(weights, products.fused.bias, problem.out_channels, y.dtype)
                if products.fused and products.fused.bias else None)
        state.data = _Work(packed_rows(weights, problem, x.layout, x.dtype),
                           None if problem.is_pointwise else gather(problem, x, device),
                           Multiplication(products.product, device, bias),
                           offers(products.product, device)[variant["rank"]], products.offsets)
        if products.fused is None:
            state.launches = epilogue_pass_launches(problem.epilogue, weights, device, y, 1)
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.data is None:
            return
        device, variant = state.device, state.variant
        problem: Conv2dProblem = state.problem  # type: ignore[assignment]
        itemsize, work = _itemsize(variant.precision), state.data
        x, *residuals, y = (buffer.address for buffer in (*inputs, *outputs))
        scratch = 0 if workspace is None else workspace.address
        device.keep(inputs, outputs, workspace, state)
        matrix, rows = x, work.rows.address
        if work.gathering is not None:
            work.gathering.run(device, inputs, outputs, workspace, stream)
            matrix = scratch
        a, b = (rows, matrix) if variant.inputs[0].layout == "NHWC" else (matrix, rows)
        # the workspace of the product follows the im2col matrix
        scratch += matrix_bytes(problem, itemsize)
        for in_a, in_b, in_d in work.offsets:
            residual = (residuals[0] + in_d * itemsize
                        if work.multiplication.product.residual else None)
            work.multiplication.multiply(
                work.offer, a + in_a * itemsize, b + in_b * itemsize, y + in_d * itemsize,
                scratch, device.stream_handle(stream), residual=residual)
        super().launch(state, inputs, outputs, workspace, stream)


def _itemsize(precision: str) -> int:
    return 2 if precision == "fp16" else 4


def _products(problem: Conv2dProblem, precision: str, layout: str, device: Device) -> _Products:
    """Return the products for a precision and layout.

    The epilogue is fused if cuBLAS has algorithms that apply it.
    """
    epilogue = fused(problem.epilogue)
    # cuBLAS can add a bias only as a vector with one value for each row of the result D; the rows
    # of D are output channels only in NHWC
    if epilogue is not None and not (epilogue.bias and (layout != "NHWC" or problem.groups > 1)):
        product, offsets = _product(problem, layout, precision, epilogue)
        if offers(product, device):
            return _Products(product, offsets, epilogue)
    return _Products(*_product(problem, layout, precision, Fused()), None)


def _product(problem: Conv2dProblem, layout: str, precision: str, epilogue: Fused
             ) -> tuple[Product, tuple[tuple[int, int, int], ...]]:
    """Return a product, and the offsets of its operands for each repetition.

    In NHWC, where channels are adjacent, the rows of the result are output channels. In other
    layouts, the columns of the result are output channels.

    In NHWC and CHWN, the product is batched over the groups. In NCHW, the product is batched over
    the images and repeated for each group. If there are more groups than images in NCHW, the
    product is batched over the groups and repeated for each image.
    """
    channels, depth = problem.group_out_channels, problem.depth
    images, pixels = problem.batch, problem.image_pixels
    batch, repeats, repeat_strides = problem.groups, 1, (0, 0, 0)
    if layout == "NHWC":
        rows, columns = channels, images * pixels
        leading = (depth, matrix_rows(problem), problem.out_channels)
        strides = (channels * depth, depth, channels)
    elif layout == "CHWN":
        rows, columns = pixels * images, channels
        leading = (rows, depth, rows)
        strides = (depth * rows, channels * depth, channels * rows)
    else:
        rows, columns = pixels, channels
        leading = (pixels, depth, pixels)
        of_group = (depth * pixels, channels * depth, channels * pixels)
        of_image = (matrix_rows(problem) * pixels, 0, problem.out_channels * pixels)
        batch, repeats, strides, repeat_strides = (images, problem.groups, of_image, of_group)
        if images < problem.groups:
            batch, repeats, strides, repeat_strides = repeats, batch, repeat_strides, strides
    offsets = tuple((i * repeat_strides[0], i * repeat_strides[1], i * repeat_strides[2])
                    for i in range(repeats))
    strides = strides if batch > 1 else (0, 0, 0)
    alignment = math.gcd(ALIGNMENT, *(
        offset * _itemsize(precision) for offset in (*strides, *itertools.chain(*offsets))))
    product = Product(precision, rows, columns, depth, layout == "NHWC", leading, batch, strides,
                      alignment, bool(epilogue.bias), epilogue.residual, epilogue.relu)
    return product, offsets
