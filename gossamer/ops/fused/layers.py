"""Layers and epilogues that several fusions recognise.

A squeeze-and-excite layer may be a whole fusion, or lie within a larger block. Source: J. Hu,
L. Shen, G. Sun, "Squeeze-and-excitation networks", CVPR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem, Source
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem


def is_product(part: Problem) -> bool:
    """Return whether a problem is a 1x1 convolution in one group."""
    return isinstance(part, Conv2dProblem) and part.kernel == (1, 1) and part.groups == 1


def is_image_mean(part: Problem) -> bool:
    """Return whether a problem is the mean of each channel over the whole image."""
    if isinstance(part, ReduceProblem):
        return part.kind == "mean" and sorted(part.axes) == [2, 3] and (
            len(part.input.shape) == 4 and part.input.dtype == "float32")
    return isinstance(part, PoolProblem) and part.kind == "average" and (
        part.kernel == part.input.shape[2:] and not any(part.pads)
        and (part.out_height, part.out_width) == (1, 1))


PARTS = 4
"""Number of parts of a squeeze-and-excite layer: the mean, two products, and the scaling."""


@dataclass(frozen=True)
class SqueezeExciteLayer:
    """A squeeze-and-excite layer.

    Each channel of an image is scaled by a number, its gate. Two small products compute the gates
    from the means of all channels.

    squeeze: the product that computes a few numbers from the means.
    excite: the product that computes the gates from these numbers.
    scale: the expression that scales an element of the image. Its first operand is the gate of the
    element's channel; its further operands are the elements with the same index in other tensors.
    tensors: the sources of the other tensors.
    """

    squeeze: Conv2dProblem
    excite: Conv2dProblem
    scale: Epilogue
    tensors: tuple[Source, ...] = ()

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.squeeze.channels

    @property
    def squeezed(self) -> int:
        """Numbers that the first product makes."""
        return self.squeeze.out_channels


def layer_within(problem: FusionProblem, first: int, x: Source) -> SqueezeExciteLayer | None:
    """Return PARTS parts of a fusion as a squeeze-and-excite layer.

    None where they are no such layer.

    first: the number of the first part.
    x: the source of the image.
    """
    mean, squeeze, excite, scale = problem.parts[first:first + PARTS]
    if not is_image_mean(mean) or not isinstance(scale, ElementwiseProblem):
        return None
    if not isinstance(squeeze, Conv2dProblem) or not isinstance(excite, Conv2dProblem):
        return None
    chain = ((x,), ((first, 0),), ((first + 1, 0),))
    if problem.sources[first:first + 3] != chain or excite.out_channels != squeeze.channels:
        return None
    if not is_product(squeeze) or not is_product(excite):
        return None
    scaled = _scale_of(scale, problem.sources[first + 3], x, (first + 2, 0))
    return None if scaled is None else SqueezeExciteLayer(squeeze, excite, *scaled)


def _scale_of(scale: ElementwiseProblem, sources: tuple[Source, ...], x: Source, gates: Source
              ) -> tuple[Epilogue, tuple[Source, ...]] | None:
    """Return the scaling of an element and the other tensors.

    None where the element or its gate is not read exactly once, or a tensor is read twice.
    """
    if scale.constants or scale.dtypes != ("float32",) or len(set(sources)) != len(sources):
        return None
    if x not in sources or gates not in sources:
        return None
    others = tuple(source for source in sources if source not in (x, gates))
    image = scale.operands[sources.index(x)]
    if scale.outputs[0].shape != image.shape or any(
            scale.operands[sources.index(source)] != image for source in others):
        return None
    order = [sources.index(source) for source in (x, gates, *others)]
    kinds = ("channel", *("tensor" for _ in others))
    return Epilogue(scale.expression.with_inputs(order), kinds), others


def without_bias(epilogue: Epilogue) -> tuple[int | None, Epilogue]:
    """Return an epilogue's first bias and its other steps.

    The bias is the number of the channel operand that the first step adds. Returns None and the
    whole epilogue where the first step is no such addition, or the value before the addition is
    read again or is an output.
    """
    expression, operands = epilogue.expression, epilogue.operands
    steps = expression.steps
    if not steps or steps[0].function != "add" or 0 not in steps[0].arguments:
        return None, epilogue
    bias, first = sum(steps[0].arguments), expression.inputs
    is_read_again = 0 in expression.outputs or any(0 in step.arguments for step in steps[1:])
    if is_read_again or not 0 < bias < first or operands[bias - 1] != "channel":
        return None, epilogue

    def renumbered(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if value == first else value - (value > first) for value in values)

    rest = Expression(first, tuple(replace(step, arguments=renumbered(step.arguments))
                                   for step in steps[1:]), renumbered(expression.outputs))
    return bias - 1, Epilogue(rest, operands)
