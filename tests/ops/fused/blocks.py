"""Problems of inverted residual blocks and of separable convolutions."""

from __future__ import annotations

from dataclasses import replace

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import ENTRY, FusionProblem, Source
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import Format, default_spec

BIAS = Epilogue(apply("add"), ("channel",))
BIAS_RELU6 = Epilogue(apply("add").then(apply("clip", 0.0, 6.0)), ("channel",))
BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
BIAS_HARD_SIGMOID = Epilogue(apply("add").then(apply("hard_sigmoid", 1 / 6, 0.5)), ("channel",))
BIAS_SIGMOID = Epilogue(apply("add").then(apply("sigmoid")), ("channel",))
BIAS_HARD_SWISH = Epilogue(
    Expression(2, (ExpressionStep("add", (0, 1)),
                   ExpressionStep("hard_sigmoid", (2,), (1 / 6, 0.5)),
                   ExpressionStep("mul", (2, 3)))), ("channel",))
BIAS_SILU = Epilogue(
    Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("sigmoid", (2,)),
                   ExpressionStep("mul", (2, 3)))), ("channel",))
BIAS_RESIDUAL_RELU = Epilogue(apply("add").then(apply("add")).then(apply("relu")),
                              ("channel", "tensor"))
BIAS_RESIDUAL = Epilogue(apply("add").then(apply("add")), ("channel", "tensor"))
QUOTIENT = Epilogue(
    Expression(2, (ExpressionStep("abs", (1,)), ExpressionStep("div", (0, 2)),
                   ExpressionStep("clip", (3,), (-1.0, 1.0)))), ("channel",))
"""An epilogue that is not a number for channels whose operand is 0."""


def block(batch: int, channels: int, hidden: int, out_channels: int, size: tuple[int, int], *,
          kernel: tuple[int, int] = (3, 3), stride: tuple[int, int] = (1, 1),
          pads: tuple[int, int, int, int] | None = None, activation: Epilogue = BIAS_RELU6,
          last: Epilogue | None = None, expands: bool = True,
          dilation: tuple[int, int] = (1, 1)) -> FusionProblem:
    """Return a block; without an expansion `channels` counts for nothing.

    pads: by default half of the kernel. last: the projection's epilogue, by default a bias, and the
    sum with the block's input where the shapes agree.
    """
    pads = pads or (kernel[0] // 2, kernel[1] // 2) * 2
    depthwise = Conv2dProblem(batch, hidden, *size, hidden, kernel, stride, pads, dilation, hidden,
                              activation)
    x = (batch, channels if expands else hidden, *size)
    y = (batch, out_channels, depthwise.out_height, depthwise.out_width)
    if last is None:
        last = BIAS_RESIDUAL if x == y else BIAS
    project = Conv2dProblem(*y[:1], hidden, *y[2:], out_channels, (1, 1), epilogue=last)
    if not expands:
        added = (ENTRY,) * last.tensor_count
        return FusionProblem((depthwise, project), ((ENTRY,), ((0, 0), *added)), ((1, 0),))
    expand = Conv2dProblem(batch, channels, *size, hidden, (1, 1), epilogue=activation)
    added = (ENTRY,) * last.tensor_count
    return FusionProblem((expand, depthwise, project),
                         ((ENTRY,), ((0, 0),), ((1, 0), *added)), ((2, 0),))


def stem(problem: FusionProblem, channels: int, size: tuple[int, int], *,
         kernel: tuple[int, int] = (3, 3), stride: tuple[int, int] = (2, 2),
         pads: tuple[int, int, int, int] = (1, 1, 1, 1), dilation: tuple[int, int] = (1, 1),
         activation: Epilogue = BIAS_RELU6) -> FusionProblem:
    """Return a block without an expansion behind the first convolution of an image of a size."""
    depthwise, project = problem.parts
    first = Conv2dProblem(depthwise.inputs[0].shape[0], channels, *size,
                          depthwise.inputs[0].shape[1], kernel, stride, pads, dilation,
                          epilogue=activation)
    return FusionProblem((first, depthwise, project), ((ENTRY,), ((0, 0),), ((1, 0),)), ((2, 0),))


def given_as(problem: FusionProblem, format_: Format, expression: Expression | None = None
             ) -> FusionProblem:
    """Return a fusion whose first convolution's image is made of what callers give in a format: by
    a product with a number a channel and a sum with another one, or by another expression of such
    numbers."""
    image = problem.inputs[0]
    expression = expression or apply("mul").then(apply("add"))
    numbers = default_spec((image.shape[1], 1, 1))
    given = ElementwiseProblem((image, *(numbers,) * (expression.inputs - 1)), expression,
                               constants=tuple(range(1, expression.inputs)), formats=(format_,))

    def moved(source: Source) -> Source:
        if source == ENTRY:
            return (0, 0)
        return source if source[0] < 0 else (source[0] + 1, source[1])

    return FusionProblem(
        (given, *problem.parts),
        ((ENTRY,), *(tuple(map(moved, sources)) for sources in problem.sources)),
        tuple(map(moved, problem.exits)))


def excited(problem: FusionProblem, squeezed: int, *, inner: Epilogue = BIAS_RELU,
            gate: Epilogue = BIAS_HARD_SIGMOID, scale: Expression | None = None,
            gates_first: bool = False, pooled: bool = False) -> FusionProblem:
    """Return a block with a squeeze-and-excite layer before its projection.

    squeezed: numbers that the first small product makes. inner, gate: epilogues of the two
    products. scale: what is made of a result and its gate, by default their product. gates_first:
    whether the gate is the first operand of that. pooled: whether the mean is a pooling.
    """
    *first, depthwise, project = problem.parts
    number, x = len(first), depthwise.outputs[0]
    small = replace(depthwise, height=1, width=1, kernel=(1, 1), stride=(1, 1), pads=(0,) * 4,
                    dilation=(1, 1), groups=1)
    squeeze = replace(small, out_channels=squeezed, epilogue=inner)
    excite = replace(small, channels=squeezed, epilogue=gate)
    mean = (PoolProblem(x, "average", x.shape[2:], x.shape[2:]) if pooled
            else ReduceProblem(x, "mean", (2, 3)))
    operands, reads = [x, excite.outputs[0]], [(number, 0), (number + 3, 0)]
    if gates_first:
        operands.reverse()
        reads.reverse()
    scaled = ElementwiseProblem(tuple(operands), scale or apply("mul"))
    return FusionProblem(
        (*first, depthwise, mean, squeeze, excite, scaled, project),
        (*problem.sources[:-1], ((number, 0),), ((number + 1, 0),), ((number + 2, 0),),
         tuple(reads), ((number + 4, 0), *problem.sources[-1][1:])), ((number + 5, 0),))


def changed(problem: FusionProblem, part: int, **changes: object) -> FusionProblem:
    """Return a fusion with a part that differs."""
    parts = list(problem.parts)
    parts[part] = replace(parts[part], **changes)
    return replace(problem, parts=tuple(parts))
