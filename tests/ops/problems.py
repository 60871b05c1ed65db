"""Problems that together build every kernel of the simple ops in every form."""

from __future__ import annotations

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy.problem import convert, slice_, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem, cast
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.tensor import Format, TensorSpec, default_spec

_IMAGE = default_spec((1, 16, 6, 6))
_ODD = default_spec((1, 15, 6, 6))
_PAIR = default_spec((2, 15, 3, 3))
_CONSTANTS = {"clip": (float("-inf"), 6.0), "leaky_relu": (0.1,), "hard_sigmoid": (0.2, 0.5),
              "constant": (float("nan"),)}
_EVERY_FUNCTION = Expression(3, tuple(
    ExpressionStep(name, tuple(range(function.arity)), _CONSTANTS.get(name, ()))
    for name, function in FUNCTIONS.items()), tuple(range(3, 3 + len(FUNCTIONS))))

_PACKED = [Format("packed32", "bits"), Format("packed64", "trits"), Format("packed64", "bits"),
           Format("packed32", "trits")]
_REALS = [Format("NCHW"), Format("NHWC", "float16")]
_CONVERSIONS_OF_PACKED_VALUES = [
    convert(TensorSpec(_ODD.shape, source), TensorSpec(_ODD.shape, target), (PLUS_MINUS_ONE,))
    for index, packed in enumerate(_PACKED) for real in [_REALS[index // 2]]
    for source, target in [(real, packed), (packed, real), (packed, _PACKED[index - 1])]]

_POSITIVE_DIVISION = Expression(2, (
    ExpressionStep("constant", (), (60.0,)), ExpressionStep("add", (1, 2)),
    ExpressionStep("div", (0, 3)), ExpressionStep("greater", (4, 2))), (4, 5))

PROBLEMS = {
    "batch_norm": [BatchNormProblem(default_spec((2, 2, 3, 3)), 1e-3, momentum)
                   for momentum in (None, 0.9)],
    "pool": [PoolProblem(_IMAGE, "max", (3, 3)), PoolProblem(_ODD, "average", (3, 3)),
             PoolProblem(_ODD, "max", (3, 3), facts=(PLUS_MINUS_ONE,))],
    "reduce": [
        ReduceProblem(_IMAGE, "mean", (2, 3)), ReduceProblem(_ODD, "max", (0, 2)),
        ReduceProblem(default_spec((3, 400), "int64"), "sum", (1,)),
        ReduceProblem(default_spec((3, 400), "int32"), "max", (1,)),
    ],
    "softmax": [SoftmaxProblem(default_spec((2, 1000)), 1), SoftmaxProblem(_IMAGE, 1, True)],
    "top_k": [
        TopKProblem(default_spec((3, 400)), 1, 5), TopKProblem(_IMAGE, 1, 1, places_only=True),
        TopKProblem(default_spec((3, 40), "int32"), 1, 3, largest=False),
        TopKProblem(default_spec((2, 9, 17), "int64"), 1, 2),
    ],
    "resize": [
        ResizeProblem(_IMAGE, (8, 8), (4 / 3, 4 / 3), mode) for mode in ("nearest", "linear")
    ],
    "pad": [
        PadProblem(_IMAGE, (1,) * 8, "constant"), PadProblem(_IMAGE, (0, 0, 1, 1) * 2, "reflect"),
        PadProblem(default_spec((2,) * 5, "int64"), (1,) * 10, "edge"),
        PadProblem(default_spec((3, 3), "bool"), (1,) * 4),
    ],
    "copy": [
        convert(_IMAGE, TensorSpec(_IMAGE.shape, Format("NHWC"))),
        convert(_ODD, TensorSpec(_ODD.shape, Format("NHWC", "float32", 4, (1, 1, 1, 1)))),
        convert(_ODD, TensorSpec(_ODD.shape, Format("NCHW", "float32", 4, (1, 1, 1, 1)))),
        transpose(default_spec(_ODD.shape, "uint8"), (0, 3, 1, 2)),
        slice_(default_spec(_ODD.shape, "int64"), [0], [5], [3], [2]),
        transpose(default_spec((2, 3, 2, 3, 2, 3)), (5, 0, 3, 2, 1, 4)),
        *_CONVERSIONS_OF_PACKED_VALUES,
    ],
    "concat": [ConcatProblem((_IMAGE, _ODD), 1),
               ConcatProblem((default_spec((2, 64, 3, 3)), _PAIR), 1, (PLUS_MINUS_ONE,) * 2)],
    "gather": [GatherProblem(_ODD, default_spec((3,), "int64"), 1),
               GatherProblem(default_spec((4, 4), "bool"), default_spec((), "int32"), 0)],
    "layer_norm": [LayerNormProblem(default_spec((70, 40)), (1,)), LayerNormProblem(_IMAGE, (1,)),
                   LayerNormProblem(default_spec((1, 8193)), (1,), centred=False),
                   LayerNormProblem(default_spec((2, 36)), (1,))],
    "matmul": [MatmulProblem(default_spec((2, 20, 18)), default_spec((18, 17))),
               MatmulProblem(default_spec((2, 18, 20)), default_spec((17, 18)),
                             transposed=(0, 1))],
    "conv_transpose2d": [ConvTranspose2dProblem(_IMAGE, 4, (3, 3), (2, 2), bias=True)],
    "elementwise": [
        ElementwiseProblem((_IMAGE, default_spec((16, 1, 1)), default_spec(())), _EVERY_FUNCTION,
                           ("float32",) * len(FUNCTIONS), (1, 2)),
        ElementwiseProblem((default_spec((9,), "int64"),) * 2,
                           _POSITIVE_DIVISION, ("int64", "uint8")),
        ElementwiseProblem((_ODD,), apply("leaky_relu", 0.1)),
        *(cast(default_spec((16,), source), target)
          for source, target in [
              ("float32", "bool"), ("bool", "float32"), ("uint8", "int32"), ("float32", "int8"),
              ("int8", "float32"), ("uint16", "int16")]),
    ],
}

BUILT = {
    **PROBLEMS,
    "backprop": [
        BackpropProblem((1024, 32, 10), 100, 100),
        BackpropProblem((784, 100, 10), 400, 400, "relu", "cross_entropy", 200, adam=True),
        BackpropProblem((40, 20, 10), 100, 100, "relu", "cross_entropy", 4, velocity=True),
    ],
}
"""PROBLEMS and problems of back-propagation, whose inputs cannot be arbitrary numbers."""
