"""Recognises pairs of 1x1 convolutions in fusions, and says which pairs one kernel can compute."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.parts import is_product
from gossamer.ops.fused.problem import FusionProblem, Source

MULTIPLE = 64
"""All numbers of channels have to be a multiple of this number."""
_MOST_OUT_CHANNELS = 256
"""The most output channels whose sums for 64 pixels fit the registers of a warpgroup."""
LAST: tuple[Source, ...] = ((1, 0),)
"""The exits of a pair whose first result no other layer reads."""
BOTH: tuple[Source, ...] = ((0, 0), (1, 0))
"""The exits of a pair whose first result other layers read, too."""


@dataclass(frozen=True)
class PointwisePair:
    """A 1x1 convolution that makes many channels, and a 1x1 convolution that reads them.

    problem: the fusion.
    first: the convolution that makes many channels.
    second: the convolution that reads them.
    """

    problem: FusionProblem
    first: Conv2dProblem
    second: Conv2dProblem

    @property
    def pixels(self) -> int:
        """Pixels of all images."""
        return self.first.batch * self.first.height * self.first.width

    @property
    def input(self) -> int:
        """Number of the fusion's input that the first layer multiplies."""
        return self.problem.entries.index(self.problem.sources[0][0])

    @property
    def added_input(self) -> int:
        """Number of the fusion's input that the first layer adds to its result; 0 where the first
        layer adds no tensor."""
        added = self.problem.sources[0][1:]
        return self.problem.entries.index(added[0]) if added else 0


def pointwise_pair_of(problem: FusionProblem) -> PointwisePair | None:
    """Returns a fusion as a pair; None where its layers are no such pair. The first convolution has
    to make at least twice as many channels as it reads, and at least twice as many as the second
    convolution makes."""
    if len(problem.parts) != 2 or not all(map(is_product, problem.parts)):
        return None
    first, second = problem.parts
    assert isinstance(first, Conv2dProblem) and isinstance(second, Conv2dProblem)
    if problem.sources[1][0] != (0, 0):
        return None
    wide = first.out_channels >= 2 * max(first.channels, second.out_channels)
    return PointwisePair(problem, first, second) if wide else None


def reason_apart(pair: PointwisePair) -> str | None:
    """Returns why no kernel computes a pair in one step, as shown to the user; None where a kernel
    may compute it."""
    first, second = pair.first, pair.second
    if pair.problem.exits not in (LAST, BOTH):
        return "the second layer's result is not read"
    for name, layer in (("first", first), ("second", second)):
        if not layer.is_pointwise:
            return (f"the {name} convolution has stride {layer.stride} and pads {layer.pads}, "
                    "takes neither")
    if first.epilogue.tensor_count > 1 or second.epilogue.tensor_count:
        return "adds more than one tensor to the first result, or some to the second"
    channels = (first.channels, first.out_channels, second.out_channels)
    if any(count % MULTIPLE for count in channels):
        return f"{channels} channels, takes multiples of {MULTIPLE}"
    if second.out_channels > _MOST_OUT_CHANNELS:
        return f"{second.out_channels} output channels, takes at most {_MOST_OUT_CHANNELS}"
    return None
