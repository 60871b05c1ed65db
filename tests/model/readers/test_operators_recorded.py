"""Nodes of every ONNX operator are recorded with attributes and inputs at their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
import pytest

from gossamer import host_library
from gossamer.errors import GossamerError, UnsupportedError
from gossamer.model.infer.images_apart import images_apart
from gossamer.model.infer.resolve import resolve
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.readers import operator_cases as drawn
from tests.recorded import Recorded, digest
from tests.recorded.graphs import brief, error_text, graph_text, needs_onnx, static_text

pytestmark = needs_onnx

SHOWN = 110
"""Characters of a case's text."""


def result(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the text of the network at batch 2, and a digest of the graph and of how it treats
    the images of a batch; or the text of the error, and a digest of what becomes of the network
    where ONNX Runtime is installed."""
    try:
        graph = load_onnx(proto)
        text = graph_text(graph)
        static = resolve(graph, 2)
        apart = ""
        if any(info.shape[:1] == (None,) for info in graph.inputs):
            reason, outputs = images_apart(static, resolve(graph, 3))
            apart = reason or str(sorted(outputs))
        return f"{brief(static_text(static), SHOWN)} |{digest([text, apart])}"
    except GossamerError as error:
        text = error_text(error)
        if not isinstance(error, UnsupportedError):
            return text
    with monkeypatch.context() as changed:
        changed.setattr(host_library, "is_installed", lambda: True)
        try:
            graph = load_onnx(proto)
            left = f"{graph_text(graph)} {static_text(resolve(graph, 2))}"
        except GossamerError as error:
            left = error_text(error)
    return f"{text} |{digest(left)}"


def results(operators: Mapping[str, drawn.Operator], patch: pytest.MonkeyPatch
            ) -> Iterator[tuple[str, str]]:
    for name, operator in operators.items():
        for case, proto in drawn.cases(name, operator):
            yield " ".join(case.split()).replace(": ", ":"), result(proto, patch)


@pytest.mark.parametrize("table", ["elementwise", "layers", "layout", "resizes", "resizes_10",
                                   "indexing", "normalisations", "normalisations_21",
                                   "old"])
def test_operators(table: str, without_onnxruntime: None, monkeypatch: pytest.MonkeyPatch,
                   recorded: Recorded) -> None:
    recorded(f"onnx_{table}", dict(results(getattr(drawn, table.upper()), monkeypatch)))


def test_functions(without_onnxruntime: None, monkeypatch: pytest.MonkeyPatch,
                   recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for op, count in drawn.FUNCTIONS.items():
        opset = 22 if op in ("HardSwish", "Mish") else 17
        for given in ([(2, 3)] * count, [(2, 3), (3,), (2, 1)][:count],
                      [(2, 3), (2,), (2,)][:count], [(2, 3)] * (count + 1), [(2, 0)] * count,
                      [()] * count):
            for dtype in ("float32", "int64", "bool") if given == [(2, 3)] * count else (
                    "float32",):
                found[f"{op} {given} {dtype}"] = result(
                    drawn.made(op, opset, given, {}, dtype=dtype), monkeypatch)
    recorded("onnx_functions", found)
