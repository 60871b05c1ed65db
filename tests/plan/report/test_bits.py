"""Layers on bits, trits and floats: the reasons, and the memory that they take."""

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
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.plan import Plan
from gossamer.plan.report.bits import (
    LayerForm,
    MemoryUse,
    form_of,
    forms_line,
    weights_line,
)
from gossamer.plan.report.summary import forms_of_layers
from gossamer.tensor import default_spec
from gossamer_bench.suites.binary_networks import resnet18, vgg_cifar10
from tests.model.onnx_models import model, save, weights
from tests.ops.conv2d.binary.signs import SCALED
from tests.plan.photos import photos

PRODUCT = GemmProblem(1, 2, 3, weights_info=SCALED, facts=(PLUS_MINUS_ONE,))


@pytest.mark.parametrize(("known", "taken", "form"), [
    (PLUS_MINUS_ONE, None, LayerForm("fc", "bits", "", True, 6)),
    (TERNARY, True, LayerForm("fc", "trits", "", True, 6)),
    (TERNARY, False, LayerForm("fc", "floats", "trits would suffice, but another "
                                                  "algorithm was chosen",
                               True, 6)),
    (REAL, False, LayerForm(
        "fc", "floats", "its inputs are not known to be -1, 0 or 1; possible values: any floats",
        False, 6))])
def test_the_form_of_a_product(known: ValueFacts, taken: bool | None, form: LayerForm) -> None:
    assert form_of("fc", replace(PRODUCT, facts=(known,)), taken) == form


def test_layers_that_are_computed_in_one_step_count_each() -> None:
    second = GemmProblem(1, 5, 2, weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    fusion = FusionProblem((PRODUCT, second), ((entry(0),), ((0, 0),)), ((1, 0),))
    form = form_of("both", fusion, True)
    assert form == LayerForm("both", "bits", "", True, 6 + 10, 2)
    floats = form_of("other", replace(PRODUCT, weights_info=WeightsInfo()))
    assert forms_line([form, floats]).startswith(
        "layers with weights: 2 of 3 on bits, 1 of 3 on floats: other (")


def test_only_layers_with_weights_have_a_form() -> None:
    assert form_of("pool", PoolProblem(default_spec((1, 2, 3, 3)), "max", (2, 2))) is None


def test_a_line_names_the_layers_on_floats() -> None:
    bits = form_of("first", PRODUCT)
    floats = form_of("second", replace(PRODUCT, weights_info=WeightsInfo()))
    assert forms_line([bits, floats]) == (
        "layers with weights: 1 of 2 on bits, 1 of 2 on floats: second (its weights have "
        "different magnitudes within a channel)")
    assert forms_line([bits, form_of("third", replace(PRODUCT, facts=(TERNARY,)))]) == (
        "layers with weights: 1 of 2 on bits, 1 of 2 on trits")
    assert weights_line([floats]) == ""
    assert weights_line([bits, floats]) == (
        "weights of layers that are computed on bits or trits: 7.5e-07 MB as bits, "
        "2.4e-05 MB in float32")


@pytest.mark.parametrize(("info", "known", "reason"), [
    (SCALED, REAL, "its inputs are not known to be -1, 0 or 1; possible values: any floats"),
    (SCALED, ValueFacts(-0.5, 1.0, 1.5),
     "its inputs are not known to be -1, 0 or 1; possible values: -0.5 or 1"),
    (WeightsInfo(), PLUS_MINUS_ONE, "its weights have different magnitudes within a channel"),
    (WeightsInfo(0.5, "mask"), TERNARY,
     "some of its weights are 0: the weights of a channel must have one nonzero magnitude"),
    (WeightsInfo(), REAL, "")])
def test_a_line_says_why_layers_of_signs_are_on_floats_where_all_are(
        info: WeightsInfo, known: ValueFacts, reason: str) -> None:
    form = form_of("fc", replace(PRODUCT, weights_info=info, facts=(known,)))
    assert forms_line([form]) == (f"layers with weights: 1 of 1 on floats: fc ({reason})"
                                  if reason else "")


def test_reports_state_the_form_and_an_exact_precision(tmp_path: Path) -> None:
    graph = vgg_cifar10("small", 8)
    report = gossamer.compile(graph, "host", only="host_popcount").report(1)
    rows = [row for row in report.rows if row["form"]]
    assert [row["form"]["form"] for row in rows] == ["floats", *["bits"] * 8]
    assert [row["precision"] for row in rows] == ["fp32", *["b1"] * 8]
    assert "layers with weights: 8 of 9 on bits, 1 of 9 on floats: " in str(report)
    floats = gossamer.compile(graph, "host", only="host_im2col").report(1)
    assert {row["precision"] for row in floats.rows} == {"fp32"}
    assert "bits would suffice, but another algorithm was chosen" in floats.forms_line
    forms = forms_of_layers(graph, 1)
    assert [form.form for form in forms.values()] == ["floats", *["bits"] * 8]


def test_networks_of_floats_have_no_such_line() -> None:
    build = GraphBuilder("floats")
    y = build.gemm(build.input("x", (None, 3)), build.constant(
        "w", np.arange(6, dtype=np.float32).reshape(3, 2)))
    build.output(y, (None, 2))
    report = gossamer.compile(build.finish(), "host").report(1)
    assert report.forms_line == "" and report.rows[0]["form"]["form"] == "floats"


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
    packed = {id(each): each.nbytes for state in plan.context(len(x)).steps.states
              for each in state.packed}
    assert plan.memory["weights"] == sum(packed.values())
    return use


def test_whole_words_take_a_32nd(quick_device: Device) -> None:
    """All channels are multiples of 64, but for the last layer's ten."""
    graph = vgg_cifar10("small", 8)
    weights = [array for key, array in graph.constants.items() if key.startswith("weight")]
    use = use_of(packed_plan(graph, quick_device), np.zeros((1, 3, 8, 8), np.float32))
    binary = sum(array.size for array in weights[1:])
    # thresholds, and the words of the classifier's other channels
    assert use.packed_weights_fp32 == 4 * binary
    assert binary / 8 <= use.packed_weights < 1.2 * binary / 8 + 64 * 1024 // 8
    assert use.packed_activations_fp32 == 32 * use.packed_activations
    assert use.total_fp32 >= 4 * sum(array.size for array in weights)
    # im2col_gemm has two integers for each tap of a channel, and every layer has a bias
    table = 2 * 4 * weights[0][0].size
    assert 4 * weights[0].size <= use.float_weights <= 1.2 * 4 * weights[0].size + table
    assert use.total == sum((use.packed_weights, use.float_weights, use.packed_activations,
                             use.float_activations))


def test_a_concatenation_that_copies_counts_its_result(tmp_path: Path) -> None:
    signs = {name: np.sign(weights(64, 64, 3, 3, seed=seed)) for seed, name in enumerate("vw")}
    nodes = [node("Sign", ["x"], ["signs"], "signs"),
             node("Conv", ["signs", "v"], ["a"], "first", pads=[1, 1, 1, 1]),
             node("Conv", ["signs", "w"], ["b"], "second", pads=[2, 2, 2, 2], dilations=[2, 2]),
             node("Concat", ["a", "b"], ["y"], "both", axis=1)]
    proto = model(nodes, {"x": ["N", 64, 8, 8]}, {"y": 4}, signs)
    plan = packed_plan(str(save(proto, tmp_path)), find("host"))
    use = use_of(plan, weights(1, 64, 8, 8))
    # the signs are floats before they are packed; the sums and their concatenation are two copies
    assert use.float_activations == 4 * (64 + 128 + 128) * 8 * 8
    signs_fp32 = 4 * sum(array.size for array in signs.values())
    assert use.total_fp32 - signs_fp32 == 4 * (64 + 128 + 128) * 8 * 8


def test_sums_of_residual_blocks_are_floats() -> None:
    graph = resnet18("small", 32)
    plan = gossamer.compile(graph, "host", only="host_popcount")
    use = use_of(plan, np.zeros((1, 3, 32, 32), np.float32))
    assert use.packed_weights_fp32 < 32 * use.packed_weights < 1.3 * use.packed_weights_fp32
    assert use.float_activations > use.packed_activations > 0


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
    assert 32 * use.packed_weights < 1.3 * use.packed_weights_fp32
    assert use.packed_activations_fp32 * planes == 32 * use.packed_activations
    assert use.total < use.total_fp32 / 12
