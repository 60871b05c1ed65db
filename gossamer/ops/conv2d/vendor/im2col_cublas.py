"""cublas-lowering: convolution as a dense product of cuBLAS with the recombined matrix."""

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
    MatrixPart,
    gather,
    matrix_bytes,
    output_offset,
    packed_rows,
    parts,
    run,
    taps,
    too_large,
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
from gossamer.ops.vendor.nvmath import CUBLAS, loaded_version, unavailable
from gossamer.ops.weights import Weights

_LAYOUTS = ("NHWC", "NCHW", "CHWN")


@dataclass(frozen=True)
class _ProductCall:
    """A part, the product over its matrix, and where the product's operands A, B and D start,
    in elements, each time it is done."""

    part: MatrixPart
    product: Product
    offsets: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Lowered:
    """What computes a problem in one form. fused: the epilogue where the products apply it."""

    steps: tuple[_ProductCall, ...]
    fused: Fused | None
    ranks: int
    """Algorithms that cuBLAS offers for each of the products."""


@dataclass(frozen=True)
class _Call:
    gathering: Launch | None
    multiplication: Multiplication
    offer: CublasOffer
    offsets: tuple[tuple[int, int, int], ...]
    scratch: int
    """Bytes of workspace before the product's own."""


class Im2colCublas(Algorithm):
    op = "conv2d"
    name = "cublas-lowering"
    vendor = CUBLAS

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := unavailable(CUBLAS, device)) is not None:
            return reason
        if problem.is_depthwise:
            return f"a product of a few rows for each of {problem.channels} channels"
        return too_large(problem)

    def version(self, device: Device) -> str:
        return loaded_version(CUBLAS, device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        forms = [(precision, layout) for precision in PRECISIONS for layout in _LAYOUTS]
        if problem.outputs[0].size == 0:
            for precision, layout in forms:
                yield variant_of(problem, (("rank", 0),), layout, precision, 0)
            return
        lowered = {form: _lowered(problem, *form, device) for form in forms}
        for rank in range(RANKS):
            for precision, layout in forms:
                form = lowered[precision, layout]
                if rank < form.ranks:
                    workspace = max(
                        matrix_bytes(problem, step.part, _itemsize(precision))
                        + offers(step.product, device)[rank].workspace for step in form.steps)
                    yield variant_of(problem, (("rank", rank),), layout, precision, workspace)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        x, y = variant.inputs[0], variant.outputs[0]
        lowered = _lowered(problem, variant.precision, x.layout, device)
        bias = (bias_vector(weights, lowered.fused.bias, problem.out_channels, y.dtype)
                if lowered.fused and lowered.fused.bias else None)
        calls = [_Call(None if problem.is_pointwise else gather(problem, x, step.part, device),
                       Multiplication(step.product, device, bias),
                       offers(step.product, device)[variant["rank"]], step.offsets,
                       matrix_bytes(problem, step.part, _itemsize(variant.precision)))
                 for step in lowered.steps]
        state.data = (packed_rows(weights, problem, x.layout, x.dtype), calls)
        if lowered.fused is None:
            state.launches = epilogue_pass_launches(problem.epilogue, weights, device, y, 1)
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.data is None:
            return
        device: Any = state.device
        itemsize = _itemsize(state.variant.precision)
        weights_first = state.variant.inputs[0].layout == "NHWC"
        rows, calls = state.data
        handles: Any = [*inputs, *outputs]
        x, *residuals, y = (buffer.handle for buffer in handles)
        scratch = 0 if workspace is None else workspace.handle  # type: ignore[attr-defined]
        device.keep(inputs, outputs, workspace, state)
        for call in calls:
            matrix = x
            if call.gathering is not None:
                run(call.gathering, device, inputs, outputs, workspace, stream)
                matrix = scratch
            a, b = (rows.handle, matrix) if weights_first else (matrix, rows.handle)
            for in_a, in_b, in_d in call.offsets:
                residual = (residuals[0] + in_d * itemsize
                            if call.multiplication.product.residual else None)
                call.multiplication.multiply(
                    call.offer, a + in_a * itemsize, b + in_b * itemsize, y + in_d * itemsize,
                    scratch + call.scratch, device.stream_handle(stream), residual=residual)
        super().launch(state, inputs, outputs, workspace, stream)


def _itemsize(precision: str) -> int:
    return 2 if precision == "fp16" else 4


def _lowered(problem: Conv2dProblem, precision: str, layout: str, device: Device) -> _Lowered:
    """With the epilogue in the products where they can apply it and cuBLAS offers to."""
    def steps(whole: Fused) -> tuple[tuple[_ProductCall, ...], int]:
        made = tuple(_step(problem, layout, precision, part, whole)
                     for part in parts(problem, layout, _itemsize(precision)))
        return made, min(len(offers(step.product, device)) for step in made)

    whole = fused(problem.epilogue)
    # cuBLAS adds a bias along the rows of D alone
    if whole is not None and not (whole.bias and (layout != "NHWC" or problem.groups > 1)):
        made, ranks = steps(whole)
        if ranks:
            return _Lowered(made, whole, ranks)
    made, ranks = steps(Fused())
    return _Lowered(made, None, ranks)


def _step(problem: Conv2dProblem, layout: str, precision: str, part: MatrixPart,
          whole: Fused) -> _ProductCall:
    """Channels are the rows of D in NHWC, where they lie together, and its columns elsewhere;
    the members of a batch are groups, or images of NCHW."""
    channels, depth = problem.out_channels // problem.groups, problem.depth
    pixels, everything = part.pixels, problem.out_height * problem.out_width
    first = output_offset(problem, layout, part)
    batch, repeats, apart = problem.groups, 1, (0, 0, 0)
    if layout == "NHWC":
        rows, columns = channels, part.images * pixels
        leading = (depth, taps(problem), problem.out_channels)
        strides = (channels * depth, depth, channels)
    elif layout == "CHWN":
        rows, columns = pixels * part.images, channels
        leading = (rows, depth, everything * part.images)
        strides = (depth * rows, channels * depth, channels * everything * part.images)
    else:
        rows, columns = pixels, channels
        leading = (pixels, depth, everything)
        of_group = (depth * pixels, channels * depth, channels * everything)
        of_image = (taps(problem) * pixels, 0, problem.out_channels * everything)
        batch, repeats, strides, apart = (part.images, problem.groups, of_image, of_group)
        if part.images < problem.groups:
            batch, repeats, strides, apart = repeats, batch, apart, strides
    offsets = tuple((i * apart[0], i * apart[1], first + i * apart[2]) for i in range(repeats))
    strides = strides if batch > 1 else (0, 0, 0)
    alignment = math.gcd(ALIGNMENT, *(
        each * _itemsize(precision) for each in (*strides, *itertools.chain(*offsets))))
    return _ProductCall(part, Product(precision, rows, columns, depth, layout == "NHWC", leading, batch,
                               strides, alignment, bool(whole.bias), whole.residual, whole.relu),
                 offsets)
