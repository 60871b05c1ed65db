"""Helpers of the tests of hostile files: messages of refusals, and networks of one node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gossamer
from gossamer.errors import MOST_CHARACTERS, GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.onnx_models import model, save

MIB = 2**20


def refusal(read: Callable[[], object], kind: type[GossamerError] = GossamerError) -> str:
    """Returns the message with which a file is refused, which is one line of bounded length."""
    with pytest.raises(kind) as caught:
        read()
    message = str(caught.value)
    assert message.isprintable() and len(message) <= MOST_CHARACTERS
    return message


def resolved(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph = optimise(gossamer.load(save(proto, folder)))
    resolve(graph, 2)
    return graph


def one_node(op: str, attributes: dict[str, Any] | None = None,
             constants: dict[str, np.ndarray] | None = None, shape: tuple[Any, ...] = ("N", 4),
             opset: int = 17) -> onnx.ModelProto:
    """Returns a network of one node, which reads x and the constants."""
    node = helper.make_node(op, ["x", *(constants or {})], ["y"], "layer", **(attributes or {}))
    return model([node], {"x": shape}, {"y": None}, constants, opset)
