"""Binary convolutions fused with a padding layer or with signs.

A padding layer before the convolution costs nothing if its value is -1, 0 or 1: the convolution's
kernel uses this value for pixels outside the packed image. In residual blocks, the next layer reads
the signs of a sum, and a later layer reads the sum itself. The fused convolution writes the sum and
its signs.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.device.native import processor as native
from gossamer.expression import Expression
from gossamer.facts import REAL
from gossamer.ops.algorithm import Epilogue, State, Variant
from gossamer.ops.conv2d.binary import host, host_direct, popcount, wide_popcount
from gossamer.ops.conv2d.binary.layer import BinaryLayer, packed_variants, words_are_whole
from gossamer.ops.conv2d.binary.popcount import WORD_BITS
from gossamer.ops.conv2d.binary.tensor_core import bit_tensor_core
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm, RenamedWeights
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.launch import Launch
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec


@dataclass(frozen=True)
class _Fusion:
    """A fusion expressed as one binary convolution.

    layer: the convolution, including the padding and the signs.
    names: maps each constant's name in the convolution to its name in the fusion.
    """

    layer: BinaryLayer
    names: dict[str, str]


class BinaryFusion(FusionAlgorithm, abc.ABC):
    """A binary convolution with the padding before it or the signs after it."""

    exact = True
    patterns = (("pad", "conv2d", "elementwise"), ("pad", "conv2d"), ("conv2d", "elementwise"))

    def recognises(self, problem: FusionProblem) -> bool:
        return bool(problem.facts)

    @abc.abstractmethod
    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        """Return why the algorithm cannot compute the convolution; None if it can."""

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        fusion = _fusion(problem)
        return fusion if isinstance(fusion, str) else self.reason_not(fusion.layer, device)


Config = tuple[tuple[str, int | str], ...]


class _DeviceFusion(BinaryFusion):
    """A fusion computed by a kernel on packed words.

    The kernel substitutes a constant for pixels outside the image, and can write a second result.
    """

    @abc.abstractmethod
    def configs(self, layer: BinaryLayer, device: Device) -> Iterable[tuple[Config, int]]:
        """Return the kernel's configs, each with its number of bits per word."""

    @staticmethod
    @abc.abstractmethod
    def launches(weights: Weights, layer: BinaryLayer, variant: Variant, device: Device
                 ) -> list[Launch]:
        """Return the launches that compute the convolution."""

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layer = _layer(problem)
        for config, word_bits in self.configs(layer, device):
            yield from packed_variants(layer, problem.inputs, config, word_bits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        fusion = _fusion(problem)
        assert isinstance(fusion, _Fusion)
        return State(problem, variant, device, self.launches(
            RenamedWeights(weights, fusion.names), fusion.layer, variant, device))


class PopcountFusion(_DeviceFusion):
    """The kernel popcount, with padding or signs."""

    name = "popcount"
    launches = staticmethod(popcount.launches)

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return _reason_not_whole(layer) or popcount.reason_not_popcount(layer, device)

    def configs(self, layer: BinaryLayer, device: Device) -> Iterable[tuple[Config, int]]:
        return itertools.product(
            (tile.config for tile in popcount.fitting(layer.convolution, device)), WORD_BITS)

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return popcount.Popcount().expected_us(_layer(problem).convolution, variant, device)


class WidePopcountFusion(_DeviceFusion):
    """The kernel wide_popcount, on CPUs."""

    name = "wide_popcount"
    launches = staticmethod(wide_popcount.launches)

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return _reason_not_whole(layer) or wide_popcount.reason_not_wide(layer, device)

    def configs(self, layer: BinaryLayer, device: Device) -> Iterable[tuple[Config, int]]:
        return [(config, wide_popcount.WORD_BITS) for config in wide_popcount.CONFIGS]

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return wide_popcount.WidePopcount().expected_us(
            _layer(problem).convolution, variant, device)


class BitTensorCoreFusion(_DeviceFusion):
    """The binary kernels on tensor cores.

    The kernels add the contribution of the padding value separately.
    """

    name = "bit_tensor_core"
    launches = staticmethod(bit_tensor_core.launches)

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return bit_tensor_core.reason_not_bit_tensor_core(layer, device)

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layer = _layer(problem)
        for variant in super().variants(problem, device):
            yield from bit_tensor_core.with_float16(layer, variant)

    def configs(self, layer: BinaryLayer, device: Device) -> Iterable[tuple[Config, int]]:
        return [(tile.config, word_bits)
                for tile, word_bits in bit_tensor_core.tiles_and_words(layer, device)]

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return bit_tensor_core.expected_us(_layer(problem), variant, device)


class HostPopcountFusion(BinaryFusion):
    """The binary convolution on the host, in NumPy.

    The padding value may be -1, 0 or 1, and the convolution may have a second result.
    """

    name = "host_popcount"

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else layer.reason_not_binary()

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layer = _layer(problem)
        x, *operands = problem.inputs
        y = problem.outputs[-1]
        targets = [y]
        if layer.form.output is not None:
            targets.append(TensorSpec(y.shape, Format("packed64", layer.form.output)))
        for source in (x, TensorSpec(x.shape, Format("packed64", layer.form.input))):
            for target in targets:
                yield Variant((), (source, *operands), (*problem.outputs[:-1], target))

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        fusion = _fusion(problem)
        assert isinstance(fusion, _Fusion)
        return State(problem, variant, device, data=(fusion.layer, host.Constants.of(
            RenamedWeights(weights, fusion.names), fusion.layer)))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        layer, constants = state.data
        host.compute(layer, constants, state.variant, inputs, outputs)


class HostDirectPopcountFusion(BinaryFusion, host_direct.PopcountCode):
    """Generated code for binary convolution on the host.

    The padding value may be -1, 0 or 1, and the convolution may have a second result.
    """

    by_image = True

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return (native.unavailable(device) or layer.reason_not_binary()
                or host_direct.refusal(layer))

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        return host_direct.variants_of(_layer(problem), problem.inputs, problem.outputs)

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return host_direct.expected_us(_layer(problem).convolution, device)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        fusion = _fusion(problem)
        assert isinstance(fusion, _Fusion)
        return State(problem, variant, device, data=host_direct.Work.of(
            RenamedWeights(weights, fusion.names), fusion.layer, variant))


def _reason_not_whole(layer: BinaryLayer) -> str | None:
    """Return why kernels cannot write whole words of a second result; None if they can."""
    if not layer.has_two_results or words_are_whole(layer.convolution, max(WORD_BITS)):
        return None
    return "a word of the second result would have channels of several groups"


def _layer(problem: FusionProblem) -> BinaryLayer:
    """Return the binary layer of a supported fusion."""
    fusion = _fusion(problem)
    assert isinstance(fusion, _Fusion)
    return fusion.layer


def _fusion(problem: FusionProblem) -> _Fusion | str:
    """Return a fusion as one binary convolution, or the reason why this is impossible."""
    if tuple(part.op for part in problem.parts) not in BinaryFusion.patterns:
        return "needs a convolution with a padding layer before it or signs after it"
    index = next(i for i, part in enumerate(problem.parts) if isinstance(part, Conv2dProblem))
    convolution = problem.parts[index]
    assert isinstance(convolution, Conv2dProblem)
    if any(source[0] >= 0 for source in problem.sources[index][1:]):
        return "an operand of the convolution's epilogue is computed within the fusion"
    if len(problem.entries) < len(convolution.inputs):
        return "the convolution reads a value twice"
    layer: BinaryLayer | str = BinaryLayer(convolution)
    if index:
        layer = _padded(problem, convolution)
    names = {name: f"{index}.{name}" for name in convolution.weight_shapes}
    if isinstance(layer, str) or index == len(problem.parts) - 1:
        return layer if isinstance(layer, str) else _Fusion(layer, names)
    return _with_signs(problem, index, layer, names)


def _padded(problem: FusionProblem, convolution: Conv2dProblem) -> BinaryLayer | str:
    """Return the fusion's convolution with the padding layer included.

    Returns the reason instead if the convolution cannot include the padding.
    """
    pad = problem.parts[0]
    assert isinstance(pad, PadProblem)
    if any(exit_[0] == 0 for exit_ in problem.exits):
        return "layers outside the fusion read the padded image"
    if pad.mode != "constant" or len(pad.pads) != 8 or any(pad.low[:2]) or any(pad.high[:2]) or (
            min(pad.pads) < 0 or pad.value not in (-1, 0, 1)):
        return "needs a padding of rows and columns with -1, 0 or 1"
    if pad.value and any(convolution.pads):
        return f"the convolution pads with 0, and the layer before it with {pad.value:g}"
    top, left, bottom, right = (a + b for a, b in zip(
        convolution.pads, (*pad.low[2:], *pad.high[2:]), strict=True))
    known = pad.facts or (REAL,)
    return BinaryLayer(replace(
        convolution, height=pad.input.shape[2], width=pad.input.shape[3],
        pads=(top, left, bottom, right), facts=(*known, *convolution.facts[1:])), int(pad.value))


def _with_signs(problem: FusionProblem, index: int, layer: BinaryLayer,
                names: dict[str, str]) -> _Fusion | str:
    """Return a convolution that also computes the signs of its result.

    Returns the reason instead if the two layers cannot be fused.

    index: index of the convolution among the fusion's parts.
    """
    signs = problem.parts[index + 1]
    assert isinstance(signs, ElementwiseProblem)
    convolution = layer.convolution
    if problem.exits != ((index, 0), (index + 1, 0)):
        return "layers outside the fusion do not read both the sum and its signs"
    if set(problem.sources[index + 1]) != {(index, 0)}:
        return "the signs depend on tensors other than the sum"
    channels = convolution.out_channels
    if signs.dtypes != ("float32",) or signs.shape != convolution.outputs[0].shape or any(
            signs.operands[number].shape not in ((1, channels, 1, 1), (channels, 1, 1), ())
            for number in signs.constants):
        return "needs signs whose constants have one number per channel"
    first = len(convolution.epilogue.operands)
    names = {**names, **{f"operand{first + position}": f"{index + 1}.operand{number}"
                         for position, number in enumerate(signs.constants)}}
    expression = _both(convolution.epilogue.expression, signs.expression, signs.constants)
    kinds = (*convolution.epilogue.operands, *["channel"] * len(signs.constants))
    return _Fusion(replace(layer, convolution=replace(
        convolution, epilogue=Epilogue(expression, kinds))), names)


def _both(first: Expression, second: Expression, constants: Sequence[int]) -> Expression:
    """Return an expression with two results.

    The first result is that of `first`; the second applies `second` to the first result.

    constants: indices of those inputs of `second` that are not the first result. These inputs
    become the last inputs of the returned expression.
    """
    added = len(constants)
    inputs = {number: 1 + position for position, number in enumerate(constants)}

    def renumbered(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(inputs.get(value, 0) if value < second.inputs
                     else value - second.inputs + 1 + added for value in values)

    both = first.then(Expression(1 + added, tuple(
        replace(step, arguments=renumbered(step.arguments)) for step in second.steps),
        renumbered(second.outputs)))
    result = first.outputs[0]
    return replace(both, outputs=(result + added * (result >= first.inputs), *both.outputs))
