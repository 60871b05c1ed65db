"""Recognise inverted residual blocks and separable convolutions in fusions.

This module also determines which blocks can be computed by one kernel.

Sources: A. Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision
applications", arXiv 1704.04861, 2017 (the separable convolution); M. Sandler et al., "MobileNetV2:
inverted residuals and linear bottlenecks", CVPR 2018 (the block that expands the channels before
the separable convolution); A. Howard et al., "Searching for MobileNetV3", ICCV 2019 (squeeze and
excitation between the depthwise and the projecting convolution).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import (
    ENTRY,
    FusionProblem,
    SqueezeExciteLayer,
    is_product,
    layer_within,
)
from gossamer.ops.image import makes_image
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import default_spec

EXCITED_PATTERNS = tuple(
    (*first, "conv2d", mean, "conv2d", "conv2d", "elementwise", "conv2d")
    for first in (("conv2d",), ()) for mean in ("reduce", "pool"))
"""The ops of blocks with squeeze-and-excite, with and without an expansion."""
LARGEST_KERNEL = 7
"""Maximum height and width of a depthwise filter. The limit exists because kernels hold the inputs
of a window in registers."""
_MOST_IMAGE_CHANNELS, _MOST_GATHERED = 4, 64
"""Limits of a first convolution whose windows kernels gather: the maximum number of image channels,
and the maximum number of inputs per window."""


@dataclass(frozen=True)
class Block:
    """An inverted residual block or a separable convolution.

    The block computes an expansion, a depthwise convolution and a projection. The expansion may be
    absent.

    problem: the fusion.
    expand: the expansion. It is a 1x1 convolution, or a network's first convolution, which has
    larger windows. None if the block is a separable convolution.
    depthwise: the depthwise convolution.
    project: the projection, a 1x1 convolution.
    excite: the squeeze-and-excite layer between depthwise and project; None if there is none.
    given: the layer that computes the image from another tensor, such as bytes in NHWC; None if the
    block reads the image itself.
    """

    problem: FusionProblem
    expand: Conv2dProblem | None
    depthwise: Conv2dProblem
    project: Conv2dProblem
    excite: SqueezeExciteLayer | None = None
    given: ElementwiseProblem | None = None

    @property
    def convolutions(self) -> tuple[Conv2dProblem, ...]:
        """The two or three convolutions in the order of execution."""
        first = () if self.expand is None else (self.expand,)
        return (*first, self.depthwise, self.project)

    @property
    def channels(self) -> int:
        """Number of channels of the block's input."""
        return self.convolutions[0].channels

    @property
    def gathers(self) -> bool:
        """Whether the first convolution reads windows of an image."""
        return self.expand is not None and self.expand.kernel != (1, 1)

    @property
    def expanded_inputs(self) -> int:
        """Number of inputs of each expanded value; 0 without an expansion."""
        return 0 if self.expand is None else self.expand.depth

    @property
    def hidden(self) -> int:
        """Number of hidden channels: those of the depthwise convolution."""
        return self.depthwise.channels

    @property
    def out_channels(self) -> int:
        """Number of channels of the block's output."""
        return self.project.out_channels

    def halo(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the numbers of input rows and columns that a tile of depthwise outputs reads."""
        p = self.depthwise
        return ((rows - 1) * p.stride[0] + p.kernel[0], (columns - 1) * p.stride[1] + p.kernel[1])

    def part(self, convolution: Conv2dProblem) -> int:
        """Return the index of a convolution among the parts of the fusion."""
        return next(number for number, part in enumerate(self.problem.parts)
                    if part is convolution)


def block_of(problem: FusionProblem, expands: bool) -> Block | None:
    """Return a fusion as a block without squeeze-and-excite.

    Returns None if the layers are not a block of this kind.

    expands: whether the block has a convolution that expands its input.
    """
    if len(problem.parts) != 2 + expands:
        return None
    *first, depthwise, project = problem.parts
    if not all(map(is_product, first)):
        return None
    return _block(problem, first, depthwise, project)


def stem_block_of(problem: FusionProblem) -> Block | None:
    """Return a fusion as a block that begins with a network's first convolution.

    Returns None if the layers are not a block of this kind. A layer that computes the image from
    the network's input may precede the first convolution.
    """
    if len(problem.parts) not in (3, 4):
        return None
    *before, first, depthwise, project = problem.parts
    if not all(map(makes_image, before)):
        return None
    if not isinstance(first, Conv2dProblem) or first.kernel == (1, 1) or first.groups > 1 or (
            first.channels > _MOST_IMAGE_CHANNELS or first.depth > _MOST_GATHERED):
        return None
    block = _block(problem, [first], depthwise, project)
    given = next((part for part in before if isinstance(part, ElementwiseProblem)), None)
    return None if block is None else replace(block, given=given)


def excited_block_of(problem: FusionProblem) -> Block | None:
    """Return a fusion as a block with squeeze-and-excite; None if it is not one."""
    if len(problem.parts) not in map(len, EXCITED_PATTERNS):
        return None
    *first, depthwise, _, _, _, _, project = problem.parts
    before = len(first)
    block = _block(problem, first, depthwise, project)
    layer = layer_within(problem, before + 1, (before, 0))
    if block is None or layer is None or layer.tensors or not all(map(is_product, first)):
        return None
    return replace(block, excite=layer)


def _block(problem: FusionProblem, first: Sequence[Problem], depthwise: Problem,
           project: Problem) -> Block | None:
    """Return the block of a fusion.

    Returns None if `depthwise` is not a depthwise convolution, if `project` is not a 1x1
    convolution without groups, or if the parts are not a chain. In a chain, the first input of each
    part is the result of the previous part. Only an element-wise part may read the previous result
    as another input instead.

    first: the expanding convolution; empty if there is none.
    """
    convolutions = [part for part in (*first, depthwise, project)
                    if isinstance(part, Conv2dProblem)]
    if len(convolutions) != len(first) + 2 or not isinstance(depthwise, Conv2dProblem) or (
            not isinstance(project, Conv2dProblem) or not depthwise.is_depthwise):
        return None
    if project.kernel != (1, 1) or project.groups > 1:
        return None
    chained = all((number - 1, 0) in sources and (
        sources[0] == (number - 1, 0) or isinstance(part, ElementwiseProblem))
        for number, (part, sources) in enumerate(zip(problem.parts, problem.sources, strict=True))
        if number)
    if not chained or problem.sources[0][0] != ENTRY:
        return None
    return Block(problem, convolutions[0] if first else None, depthwise, project)


def of_batch(block: Block, batch: int) -> Block:
    """Return a block with another batch size."""
    problem = replace(block.problem, parts=tuple(
        _with_batch(part, batch) for part in block.problem.parts))
    other = (excited_block_of(problem) if block.excite is not None
             else stem_block_of(problem) if block.gathers
             else block_of(problem, block.expand is not None))
    assert other is not None
    return other


def _with_batch(part: Problem, batch: int) -> Problem:
    """Return a part of a block with another batch size."""
    if isinstance(part, ReduceProblem | PoolProblem):
        return replace(part, input=default_spec((batch, *part.input.shape[1:])))
    if isinstance(part, ElementwiseProblem):
        return replace(part, operands=tuple(
            spec if index in part.constants else default_spec((batch, *spec.shape[1:]))
            for index, spec in enumerate(part.operands)))
    assert isinstance(part, Conv2dProblem)
    return replace(part, batch=batch)


def reason_unfused(block: Block) -> str | None:
    """Return why no kernel can compute the whole block; None if one can."""
    last = len(block.problem.parts) - 1
    if block.problem.exits != ((last, 0),):
        return "a value inside the block is read elsewhere"
    for name, part in (("expands", block.expand), ("projects", block.project)):
        if part is not None and part.kernel == (1, 1) and not part.is_pointwise:
            return (f"{name} with stride {part.stride} and pads {part.pads}; needs stride 1 and "
                    "no pads")
    depthwise = block.depthwise
    if depthwise.out_channels != depthwise.channels:
        return (f"needs a depthwise convolution with one output per channel, not "
                f"{depthwise.out_channels} outputs of {depthwise.channels} channels")
    if depthwise.dilation != (1, 1):
        return f"the depthwise convolution has dilation {depthwise.dilation}; needs none"
    if max(depthwise.kernel) > LARGEST_KERNEL:
        size = "x".join(map(str, depthwise.kernel))
        return f"needs depthwise filters of at most {LARGEST_KERNEL} rows and columns, not {size}"
    inner = block.convolutions[:-1]
    if block.excite is not None:
        small = (block.excite.squeeze, block.excite.excite)
        if not all(part.is_pointwise for part in small):
            return "needs squeeze-and-excite without stride and padding"
        inner += small
    if any(part.epilogue.tensor_count for part in inner):
        return "an epilogue inside the block reads a tensor"
    if any(source != ENTRY for source in block.problem.sources[last][1:]):
        return "the block's result is combined with a tensor other than its input"
    if block.project.epilogue.tensor_count > 1:
        return "the block's result is combined with its input more than once"
    return None


def epilogues(block: Block) -> dict[str, tuple[int, Epilogue]]:
    """Return, for each convolution, its index in the fusion and its epilogue.

    The keys are the prefixes of the epilogues' macros in kernels.
    """
    names = ("EXPAND_", "DEPTHWISE_", "PROJECT_")[-len(block.convolutions):]
    return {name: (block.part(part), part.epilogue)
            for name, part in zip(names, block.convolutions, strict=True)}
