"""Recognises kinds of parts that occur in several fusions."""

from __future__ import annotations

from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem


def is_product(part: Problem) -> bool:
    """Returns whether a problem is a 1x1 convolution in one group."""
    return isinstance(part, Conv2dProblem) and part.kernel == (1, 1) and part.groups == 1


def is_image_mean(part: Problem) -> bool:
    """Returns whether a problem is the mean of each channel over the whole image."""
    if isinstance(part, ReduceProblem):
        return part.kind == "mean" and sorted(part.axes) == [2, 3] and (
            len(part.input.shape) == 4 and part.input.dtype == "float32")
    return isinstance(part, PoolProblem) and part.kind == "average" and (
        part.kernel == part.input.shape[2:] and not any(part.pads)
        and (part.out_height, part.out_width) == (1, 1))
