"""Nodes of one operator, by operator: their inputs and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.model.onnx_models import Input, weights

IMAGE = Input((2, 4, 7, 6))
MATRIX = Input((3, 5))
LINE = Input((2, 4, 9))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


SINCE = {
    "HardSwish": 14, "Mish": 18, "LessOrEqual": 12, "GreaterOrEqual": 12, "Celu": 12, "Gelu": 20,
    "LayerNormalization": 17, "GroupNormalization": 21,
}
CONV = {"Conv": [
    ((IMAGE, weights(6, 4, 3, 2)), {}),
    ((IMAGE, weights(6, 4, 3, 2), weights(6)), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((IMAGE, weights(6, 2, 3, 3), weights(6)), {"group": 2, "dilations": [2, 1]}),
    ((IMAGE, weights(4, 1, 3, 3)), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((IMAGE, weights(8, 1, 2, 3)), {"group": 4, "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((IMAGE, weights(5, 4, 3, 3)), {"auto_pad": "VALID", "kernel_shape": [3, 3]}),
    ((LINE, weights(6, 2, 3), weights(6)), {"group": 2, "strides": [2], "pads": [1, 2],
                                            "dilations": [2]}),
    ((LINE, weights(6, 4, 4)), {"auto_pad": "SAME_UPPER", "strides": [2]}),
], "ConvTranspose": [
    ((IMAGE, weights(4, 3, 3, 2)), {}),
    ((IMAGE, weights(4, 3, 3, 2), weights(6)), {"group": 2, "strides": [2, 3],
                                                "pads": [1, 0, 0, 1]}),
    ((IMAGE, weights(4, 3, 3, 3), weights(3)), {"strides": [2, 2], "output_padding": [1, 0],
                                                "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
    ((IMAGE, weights(4, 3, 3, 3)), {"strides": [2, 2], "output_shape": [14, 13]}),
    ((IMAGE, weights(4, 3, 4, 3)), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((IMAGE, weights(4, 3, 3, 3)), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((LINE, weights(4, 3, 3), weights(3)), {"strides": [2], "pads": [1, 0],
                                            "output_padding": [1]}),
]}
PRODUCTS = {"Gemm": [
    ((MATRIX, weights(5, 4)), {}),
    ((MATRIX, weights(4, 5), weights(4)), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ((MATRIX, weights(5, 4), weights(1, 4)), {"alpha": 1.5}),
    ((MATRIX, weights(5, 4), floats(2)), {"beta": 0.25}),
    ((MATRIX, weights(5, 4), weights(3, 4)), {"beta": 3.0}),
    ((MATRIX, weights(5, 4), weights(3, 1)), {}),
    ((MATRIX, weights(3, 4)), {"transA": 1}),
    ((MATRIX, Input((5, 4), free=False), Input((3, 4))), {"alpha": 2.0, "beta": -1.0}),
], "MatMul": [
    ((MATRIX, weights(5, 4)), {}),
    ((Input((2, 3, 5)), weights(5, 4)), {}),
    ((Input((2, 3, 4, 5)), Input((2, 1, 5, 6))), {}),
    ((Input((2, 3, 5)), weights(5)), {}),
    ((weights(2, 3), Input((3, 4))), {}),
], "BatchNormalization": [
    ((shape, weights(4), weights(4, seed=1), weights(4, seed=2), np.abs(weights(4, seed=3))),
     {"epsilon": 1e-3, "momentum": 0.8}) for shape in (IMAGE, LINE, Input((3, 4)))
]}
POOLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "MaxPool": [
        ((IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
        ((IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((LINE,), {"kernel_shape": [3], "strides": [2]}),
    ],
    "AveragePool": [
        ((IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 0, 0]}),
        ((IMAGE,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ((IMAGE,), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((LINE,), {"kernel_shape": [2], "strides": [2], "pads": [1, 0]}),
    ],
    "GlobalAveragePool": [((IMAGE,), {}), ((LINE,), {})],
    "GlobalMaxPool": [((IMAGE,), {})],
    "ReduceMax": [((IMAGE,), {"keepdims": 0})],
}
UNARY: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    **{op: [((IMAGE,), {})] for op in (
        "Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Exp", "Sign", "Abs",
        "Neg", "Floor", "Ceil", "Elu", "Softplus", "Reciprocal", "Mish", "Identity", "Dropout",
        "Erf", "Celu", "Selu", "Gelu", "Softsign", "Sin", "Cos", "Atan")},
    "Tan": [((Input((2, 4, 5), -1.4, 1.4),), {})],
    **{op: [((Input((2, 4, 5), 0.1, 4),), {})] for op in ("Log", "Sqrt")},
    "PRelu": [((IMAGE, weights(4, 1, 1)), {}), ((MATRIX, weights(1)), {})],
}
UNARY["LeakyRelu"].append(((MATRIX,), {"alpha": 0.3}))
UNARY["HardSigmoid"].append(((MATRIX,), {"alpha": 0.4, "beta": 0.3}))
UNARY["Elu"].append(((MATRIX,), {"alpha": 0.7}))
UNARY["Celu"] += [((MATRIX,), {"alpha": alpha}) for alpha in (0.6, -0.5)]
UNARY["Selu"].append(((MATRIX,), {"alpha": 1.2, "gamma": 0.9}))
UNARY["Gelu"].append(((MATRIX,), {"approximate": "tanh"}))
BINARY = {
    **{op: [((IMAGE, Input((2, 4, 1, 1))), {}), ((MATRIX, weights(5)), {}),
            ((floats(1.5), MATRIX), {}), ((weights(2, 1, 1), MATRIX), {})]
       for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")},
    "Sum": [((MATRIX, weights(3, 1), MATRIX), {}), ((MATRIX,), {})],
    "Mean": [((MATRIX, weights(3, 1), MATRIX), {})],
    "Max": [((MATRIX,), {}), ((MATRIX, weights(1, 5), floats(0.5)), {})],
    "Pow": [((Input((2, 5), 0.1, 2), weights(5)), {}), ((MATRIX, np.float32(2)), {}),
            ((Input((2, 5), 0.1, 2), np.float32(0.5)), {}), ((MATRIX, floats(3)), {})],
}
MOVES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Concat": [((IMAGE, Input((2, 3, 7, 6))), {"axis": 1}), ((MATRIX, MATRIX), {"axis": -1}),
               ((LINE, weights(2, 4, 2)), {"axis": 2})],
    "Flatten": [((IMAGE,), {}), ((IMAGE,), {"axis": 3}), ((LINE,), {"axis": 1})],
    "Reshape": [((IMAGE, ints(0, -1)), {}), ((IMAGE, ints(-1, 2, 2, 0)), {}),
                ((IMAGE, ints(-1, 42)), {}), ((LINE, ints(0, 2, 2, 9)), {})],
    "Transpose": [((IMAGE,), {"perm": [0, 2, 3, 1]}), ((MATRIX,), {})],
    "DepthToSpace": [((Input((2, 12, 3, 5)),), {"blocksize": 2})],
    "SpaceToDepth": [((Input((2, 3, 4, 6)),), {"blocksize": 2})],
    "Expand": [((Input((2, 1, 5)), ints(2, 3, 1)), {}), ((MATRIX, ints(2, 1, 5)), {})],
    "Gather": [((IMAGE, ints(2, 0, -1)), {"axis": 1}), ((IMAGE, np.array(-2)), {"axis": 2}),
               ((IMAGE, ints(1, 0).reshape(2, 1)), {"axis": 3})],
}
COMPARISONS = ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
SLICES = [([1, 0], [3, -1], [1, 2], [1, 1]), ([-3], [1 << 62], [3], [1]),
          ([0], [100], [0], [1])]
STRIDED_SLICES = [([5, -1], [0, -100], [2, 3], [-2, -1]), ([0, 1], [7, 6], [2, 3], [3, 2])]
RESIZES = [
    ("nearest", mode, rounding) for mode in ("asymmetric", "half_pixel", "align_corners")
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
] + [("linear", mode, "floor")
     for mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")]
