"""Compares real networks, as loaded and as optimised, with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.plan.report.summary import summarise
from tests.model.executor import execute
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error, tolerance

pytestmark = pytest.mark.shared

FLOAT = ("mobilenetv2", "squeezenet_pruned")
BINARY = ("cnv_w1a1_cifar10", "lfc_w1a1_mnist", "resnet18_w1a1_cifar10")


@pytest.mark.parametrize(("name", "batch"), [*zip(FLOAT, (1, 2), strict=True)])
def test_network_agrees(name: str, batch: int, shared_model: Callable[[str], Path]) -> None:
    path = shared_model(name)
    graph = load(path)
    shape = (batch, *[size or 0 for size in graph.inputs[0].shape[1:]])
    x = np.random.default_rng(batch).standard_normal(shape).astype(np.float32)
    (expected,) = runtime(onnx.load(path), {graph.inputs[0].name: x})
    for version in (graph, optimise(graph)):
        values = execute(resolve(version, batch), {graph.inputs[0].name: x})
        error = normalised_error(values[graph.outputs[0].name], expected)
        assert error <= tolerance("network")


@pytest.mark.parametrize("name", BINARY)
def test_every_layer_of_a_binary_network_agrees_given_the_reference_bits(
    name: str, shared_model: Callable[[str], Path]
) -> None:
    """A sign turns rounding into another bit, so each node gets the inputs that it has in ONNX
    Runtime."""
    path = shared_model(name)
    proto = onnx.load(path)
    names = [output for node in proto.graph.node for output in node.output]
    declared = {info.name for info in proto.graph.output}
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in names
                              if n not in declared)
    graph = optimise(load(path))
    shape = (3, *[size or 0 for size in graph.inputs[0].shape[1:]])
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    expected = dict(zip([o.name for o in proto.graph.output],
                        runtime(proto, {graph.inputs[0].name: x}), strict=True))
    expected[graph.inputs[0].name] = x
    static = resolve(graph, 3)
    nodes = static.nodes
    assert nodes
    for node in nodes:
        static.nodes = [node]
        values = execute(static, {n: expected[n] for n in node.inputs if n in expected})
        error = normalised_error(values[node.outputs[0]], expected[node.outputs[0]])
        assert error <= tolerance("network"), node.source


def test_summary_counts(shared_model: Callable[[str], Path]) -> None:
    rows = summarise(resolve(optimise(load(shared_model("mobilenetv2"))), 1))
    # one bias a channel takes the place of four numbers of batch norm
    assert sum(row.parameters for row in rows) == 3_487_816
    first = rows[0]
    assert (first.op, first.output_shape, first.parameters) == ("conv2d", (1, 32, 112, 112), 896)
    assert first.flops == 32 * 112 * 112 * (2 * 27 + 3)
    pruned = summarise(resolve(load(shared_model("squeezenet_pruned")), 1))
    densities = [row.density for row in pruned if row.density is not None]
    assert len(densities) == 26
    assert min(densities) == pytest.approx(0.19985, abs=1e-5)
