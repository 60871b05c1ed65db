"""Resizes and casts on every device, and settings of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer import debug
from gossamer.device.base import Device
from tests.model.onnx_models import Input, model, save, single, weights
from tests.plan.small import images


@pytest.mark.parametrize(("before", "after"), [
    ((1, 1, 28, 49), (1, 1, 4, 7)), ((2, 28, 10, 3), (2, 4, 15, 3)), ((2, 3, 28), (2, 3, 4)),
    ((2, 2, 6, 14, 10), (2, 2, 4, 4, 15)), ((3, 10), (3, 4)), ((2, 28, 5), (2, 4, 5))])
@pytest.mark.parametrize(("mode", "dtype"), [
    ("nearest", "float32"), ("nearest", "int64"), ("nearest", "uint8"), ("linear", "float32")])
def test_resizes_of_any_axes(before: Sequence[int], after: Sequence[int], mode: str, dtype: str,
                             device: Device) -> None:
    axes = [axis for axis in range(len(before)) if before[axis] != after[axis]]
    sizes = np.array([after[axis] for axis in axes])
    proto, feeds = single(
        "Resize", (Input(before, 0, 99, dtype), None, None, sizes), 18, mode=mode, axes=axes,
        coordinate_transformation_mode="asymmetric" if mode == "nearest" else "half_pixel",
        nearest_mode="floor", types={"y0": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))})
    y = x = feeds["x0"]
    for axis in axes:
        size, length = before[axis], after[axis]
        at = (np.arange(length) + 0.5) * size / length - 0.5
        y = y.take(np.arange(length) * size // length, axis) if mode == "nearest" else (
            np.apply_along_axis(partial(np.interp, at, range(size)), axis, y))
    plan = gossamer.compile(proto, device)
    np.testing.assert_allclose(plan(x), y, rtol=1e-4 * (mode == "linear"))
    assert {row["device"] for row in plan.report(before[0]).rows} <= {device.name}


@pytest.mark.parametrize("arguments", [
    {"size": (4, 7)}, {"scale_factor": (7 / 3, 0.7)}, {"size": (4, 7), "mode": "nearest-exact"},
    {"scale_factor": 0.7, "mode": "bilinear"}, {"scale_factor": 0.7, "mode": "bicubic"}], ids=str)
def test_interpolation_of_torch(arguments: dict[str, Any], device: Device) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Upsample(**arguments)
    x = torch.randn(2, 3, 20, 49)
    torch.testing.assert_close(gossamer.optimize(module.eval(), x, device)(x), module(x),
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["Cast", "CastLike"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_casts_to_short_floats_round(kind: int, op: str, device: Device) -> None:
    node = helper.make_node(op, ["x"], ["s"], to=kind) if op == "Cast" else (
        helper.make_node(op, ["x", "one"], ["s"]))
    proto = model([node, helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)],
                  {"x": ["N", 9]}, {"y": 2})
    proto.graph.initializer.append(helper.make_tensor("one", kind, [], [1]))
    x = np.float32([[65504, 65520, 3.39e38, 1e-8, -2049, 2051, 0.1, np.nan, -np.inf]])
    with np.errstate(over="ignore"):
        expected = x.astype(helper.tensor_dtype_to_np_dtype(kind)).astype(np.float32)
    np.testing.assert_array_equal(gossamer.compile(proto, device)(x), expected)


@pytest.mark.parametrize(("text", "level"), [("", 0), ("0", 0), ("1", 1), ("9", 2), ("-1", 0),
                                             ("yes", 1)])
def test_levels(monkeypatch: pytest.MonkeyPatch, text: str, level: int) -> None:
    monkeypatch.setenv("GOSSAMER_DEBUG", text)
    assert debug.level() == level


def test_open_dimensions_are_set_from_python(tmp_path: Path) -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
                  {"x": ["N", 3, "H", "W"]}, {"y": 4}, {"w": weights(4, 3, 3, 3)})
    path = str(save(proto, tmp_path))
    with pytest.raises(gossamer.GossamerError, match=r"compile\(\.\.\., shapes="):
        gossamer.compile(path, ["host", "host"])
    plan = gossamer.compile(path, "host", shapes={"x": (3, 8, 9)})
    assert plan(images(1).repeat(3, axis=2)[:, :, :8].repeat(2, axis=3)[..., :9]).shape == (
        1, 4, 6, 7)
