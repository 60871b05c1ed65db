"""Plans of networks with a layer without any weight left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.plan.plan import Plan
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import model, weights
from tests.plan.small import save


def test_a_plan_takes_it(quick_device: Device, tmp_path: Path, effort: str | None) -> None:
    dead, bias = np.zeros((4, 4, 3, 3), np.float32), np.float32([1, -2, 3, -4])
    proto = model([helper.make_node("Conv", ["x", "v"], ["a"], "alive", pads=[1] * 4),
                   helper.make_node("Conv", ["a", "w", "b"], ["c"], "dead", pads=[1] * 4),
                   helper.make_node("Relu", ["c"], ["y"], "relu")],
                  {"x": ["N", 4, 5, 5]}, {"y": 4},
                  {"v": weights(4, 4, 3, 3), "w": dead, "b": bias})
    tuner = effort and Tuner(quick_device, effort, cache=TuningCache(quick_device, tmp_path))
    plan = Plan(gossamer.load(str(save(proto, tmp_path))), quick_device, tuner=tuner or None)
    y = plan(np.ones((2, 4, 5, 5), np.float32))
    expected = np.broadcast_to(np.maximum(bias, 0)[:, None, None], y.shape)
    np.testing.assert_array_equal(y, expected)
    rows = {row["layer"]: row for row in plan.report().rows}
    assert rows["dead"]["algorithm"] == "zero_weights" and rows["dead"]["density"] == 0
    assert rows["alive"]["algorithm"] != "zero_weights"
