"""Records show what becomes of nodes that no file of ONNX has, or whose inputs follow from shapes:
each op with each input known and unknown, and how nodes with several inputs mix the images of a
batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import helper

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.images_apart import images_apart
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.registry import OPSET
from tests.recorded import Recorded, digest
from tests.recorded.graphs import brief, outcome, static_text

Given = np.ndarray
"""A value: a constant, or an input of its shape and dtype."""


def _floats(*shape: int) -> Given:
    return (np.arange(np.prod(shape), dtype=np.float32) % 5 - 2).reshape(shape)


_ADD, _NEG = apply("add"), apply("neg")
_WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
_ONES = np.ones(3, np.float32)
_PROTO = np.frombuffer(helper.make_node("Mod", ["a", "b"], ["c"]).SerializeToString(), np.uint8)
NODES: tuple[tuple[str, tuple[Given, ...], dict[str, Any], int], ...] = (
    ("tile", (_floats(2, 3), np.array([2, 1])), {}, 1), ("tile", (_floats(2), np.array([1])), {},
                                                         1),
    ("triangle", (_floats(3, 3), np.array(1)), {"upper": True}, 1),
    ("gather_nd", (_floats(2, 3), np.array([[1], [0]])), {"batch_dims": 0}, 1),
    ("gather_elements", (_floats(2, 3), np.array([[1, 0, 1]])), {"axis": 0}, 1),
    ("scatter_nd", (_floats(2, 3), np.array([[1]]), _floats(1, 3)), {}, 1),
    ("scatter_elements", (_floats(2, 3), np.array([[1, 0, 1]]), _floats(1, 3)), {"axis": 0}, 1),
    ("concat", (_floats(2, 3), _floats(2, 1)), {"axis": -1}, 1),
    ("split", (_floats(4, 2), np.array([1, 3])), {"axis": 0}, 2),
    ("split", (_floats(5, 2),), {"axis": 0, "sizes": None}, 2),
    ("slice", (_floats(5, 3), np.array([1]), np.array([4])), {}, 1),
    ("slice", (_floats(5, 3),), {"starts": (4, 0), "ends": (-9, 2), "steps": (-2, 1)}, 1),
    ("gather", (_floats(3, 2), np.array([[1, -1]])), {"axis": 0}, 1),
    ("gather", (_floats(3, 2), np.array(2)), {"axis": 0}, 1),
    ("pad", (_floats(2, 3), np.array([0, 1, 0, 0]), np.array(2.5)), {"mode": "constant"}, 1),
    ("resize", (_floats(1, 2, 2, 2), np.float32([1, 1, 2, 1])), {
        "mode": "nearest", "coordinates": "asymmetric", "nearest_mode": "floor"}, 1),
    ("reshape", (_floats(2, 6), np.array([0, -1, 2])), {}, 1),
    ("transpose", (_floats(2, 3),), {"permutation": (1, 0)}, 1),
    ("expand", (_floats(2, 1), np.array([2, 3])), {}, 1),
    ("flatten", (_floats(2, 3, 2),), {"axis": 1}, 1), ("identity", (_floats(2),), {}, 1),
    ("squeeze", (_floats(2, 1), np.array([1])), {}, 1), ("squeeze", (_floats(1, 1),), {}, 1),
    ("unsqueeze", (_floats(2), np.array([0])), {}, 1),
    ("branch", (_floats(2), np.array(True)), {"taken": True}, 1),
    ("branch", (_floats(2), np.array(True)), {"taken": False}, 1),
    ("branch", (_floats(2), np.array([False])), {"taken": False}, 1),
    ("depth_to_space", (_floats(1, 4, 1, 2),), {"block": 2, "mode": "CRD"}, 1),
    ("space_to_depth", (_floats(1, 1, 2, 2),), {"block": 2}, 1),
    ("shape", (_floats(2, 3),), {"start": -1, "end": None}, 1), ("size", (_floats(2, 3),), {}, 1),
    ("constant_of_shape", (np.array([2, 1]),), {"value": np.array(3)}, 1),
    ("range", (np.array(1), np.array(6), np.array(2)), {}, 1),
    ("range", (np.float32(0), np.float32(1), np.float32(0.4)), {}, 1),
    ("reshape_by", (_floats(6), _floats(2, 1)), {"sizes": (((1, 0), (1, 1)), ())}, 1),
    ("reshape_by", (_floats(6), _floats(2, 3)), {"sizes": (((1, 0),), ((1, 1),))}, 1),
    ("sums_up_to", (_floats(2, 3),), {"axis": 1, "exclusive": True, "reverse": False}, 1),
    ("sums_up_to", (np.arange(4),), {"axis": 0, "exclusive": False, "reverse": True}, 1),
    ("reduce", (_floats(2, 3),), {"kind": "max", "axes": None, "keepdims": False}, 1),
    ("reduce", (_floats(2, 3), np.array([-1])), {"kind": "sum", "keepdims": True}, 1),
    ("reduce", (_floats(2, 3, 1, 2),), {"kind": "mean", "axes": "spatial", "keepdims": False}, 1),
    ("softmax", (_floats(2, 3),), {"axis": -1, "log": False}, 1),
    ("softmax", (_floats(2, 3, 2),), {"axis": 1, "log": True, "flatten": True}, 1),
    ("top_k", (_floats(2, 4), np.array([2])), {"axis": 1, "largest": True}, 2),
    ("top_k", (np.array([[3, 1, 2, 3]]), np.array([3])), {"axis": 1, "largest": False}, 2),
    ("mod", (np.array([5, -5]), np.array([3, -3])), {"of_dividend": False}, 1),
    ("cast", (_floats(3),), {"dtype": "int8"}, 1), ("cast", (_floats(3),), {"dtype": "float32"}, 1),
    ("cast_like", (_floats(3), np.array(True)), {}, 1),
    ("elementwise", (_floats(2, 3), _floats(3)), {"expression": _ADD}, 1),
    ("elementwise", (_floats(3),), {"expression": Expression(1, (ExpressionStep(
        "sign", (0,)), ExpressionStep("exp", (0,))), (1, 2))}, 2),
    ("matmul", (_floats(2, 3), _floats(3, 2)), {}, 1), ("matmul", (_floats(3), _floats(3)), {}, 1),
    ("gemm", (_floats(2, 3), _floats(3, 2), _floats(2)), {
        "trans_a": False, "trans_b": False, "epilogue": _ADD}, 1),
    ("gemm", (_floats(2, 3), _floats(3, 2)), {
        "trans_a": False, "trans_b": False, "epilogue": _ADD}, 1),
    ("gemm", (_floats(2, 3), _floats(3, 2), _floats(3)), {
        "trans_a": False, "trans_b": False, "epilogue": _ADD}, 1),
    ("gemm", (_floats(2, 3), _floats(2, 3)), {
        "trans_a": False, "trans_b": True, "epilogue": _NEG}, 1),
    ("gemm", (_floats(3, 2), _floats(3, 2)), {
        "trans_a": True, "trans_b": False, "epilogue": identity()}, 1),
    ("conv2d", (_floats(1, 2, 3, 3), _floats(2, 2, 2, 2), _floats(2)), {
        **_WINDOW, "epilogue": _ADD.then(apply("sign"))}, 1),
    ("conv2d", (_floats(1, 2, 3, 3), _floats(2, 2, 2, 2), _floats(1, 2, 2, 2)), {
        **_WINDOW, "epilogue": _ADD}, 1),
    ("conv2d", (_floats(1, 3, 3, 3), _floats(2, 2, 2, 2)), {**_WINDOW, "epilogue": _NEG}, 1),
    ("conv_transpose2d", (_floats(1, 2, 3, 3), _floats(2, 2, 2, 2), _floats(2)), {
        **_WINDOW, "output_padding": (0, 0)}, 1),
    ("conv_transpose2d", (_floats(1, 3, 3, 3), _floats(2, 2, 2, 2)), {
        **_WINDOW, "output_padding": (0, 0)}, 1),
    ("pool", (_floats(1, 2, 3, 3),), {
        "kind": "max", "kernel": (2, 2), "strides": (1, 1), "pads": (0, 0, 1, 1),
        "dilations": (1, 2), "ceil_mode": False, "count_include_pad": False}, 1),
    ("batch_norm", (_floats(2, 3), _ONES, _ONES, _ONES, _ONES), {"epsilon": 0.5}, 1),
    ("batch_norm_training", (_floats(2, 3), _ONES, _ONES, _ONES, _ONES), {
        "epsilon": 0.5, "momentum": 0.5}, 3),
    ("layer_norm", (_floats(2, 3), _ONES, _ONES), {"axes": -1, "epsilon": 1.0, "centred": True}, 1),
    ("layer_norm", (_floats(2, 3), _ONES, _ONES), {"axes": (), "epsilon": 1.0, "centred": True}, 1),
    ("resize_linearly", (_floats(1, 2, 4), None, np.array([1, 2, 3])), {
        "mode": "linear", "coordinates": "half_pixel", "antialias": True,
        "cubic_coefficient": -0.75, "exclude_outside": False}, 1),
    ("onnx_known", (np.array([5, -7]), np.array([3, 4])), {"node": _PROTO, "opset": 17}, 1),
    ("onnx_known", (np.array([5, -7]), np.array([3, 4, 5])), {"node": _PROTO, "opset": 17}, 1),
    ("onnx_known", (np.array([5]), np.array([3])), {"node": np.uint8([200, 1]), "opset": 17}, 1),
    *(("onnx_known", (np.array([[0, 5]]),), {"node": np.frombuffer(helper.make_node(
        op, ["a"], ["c"], domain=domain).SerializeToString(), np.uint8), "opset": 17}, 1)
      for op, domain in (("NonZero", ""), ("Neg", ""), ("Neg", "ai.onnx"), ("Neg", "other"),
                         ("Hardmax", ""))),
    ("unknown", (_floats(2),), {}, 1),
)
"""Nodes with values of all their inputs, their attributes, and the numbers of their outputs."""


def _graph(op: str, inputs: Sequence[Given | None], attributes: dict[str, Any], outputs: int,
           unknown: Sequence[int]) -> Graph:
    """Returns a graph of one node. unknown: the inputs that the data decide."""
    graph = Graph("g", [], [ValueInfo(f"y{index}", ()) for index in range(outputs)], [], {})
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    for index, value in enumerate(inputs):
        if index in unknown and value is not None:
            graph.inputs.append(ValueInfo(names[index], np.shape(value),
                                          np.asarray(value).dtype.name))
        elif value is not None:
            graph.constants[names[index]] = np.asarray(value)
    graph.nodes = [Node(op, "n", names, [info.name for info in graph.outputs], dict(attributes))]
    return graph


def _cases() -> Iterator[tuple[str, Graph]]:
    for number, (op, inputs, attributes, outputs) in enumerate(NODES):
        count = len(inputs)
        for unknown in ((), (0,), tuple(range(1, count)), tuple(range(count))):
            yield f"{number} {op} {unknown}", _graph(op, inputs, attributes, outputs, unknown)
        for dtype in ("uint32", "float64", "int32"):
            first = None if inputs[0] is None else np.abs(inputs[0]).astype(dtype)
            for unknown in ((), (0,)):
                yield f"{number} {op} {unknown} {dtype}", _graph(
                    op, [first, *inputs[1:]], attributes, outputs, unknown)
        if op not in ("mod", "elementwise"):  # their value facts read all inputs
            for fewer in range(count):
                yield f"{number} {op} of {fewer}", _graph(op, inputs[:fewer], attributes, outputs,
                                                         range(fewer))


def test_nodes(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    before = ""
    for case, graph in _cases():
        text = outcome(lambda graph=graph: static_text(resolve(graph, 2)), most=110)
        found[case] = "=" if text == before else text
        before = text
    for name in FUNCTIONS:
        expression = Expression(3, (ExpressionStep(name, tuple(range(FUNCTIONS[name].arity)),
                                                   (1.0,) * FUNCTIONS[name].constants),))
        node = Node("elementwise", "n", [], [], {"expression": expression})
        found[f"jumps {name}"] = str(OPSET["elementwise"].jumps(node))
    for op in ("cast", "mod", "top_k", "reshape"):
        found[f"jumps {op}"] = str(OPSET[op].jumps(Node(op, "n", [], [])))
    recorded("nodes", found)


B = 2
MIXED: tuple[tuple[str, tuple[tuple[int | None, ...] | Given, ...], dict[str, Any]], ...] = (
    *(("conv2d", ((None, 2, 3, 3), weight, operand), {**_WINDOW, "epilogue": _ADD})
      for weight in (_floats(2, 2, 1, 1),) for operand in (
          _floats(2), (None, 2, 3, 3), (1, 2, 3, 3), (2, 2, 3, 3))),
    ("conv2d", ((2, 2, 3, 3), (None, 2, 1, 1)), {**_WINDOW, "epilogue": identity()}),
    ("conv_transpose2d", ((None, 2, 3, 3), _floats(2, 2, 1, 1)), {
        **_WINDOW, "output_padding": (0, 0)}),
    *(("gemm", (a, b, c), {"trans_a": trans_a, "trans_b": trans_b, "epilogue": _ADD})
      for trans_a, a in ((False, (None, 3)), (False, (3, 3)), (True, (3, 3)), (True, (None, 3)),
                         (False, (None, 2, 3)))
      for trans_b, b in ((False, _floats(3, 4)), (True, _floats(4, 3)), (True, (None, 3)),
                         (False, (None, 4)))
      for c in (_floats(4), (None, 4), (2, 4))),
    *(("matmul", (a, b), {}) for a in ((None, 3), (None, 2, 3), (3,), (2, 3), (None,), (3, None),
                                       (None, 1, 2, 3), (2, 2, 3))
      for b in ((None, 3, 4), _floats(3, 4), (3, 4), (None,), (None, 4), _floats(2, 3, 4), (3,
                                                                                            None),
                _floats(1, 3, 4), (None, 1, 3, 4))),
    *(("elementwise", (a, b), {"expression": _ADD}) for a in ((None, 3), (None, 1, 3), (None, 2, 3))
      for b in ((None, 3), (3,), (2, 3), (1, 3), (None, 1), (None, 1, 1), (2, 1, 1), (1,))),
    *(("where", (a, b, (None, 3)), {"expression": apply("where")}) for a in ((None, 1), (3,))
      for b in ((None, 3), (2, 3))),
    *(("concat", (a, b), {"axis": axis}) for axis in (0, 1) for a, b in (
        ((None, 3), (None, 3)), ((None, 3), (2, 3)), ((2, 3), (None, 3)))),
    *(("gather", (a, b), {"axis": axis}) for axis in (0, 1) for a in ((None, 3), (2, 3))
      for b in ((None,), (None, 2), np.array([1, 0]))),
    *((op, ((None, 3),), attributes) for op, attributes in (
        ("top_k", {"count": (1,), "axis": 1, "largest": True}), ("transpose", {"permutation": (1,
                                                                                               0)}),
        ("reduce", {"kind": "sum", "axes": (1,), "keepdims": True}),
        ("layer_norm", {}), ("pad", {"pads": (0, 1, 0, 0), "mode": "edge"}))),
    *(("pool", (shape,), {"kind": "max", "kernel": (1, 1), "strides": (1, 1), "pads": (0,) * 4,
                          "dilations": (1, 1), "ceil_mode": False, "count_include_pad": False})
      for shape in ((None, 2, 3, 3), (2, None, 3, 3))),
)
"""Nodes whose inputs have shapes with the batch (None), or are constants."""


def test_mixing(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for number, (op, inputs, attributes) in enumerate(MIXED):
        graph = Graph("g", [], [ValueInfo("y", ())], [], {})
        names = [f"x{index}" for index in range(len(inputs))]
        for name, given in zip(names, inputs, strict=True):
            if isinstance(given, np.ndarray):
                graph.constants[name] = given
                continue
            # a batch on another axis than the first is put there by a transpose of matrices
            moved = None in given[1:]
            shape = tuple(reversed(given)) if moved else given
            kind = "int64" if op == "gather" and name == "x1" else "float32"
            graph.inputs.append(ValueInfo(f"{name}.given" if moved else name, shape, kind))
            if moved:
                order = tuple(range(len(given)))[::-1]
                graph.nodes.append(Node("transpose", name, [f"{name}.given"], [name],
                                        {"permutation": order}))
        op = "elementwise" if op == "where" else op
        if op == "layer_norm":
            graph.constants["s"] = _ONES
            names += ["s", "s"]
            attributes = {"axes": (1,), "epsilon": 1.0, "centred": True}
        outputs = ["y", "places"] if op == "top_k" else ["y"]
        graph.nodes.append(Node(op, "n", names, outputs, attributes))

        def text(graph: Graph = graph) -> str:
            static = resolve(graph, B)
            parts = [digest(static_text(static))]
            parts += [str(images_apart(static, resolve(graph, other))) for other in (3, 4, 1)]
            return " ".join(dict.fromkeys(parts))
        shapes = " ".join(str(np.shape(given) if isinstance(given, np.ndarray) else given)
                          + " known" * isinstance(given, np.ndarray) for given in inputs)
        told = " ".join(f"{key}={value}" for key, value in attributes.items()
                        if key in ("axis", "trans_a", "trans_b"))
        found[f"{number} {op} {shapes} {told}"] = brief(outcome(text, most=400), 200)
    recorded("mixing", found)
