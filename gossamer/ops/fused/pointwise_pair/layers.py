"""Takes pairs of convolutions of single pixels apart, and says which of them one kernel can
compute."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.parts import is_product
from gossamer.ops.fused.problem import FusionProblem, Source

MULTIPLE = 64
"""Number of which all channels are a multiple."""
_MOST_OUT_CHANNELS = 256
"""Channels whose sums of 64 pixels fit the registers of a warpgroup."""
LAST: tuple[Source, ...] = ((1, 0),)
"""The exits of a pair whose first result nobody else reads."""
BOTH: tuple[Source, ...] = ((0, 0), (1, 0))
"""The exits of a pair whose first result others read, too."""


@dataclass(frozen=True)
class PointwisePair:
    """A convolution of single pixels that makes many channels, and one that reads them."""

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
        """Number of the fusion's input that the first layer adds; 0 where it adds none."""
        added = self.problem.sources[0][1:]
        return self.problem.entries.index(added[0]) if added else 0


def pointwise_pair_of(problem: FusionProblem) -> PointwisePair | None:
    """Returns a fusion as a pair; None where its layers are others, or the first one makes less
    than twice the channels that it reads or that the second one makes."""
    if len(problem.parts) != 2 or not all(map(is_product, problem.parts)):
        return None
    first, second = problem.parts
    assert isinstance(first, Conv2dProblem) and isinstance(second, Conv2dProblem)
    if problem.sources[1][0] != (0, 0):
        return None
    wide = first.out_channels >= 2 * max(first.channels, second.out_channels)
    return PointwisePair(problem, first, second) if wide else None


def reason_apart(pair: PointwisePair) -> str | None:
    """Returns why no kernel computes a pair as one, as shown to the user; None where one may."""
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
