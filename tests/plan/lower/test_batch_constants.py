"""Constants that are computed for one batch size must not be used for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.device.base import Device
from gossamer.errors import InputError
from tests.model.onnx_models import model, runtime, weights
from tests.plan.small import assert_close, compiled


def _ranged() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Gather", ["s", "zero"], ["n"], "batch", axis=0),
         node("Range", ["zero", "n", "one"], ["r"], "range"),
         node("Cast", ["r"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
         node("Unsqueeze", ["f", "axes"], ["u"], "column"),
         node("Add", ["x", "u"], ["y"], "add")],
        {"x": ["N", 4]}, {"y": 2},
        {"zero": np.array(0), "one": np.array(1), "axes": np.array([1])})


def _expanded() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Expand", ["k", "s"], ["e"], "expand"),
         node("Mul", ["x", "e"], ["y"], "mul")],
        {"x": ["N", 4]}, {"y": 2}, {"k": weights(4)})


@pytest.mark.parametrize("make", [_ranged, _expanded])
def test_every_batch_has_its_own(device: Device, tmp_path: Path,
                                 make: Callable[[], onnx.ModelProto]) -> None:
    proto = make()
    plan = compiled(proto, device, tmp_path)
    for batch in (2, 3, 1, 5, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        assert_close(plan(x), runtime(proto, {"x": x})[0])


def test_a_context_refuses_what_it_was_not_made_for(device: Device, tmp_path: Path) -> None:
    context = compiled(_expanded(), device, tmp_path).context(2)
    for wrong in (np.ones((1, 4), np.float32), np.ones((2, 4), np.int32)):
        with pytest.raises(InputError, match="context of batch 2 takes"):
            context.run({"x": wrong})
    with pytest.raises(InputError, match="input 'x' is missing"):
        context.run({})
