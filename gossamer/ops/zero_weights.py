"""Layers whose weights are all zero.

Only the epilogue of such a layer is computed. It is applied to zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.epilogue import apply_in_place, buffers_as_arrays, operand_arrays
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights


class ZeroWeights(Algorithm):
    """The epilogue applied to zeros, on every device.

    The results do not depend on the input, even if it holds NaN or infinity.
    """

    name = "zero_weights"
    dense = False

    def supports(self, problem: Any, device: Device) -> str | None:
        if problem.weights_info.density > 0:
            return "some weights are not zero"
        return cannot_compile(problem, device) if device.compiles else None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        if not device.compiles:
            return [Variant((), problem.inputs, problem.outputs)]
        variants = layout_variants(problem)
        return [*variants, *(variant.as_fp16 for variant in variants)]

    def prepare(self, weights: Weights, problem: Any, variant: Variant,
                device: Device) -> State:
        if not device.compiles:
            return State(problem, variant, device, data=weights.arrays)
        return State(problem, variant, device, epilogue_pass_launches(
            problem.epilogue, weights, device, variant.outputs[0], 1, of_zeros=True))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.device.compiles:
            super().launch(state, inputs, outputs, workspace, stream)
            return
        problem: Any = state.problem
        epilogue = problem.epilogue
        _, *tensors = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        y[...] = 0
        apply_in_place(epilogue, y, operand_arrays(epilogue, state.data, tensors, y.ndim))


class ZeroConvolution(ZeroWeights):
    """A convolution whose weights are all zero."""

    op = "conv2d"


class ZeroProduct(ZeroWeights):
    """A matrix product whose weights are all zero."""

    op = "gemm"
