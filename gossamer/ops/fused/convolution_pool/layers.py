"""Recognises fusions of a network's first convolution and the max pooling after it, and says which
of these fusions one kernel can compute."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.convolution_pool.tiling import TAPS
from gossamer.ops.fused.problem import ENTRY, FusionProblem
from gossamer.ops.image import makes_image
from gossamer.ops.pool.problem import PoolProblem

MOST_CHANNELS = 4
_MULTIPLE = 8
_MOST_GRID = 65535
"""Work-groups that a grid may have along y and along z."""


@dataclass(frozen=True)
class ConvolutionPool:
    """A convolution of few input channels, and the max pooling of its result.

    problem: the fusion.
    given: the layer that computes the convolution's image from the network's input; None where the
    network's input is the image itself.
    convolution: the convolution.
    pool: the max pooling.
    """

    problem: FusionProblem
    given: ElementwiseProblem | None
    convolution: Conv2dProblem
    pool: PoolProblem


def convolution_pool_of(problem: FusionProblem) -> ConvolutionPool | None:
    """Returns the layers of a fusion; None where the layers are not a first convolution and the max
    pooling of its result."""
    *before, convolution, pool = problem.parts
    if not (isinstance(convolution, Conv2dProblem) and isinstance(pool, PoolProblem)):
        return None
    if convolution.channels > MOST_CHANNELS or convolution.groups > 1 or pool.kind != "max":
        return None
    count = len(before)
    if problem.sources[-1] != ((count, 0),) or count > 1:
        return None
    if not before:
        is_first = problem.sources[0][0] == ENTRY
        return ConvolutionPool(problem, None, convolution, pool) if is_first else None
    (given,) = before
    if not makes_image(given) or problem.sources[1][0] != (0, 0):
        return None
    assert isinstance(given, ElementwiseProblem)
    return ConvolutionPool(problem, given, convolution, pool)


def reason_apart(layers: ConvolutionPool) -> str | None:
    """Returns why no kernel computes the layers in one step, as shown to the user; None where a
    kernel may compute them."""
    convolution, pool = layers.convolution, layers.pool
    if layers.problem.exits != ((len(layers.problem.parts) - 1, 0),):
        return "a value between the layers is read elsewhere"
    if convolution.epilogue.tensor_count:
        return "adds a tensor to the convolution's result"
    if convolution.dilation != (1, 1) or pool.dilation != (1, 1):
        return "takes windows without dilation"
    if convolution.kernel[1] > TAPS:
        return f"windows of {convolution.kernel[1]} columns, takes at most {TAPS}"
    if convolution.out_channels % _MULTIPLE:
        return f"{convolution.out_channels} output channels, takes multiples of {_MULTIPLE}"
    if pool.kernel[0] > 2 * pool.stride[0]:
        return ("takes maxima of windows of at most twice their step, not of "
                f"{pool.kernel[0]} rows with a step of {pool.stride[0]}")
    if any(pad >= length for pad, length in zip(pool.pads, pool.kernel * 2, strict=True)):
        return "some maximum may have no value"
    if max(pool.out_height, convolution.batch) > _MOST_GRID:
        return f"more than {_MOST_GRID} rows of results, or images"
    return None
