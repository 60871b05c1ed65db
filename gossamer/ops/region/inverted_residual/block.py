"""Takes inverted residual blocks and separable convolutions apart, and says which of them one
kernel can compute.

Sources: A. Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision
applications", arXiv 1704.04861, 2017 (the separable convolution); M. Sandler et al., "MobileNetV2:
inverted residuals and linear bottlenecks", CVPR 2018 (the block that expands before it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.region.problem import ENTRY, RegionProblem

LARGEST_KERNEL = 7
"""The most rows and columns of a depthwise filter whose windows kernels hold in registers."""


@dataclass(frozen=True)
class Block:
    """A 1x1 convolution that expands the channels, a depthwise convolution, and a 1x1 convolution
    that projects them, one after another.

    problem: the region. expand: the first convolution; None where the block begins with the
    depthwise one, as a separable convolution does. depthwise, project: the others.
    """

    problem: RegionProblem
    expand: Conv2dProblem | None
    depthwise: Conv2dProblem
    project: Conv2dProblem

    @property
    def convolutions(self) -> tuple[Conv2dProblem, ...]:
        """The two or three convolutions in the order of execution."""
        first = () if self.expand is None else (self.expand,)
        return (*first, self.depthwise, self.project)

    @property
    def channels(self) -> int:
        """Channels of the block's input."""
        return self.convolutions[0].channels

    @property
    def hidden(self) -> int:
        """Channels of the expanded tensor, on which the depthwise convolution works."""
        return self.depthwise.channels

    @property
    def out_channels(self) -> int:
        """Channels of the block's output."""
        return self.project.out_channels

    def halo(self, rows: int, columns: int) -> tuple[int, int]:
        """Returns the rows and columns of the depthwise convolution's input that a tile of output
        rows and columns needs."""
        p = self.depthwise
        return ((rows - 1) * p.stride[0] + p.kernel[0], (columns - 1) * p.stride[1] + p.kernel[1])

    def part(self, convolution: Conv2dProblem) -> int:
        """Returns the number of a convolution among the parts of the region."""
        return next(number for number, part in enumerate(self.convolutions) if part is convolution)


def block_of(problem: RegionProblem, expands: bool) -> Block | None:
    """Returns a region as a block; None where its layers are others.

    expands: whether the block has the convolution that expands its input.
    """
    convolutions = [part for part in problem.parts if isinstance(part, Conv2dProblem)]
    if len(convolutions) != len(problem.parts) or len(convolutions) != 2 + expands:
        return None
    *first, depthwise, project = convolutions
    if not depthwise.is_depthwise or any(
            part.kernel != (1, 1) or part.groups > 1 for part in (*first, project)):
        return None
    chained = all(sources[0] == (number - 1, 0) for number, sources in enumerate(problem.sources))
    return Block(problem, first[0] if expands else None, depthwise, project) if chained else None


def of_batch(block: Block, batch: int) -> Block:
    """Returns a block for another number of images."""
    parts = tuple(replace(part, batch=batch) for part in block.convolutions)
    other = block_of(replace(block.problem, parts=parts), block.expand is not None)
    assert other is not None
    return other


def reason_apart(block: Block) -> str | None:
    """Returns why no kernel computes a block as one, as shown to the user; None where one may."""
    last = len(block.convolutions) - 1
    if block.problem.exits != ((last, 0),):
        return "a value inside the block is read elsewhere"
    for name, part in (("expands", block.expand), ("projects", block.project)):
        if part is not None and not part.is_pointwise:
            return f"{name} with stride {part.stride} and pads {part.pads}, takes neither"
    depthwise = block.depthwise
    if depthwise.out_channels != depthwise.channels:
        return (f"the depthwise convolution makes {depthwise.out_channels} channels of "
                f"{depthwise.channels}")
    if depthwise.dilation != (1, 1):
        return f"the depthwise convolution has dilation {depthwise.dilation}, takes none"
    if max(depthwise.kernel) > LARGEST_KERNEL:
        size = "x".join(map(str, depthwise.kernel))
        return f"the depthwise filters are {size}, takes at most {LARGEST_KERNEL} rows and columns"
    for part in block.convolutions[:last]:
        if part.epilogue.tensor_count:
            return "adds a tensor inside the block"
    if any(source != ENTRY for source in block.problem.sources[last][1:]):
        return "adds a tensor inside the block to its result"
    if block.project.epilogue.tensor_count > 1:
        return "adds its input to its result more than once"
    return None


def epilogues(block: Block) -> dict[str, tuple[int, Epilogue]]:
    """Returns the number of the part and the epilogue of each convolution, by the prefix that their
    macros have in kernels."""
    names = ("EXPAND_", "DEPTHWISE_", "PROJECT_")[-len(block.convolutions):]
    return {name: (number, part.epilogue)
            for number, (name, part) in enumerate(zip(names, block.convolutions, strict=True))}
