"""Operators on quantised values are recorded with scales and zero points of every form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.errors import GossamerError, UnsupportedError
from gossamer.model.compose import Composer
from gossamer.model.infer.resolve import resolve
from gossamer.model.readers.onnx.integer_sums import check_depth, slices, total
from gossamer.model.readers.onnx.integers import Centred, Integers, are_same
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.onnx_models import model
from tests.recorded import Recorded, digest
from tests.recorded.graphs import (
    array_text,
    brief,
    error_text,
    expression_text,
    graph_text,
    needs_onnx,
    outcome,
    static_text,
)

pytestmark = needs_onnx

SHOWN = 90
MICROSOFT = "com.microsoft"
Arguments = tuple[Any, ...]
"""The inputs of a node: arrays that are constants, shapes of values of a dtype that the data
decide, as (dtype, size, ...), and None."""


def ints(dtype: str, *shape: int) -> np.ndarray:
    """Returns small integers, of both signs where the dtype has them."""
    numbers = np.arange(np.prod(shape)) * 7 % 11 - (0 if dtype[0] == "u" else 5)
    return numbers.reshape(shape).astype(dtype)


def result(proto: onnx.ModelProto) -> str:
    """Returns the graph, with a digest of the static graph and its value facts."""
    try:
        graph = load_onnx(proto)
        text = f"{len(graph.nodes)} {brief(graph_text(graph), SHOWN)}"
        return f"{text} |{digest(static_text(resolve(graph, 2)))}"
    except GossamerError as error:
        return error_text(error)


def of_node(op: str, arguments: Arguments, *, outputs: int = 1, y: str = "uint8", domain: str = "",
            opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Returns a network of one node."""
    names, inputs, constants, types = [], {}, {}, {"y0": y}
    for index, argument in enumerate(arguments):
        names.append("" if argument is None else f"x{index}")
        if isinstance(argument, np.ndarray | np.generic):
            constants[names[-1]] = np.asarray(argument)
        elif argument is not None:
            types[names[-1]], *shape = argument
            inputs[names[-1]] = ["N", *shape[1:]] if shape else []
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, "n", domain=domain, **attributes)
    proto = model([node], inputs, dict.fromkeys(results), constants, opset, {
        name: helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for name, kind in types.items()})
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


S, F = np.float32(0.5), np.float32
SCALES: tuple[Any, ...] = (
    F(0.25), F([0.5]), F([0.5, 0.25, 1]), F([0.5, 0.25]), F([[0.5], [0.25], [1]]), F(0), F(-1),
    F(np.nan), F(np.inf), F([0.5, 0.25, 0]), np.array(2), None, ("float32",), F([1, 2, 3, 4]))
ZEROS: tuple[Any, ...] = (
    np.uint8(0), np.uint8(3), np.int8(-3), np.uint16(5), np.int16(-5), np.int32(0), np.int32(1),
    np.uint8([3]), np.uint8([1, 2, 3]), np.uint8([1, 2]), np.int8([1, 0, 2]), F(1), np.int64(0),
    None, ("uint8",), np.uint8([1, 2, 3, 4]), np.int8([0, 0, 0]))
U8 = np.uint8(3)
_X = ("uint8", 2, 4, 5, 6)
_W = ints("int8", 3, 4, 3, 2)
_ROWS = ("uint8", 2, 4)

NODES: dict[str, tuple[Arguments, dict[str, Any], dict[int, str]]] = {
    "QuantizeLinear": ((("float32", 2, 3), S, U8), {}, {1: "scale", 2: "zero"}),
    "DequantizeLinear": ((("uint8", 2, 3), S, U8), {"y": "float32"}, {1: "scale", 2: "zero"}),
    "QLinearConv": ((_X, S, U8, _W, F(0.25), np.int8(0), F(2), U8, ints("int32", 3)), {}, {
        1: "scale", 2: "zero", 4: "scale", 5: "zero", 6: "scale", 7: "zero"}),
    "QLinearMatMul": ((_ROWS, S, U8, ints("int8", 4, 3), F(0.25), np.int8(1), F(2), U8), {}, {
        1: "scale", 2: "zero", 4: "scale", 5: "zero", 6: "scale", 7: "zero"}),
    "MatMulInteger": ((_ROWS, ints("int8", 4, 3), U8, np.int8(1)), {"y": "int32"}, {
        2: "zero", 3: "zero"}),
    "ConvInteger": ((_X, _W, U8, np.int8(1)), {"y": "int32"}, {2: "zero", 3: "zero"}),
    "QLinearAdd": ((_ROWS, S, U8, _ROWS, F(0.25), np.uint8(1), F(2), U8), {"domain": MICROSOFT}, {
        1: "scale", 2: "zero", 4: "scale", 5: "zero", 6: "scale", 7: "zero"}),
    "QLinearMul": ((_ROWS, S, U8, _ROWS, F(0.25), np.uint8(1), F(2), U8), {"domain": MICROSOFT}, {
        1: "scale", 2: "zero", 6: "scale", 7: "zero"}),
    "QLinearSigmoid": ((_ROWS, S, U8, F(2), U8), {"domain": MICROSOFT}, {3: "scale", 4: "zero"}),
    "QLinearLeakyRelu": ((_ROWS, S, U8, F(2), U8), {"domain": MICROSOFT}, {1: "scale", 2: "zero"}),
    "QLinearAveragePool": ((_X, S, U8, F(2), U8), {"domain": MICROSOFT, "kernel_shape": [2, 2]}, {
        1: "scale", 4: "zero"}),
    "QLinearGlobalAveragePool": ((_X, S, U8, F(2), U8), {"domain": MICROSOFT}, {1: "scale"}),
    "QLinearConcat": ((F(2), U8, _ROWS, S, U8, _ROWS, F(2), U8), {"domain": MICROSOFT, "axis": 1}, {
        0: "scale", 1: "zero", 6: "scale", 7: "zero"}),
    "QGemm": ((_ROWS, S, U8, ints("int8", 4, 3), F(0.25), np.int8(1), ints("int32", 3), F(2), U8),
              {"domain": MICROSOFT}, {1: "scale", 4: "scale", 5: "zero", 7: "scale", 8: "zero"}),
}
"""For each operator the inputs and attributes of a node that is right, and which inputs are scales
and zero points."""
OTHERS: tuple[tuple[str, dict[int, Any], dict[str, Any]], ...] = (
    *((op, {0: (kind, 2, 3, 4), 1: F([1, 2, 3]), 2: zero}, {"axis": axis})
      for op, kind in (("QuantizeLinear", "float32"), ("DequantizeLinear", "uint8"))
      for axis in (0, 1, 2, -2, -3, 3, -4) for zero in (np.uint8([1, 2, 3]), U8, None)),
    *(("QuantizeLinear", {2: None}, {"output_dtype": kind, "opset": 21}) for kind in range(8)),
    *(("QuantizeLinear", {}, {key: value, "opset": 21}) for key, value in (
        ("block_size", 2), ("saturate", 0), ("precision", 1))),
    *(("QuantizeLinear", {0: (kind, 2, 3)}, {}) for kind in ("float16", "int32")),
    *(("DequantizeLinear", {0: (kind, 2, 3), 2: zero}, {})
      for kind in ("int8", "uint8", "int16", "uint16", "int32")
      for zero in (None, np.zeros((), kind), np.uint8(1), np.int32(1))),
    *(("DequantizeLinear", {}, {"output_dtype": kind, "opset": 23}) for kind in (0, 1, 2, 10)),
    ("DequantizeLinear", {}, {"block_size": 2, "opset": 21}),
    *(("QLinearConv", {3: weight, 8: bias}, {"group": group})
      for weight, group in ((ints("int8", 4, 2, 3, 3), 2), (ints("int8", 4, 4, 3, 3), 1),
                            (ints("int8", 4, 1, 3, 3), 4), (ints("int8", 4, 2, 3, 3), 3))
      for bias in (None, ints("int32", 4), ints("int32", 3), np.int32([1, 2, 3, 2**24 + 1]),
                   np.int32([1, 2, 3, 2**24]))),
    *(("QLinearConv", {0: ("uint8", 2, 4, 7), 3: ints("int8", 3, 4, 3), 5: zero, 4: scale}, {})
      for zero, scale in ((np.int8(0), S), (np.int8([1, 0, 2]), F([1, 2, 3])))),
    *(("QLinearConv", {3: weight}, {}) for weight in (
        ints("int8", 3, 4), ints("int8", 3, 4, 1, 1, 1), ("int8", 3, 4, 3, 2))),
    *(("QLinearMatMul", {3: other, 5: zero, 4: scale}, {}) for other in (
        ("int8", 4, 3), ints("int8", 4), ints("int8", 2, 4, 3), ints("int8", 5, 3))
      for zero, scale in ((np.int8(0), S), (np.int8([1, 0, 2]), F([1, 2, 3])))),
    *(("QLinearMatMul", {0: ("uint8", 2, depth), 3: ("int8", depth, 3)}, {})
      for depth in (1, 256, 257, 512)),
    *(("MatMulInteger", {0: first, 1: second, 2: None, 3: zero}, {})
      for first in (_ROWS, ints("uint8", 2, 4), ("int32", 2, 4)) for second in (
        ints("int8", 4, 3), ("int8", 4, 3), ints("int8", 2, 4, 3))
      for zero in (None, np.int8([1, 0, 2]), np.int8([1]), np.int8([[1, 0, 2]]))),
    *(("ConvInteger", {0: ("uint8", 2, 4, 7), 1: ints("int8", 3, 4, 3), 3: zero}, {}) for zero in (
        None, np.int8([1, 0, 2]), np.int8([1, 0]), ("int8",))),
    *(("ConvInteger", {1: weight}, {"group": group}) for weight, group in (
        (ints("int8", 4, 2, 3, 3), 2), (ints("int8", 4, 2, 3, 3), 3), (ints("int8", 3, 4), 1))),
    *(("QGemm", {3: matrix, 5: zero, 4: scale, 6: bias, 7: out, 8: None if out is None else U8},
       {"transB": trans, "alpha": 0.5, "y": "float32" if out is None else "uint8"})
      for matrix, trans in ((ints("int8", 4, 3), 0), (ints("int8", 3, 4), 1))
      for zero, scale in ((np.int8(0), S), (np.int8([1, 0, 2]), F([1, 2, 3])))
      for bias in (None, ints("int32", 3), ints("int32", 4)) for out in (F(2), None)),
    ("QGemm", {}, {"transA": 1}),
    *(("MatMulInteger", {0: ("uint8", 2, depth), 1: np.full((depth, 3), 127, np.int8), 3: zero}, {})
      for depth in (258, 259, 900, 1400) for zero in (np.int8(0), np.int8(-128))),
    *(("QLinearMatMul", {0: ("uint8", 2, depth), 3: np.full((depth, 3), 127, np.int8)}, {})
      for depth in (500, 600, 1400)),
    *(("QLinearConv", {0: (kind, 2, channels, *shape), 3: np.full(
        (4, channels // group, *shape), 127, np.int8), 2: np.array(3, kind), 8: None},
       {"group": group}) for kind in ("uint8", "uint16") for channels in (4, 130, 140)
      for shape in ((2, 2), (4,)) for group in (1, 2)),
    *(("ConvInteger", {0: ("uint8", 2, channels, 2, 2), 1: np.full(
        (4, channels, 2, 2), 127, np.int8)}, {}) for channels in (130, 300)),
    *(("QLinearAveragePool", {}, {key: value}) for key, value in (
        ("channels_last", 1), ("count_include_pad", 1), ("pads", [1, 0, 1, 0]),
        ("strides", [2, 2]), ("ceil_mode", 1))),
    *(("QLinearConcat", {0: F(scale), 1: zero}, {}) for scale in (0.5, 2, 1)
      for zero in (U8, np.uint8(0), np.int8(3), None)),
    ("QLinearConcat", {}, {"axis": 0}), *(("QLinearLeakyRelu", {}, {"alpha": alpha})
                                          for alpha in (0.5, 0.0)),
)
"""Inputs and attributes that are changed together."""


def _changed(arguments: Arguments, changes: Mapping[int, Any]) -> Arguments:
    return tuple(changes.get(index, argument) for index, argument in enumerate(arguments))


def _told(argument: Any) -> str:
    if isinstance(argument, np.ndarray | np.generic):
        return array_text(np.asarray(argument)) if argument.size < 5 else str(argument.shape)
    return "-" if argument is None else " ".join(map(str, argument))


def _node_cases() -> Iterator[tuple[str, onnx.ModelProto]]:
    for op, (arguments, attributes, roles) in NODES.items():
        yield op, of_node(op, arguments, **attributes)
        for count in range(1, len(arguments)):
            yield f"{op} of {count}", of_node(op, arguments[:count], **attributes)
        for index, role in roles.items():
            for other in SCALES if role == "scale" else ZEROS:
                yield f"{op} {index} {_told(other)}", of_node(
                    op, _changed(arguments, {index: other}), **attributes)
    for op, changes, others in OTHERS:
        arguments, attributes, _ = NODES[op]
        told = " ".join([*(f"{index} {_told(other)}" for index, other in changes.items()),
                         *(f"{key}={value}" for key, value in others.items())])
        yield f"{op} with {told}", of_node(op, _changed(arguments, changes),
                                           **{**attributes, **others})
    for shape in ((2, 3), (2, 0), (2,)):
        yield f"DynamicQuantizeLinear {shape}", of_node(
            "DynamicQuantizeLinear", (("float32", *shape),), outputs=3)


@pytest.mark.slow
def test_nodes(without_onnxruntime: None, recorded: Recorded) -> None:
    recorded("quantised_nodes", {case.replace(": ", ":"): result(proto)
                                 for case, proto in _node_cases()})


MIDDLES: dict[str, str] = {
    "Conv": "Conv a,w > b", "Conv with a bias": "Conv a,w,bias > b",
    "Conv with a bias of integers": "Conv a,w,units > b", "Conv of floats": "Conv a,f > b",
    "MatMul": "Flatten a > r; MatMul r,m > b", "Gemm": "Flatten a > r; Gemm r,m,columns > b",
    "Gemm transposed": "Flatten a > r; Gemm r,t > b transB=1",
    "Gemm scaled": "Flatten a > r; Gemm r,m > b alpha=0.5",
    "Gemm of rows": "Flatten a > r; Gemm r,m,rows > b", "Relu": "Relu a > b",
    "Add": "Add a,a > b", "Add of pools": "MaxPool a > p kernel_shape=1,1; Add a,p > b",
    "Add of floats": "Add a,f1 > b", "MaxPool": "MaxPool a > b kernel_shape=2,2",
    "AveragePool": "AveragePool a > b kernel_shape=2,2",
    "GlobalAveragePool": "GlobalAveragePool a > b", "Concat": "Concat a,a > b axis=1",
    "Concat of scales": "Concat a,e > b axis=1", "Concat of floats": "Concat a,x > b axis=1",
    "Transpose": "Transpose a > b perm=0,2,3,1", "Reshape": "Reshape a,shape > b",
    "Split": "Split a > b,b2 axis=1", "Slice": "Slice a,one,two,one > b",
    "Identity": "Identity a > b", "Squeeze": "Flatten a > r; Unsqueeze r,one > b",
    "Expand": "Expand a,wide > b", "two readers": "Conv a,w > b; Relu b > y1",
    "DepthToSpace": "DepthToSpace a > b blocksize=2",
    "MatMul of rows": "MatMul a,h > b", "Gemm of columns": "Reshape a,six > r; Gemm r,h > b",
    "MaxPool of a constant": "MaxPool w > y1 kernel_shape=2,2; Relu a > b",
    "mean of a constant": "GlobalAveragePool w > y1; Relu a > b",
    "Conv of values": "Conv a,a > b", "MatMul of values": "MatMul a,a > b",
    "Gemm of values": "Flatten a > r; Gemm r,r > b transB=1", "Conv of a matrix": "Conv a,t > b",
    "MatMul of pictures": "MatMul a,w > b", "Gemm by a value": "Flatten a > r; Gemm r,m,r > b",
    "Gemm of all": "Flatten a > r; Gemm r,m,columns > b beta=0.5",
    "Gemm transposed first": "Flatten a > r; Gemm r,m > b transA=1",
}
"""The nodes between a DequantizeLinear that gives `a` and a QuantizeLinear that takes `b`."""


def _constant_weights() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields convolutions and products whose weights are constants with scales of every form."""
    forms: dict[str, tuple[np.ndarray, Any, Any, dict[str, int]]] = {
        "one": (ints("int8", 4, 4, 1, 1), F(0.5), None, {}),
        "one in a row": (ints("int8", 4, 4, 1, 1), F([0.5]), np.int8([1]), {}),
        "rows": (ints("int8", 4, 4, 1, 1), F([1, 2, 3, 4]), np.int8([1, 2, 3, 4]), {"axis": 0}),
        "two rows": (ints("int8", 2, 4, 1, 1), F([1, 2]), np.int8([1, 2]), {"axis": 0}),
        "columns": (ints("int8", 4, 4, 1, 1), F([1, 2, 3, 4]), np.int8([1, 2, 3, 4]), {"axis": 1}),
        "last axis": (ints("int8", 3, 4, 3, 3), F([1, 2, 3]), None, {"axis": -1}),
        "default axis": (ints("int8", 3, 4, 1, 1), F([1, 2, 3, 4]), None, {}),
        "of a number": (np.int8(3), F(0.5), None, {}), "of floats": (
            np.ones((4, 4, 1, 1), np.float32), F(0.5), None, {}),
        "large": (np.full((4, 4, 1, 1), 2**24 + 1, np.int32), F(0.5), None, {}),
        "uint8": (ints("uint8", 4, 4, 1, 1), F(0.5), np.uint8(7), {}),
        "five": (ints("int8", 3, 4, 1, 1, 1), F(0.5), None, {}),
        "line": (ints("int8", 3, 4, 1), F(0.5), None, {})}
    for name, (array, scale, zero, attributes) in forms.items():
        for reader in ("Conv a,w > b", "Add a,w > b", "Conv a,w,units > b", "Conv a,w,other > b"):
            constants = {"s": F(0.5), "z": np.uint8(3), "wq": np.asarray(array), "ws": scale,
                         "uq": np.int32([1, 2, 2**24 + 1, 0][:array.shape[0] if array.ndim else 1]),
                         "us": F(0.25), "oq": np.int32([1, 2, 3]), "os": F([0.25, 0.25, 0.26])}
            inputs = ["wq", "ws"] + (["wz"] if zero is not None else [])
            if zero is not None:
                constants["wz"] = zero
            after = f"{reader}; QuantizeLinear b,s,z > c; DequantizeLinear c,s,z > y"
            nodes = [*_nodes("QuantizeLinear x,s,z > q; DequantizeLinear q,s,z > a"),
                     helper.make_node("DequantizeLinear", inputs, ["w"], "w", **attributes),
                     *_nodes("DequantizeLinear uq,us > units; DequantizeLinear oq,os > other "
                             f"axis=0; {after}")]
            yield f"{name} {reader}", model(nodes, {"x": ["N", 4, 3, 3]}, {"y": None}, constants)


def test_constant_weights(without_onnxruntime: None, recorded: Recorded) -> None:
    recorded("quantised_weights", {case: result(proto) for case, proto in _constant_weights()})


def _nodes(text: str) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a text like "Conv a,w > b group=2; Relu b > c"."""
    for number, part in enumerate(text.split("; ")):
        op, names, _, outputs, *attributes = part.split()
        values = {key: _value(value) for key, _, value in (
            entry.partition("=") for entry in attributes)}
        yield helper.make_node(op, [name.strip("-") for name in names.split(",")],
                               outputs.split(","), f"m{number}", **values)


def _value(text: str) -> Any:
    if "," in text:
        return list(map(int, text.split(",")))
    return float(text) if "." in text else int(text)


def layers(middle: str, dtype: str = "uint8", *, zero: Any = 3, to: str = "uint8",
           to_zero: Any = 7, scale: Any = 0.5, to_scale: Any = 0.25, w_scale: Any = 0.125,
           w_zero: Any = 0, axis: int = 0) -> onnx.ModelProto:
    """Returns a network of QuantizeLinear, DequantizeLinear, some nodes, and both again."""
    columns = 4 * 5 * 6
    constants: dict[str, Any] = {
        "s": F(scale), "z": np.array(zero, dtype), "ts": F(to_scale), "tz": np.array(to_zero, to),
        "wq": ints("int8", 4, 4, 3, 3), "ws": F(w_scale), "wz": np.array(w_zero, "int8"),
        "mq": ints("int8", columns, 4), "tq": ints("int8", 4, columns), "es": F(0.75),
        "f": ints("int8", 4, 4, 3, 3).astype(np.float32), "bias": F([1, 0.25, 2, 0]),
        "uq": ints("int32", 4), "us": F(scale) * F(w_scale), "columns": F([1, 2, 3, 4]),
        "hq": ints("int8", 6, 6), "hs": F(np.resize(w_scale, 6 if np.size(w_scale) > 1 else ())),
        "rows": F([[1], [2]]), "f1": F(1.5), "shape": np.array([0, 2, -1]), "one": np.array([1]),
        "six": np.array([-1, 6]),
        "two": np.array([2]), "wide": np.array([1, 4, 5, 6])}
    used = {name for part in middle.split("; ") for name in part.split()[1].split(",")}
    before = ["QuantizeLinear x,s,z > q", "DequantizeLinear q,s,z > a"]
    for name, text in {
            "w": f"DequantizeLinear wq,ws,wz > w axis={axis}",
            "m": f"DequantizeLinear mq,ws,wz > m axis={1 - axis}",
            "t": f"DequantizeLinear tq,ws,wz > t axis={axis}",
            "h": f"DequantizeLinear hq,hs > h axis={1 - axis}",
            "units": "DequantizeLinear uq,us > units axis=0",
            "e": "QuantizeLinear x,es,z > eq; DequantizeLinear eq,es,z > e"}.items():
        before += [text] if name in used else []
    after = ["QuantizeLinear b,ts,tz > c", "DequantizeLinear c,ts,tz > y"]
    nodes = list(_nodes("; ".join([*before, middle, *after])))
    read = {name for node in nodes for name in node.input}
    outputs = ["y", *(["y1"] if "y1" in middle else [])]
    return model(nodes, {"x": ["N", 4, 5, 6]}, dict.fromkeys(outputs),
                 {name: array for name, array in constants.items() if name in read})


CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"dtype": "int8", "zero": -3}, {"dtype": "int16"}, {"zero": 0}, {"to": "int8"},
    {"to_zero": 0, "to": "int8", "dtype": "int8", "zero": 0}, {"to_scale": 0.5, "to_zero": 3},
    {"scale": [0.5], "zero": [3]}, {"scale": [0.5, 1, 2, 4], "zero": [1, 2, 3, 4]},
    {"scale": [0.5, 1, 2, 4]}, {"to_scale": [0.5, 1, 2, 4], "to_zero": [1, 2, 3, 4]},
    {"w_scale": [1, 2, 3, 4], "w_zero": [0, 1, 0, 2]}, {"w_scale": [1, 2, 3, 4]},
    {"w_scale": [0.5], "w_zero": [1]}, {"w_scale": [1, 2, 3, 4], "axis": 1}, {"w_zero": 1})


@pytest.mark.slow
def test_layers_between_pairs(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for name, middle in MIDDLES.items():
        for changes in CHANGES:
            if "w" in "".join(changes) and not {"w", "m", "t", "h"} & set(
                    middle.replace(",", " ").split()):
                continue
            told = " ".join(f"{key}={value}" for key, value in changes.items())
            found[f"{name} {told}"] = result(layers(middle, **changes))
    for chain in ("Relu a > r; Relu r > b", "Identity a > r; Conv r,w > b",
                  "MaxPool a > r kernel_shape=2,2; Conv r,w > b",
                  "Split a > r,r2 axis=1; Concat r2,r > b axis=1",
                  "QuantizeLinear a,s,z > r; Cast r > c0 to=1; Relu c0 > b",
                  "QuantizeLinear a,s,z > r; MaxPool r > r2 kernel_shape=2,2; "
                  "DequantizeLinear r2,s,z > b",
                  "QuantizeLinear a,s,z > r; Concat r,q > r2 axis=1; DequantizeLinear r2,s,z > b",
                  "QuantizeLinear a,ts,tz > r; Concat r,q > r2 axis=1; DequantizeLinear r2,s,z > b",
                  "QuantizeLinear a,s,z > r; Transpose r > r2 perm=0,2,3,1; "
                  "DequantizeLinear r2,s,z > b",
                  "Conv a,w > r; AveragePool r > b kernel_shape=2,2", "Add a,a > r; Add r,r > b"):
        for changes in CHANGES[:7]:
            told = " ".join(f"{key}={value}" for key, value in changes.items())
            found[f"{chain} {told}"] = result(layers(chain, **changes))
    recorded("quantised_layers", found)


def test_parts_for_onnxruntime(recorded: Recorded) -> None:
    """Where ONNX Runtime is installed, what is refused becomes a part, and what was learned of its
    values is dropped."""
    recorded("quantised_parts", {
        case.replace(": ", ":"): digest(result(proto))
        for case, proto in itertools.chain(itertools.islice(_node_cases(), 0, None, 5), (
            (f"{name} {changes}", layers(middle, **changes)) for name, middle in MIDDLES.items()
            for changes in CHANGES[8:11]))})


DYNAMIC = (
    "MatMulInteger q,m,z > y", "MatMulInteger q,m > y", "MatMulInteger q,m,k > y",
    "MatMulInteger q,m,z,kz > y", "MatMulInteger m,t,kz,z > y", "MatMulInteger q,t,z,z > y",
    "Transpose q > r perm=1,0; MatMulInteger m,r,kz,z > y", "MatMulInteger q,t,z,z2 > y",
    "MatMulInteger q,t > y", "MatMulInteger q,t,k,k > y", "DequantizeLinear q,s,z > y",
    "Cast q > y to=1", "Cast q > r to=1; Sub r,f > y", "Identity q > r; MatMulInteger r,m,z > y",
    "MatMulInteger q,m,z > r; Cast r > r2 to=1; Mul r2,s > y", "MatMulInteger z,m > y",
    "MatMulInteger q,m,z > r; MatMulInteger r,m > y", "MaxPool q > y kernel_shape=1",
    "Concat q,q > y axis=1", "Concat q,t0 > y axis=0", "Cast q > y to=6")
"""Nodes behind two DynamicQuantizeLinear: of the input (q, s, z) and its transpose (t, s2, z2)."""


def test_dynamic_quantisation(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for middle, depth in itertools.product(DYNAMIC, (4, 600)):
        nodes = list(_nodes("DynamicQuantizeLinear x > q,s,z; Transpose x > xt perm=1,0; "
                            f"DynamicQuantizeLinear xt > t,s2,z2; {middle}"))
        kind = {"y": onnx.TensorProto.INT32}
        constants = {"m": ints("uint8", depth, 4), "k": np.uint8(3), "kz": np.uint8(1),
                     "f": F(2), "t0": ints("uint8", 2, depth)}
        found[f"{middle} of {depth}"] = result(model(
            nodes, {"x": ["N", depth]}, {"y": None}, constants, types=kind))
    recorded("quantised_dynamic", found)


def test_constants_that_are_learned(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for q, scale, zero, attributes in itertools.product(
            (ints("int8", 2, 3), ints("uint8", 3), np.int8(4), np.ones((2, 3), np.float32)),
            (F(0.5), F([0.5]), F([1, 2]), F([1, 2, 3]), F([[1, 2], [3, 4]])),
            (None, np.int8(1), np.int8([1]), np.int8([1, 2]), np.int8([1, 2, 3])),
            ({}, {"axis": 0}, {"axis": -1}, {"block_size": 2}, {"block_size": 0, "axis": -2})):
        integers = Integers(None)  # type: ignore[arg-type]
        names = ["q", "s", *(["z"] if zero is not None else [])]
        values = dict(zip(("q", "s", "z"), (np.asarray(q), np.asarray(scale), zero), strict=True))
        case = " ".join([*map(_told, (q, scale, zero)), str(attributes)]).replace(": ", "=")
        try:
            integers.learn_constant(helper.make_node("DequantizeLinear", names, ["y"],
                                                     **attributes),
                                    values)
        except (IndexError, ValueError) as error:
            found[case] = f"! {type(error).__name__}"
            continue
        scaled = integers.scaled.get("y")
        found[case] = "none" if scaled is None or scaled.array is None else (
            f"{array_text(scaled.array)} {array_text(scaled.scale)} {scaled.integers.dtype}")
    recorded("quantised_constants", found)


class _Node(SimpleNamespace):
    def unsupported(self, text: str) -> UnsupportedError:
        return UnsupportedError(text)


def test_slices_of_sums(recorded: Recorded) -> None:
    rng = np.random.default_rng(5)
    found: dict[str, str] = {}
    bounds = ((0.0, 255.0), (-128.0, 127.0), (-255.0, 0.0), (3.0, 255.0), (-32768.0, 32767.0))
    for rows, channels, window in ((1, 1, 1), (2, 3, 9), (3, 70, 9), (2, 600, 1), (4, 200, 4),
                                   (1, 2, 1)):
        for low, high in bounds:
            for kind in ("drawn", "greatest", "mixed"):
                weight = {"drawn": rng.integers(-127, 128, (rows, channels, window)),
                          "greatest": np.full((rows, channels, window), 127),
                          "mixed": rng.integers(-127, 128, (rows, channels, window))
                          * (rng.random((rows, channels, 1)) < 0.3)}[kind].astype(np.float32)
                found[f"{rows}x{channels}x{window} {kind} {low:g}..{high:g}"] = outcome(
                    lambda weight=weight, low=low, high=high: str(slices(
                        _Node(), weight, (low, high))))
    for weight in (2**16 - 1, 2**16, 2**16 + 1):
        for channels in (1, 2):
            found[f"{channels} of {weight}"] = outcome(lambda weight=weight, channels=channels: str(
                slices(_Node(), np.full((1, channels, 1), weight, np.float32), (-1, 256))))
    for depth in (None, 0, 256, 257):
        for first, second in ((256, 256), (255, 257)):
            found[f"depth {depth} of {first} {second}"] = outcome(
                lambda depth=depth, first=first, second=second: str(check_depth(
                    _Node(), depth, first, second)))
    for count in range(1, 6):
        c = Composer()
        value = total(c, [f"v{index}" for index in range(count)])
        found[f"total of {count}"] = f"{value} {expression_text(c.build(value)[1])}"
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "8 bits", "float32"):
        for zero in (np.zeros(()), np.float32([3]), np.float32([-2, 5]), "name"):
            told = zero if isinstance(zero, str) else array_text(zero)
            found[f"bounds of {dtype} {told}"] = str(Centred("x", zero, dtype).bounds)
    arrays: Sequence[Any] = (np.zeros(()), np.zeros(1), np.ones(1), np.zeros(2), "a", "b")
    found["same"] = "".join(str(int(are_same(one, other)))
                            for one, other in itertools.product(arrays, arrays))
    recorded("integer_sums", found)


QUANT: tuple[tuple[dict[int, Any], dict[str, Any]], ...] = (
    *(({3: F(bits)}, {"signed": signed, "narrow": narrow})
      for bits in (0, 0.5, 1, 2, 8, 31.5, 32, 32.5, 33) for signed in (0, 1) for narrow in (0, 1)),
    *(({2: zero}, {}) for zero in (F(0), F(3), F([0, 0, 0]), F([0, 1, 0]), ("float32",))),
    *(({3: bits}, {}) for bits in (F([4]), F([4, 4]), ("float32",), None)),
    *(({}, {"rounding_mode": mode}) for mode in (
        "ROUND", "HALF_EVEN", "FLOOR", "CEIL", "DOWN", "ROUND_TO_ZERO", "UP", "round", "Floor",
        "HALF_UP", "")),
    *(({1: scale}, {}) for scale in (F([1, 2, 3]), ("float32",), None)),
    *(({0: x}, {}) for x in (F([[1, -2, 0.5], [3, 100, -200]]), F([1, 2]), ("float32", 2, 4))))


@pytest.mark.parametrize("domain", ["qonnx.custom_op.general", "onnx.brevitas", "other"])
def test_quant(domain: str, without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    base: Arguments = (("float32", 2, 3), S, F(0), F(4))
    for changes, attributes in QUANT if domain[0] == "q" else QUANT[9:11]:
        told = " ".join([*(f"{index} {_told(other)}" for index, other in changes.items()),
                         *(f"{key}={value}" for key, value in attributes.items())])
        found[f"Quant {told}"] = result(of_node("Quant", _changed(base, changes), domain=domain,
                                                y="float32", **attributes))
    for count in range(1, 6):
        for op in ("Quant", "BipolarQuant"):
            found[f"{op} of {count}"] = result(of_node(op, (*base, S)[:count], domain=domain,
                                                       y="float32"))
    found["BipolarQuant of a constant"] = result(of_node(
        "BipolarQuant", (F([1, 0, -1]), S), domain=domain, y="float32"))
    recorded(f"quant_{domain.split('.')[0]}", found)
