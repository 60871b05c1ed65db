"""A small network with convolutions, a residual sum and a classifier, for the tests of plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.plan.plan import Plan
from tests.model.onnx_models import model, runtime, save, weights
from tests.networks.compared import several
from tests.tolerances import normalised_error, tolerance


@cache
def small() -> onnx.ModelProto:
    """Returns the network."""
    node = helper.make_node
    return model(
        [node("Conv", ["x", "w0", "b0"], ["a"], "first", pads=[1, 1, 1, 1]),
         node("Relu", ["a"], ["b"], "relu"),
         node("Conv", ["b", "w1"], ["c"], "second", pads=[1, 1, 1, 1]),
         node("Add", ["c", "b"], ["d"], "sum"),
         node("MaxPool", ["d"], ["e"], "pool", kernel_shape=[2, 2]),
         node("GlobalAveragePool", ["e"], ["f"], "mean"),
         node("Flatten", ["f"], ["g"], "flat"),
         node("Gemm", ["g", "w2", "b2"], ["y"], "classes")],
        {"x": ["N", 3, 6, 5]}, {"y": 2},
        {"w0": weights(8, 3, 3, 3), "b0": weights(8), "w1": weights(8, 8, 3, 3, seed=1),
         "w2": weights(8, 4, seed=2), "b2": weights(4, seed=3)})


def images(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, 6, 5)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    """Returns the output that ONNX Runtime computes."""
    return runtime(small(), {"x": x})[0]


def compiled(proto: onnx.ModelProto, device: Device, folder: Path, *,
             strict: bool = False) -> Plan:
    return gossamer.compile(str(save(proto, folder)), device, strict=strict)


def reloaded(plan: Plan, folder: Path, device: Device | None = None) -> Plan:
    """Returns what a plan becomes that is saved and loaded."""
    plan.save(folder / "saved.plan")
    return Plan.load(folder / "saved.plan", device)


def assert_close(y: np.ndarray, reference: np.ndarray) -> None:
    """Fails unless floats are within the tolerance of a network, and all else is equal."""
    assert y.dtype == reference.dtype
    if y.dtype.kind == "f":
        assert normalised_error(y, reference) <= tolerance("network")
    else:
        np.testing.assert_array_equal(y, reference)


def assert_as_runtime(plan: Plan, proto: onnx.ModelProto, *inputs: np.ndarray) -> None:
    """Fails unless a plan gives the outputs of ONNX Runtime."""
    feeds = dict(zip((info.name for info in plan.inputs), inputs, strict=True))
    for y, reference in zip(several(plan(*inputs)), runtime(proto, feeds), strict=True):
        assert_close(y, reference)

