"""A layer whose output has no elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from tests.model.onnx_models import model, save, weights
from tests.plan.small import compiled


@pytest.mark.parametrize("effort", [None, "quick"])
def test_a_convolution_without_output_channels(device: Device, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch,
                                               effort: str | None) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
                  {"x": ["N", 3, 5, 5]}, {"y": 4}, {"w": weights(0, 3, 3, 3)})
    plan = compiled(proto, device, tmp_path) if effort is None else gossamer.compile(
        str(save(proto, tmp_path)), device, effort=effort)
    assert plan(np.ones((2, 3, 5, 5), np.float32)).shape == (2, 0, 3, 3)
