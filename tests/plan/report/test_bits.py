"""Layers on bits, trits and floats, and the reasons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.model.builder import GraphBuilder
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.report.bits import (
    LayerForm,
    form_of,
    forms_line,
    weights_line,
)
from gossamer.plan.report.summary import forms_of_layers
from gossamer.tensor import default_spec
from gossamer_bench.suites.binary_networks import vgg_cifar10
from tests.ops.conv2d.binary.signs import SCALED

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
    report = gossamer.compile(graph, "host", only="host_direct_popcount").report(1)
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
