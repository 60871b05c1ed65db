"""Fusions that are computed as one convolution.

The average of a window and a 1x1 convolution of the averages are a convolution with this window:
the weight of each pixel is the weight of the average, divided by the number of pixels. And a
convolution can store two results: its own, and that of an element-wise layer after it. In residual
networks, for example, one layer reads a sum, and another its norm or the sum with a third tensor.

The algorithm merged_mma, for NVIDIA GPUs, computes such fusions by the kernel of pointwise_mma and
implicit_gemm_mma.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue, State, Variant
from gossamer.ops.conv2d.common import channels_in_memory
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.implicit_gemm import ImplicitGemmMma, PointwiseMma
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm, RenamedWeights
from gossamer.ops.fused.problem import FusionProblem, is_product
from gossamer.ops.gpu import without_tensor_cores
from gossamer.ops.launch import output_buffer
from gossamer.ops.peak_rates import moved_us
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import Pack, Weights

_POINTWISE, _GATHERED = PointwiseMma(), ImplicitGemmMma()
_MOST_PIXELS = 9
"""Largest number of pixels of an average: the convolution has as many times the weights."""


@dataclass(frozen=True)
class Merged:
    """A fusion expressed as one convolution.

    convolution: the convolution. Its epilogue has one or two results.
    names: maps each constant's name in the convolution to its name in the fusion.
    """

    convolution: Conv2dProblem
    names: Mapping[str, str]


class MergedMma(FusionAlgorithm):
    """A 1x1 convolution of averages, or a convolution with a second result, on tensor cores."""

    name = "merged_mma"
    patterns = (("pool", "conv2d"), ("conv2d", "elementwise"))
    reads_parts = True
    writes_parts = True

    def reads_parts_of(self, problem: FusionProblem) -> bool:
        convolution = _convolution(problem)
        return _product(convolution).reads_parts_of(convolution)

    def recognises(self, problem: FusionProblem) -> bool:
        match problem.parts:
            case PoolProblem(kind="average"), Conv2dProblem() as convolution:
                return is_product(convolution)
            case Conv2dProblem(), ElementwiseProblem():
                return problem.exits == ((0, 0), (1, 0))
        return False

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        if not self.recognises(problem):
            return "needs averages and their product, or a convolution with two results"
        found = merged(problem)
        if isinstance(found, str):
            return found
        if found.convolution.epilogue.tensor_count > 1:
            return "its epilogue reads more than one tensor"
        return _product(found.convolution).supports(found.convolution, device)

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        convolution = _convolution(problem)
        for variant in _product(convolution).variants(convolution, device):
            yield replace(variant, outputs=variant.outputs * len(problem.exits))

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        convolution = _convolution(problem)
        return _product(convolution).expected_us(convolution, variant, device) + moved_us(
            sum(spec.nbytes for spec in variant.outputs[1:]), device)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        found = merged(problem)
        assert isinstance(found, Merged)
        convolution = found.convolution
        if isinstance(problem.parts[0], PoolProblem):
            return State(problem, variant, device, _product(convolution).launches(
                _SpreadWeights(weights, found), convolution, variant, device, {}, ()))
        second = variant.outputs[1]
        # without wgmma, staging the operand for two results takes too many registers
        macros = {"SECOND": 1} if variant["wgmma"] else {"SECOND": 1, "STAGED": 0}
        return State(problem, variant, device, _product(convolution).launches(
            RenamedWeights(weights, found.names), convolution, variant, device, macros,
            (output_buffer(1), second.offset, channels_in_memory(second))))


class _SpreadWeights(RenamedWeights):
    """The constants of a convolution of averages, with a weight for each pixel of a window."""

    def __init__(self, weights: Weights, fusion: Merged) -> None:
        super().__init__(weights, fusion.names)
        self._kernel = fusion.convolution.kernel

    def packed(self, key: str, pack: Pack) -> Buffer:
        def spread(arrays: Mapping[str, np.ndarray]) -> np.ndarray | Buffer:
            weight = np.asarray(arrays["weight"], np.float32)
            return pack({**arrays, "weight": np.broadcast_to(
                weight / np.prod(self._kernel, dtype=np.float32),
                (*weight.shape[:2], *self._kernel))})
        return super().packed(key, spread)


def _product(convolution: Conv2dProblem) -> PointwiseMma | ImplicitGemmMma:
    """Return the algorithm of the convolution's window."""
    is_pointwise = convolution.kernel == (1, 1) and not any(convolution.pads)
    return _POINTWISE if is_pointwise else _GATHERED


def _convolution(problem: FusionProblem) -> Conv2dProblem:
    """Return a supported fusion as one convolution."""
    found = merged(problem)
    assert isinstance(found, Merged)
    return found.convolution


def merged(problem: FusionProblem) -> Merged | str:
    """Return a fusion as one convolution, or the reason why this is impossible."""
    first, last = problem.parts
    if isinstance(first, Conv2dProblem):
        return with_second_result(problem, 0, first)
    assert isinstance(first, PoolProblem)
    assert isinstance(last, Conv2dProblem)
    return _of_averages(problem, first, last)


def _of_averages(problem: FusionProblem, pool: PoolProblem,
                 convolution: Conv2dProblem) -> Merged | str:
    """Return a convolution of averages as one convolution, or why this is impossible."""
    if problem.exits != ((1, 0),):
        return "layers outside the fusion read the averages"
    if (0, 0) in problem.sources[1][1:]:
        return "the convolution's epilogue reads the averages"
    if convolution.stride != (1, 1) or any(convolution.pads):
        return "needs a 1x1 convolution of all pixels"
    if math.prod(pool.kernel) > _MOST_PIXELS:
        return f"an average has {math.prod(pool.kernel)} pixels, more than {_MOST_PIXELS}"
    if any(pool.pads) and not pool.count_include_pad:
        return "averages at the edges have fewer pixels"
    whole = replace(convolution, height=pool.input.shape[2], width=pool.input.shape[3],
                    kernel=pool.kernel, stride=pool.stride, pads=pool.pads,
                    dilation=pool.dilation, facts=())
    if whole.inputs[:1] != pool.inputs or whole.outputs != convolution.outputs:
        return "windows reach beyond the padding"
    return Merged(whole, {name: f"1.{name}" for name in convolution.weight_shapes})


def with_second_result(problem: FusionProblem, index: int,
                       convolution: Conv2dProblem) -> Merged | str:
    """Return a convolution that also computes the element-wise layer after it.

    Returns the reason instead if the two layers cannot be fused.

    index: index of the convolution among the fusion's parts.
    convolution: the convolution, which may include layers before it.
    """
    layer = problem.parts[index + 1]
    assert isinstance(layer, ElementwiseProblem)
    if problem.exits != ((index, 0), (index + 1, 0)):
        return "layers outside the fusion do not read both results"
    result, channels = convolution.outputs[0], convolution.out_channels
    tensors = {number: source for number, source in zip(
        (number for number in range(len(layer.operands)) if number not in layer.constants),
        problem.sources[index + 1], strict=True) if source != (index, 0)}
    known = len(problem.entries) - len(tensors)
    if known < len(convolution.inputs) or len(set(tensors.values())) < len(tensors) or (
            problem.entries[known:] != tuple(tensors.values())):
        return "a tensor is read twice"
    if layer.outputs != (result,) or any(layer.operands[number] != result for number in tensors):
        return "needs tensors of the shape of the convolution's result"
    if any(layer.operands[number].shape not in ((1, channels, 1, 1), (channels, 1, 1), ())
           for number in layer.constants):
        return "needs constants with one number per channel"
    added = {**dict.fromkeys(layer.constants, "channel"), **dict.fromkeys(tensors, "tensor")}
    kinds = convolution.epilogue.operands
    names = {name: f"{index}.{name}" for name in convolution.weight_shapes}
    names |= {f"operand{len(kinds) + position}": f"{index + 1}.operand{number}"
              for position, number in enumerate(layer.constants)}
    both = _both(convolution.epilogue.expression, layer.expression, tuple(added))
    return Merged(replace(convolution, epilogue=Epilogue(both, (*kinds, *added.values()))), names)


def _both(first: Expression, second: Expression, others: Sequence[int]) -> Expression:
    """Return an expression with two results.

    The first result is that of `first`; the second applies `second` to the first result.

    others: indices of those inputs of `second` that are not the first result. These inputs become
    the last inputs of the returned expression.
    """
    added = len(others)
    inputs = {number: 1 + position for position, number in enumerate(others)}

    def renumbered(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(inputs.get(value, 0) if value < second.inputs
                     else value - second.inputs + 1 + added for value in values)

    both = first.then(Expression(1 + added, tuple(
        replace(step, arguments=renumbered(step.arguments)) for step in second.steps),
        renumbered(second.outputs)))
    result = first.outputs[0]
    return replace(both, outputs=(result + added * (result >= first.inputs), *both.outputs))
