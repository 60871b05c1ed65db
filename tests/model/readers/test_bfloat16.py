"""Constants of bfloat16 are numbers, whichever version of onnx reads their bits; inputs and outputs
of it, and of float64, are float32."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from gossamer.model.readers.onnx.constants import to_array
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.onnx_models import model

BITS = [0x3F80, 0xC000, 0x0000]


@pytest.mark.parametrize("gives_bits", [False, True])
def test_bits_become_numbers(gives_bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[3], int32_data=BITS)
    if gives_bits:  # as onnx before 1.19 does
        bits = np.array(BITS, np.dtype((np.uint16, {"bfloat16": (np.uint16, 0)})))
        monkeypatch.setattr(numpy_helper, "to_array", lambda tensor: bits)
    assert to_array(tensor).astype(np.float32).tolist() == [1.0, -2.0, 0.0]


@pytest.mark.parametrize(("kind", "name"), [
    (TensorProto.DOUBLE, "float64"), (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT, "")])
def test_what_becomes_float32_is_told(kind: int, name: str) -> None:
    graph = load_onnx(model([helper.make_node("Relu", ["x"], ["y"], "n")], {"x": ["N", 3]},
                            {"y": 2}, types={"x": kind, "y": kind}), narrows=True)
    told = [warning.partition(": ")[2] for warning in graph.warnings]
    assert told == ([] if not name else [f"{what} is {name}; gossamer takes and gives float32"
                                         for what in ("input 'x'", "output 'y'")])
