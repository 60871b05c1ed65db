"""The memory of networks that are computed on bits, as reports state it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.graph import Graph
from gossamer.plan.plan import Plan
from gossamer.plan.report.bits import MemoryUse, memory_use
from gossamer_bench.suites.binary_networks import resnet18, vgg_cifar10
from tests.model.onnx_models import model, save, weights
from tests.plan.photos import photos

node = helper.make_node


def packed_plan(network: Graph | str, device: Device) -> Plan:
    only = "host_popcount" if not device.compiles else (
        "wide_popcount" if device.on_processors else "popcount")
    return gossamer.compile(network, device, only=only)


def use_of(plan: Plan, x: np.ndarray) -> MemoryUse:
    """Returns the memory of a plan that has been called, after it was compared with the plan's own
    count of the bytes on the device."""
    assert plan.report(len(x)).memory is None
    plan(x)
    report = plan.report(len(x))
    use = report.memory
    assert use is not None and f"memory: {use}" in str(report)
    forms = [built.forms for built in plan.context(len(x)).builds if built is not None]
    assert plan.memory["weights"] == sum(sum(each.values()) for each in forms)
    return use


def test_whole_words_take_a_32nd(quick_device: Device) -> None:
    """All channels are multiples of 64, but for the last layer's ten."""
    graph = vgg_cifar10("small", 8)
    weights = [array for key, array in graph.constants.items() if key.startswith("weight")]
    use = use_of(packed_plan(graph, quick_device), np.zeros((1, 3, 8, 8), np.float32))
    binary = sum(array.size for array in weights[1:])
    assert use.packed_weights_fp32 == 4 * binary == 32 * use.packed_weights
    assert use.packed_activations_fp32 == 32 * use.packed_activations
    # of every layer on bits only the classifier writes numbers, ten for an image
    assert use.sums == 4 * 10
    assert use.float_weights_fp32 == 4 * weights[0].size
    # im2col_gemm has two integers for each tap of a channel
    table = 2 * 4 * weights[0][0].size
    assert use.float_weights_fp32 <= use.float_weights <= 1.01 * use.float_weights_fp32 + table
    # the words of the classifier's other channels, and what fills a vector of them
    assert use.filling <= 64 * 1024 // 8
    assert use.constants < 0.2 * use.packed_weights
    assert use.total == sum((use.packed_weights, use.float_weights, use.packed_activations,
                             use.sums, use.float_activations, use.constants, use.filling))


def test_what_is_concatenated_in_place_counts_once(tmp_path: Path) -> None:
    signs = {name: np.sign(weights(64, 64, 3, 3, seed=seed)) for seed, name in enumerate("vw")}
    nodes = [node("Sign", ["x"], ["signs"], "signs"),
             node("Conv", ["signs", "v"], ["a"], "first", pads=[1, 1, 1, 1]),
             node("Conv", ["signs", "w"], ["b"], "second", pads=[1, 1, 1, 1]),
             node("Concat", ["a", "b"], ["y"], "both", axis=1)]
    proto = model(nodes, {"x": ["N", 64, 8, 8]}, {"y": 4}, signs)
    plan = packed_plan(str(save(proto, tmp_path)), find("host"))
    use = use_of(plan, weights(1, 64, 8, 8))
    assert [step.layer.name for step in plan.program(1).steps if step.in_place] == ["both"]
    # the signs are floats before they are packed; what joins the sums takes no further memory
    assert (use.sums, use.float_activations) == (4 * 128 * 8 * 8, 4 * 64 * 8 * 8)
    assert use.activations_fp32 == 4 * (64 + 128 + 128) * 8 * 8


def test_tables_of_float_layers_are_no_weights() -> None:
    """Some algorithms keep beside the weights where the inputs of an inner product lie."""
    plan = packed_plan(vgg_cifar10("small", 8), find("host"))
    plan(np.zeros((1, 3, 8, 8), np.float32))
    (first, *others), program = plan.context(1).builds, plan.program(1)
    weights = 4 * program.steps[0].problem.weight_shapes["weight"][0] * 27
    forms = {"k by channels, crs": weights, "operand0 padded to 128": 512,
             "operand1 padded to 128": 512, "table of k (1024, 32, 1) (1, 1) 1": 8 * 27}
    before = memory_use(program, [replace(first, forms={}), *others])
    after = memory_use(program, [replace(first, forms=forms), *others])
    assert after.float_weights == before.float_weights == weights
    assert after.constants == before.constants + 8 * 27


def test_sums_of_residual_blocks_are_stated_apart() -> None:
    graph = resnet18("small", 32)
    plan = gossamer.compile(graph, "host", only="host_popcount")
    use = use_of(plan, np.zeros((1, 3, 32, 32), np.float32))
    assert use.packed_weights * 32 == use.packed_weights_fp32 and use.filling == 0
    assert use.sums > use.packed_activations > 0


def test_floats_have_no_such_line() -> None:
    plan = gossamer.compile(vgg_cifar10("small", 8), "host", only="host_im2col")
    plan(np.zeros((1, 3, 8, 8), np.float32))
    report = plan.report(1)
    assert report.memory is None and "memory:" not in str(report)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("name", "planes"), [("resnet18_w1a1_cifar10", 1),
                                              ("cnv_w1a1_cifar10", 2), ("lfc_w1a1_mnist", 2)])
def test_real_networks(name: str, planes: int, shared_model: Callable[[str], Path]) -> None:
    """Trits take two bits an activation, and one a weight."""
    plan = gossamer.compile(str(shared_model(name)), "host", only="host_popcount")
    use = use_of(plan, photos(name, 1))
    assert use.packed_weights_fp32 == 32 * use.packed_weights
    assert use.packed_activations_fp32 * planes == 32 * use.packed_activations
    assert use.total < use.total_fp32 / 12
