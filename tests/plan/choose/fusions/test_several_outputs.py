"""One algorithm that writes several values, each in a format of its own: sums and their bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import identity
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.ops.algorithm import Variant
from gossamer.ops.fused.problem import FusionProblem
from gossamer.plan.tune.network_reference import reference
from gossamer.tensor import Format, TensorSpec
from tests.plan.choose.formats.toy import PLUS_OR_MINUS, ToyConv, add_algorithms, images, set_costs
from tests.plan.choose.fusions.toy import FusedBlock, make_plan, no_comparison, with_algorithm
from tests.plan.small import reloaded
from tests.tolerances import normalised_error, tolerance

BITS = Format("packed32", "bits")
FUSION = "sums + bits"


class SumsAndBits(FusedBlock):
    """A convolution and the signs of its sums, both written; `dropped` leaves out the last input
    channel, as a faulty kernel might."""

    name = "sums_and_bits"
    patterns = (("conv2d", "elementwise"),)
    dropped = False

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        return None if problem.exits == ((0, 0), (1, 0)) else "writes the sums and their bits"

    def variants(self, problem: FusionProblem, device: Device) -> Iterable[Variant]:
        sums, bits = problem.outputs
        return [Variant((), problem.inputs, (sums, TensorSpec(bits.shape, BITS)))]

    def compute(self, problem: Any, arrays: Any, weights: Any) -> list[np.ndarray]:
        if self.dropped:
            weights = {**weights, "0.weight": weights["0.weight"].copy()}
            weights["0.weight"][:, -1] = 0
        return super().compute(problem, arrays, weights)


def network() -> Graph:
    """Returns a network whose sums are added up and are binarised for the next convolution too."""
    rng = np.random.default_rng(0)
    constants = {f"w{index}": rng.choice(np.float32([-1, 1]), (5, 5, 3, 3)) for index in range(2)}
    constants["w0"] *= rng.uniform(0.5, 1.5, (5, 5, 3, 3)).astype(np.float32)
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1,
              "epilogue": identity()}
    nodes = [Node("conv2d", "sums", ["x", "w0"], ["sums.y"], {**window}, "Conv 'sums'"),
             Node("elementwise", "bits", ["sums.y"], ["bits.y"], {"expression": PLUS_OR_MINUS},
                  "Where 'bits'"),
             Node("conv2d", "next", ["bits.y", "w1"], ["y"], {**window}, "Conv 'next'")]
    return Graph("two_outputs", [ValueInfo("x", (None, 5, 6, 6))],
                 [ValueInfo("y", (None, 5, 6, 6)), ValueInfo("sums.y", (None, 5, 6, 6))], nodes,
                 constants)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    no_comparison(monkeypatch)
    with_algorithm(monkeypatch, SumsAndBits())
    add_algorithms(monkeypatch, ToyConv("reader", reads=BITS, facts=PLUS_MINUS_ONE))
    set_costs(monkeypatch, 1.0, conversion=100.0)


def test_both_outputs_go_to_their_readers(tmp_path: Path) -> None:
    graph = network()
    plan = make_plan(graph, tmp_path)
    steps = plan.program(2).steps
    assert [(step.layer.name, step.algorithm.name) for step in steps] == [
        (FUSION, "sums_and_bits"), ("next", "reader")]
    assert [plan.program(2).specs[name].format for name in steps[0].outputs] == [
        Format("NCHW"), BITS]
    x = images()
    for y, expected in zip(plan(x), reference(graph, {"x": x}).values(), strict=True):
        assert normalised_error(y, expected) <= tolerance("network")
    for y, other in zip(reloaded(plan, tmp_path)(x), plan(x), strict=True):
        np.testing.assert_array_equal(y, other)


def test_wrong_bits_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SumsAndBits, "dropped", True)
    plan = make_plan(network(), tmp_path)
    assert "sums_and_bits" not in [step.algorithm.name for step in plan.program(2).steps]
    row = next(row for row in plan.report(2).rows if row["layer"] == "sums")
    assert row["rejected"]["sums_and_bits"].startswith("wrong numbers")


