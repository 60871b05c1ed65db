"""Takes bottleneck blocks apart, and says which of them one kernel can compute.

Source: K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR
2016.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.parts import is_product
from gossamer.ops.fused.problem import ENTRY, FusionProblem


@dataclass(frozen=True)
class Bottleneck:
    """A 1x1 convolution, a convolution with windows and another 1x1 convolution, each of which
    reads the one before it. The last one may add a tensor, such as the block's input."""

    problem: FusionProblem

    @property
    def layers(self) -> tuple[Conv2dProblem, Conv2dProblem, Conv2dProblem]:
        """The convolutions in the order of execution."""
        first, window, last = self.problem.parts
        assert isinstance(first, Conv2dProblem) and isinstance(window, Conv2dProblem)
        assert isinstance(last, Conv2dProblem)
        return first, window, last

    @property
    def window(self) -> Conv2dProblem:
        """The convolution with windows."""
        return self.layers[1]

    @property
    def added_input(self) -> int:
        """Number of the fusion's input that the last layer may add: the block's own, or another."""
        sources = self.problem.sources[2][1:]
        return self.problem.entries.index(sources[0]) if sources else 0


def bottleneck_of(problem: FusionProblem) -> Bottleneck | None:
    """Returns a fusion as a block; None where its layers are others."""
    if len(problem.parts) != 3 or not all(map(is_product, problem.parts[::2])):
        return None
    window = problem.parts[1]
    if not isinstance(window, Conv2dProblem) or window.groups != 1 or window.kernel == (1, 1):
        return None
    chained = problem.sources[1][0] == (0, 0) and problem.sources[2][0] == (1, 0)
    return Bottleneck(problem) if chained and problem.sources[0][0] == ENTRY else None


def of_batch(block: Bottleneck, batch: int) -> Bottleneck:
    """Returns a block for another number of images."""
    return Bottleneck(replace(block.problem, parts=tuple(
        replace(layer, batch=batch) for layer in block.layers)))


def reason_apart(block: Bottleneck) -> str | None:
    """Returns why no kernel computes a block as one, as shown to the user; None where one may."""
    first, window, last = block.layers
    if block.problem.exits != ((2, 0),):
        return "a value inside the block is read elsewhere"
    for name, layer in (("first", first), ("last", last)):
        if not layer.is_pointwise:
            return (f"the {name} convolution has stride {layer.stride} and pads {layer.pads}, "
                    "takes neither")
    if window.stride != (1, 1) or window.dilation != (1, 1):
        return (f"the convolution with windows has stride {window.stride} and dilation "
                f"{window.dilation}, takes neither")
    if first.epilogue.tensor_count or window.epilogue.tensor_count:
        return "adds a tensor inside the block"
    if last.epilogue.tensor_count > 1:
        return "adds more than one tensor to its result"
    if any(source[0] >= 0 for source in block.problem.sources[2][1:]):
        return "adds a value of the block itself to its result"
    return None
