"""Quant of QONNX, whose results are compared with its definition, as ONNX Runtime lacks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from gossamer.errors import GossamerError, ModelError, UnsupportedError
from gossamer.facts import TERNARY, ValueFacts
from gossamer.model.facts import derive
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model.onnx_models import model, outputs_of, save

DOMAIN = "onnx.brevitas"
X = np.random.default_rng(3).uniform(-9, 9, (4, 2, 5)).astype(np.float32)
X.flat[:6] = 0.0, 0.5, -0.5, 1.5, -2.5, 1e9


def quant(inputs: dict[str, Any], names: list[str] | None = None,
          **attributes: Any) -> ModelProto:
    """Returns a model of a Quant of x, with the other inputs as constants."""
    node = helper.make_node("Quant", names or ["x", *inputs], ["y"], "node", domain=DOMAIN,
                            **attributes)
    proto = model([node], {"x": ("N", 2, 5)}, {"y": 3},
                  {name: np.asarray(array, np.float32) for name, array in inputs.items()})
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return proto


def definition(x: np.ndarray, scale: np.ndarray, zero: float, bits: int, *, signed: int,
               narrow: int, rounding_mode: str) -> np.ndarray:
    """Returns the results by the definition of QONNX, in float32."""
    if signed:
        low, high = -(2 ** (bits - 1)) + (1 if narrow else 0), 2 ** (bits - 1) - 1
    else:
        low, high = 0, 2**bits - (2 if narrow else 1)
    levels = np.minimum(np.maximum(x / scale + np.float32(zero), low), high)
    rounded = {"ROUND": np.round, "CEIL": np.ceil, "FLOOR": np.floor, "DOWN": np.trunc,
               "UP": lambda x: np.where(x < 0, np.floor(x), np.ceil(x))}[rounding_mode](levels)
    return (rounded - np.float32(zero)) * scale


@pytest.mark.parametrize("rounding_mode", ["ROUND", "CEIL", "FLOOR", "DOWN", "UP"])
@pytest.mark.parametrize(("bits", "signed", "narrow", "zero"), [
    (8, 1, 0, 0), (8, 0, 0, 128), (4, 1, 1, 0), (2, 1, 1, 0), (1, 0, 0, 0), (1, 1, 0, 0),
    (3, 0, 1, 2)])
@pytest.mark.parametrize("scale", [0.25, [[0.5], [3.0]]], ids=["one", "of channels"])
def test_quant_is_its_definition(bits: int, signed: int, narrow: int, zero: int, scale: Any,
                                 rounding_mode: str, tmp_path: Path) -> None:
    settings = {"signed": signed, "narrow": narrow, "rounding_mode": rounding_mode}
    proto = quant({"scale": scale, "zero": zero, "bits": bits}, **settings)
    expected = definition(X, np.float32(scale), zero, bits, **settings)
    graph = load(save(proto, tmp_path))
    for version in (graph, optimise(graph)):
        np.testing.assert_array_equal(outputs_of(version, {"x": X})[0], expected)


@pytest.mark.parametrize(("bits", "signed", "narrow", "expected"), [
    (2, 1, 1, TERNARY), (1, 0, 0, ValueFacts(0, 1, 1)), (8, 1, 0, ValueFacts(-128, 127, 1))])
def test_what_is_known_of_results(bits: int, signed: int, narrow: int, expected: ValueFacts,
                                  tmp_path: Path) -> None:
    proto = quant({"scale": 1, "zero": 0, "bits": bits}, signed=signed, narrow=narrow,
                  rounding_mode="round")
    assert derive(resolve(optimise(load(save(proto, tmp_path))), 1))["y"] == expected


def test_quantised_constants_are_constants(tmp_path: Path) -> None:
    """So quantised weights are weights of a convolution."""
    proto = quant({"w": X[:1], "scale": 0.5, "zero": 0, "bits": 3},
                  ["w", "scale", "zero", "bits"], signed=1, narrow=0)
    graph = load(save(proto, tmp_path))
    assert not graph.nodes
    np.testing.assert_array_equal(graph.constants["y"], definition(
        X[:1], np.float32(0.5), 0, 3, signed=1, narrow=0, rounding_mode="ROUND"))


@pytest.mark.parametrize(("inputs", "names", "attributes", "error", "words"), [
    ({"scale": 1, "zero": 0, "bits": 3}, None, {"rounding_mode": "HALF_UP"}, UnsupportedError,
     "Quant 'node': attribute rounding_mode is 'HALF_UP', gossamer computes 'ROUND' or"),
    ({"scale": 1, "zero": 0, "bits": [3, 4]}, None, {}, UnsupportedError,
     r"quantises to \[3.0, 4.0\] bits, expected one number from 1 to 32"),
    ({"scale": 1, "zero": 0, "bits": 0}, None, {}, UnsupportedError, "expected one number"),
    ({"scale": 1, "zero": 0}, ["x", "scale", "zero", "x"], {}, UnsupportedError,
     "the number of bits comes from 'x', which depends on the data"),
    ({"scale": 1}, None, {}, ModelError, "has 2 inputs, expected 4: x, its scale"),
    ({"scale": 1, "zero": 0, "bits": 3}, None, {"axis": 1}, UnsupportedError, "attribute 'axis'"),
])
def test_other_quants_are_refused(inputs: dict[str, Any], names: list[str] | None,
                                  attributes: dict[str, Any], error: type[GossamerError],
                                  words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        load(save(quant(inputs, names, **attributes), tmp_path))
