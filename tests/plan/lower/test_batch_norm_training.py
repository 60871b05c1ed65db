"""Batch norm by the statistics of the batch, from an ONNX file to the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.device.base import Device
from gossamer.model.load import load
from gossamer.model.onnx_writer import to_onnx
from tests.model.onnx_models import model, save, weights
from tests.tolerances import normalised_error, tolerance

CONSTANTS = {"weight": weights(4, 3, 3, 3), "gamma": weights(4), "beta": weights(4, seed=1),
             "mean": weights(4, seed=2), "variance": np.abs(weights(4, seed=3))}


def network(*norm_outputs: str) -> onnx.ModelProto:
    """A convolution, batch norm by the statistics of the batch, and a leaky rectifier."""
    statistics = [name for name in norm_outputs[1:] if name]
    nodes = [helper.make_node("Conv", ["x", "weight"], ["product"]),
             helper.make_node("BatchNormalization",
                              ["product", "gamma", "beta", "mean", "variance"],
                              list(norm_outputs), "norm", training_mode=1, epsilon=1e-3,
                              momentum=0.7),
             helper.make_node("LeakyRelu", ["norm"], ["y"], alpha=0.1)]
    return model(nodes, {"x": ["N", 3, 9, 8]}, {"y": 4, **dict.fromkeys(statistics, 1)}, CONSTANTS)


@pytest.mark.parametrize("outputs", [("norm",), ("norm", "new_mean", "new_variance"),
                                     ("norm", "", "new_variance"), ("norm", "new_mean", "")],
                         ids=" ".join)
@pytest.mark.parametrize("only", [None, "published"])
def test_outputs_are_those_of_the_onnx_standard(device: Device, outputs: tuple[str, ...],
                                                only: str | None, tmp_path: Path) -> None:
    proto = network(*outputs)
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    plan = gossamer.compile(str(save(proto, tmp_path)), device, only=only)
    results = plan(x)
    for y, r in zip([results] if len(expected) == 1 else results, expected, strict=True):
        assert normalised_error(y, r) <= tolerance("network")
    if only and device.compiles:
        names = [step.algorithm.name for step in plan.program(3).steps if not step.layer.inserted]
        assert names == ["published"] * 3


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    proto = network("norm", "new_mean", "new_variance")
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    written = to_onnx(load(save(proto, tmp_path)))
    for y, r in zip(ReferenceEvaluator(written).run(None, {"x": x}),
                    ReferenceEvaluator(proto).run(None, {"x": x}), strict=True):
        assert normalised_error(y, r) <= 1e-7
