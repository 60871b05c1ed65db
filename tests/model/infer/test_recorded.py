"""Which networks that are written for one batch size run at another, and the value facts of nodes
whose inputs hold few values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.errors import GossamerError
from gossamer.model.facts import derive
from gossamer.model.infer.resolve import resolve
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.onnx_models import model
from tests.model.readers import operator_cases as drawn
from tests.recorded import Recorded, digest
from tests.recorded.graphs import brief, error_text, facts_text, static_text

FIRST: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Identity", {}), ("Transpose", {"perm": [1, 0, 2]}), ("Transpose", {"perm": [1, 2, 0]}))
"""Nodes that lay the batch along axis 0, 1 and 2."""
Step = tuple[str, dict[str, Any], Sequence[Any]]
_I = np.int64
SECOND: tuple[Step, ...] = (
    *((op, {"axis": axis}, ("a",)) for op in ("Softmax", "ArgMax", "Flatten")
      for axis in (0, 1, 2, -1)),
    *(("Transpose", {"perm": perm}, ("a",)) for perm in itertools.permutations(range(3))),
    *(("ReduceMean", {"axes": axes, "keepdims": 0}, ("a",)) for axes in ([0], [1], [2], [0, 1])),
    *(("Concat", {"axis": axis}, ("a", other)) for axis in (0, 1, 2)
      for other in ("a", np.ones((4, 4, 4), np.float32))),
    *((op, {}, ("a", other)) for op in ("Add", "MatMul") for other in (
        "a", "x", np.ones((4, 4, 4), np.float32), np.ones((1, 4, 4), np.float32),
        np.ones((4, 4), np.float32), np.ones((4, 1), np.float32), np.ones(4, np.float32),
        np.ones((4, 1, 1, 1), np.float32))),
    *(("MatMul", {}, (np.ones(shape, np.float32), "a")) for shape in (
        (4,), (4, 4), (1, 4, 4), (4, 4, 4), (2, 1, 4, 4))),
    *(("Reshape", {}, ("a", np.array(shape))) for shape in (
        (0, -1), (0, -1, 4), (-1, 4, 4), (1, -1, 4), (2, -1, 4), (4, 4, -1), (0, 0, 2, 2),
        (4, -1, 2, 2), (-1, 2), (2, 2, -1, 4), (-1,), (4, 1, 4, 4))),
    *(("Gather", {"axis": axis}, ("a", np.array(index))) for axis in (0, 1, 2)
      for index in (0, [0, 1], [[0], [1]])),
    *(("Slice", {}, ("a", _I([start]), _I([end]), _I([axis]), _I([step])))
      for start, end, step in ((0, 1, 1), (0, 99, 1), (-1, -99, -1)) for axis in (0, 1, 2)),
    *((op, {}, ("a", _I([axis]))) for op in ("Unsqueeze",) for axis in (0, 1, 2, 3)),
    ("Squeeze", {}, ("a",)),
    *(("Expand", {}, ("a", np.array(shape))) for shape in (
        (4, 1, 1), (1, 4, 4), (2, 4, 4), (4, 4, 4), (2, 1, 1, 4), (1, 1, 4))),
    *(("Pad", {}, ("a", np.array(pads))) for pads in (
        (1, 0, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0), (0, 1, 0, 0, 0, 0), (0, 0, 0, 0, 1, 0),
        (0, 0, 0, 0, 0, 1))),
    *(("Split", {"axis": axis}, ("a", _I([1, 3]))) for axis in (0, 1, 2)),
    *(("TopK", {"axis": axis}, ("a", _I([1]))) for axis in (0, 1, 2)),
    *(("LayerNormalization", {"axis": axis}, ("a", np.ones(4, np.float32))) for axis in (1, 2)),
    *(("CumSum", {}, ("a", np.array(axis))) for axis in (0, 1, 2)),
    *(("Tile", {}, ("a", np.array(repeats))) for repeats in ((2, 1, 1), (1, 2, 1), (1, 1, 2))),
    *(("Gemm", {"transA": a, "transB": b}, ("f", other, *more)) for a in (0, 1) for b in (0, 1)
      for other, more in (("f", ()), (np.ones((16, 16), np.float32), ()),
                          (np.ones((4, 4), np.float32), (np.ones(4, np.float32),)))),
    *((op, attributes, ("p", *more)) for op, attributes, more in (
        ("MaxPool", {"kernel_shape": [2, 2]}, ()), ("GlobalAveragePool", {}, ()),
        ("Conv", {}, (np.ones((2, 4, 1, 1), np.float32),)),
        ("ConvTranspose", {}, (np.ones((4, 2, 1, 1), np.float32),)),
        ("BatchNormalization", {}, (np.ones(4, np.float32),) * 4),
        ("BatchNormalization", {"training_mode": 1}, (np.ones(4, np.float32),) * 4),
        ("Resize", {}, (None, np.float32([1, 1, 2, 2]))))),
    *(("Shape", {}, (name,)) for name in ("a", "x")), ("Size", {}, ("a",)),
)
"""Nodes that read `a`, whose batch lies along some axis, `f`, which is `a` as a matrix, or `p`,
which is `a` as pictures; `x` is the input."""


def _network(first: tuple[str, dict[str, Any]], step: Step, batch: int) -> onnx.ModelProto:
    op, attributes, inputs = step
    nodes = [helper.make_node(first[0], ["x"], ["a"], "first", **first[1])]
    if "f" in [name for name in inputs if isinstance(name, str)]:
        nodes.append(helper.make_node("Flatten", ["a"], ["f"], "flat", axis=1))
    if "p" in [name for name in inputs if isinstance(name, str)]:
        nodes.append(helper.make_node("Unsqueeze", ["a", "three"], ["p"], "pictures"))
    constants: dict[str, Any] = {"three": _I([3])}
    names = []
    for index, given in enumerate(inputs):
        names.append(given if isinstance(given, str) else "" if given is None else f"c{index}")
        if isinstance(given, np.ndarray):
            constants[names[-1]] = given
    outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]
    nodes.append(helper.make_node(op, names, outputs, "second", **attributes))
    integers = {"Shape": "y", "Size": "y", "ArgMax": "y", "TopK": "z"}.get(op)
    types = {integers: onnx.TensorProto.INT64} if integers else {}
    return model(nodes, {"x": [batch, 4, 4]}, dict.fromkeys(outputs), constants, types=types)


def _told(step: Step) -> str:
    op, attributes, inputs = step
    given = " ".join(str(each) if not isinstance(each, np.ndarray) else
                     str(each.tolist() if each.dtype.kind == "i" else each.shape)
                     for each in inputs)
    return f"{op} {given} {' '.join(f'{key}={value}' for key, value in attributes.items())}"


@pytest.mark.slow
def test_images_apart(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for axis, first in enumerate(FIRST):
        for step in SECOND:
            answers = []
            for written, batch in ((1, 3), (2, 3), (4, 2), (2, 0)):
                try:
                    graph = load_onnx(_network(first, step, written))
                    text = static_text(resolve(graph, batch))
                    answers.append(digest(text))
                except GossamerError as error:
                    text = error_text(error).partition("; the file is written")[0]
                    answers.append(brief(text.removeprefix("! "), 60))
            found[f"{axis} {_told(step)}"] = ", ".join(
                answer if answer != answers[index - 1] or not index else "="
                for index, answer in enumerate(answers))
    recorded("images_apart", found)


@pytest.mark.slow
def test_facts_of_nodes(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for table in (drawn.LAYERS, drawn.LAYOUT, drawn.RESIZES, drawn.INDEXING, drawn.NORMALISATIONS,
                  drawn.ELEMENTWISE):
        for name, operator in table.items():
            opset, answers = operator.opsets[0], []
            for number, (inputs, attributes) in enumerate([(None, {}), *operator.more]):
                given = operator.inputs if inputs is None else inputs
                if drawn.DTYPE in attributes or not isinstance(given[0], tuple):
                    continue
                proto = drawn.made(name, opset, given, {**operator.attributes, **attributes},
                                   outputs=operator.outputs)
                (info,) = (info for info in proto.graph.input if info.name == "x0")
                info.name, before = "x", "Cast" if number % 2 else "Sign"
                if before == "Cast":
                    info.type.tensor_type.elem_type = onnx.TensorProto.UINT8
                proto.graph.node.insert(0, helper.make_node(
                    before, ["x"], ["x0"], **({"to": 1} if before == "Cast" else {})))
                answers.append(_facts(proto))
            for start in range(0, len(answers), 8):
                found[f"{name} {start}"] = ", ".join(answers[start:start + 8])
    recorded("facts_of_nodes", found)


def _facts(proto: onnx.ModelProto) -> str:
    try:
        static = resolve(load_onnx(proto), 2)
    except GossamerError:
        return "!"
    known = derive(static)
    return " ".join(facts_text(known[info.name]) for info in static.graph.outputs)
