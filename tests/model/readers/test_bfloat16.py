"""Constants of bfloat16 are numbers, whichever version of onnx reads their bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from gossamer.model.readers.onnx.constants import to_array

BITS = [0x3F80, 0xC000, 0x0000]


@pytest.mark.parametrize("gives_bits", [False, True])
def test_bits_become_numbers(gives_bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[3], int32_data=BITS)
    if gives_bits:  # as onnx before 1.19 does
        bits = np.array(BITS, np.dtype((np.uint16, {"bfloat16": (np.uint16, 0)})))
        monkeypatch.setattr(numpy_helper, "to_array", lambda tensor: bits)
    assert to_array(tensor).astype(np.float32).tolist() == [1.0, -2.0, 0.0]
