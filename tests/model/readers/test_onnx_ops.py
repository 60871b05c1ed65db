"""Compares ONNX ops with several attributes at once with ONNX Runtime; each attribute alone is in
operator_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gossamer.model.readers.onnx.reader import NEWEST_OPSET
from tests.model.onnx_models import Input, compare, model, single, weights

IMAGE = Input((2, 4, 7, 6))
MATRIX = Input((3, 5))
LINE = Input((2, 4, 9))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


SINCE = {"LayerNormalization": 17, "GroupNormalization": 21}
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
NORMALISATIONS = {
    "LayerNormalization": [
        ((IMAGE, weights(6)), {}), ((LINE, weights(9), weights(9, seed=1)), {"epsilon": 0.1}),
        ((IMAGE, weights(4, 7, 6), weights(4, 7, 6, seed=1)), {"axis": 1}),
        ((IMAGE, weights(6), weights(7, 1, seed=1)), {"axis": -2}),
        ((IMAGE, Input((6,), free=False), weights(6)), {}),
        ((IMAGE, weights(6), Input((6,), free=False)), {})],
    "InstanceNormalization": [((shape, weights(4), weights(4, seed=1)), {"epsilon": 1e-3})
                              for shape in (IMAGE, LINE)],
    "GroupNormalization": [((shape, weights(4), weights(4, seed=1)), {"num_groups": 2})
                           for shape in (IMAGE, LINE)],
}


def cases(*tables: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]],
          opsets: tuple[int, ...]) -> list[Any]:
    return [pytest.param(op, opset, arguments, attributes, id=f"{op}-{index}-opset{opset}")
            for table in tables for op, entries in table.items()
            for index, (arguments, attributes) in enumerate(entries)
            for opset in opsets if opset >= SINCE.get(op, 9)
            and (op != "Gemm" or len(arguments) == 3 or opset >= 11)]


@pytest.mark.parametrize(("op", "opset", "arguments", "attributes"), cases(
    CONV, PRODUCTS, NORMALISATIONS, opsets=(9, 17, NEWEST_OPSET)))
def test_op(op: str, opset: int, arguments: tuple[Any, ...], attributes: dict[str, Any],
            tmp_path: Path) -> None:
    compare(*single(op, arguments, opset, **attributes), tmp_path, op)


SLICES = [([1, 0], [3, -1], [1, 2], [1, 1]), ([-3], [1 << 62], [3], [1]),
          ([0], [100], [0], [1])]
STRIDED_SLICES = [([5, -1], [0, -100], [2, 3], [-2, -1]), ([0, 1], [7, 6], [2, 3], [3, 2])]


@pytest.mark.parametrize(("opset", "bounds"), [
    (opset, bounds) for opset in (9, 10, 13, 21)
    for bounds in SLICES + (STRIDED_SLICES if opset > 9 else [])
])
def test_slice(opset: int, bounds: tuple[list[int], ...], tmp_path: Path) -> None:
    starts, ends, axes, _ = bounds
    if opset >= 10:
        proto, feeds = single("Slice", (IMAGE, *[ints(*b) for b in bounds]), opset)
    else:
        proto, feeds = single("Slice", (IMAGE,), opset, starts=starts, ends=ends, axes=axes)
    compare(proto, feeds, tmp_path)


@pytest.mark.parametrize("opset", [9, 11, 13, 21])
@pytest.mark.parametrize(("mode", "pads"), [
    ("constant", [0, 0, 1, 2, 0, 0, 0, 1]), ("constant", [0, 1, 0, 0, 0, 2, 0, 0]),
    ("reflect", [0, 0, 2, 1, 0, 0, 3, 1]), ("edge", [0, 0, 2, 1, 0, 0, 3, 9]),
    ("constant", [0, 0, -1, 2, 0, 0, -2, 0]), ("constant", [0, 0, -1, 0, 0, 0, 0, -2]),
])
def test_pad(opset: int, mode: str, pads: list[int], tmp_path: Path) -> None:
    if opset < 11:
        value = {"value": 0.5} if mode == "constant" else {}
        proto, feeds = single("Pad", (IMAGE,), opset, mode=mode, pads=pads, **value)
    else:
        value = [np.float32(0.5)] if mode == "constant" else []
        proto, feeds = single("Pad", (IMAGE, ints(*pads), *value), opset, mode=mode)
    compare(proto, feeds, tmp_path)


def test_pad_along_some_axes(tmp_path: Path) -> None:
    compare(*single("Pad", (IMAGE, ints(1, 2, 0, 3), None, ints(3, -2)), 21, mode="edge"),
            tmp_path)


def test_integer_arithmetic_stays_exact(tmp_path: Path) -> None:
    large = Input((3, 5), 2**40, 2**50, "int64")
    compare(*single("Add", (large, ints(1)), 17, types={"y0": TensorProto.INT64}), tmp_path)


def test_what_opset_9_has_changed(tmp_path: Path) -> None:
    compare(*single("Upsample", (IMAGE,), 7, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"), tmp_path)
    channels = IMAGE.shape[1]
    statistics = [weights(channels), weights(channels), weights(channels),
                  np.abs(weights(channels)) + 1]
    compare(*single("BatchNormalization", (IMAGE, *statistics), 7, spatial=1), tmp_path)


def test_operators_that_opset_7_has_not_changed_are_read_from_older_ones(tmp_path: Path) -> None:
    compare(*single("Conv", (IMAGE, weights(2, IMAGE.shape[1], 3, 3)), 6), tmp_path)


@pytest.mark.parametrize(("base", "exponent"), [("int64", "float32"), ("int32", "int64"),
                                                ("float32", "int32"), ("float32", "float32")])
def test_a_power_has_the_dtype_of_its_base(base: str, exponent: str, tmp_path: Path) -> None:
    kinds = {"y0": TensorProto.INT64 if base == "int64" else TensorProto.INT32}
    proto, feeds = single("Pow", (Input((2, 5), 0, 4, base), Input((2, 5), 0, 3, exponent)), 17,
                          types={} if base == "float32" else kinds)
    compare(proto, feeds, tmp_path)


def test_an_exponent_of_one_half_keeps_integers(tmp_path: Path) -> None:
    compare(*single("Pow", (Input((2, 5), 0, 99, "int64"), np.float32(0.5)), 17,
                    types={"y0": TensorProto.INT64}), tmp_path)


def test_cast_like(tmp_path: Path) -> None:
    compare(*single("CastLike", (IMAGE, ints(1)), 17, types={"y0": TensorProto.INT64}), tmp_path)
    compare(*single("CastLike", (IMAGE, MATRIX), 17), tmp_path)


def test_weights_that_are_scaled_leave_constants_of_other_names_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "v"], ["y"], alpha=2.0, beta=0.5),
             helper.make_node("Sum", ["y", "y.b", "y.c", "y.bias"], ["z"])]
    constants = {"w": weights(5, 4), "v": weights(1, 4),
                 **{f"y.{role}": weights(3, 4, seed=index)
                    for index, role in enumerate(("b", "c", "bias"))}}
    compare(model(nodes, {"x": (3, 5)}, {"z": 2}, constants), {"x": MATRIX.draw(0)}, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_may_come_in_any_order(seed: int, tmp_path: Path) -> None:
    reads = {"a": "x", "b": "x a", "c": "a", "d": "c b", "e": "d d a", "y": "e b"}
    nodes = [helper.make_node("Sum", names.split(), [name]) for name, names in reads.items()]
    np.random.default_rng(seed).shuffle(nodes)
    compare(model(nodes, {"x": (3, 5)}, {"y": 2}), {"x": MATRIX.draw(0)}, tmp_path)
