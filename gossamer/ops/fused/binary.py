"""Binary convolutions fused with a padding layer or with signs.

A padding layer before the convolution costs nothing if its value is -1, 0 or 1: the convolution's
kernel uses this value for pixels outside the packed image. In residual blocks, the next layer reads
the signs of a sum, and a later layer reads the sum itself. The fused convolution writes the sum and
its signs.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.facts import REAL
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.host_direct import HostDirectPopcount
from gossamer.ops.conv2d.binary.layer import BinaryLayer, packed_variants
from gossamer.ops.conv2d.binary.popcount import Popcount
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import (
    BitTensorCore,
    tiles_and_words,
    with_float16,
)
from gossamer.ops.conv2d.binary.wide_popcount import WidePopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm, RenamedWeights
from gossamer.ops.fused.convolution import with_second_result
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class _Fusion:
    """A fusion expressed as one binary convolution.

    layer: the convolution, including the padding and the signs.
    names: maps each constant's name in the convolution to its name in the fusion.
    """

    layer: BinaryLayer
    names: Mapping[str, str]


class BinaryFusion(FusionAlgorithm, BinaryAlgorithm, abc.ABC):
    """A binary convolution with the padding before it or the signs after it.

    The algorithm substitutes -1, 0 or 1 for pixels outside the image, and may write two results.
    """

    op = "fused"
    patterns = (("pad", "conv2d", "elementwise"), ("pad", "conv2d"), ("conv2d", "elementwise"))

    def recognises(self, problem: FusionProblem) -> bool:
        return bool(problem.facts)

    def layer_of(self, problem: FusionProblem) -> BinaryLayer | str:
        fusion = _fusion(problem)
        return fusion if isinstance(fusion, str) else fusion.layer

    def weights_of(self, weights: Weights, problem: FusionProblem) -> Weights:
        fusion = _fusion(problem)
        assert isinstance(fusion, _Fusion)
        return RenamedWeights(weights, fusion.names)


class PopcountFusion(BinaryFusion, Popcount):
    """The kernel popcount, with padding or signs."""


class WidePopcountFusion(BinaryFusion, WidePopcount):
    """The kernel wide_popcount, on CPUs."""


class BitTensorCoreFusion(BinaryFusion, BitTensorCore):
    """The binary kernels on tensor cores.

    The kernels add the contribution of the padding value separately.
    """

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        for tile, word_bits in tiles_and_words(layer, device):
            for variant in packed_variants(layer, inputs, tile.config, word_bits):
                yield from with_float16(layer, variant)


class HostDirectPopcountFusion(BinaryFusion, HostDirectPopcount):
    """Generated code for binary convolution on the host."""


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
    if isinstance(layer, str):
        return layer
    if index == len(problem.parts) - 1:
        return _Fusion(layer, {name: f"{index}.{name}" for name in convolution.weight_shapes})
    if set(problem.sources[index + 1]) != {(index, 0)}:
        return "the signs depend on tensors other than the sum"
    merged = with_second_result(problem, index, layer.convolution)
    return merged if isinstance(merged, str) else _Fusion(
        replace(layer, convolution=merged.convolution), merged.names)


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
