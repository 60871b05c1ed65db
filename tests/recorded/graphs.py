"""Texts of graphs, of static graphs and of errors, for records of what readers and ops give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gossamer import host_library
from gossamer.errors import GossamerError
from gossamer.expression import Expression
from gossamer.facts import REAL, ValueFacts
from gossamer.model.facts import derive
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.metadata import ModelMetadata
from tests.recorded import as_text, digest

_FOREIGN = re.compile(
    r"((?:is malformed|is damaged|damaged zip archive|cannot be computed|has no shapes|"
    r"not readable|damaged entry '[^']*')(?:: [A-Za-z]+Error\(| \(|: )).*")
"""Matches the beginning of those parts of messages that other libraries write: their texts differ
from version to version."""
OLDEST_ONNX = (1, 23)
needs_onnx = pytest.mark.skipif(
    tuple(map(int, onnx.__version__.split(".")[:2])) < OLDEST_ONNX,
    reason="older versions of onnx read fewer types, and their shape inference ends the process at "
           "some malformed nodes")
"""Marks tests whose records hold what onnx says of malformed files."""
_FEW, _MANY = 6, 5000
"""Numbers of elements up to which a constant is shown whole, and up to which its floats are
rounded."""


def brief(text: str, most: int = 150) -> str:
    """Returns a text, or the beginning and a digest of a text that has more than `most`
    characters."""
    return text if len(text) <= most else f"{text[:most - 10]} #{digest(text)}"


def outcome(work: Callable[[], str], folder: Path | None = None, most: int = 150) -> str:
    """Returns the text that a function returns, or the text of its error without the path of the
    folder that the file is in, and without what other libraries say."""
    try:
        text = work()
        return brief(text if folder is None else text.replace(f"{folder}/", ""), most)
    except GossamerError as error:
        return error_text(error, folder)


def error_text(error: GossamerError, folder: Path | None = None) -> str:
    """Returns the kind and the message of an error."""
    text = str(error)
    if folder is not None:
        text = text.replace(f"{folder}/", "")
    text = text.removeprefix("ONNX model: ")
    for joint in ("; ", ", or "):
        text = text.replace(f"{joint}{host_library.EXTRA}", "")
    kind = {"ModelError": "", "UnsupportedError": "unsupported ", "InputError": "input "}.get(
        type(error).__name__, f"{type(error).__name__} ")
    return f"! {kind}{_FOREIGN.sub(lambda found: found[1], text)}"


def sizes_text(shape: Iterable[int | None]) -> str:
    return ",".join("N" if size is None else str(size) for size in shape)


def array_text(array: np.ndarray) -> str:
    """Returns shape, dtype and elements of an array, or a digest of its elements with six
    digits: the last digits of a float may depend on the processor."""
    if array.size > _MANY:
        elements = as_text(array)
    elif array.dtype.kind == "f":
        elements = " ".join(f"{value + 0.0:.6g}" for value in array.reshape(-1).tolist())
    elif array.dtype.kind in "iub":
        elements = " ".join(str(int(value)) for value in array.reshape(-1).tolist())
    else:
        elements = " ".join(map(str, array.reshape(-1).tolist()))
    if array.size > _FEW:
        elements = f"#{digest(elements)}"
    kind = "" if array.dtype == np.float32 else array.dtype.name
    return f"{kind}[{sizes_text(array.shape)}]{elements}"


def expression_text(expression: Expression) -> str:
    steps = " ".join(
        f"{step.function}({','.join([*map(str, step.arguments), *map(_number, step.constants)])})"
        for step in expression.steps)
    last = expression.inputs + len(expression.steps) - 1
    outputs = "" if expression.outputs == (last,) else f"->{expression.outputs}"
    return f"<{expression.inputs}: {steps}{outputs}>"


def _number(value: float) -> str:
    return f"{float(value) + 0.0:.6g}"


def attribute_text(value: Any) -> str:
    if isinstance(value, Expression):
        return expression_text(value)
    if isinstance(value, np.ndarray):
        return array_text(value) if value.dtype != np.uint8 else model_text(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(attribute_text, value))})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _number(value)
    return str(value)


def model_text(data: np.ndarray) -> str:
    """Returns what a part for ONNX Runtime holds, or the operator of a node of ONNX."""
    try:
        model = onnx.load_model_from_string(data.tobytes())
    except Exception:
        return f"bytes {data.size}"
    if not model.HasField("graph"):
        return onnx.NodeProto.FromString(data.tobytes()).op_type
    graph = model.graph
    infos = [" ".join(f"{info.name}:{_type_text(info.type)}" for info in infos)
             for infos in (graph.input, graph.output)]
    nodes = " ".join(f"{node.op_type}({','.join(node.input)})>{','.join(node.output)}"
                     for node in graph.node)
    initializers = " ".join(f"{tensor.name}:{tensor.data_type}{list(tensor.dims)}"
                            for tensor in graph.initializer)
    reasons = " ".join(entry.value for entry in model.metadata_props)
    return f"{{{infos[0]}; {nodes}; {initializers}; {infos[1]}; {reasons}}}"


def _type_text(kind: onnx.TypeProto) -> str:
    tensor = kind.tensor_type
    dims = ",".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
                    for dim in tensor.shape.dim) if tensor.HasField("shape") else "?"
    return f"{kind.WhichOneof('value')} {tensor.elem_type}[{dims}]"


def node_text(node: Node) -> str:
    attributes = " ".join(f"{name}={attribute_text(value)}"
                          for name, value in node.attributes.items())
    return (f"{node.op} {','.join(node.inputs)}>{','.join(node.outputs)}"
            f"{' ' if attributes else ''}{attributes}")


def info_text(info: ValueInfo) -> str:
    given = "" if info.given is None else f" given {as_text(info.given)}"
    returned = f" returned {info.returned_dtype}" if info.returned_dtype else ""
    dtype = "" if info.dtype == "float32" else f" {info.dtype}"
    return f"{info.name}[{sizes_text(info.shape)}]{dtype}{given}{returned}"


def graph_text(graph: Graph, *, names: bool = False) -> str:
    """Returns all of a graph. names: with the names of nodes and their words for messages."""
    parts = [f"{' '.join(map(info_text, graph.inputs))} -> "
             f"{' '.join(map(info_text, graph.outputs))}"]
    parts += [node_text(node) + (f" ({node.name}, {node.source})" if names else "")
              for node in graph.nodes]
    parts += [f"{name}={array_text(array)}" for name, array in graph.constants.items()]
    parts.append(f"named {graph.name}")
    if graph.fixed_batch is not None:
        parts.append(f"fixed {graph.fixed_batch}")
    if graph.tail is not None:
        tail = graph.tail
        constants = " ".join(f"{index}={array_text(array)}"
                             for index, array in tail.constants.items())
        parts.append(f"tail {model_text(tail.model)} {constants} {tail.reads} "
                     f"{' '.join(map(info_text, (*tail.inputs, *tail.outputs)))}")
    if graph.metadata != ModelMetadata():
        parts.append(as_text(graph.metadata))
    parts += [f"warning {warning}" for warning in graph.warnings]
    parts += [f"note {note}" for note in graph.notes]
    return "; ".join(parts)


def facts_text(facts: ValueFacts) -> str:
    if facts == REAL:
        return "real"
    step = f"/{_number(facts.step)}" if facts.step else ""
    return f"{_number(facts.low)}..{_number(facts.high)}{step}"


def static_text(static: StaticGraph) -> str:
    """Returns the nodes of a static graph with the shapes, dtypes and value facts of their
    results, and all constants."""
    known = derive(static)
    parts = []
    for node in static.nodes:
        results = " ".join(
            f"[{sizes_text(static.shapes[name])}]"
            f"{'' if static.dtypes[name] == 'float32' else static.dtypes[name]}"
            f"{'' if known[name] == REAL else ' ' + facts_text(known[name])}"
            for name in node.outputs if name in static.shapes)
        parts.append(f"{node_text(node)} {results}")
    parts += [f"{name}={array_text(array)}" for name, array in static.constants.items()]
    return "; ".join(parts)
