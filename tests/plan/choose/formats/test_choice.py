"""Packed and padded formats go through the plan assignment: conversions that exist are paid for,
and others rule options out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.errors import UnsupportedError
from gossamer.facts import PLUS_MINUS_ONE, TERNARY
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import State
from gossamer.ops.copy import NumpyCopy
from gossamer.ops.copy.problem import CopyProblem
from gossamer.plan.choose.program_builder import Network
from gossamer.plan.choose.table import Table
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.tune import candidate_checks, output_errors
from gossamer.plan.tune.network_reference import reference
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format, default_spec
from tests.networks.compared import several
from tests.plan.choose.formats.toy import (
    EPILOGUES,
    ToyConv,
    add_algorithms,
    images,
    set_costs,
    two_layers,
)
from tests.plan.choose.fusions.toy import make_plan
from tests.plan.small import reloaded
from tests.tolerances import normalised_error, tolerance

BITS = Format("packed32", "bits")
TRITS = Format("packed64", "trits")
PADDED = Format("NCHW", "float32", 8, (1, 1, 1, 1))


@pytest.fixture(autouse=True)
def only_the_measured_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.plan.choose.refine._restrictions",
                        lambda *arguments: {})


def steps(plan: Plan) -> list[tuple[str, str]]:
    """Returns the name and the algorithm of each step."""
    return [(step.layer.name, step.algorithm.name) for step in plan.program(2).steps]


def assert_right(plan: Plan, graph: Graph) -> None:
    expected = reference(graph, {"x": images()})
    for y, right in zip(several(plan(images())), expected.values(), strict=True):
        assert normalised_error(y, right) <= tolerance("network")


@pytest.mark.parametrize(("kind", "packed", "facts"), [
    ("binary", BITS, PLUS_MINUS_ONE), ("binary", Format("packed64", "bits", 128), PLUS_MINUS_ONE),
    ("ternary", TRITS, TERNARY), ("real", PADDED, None)], ids=str)
def test_one_writes_what_the_other_reads(kind: str, packed: Format, facts: object,
                                         monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_algorithms(monkeypatch, ToyConv("writer", writes=packed, epilogue=EPILOGUES[kind]),
                   ToyConv("reader", reads=packed, facts=facts))  # type: ignore[arg-type]
    set_costs(monkeypatch, 1.0, conversion=100.0)
    graph = two_layers(kind)
    plan = make_plan(graph, tmp_path)
    assert steps(plan) == [("conv0", "writer"), ("conv1", "reader")]
    assert plan.program(2).specs["middle"].format == packed
    assert_right(plan, graph)
    loaded = reloaded(plan, tmp_path)
    assert steps(loaded) == steps(plan)
    np.testing.assert_array_equal(loaded(images()), plan(images()))


@pytest.mark.parametrize(("kind", "packed"), [("binary", BITS), ("ternary", TRITS),
                                              ("binary", TRITS), ("real", PADDED)], ids=str)
@pytest.mark.parametrize("dear", [False, True])
def test_a_conversion_is_paid_for(kind: str, packed: Format, dear: bool,
                                  monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_algorithms(monkeypatch, ToyConv("reader", reads=packed))
    set_costs(monkeypatch, 1.0, conversion=20.0 if dear else 5.0)
    graph = two_layers(kind, middle_is_output=True)
    plan = make_plan(graph, tmp_path)
    names = dict(steps(plan))
    assert (names["conv1"] == "reader") is not dear
    conversion = f"middle as {' '.join(packed.differences(Format('NCHW')))}"
    assert (conversion in names) is not dear
    assert_right(plan, graph)


def test_values_that_a_format_cannot_hold_are_never_packed(monkeypatch: pytest.MonkeyPatch,
                                                           tmp_path: Path) -> None:
    add_algorithms(monkeypatch, ToyConv("reader", reads=BITS))
    set_costs(monkeypatch, 1.0, conversion=1.0)
    for kind in ("ternary", "real"):
        graph = two_layers(kind)
        plan = make_plan(graph, tmp_path)
        assert "reader" not in dict(steps(plan)).values()
        assert_right(plan, graph)


class Careless(ToyConv):
    """A convolution that writes into the added channels of its output."""

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        super().launch(state, inputs, outputs, workspace, stream)
        (spec,) = state.variant.outputs
        host_array(outputs[0], spec)[:, -1] = 1


@pytest.mark.parametrize(("kind", "written"), [("real", PADDED), ("binary", BITS)], ids=str)
@pytest.mark.parametrize("small", [0, 2**16])
def test_paddings_that_are_not_zero_are_refused(kind: str, written: Format, small: int,
                                                monkeypatch: pytest.MonkeyPatch,
                                                tmp_path: Path) -> None:
    monkeypatch.setattr(output_errors, "_SMALL", small)
    monkeypatch.setattr(candidate_checks, "_CHECKED", 0)
    written = replace(written, channel_multiple=64)
    add_algorithms(monkeypatch, Careless("careless", writes=written, epilogue=EPILOGUES[kind]),
                   ToyConv("reader", reads=written))
    set_costs(monkeypatch, 1.0, conversion=1.0)
    plan = make_plan(two_layers(kind), tmp_path)
    row = next(row for row in plan.report(8).rows if row["layer"] == "conv0")
    assert row["algorithm"] != "careless"
    assert row["rejected"]["careless"] == "wrong numbers (error inf)"


def test_formats_of_the_same_memory_cost_no_conversion() -> None:
    table = Table(Network([], 2, {"x": default_spec((2, 8, 3, 3))}, {}, {}), find("host"),
                  Tuner(find("host")), Policy(), None)
    assert table.conversion_us("x", Format("NHWC"), Format("NHWC", channel_multiple=8)) == 0.0


def test_a_conversion_that_does_not_exist_rules_an_option_out(monkeypatch: pytest.MonkeyPatch,
                                                              tmp_path: Path) -> None:
    supports = NumpyCopy.supports

    def refused(self: NumpyCopy, problem: CopyProblem, device: Device) -> str | None:
        if problem.input.format.is_packed or problem.output.format.is_packed:
            return "does not convert packed values"
        return supports(self, problem, device)

    monkeypatch.setattr(NumpyCopy, "supports", refused)
    add_algorithms(monkeypatch, ToyConv("reader", reads=BITS, facts=PLUS_MINUS_ONE),
                   ToyConv("writer", writes=BITS, epilogue=EPILOGUES["binary"]))
    set_costs(monkeypatch, 1.0, conversion=0.1)
    alone, shared = (make_plan(two_layers("binary", middle_is_output=also), tmp_path)
                     for also in (False, True))
    assert steps(alone) == [("conv0", "writer"), ("conv1", "reader")]
    names = dict(steps(shared)).values()
    assert "writer" not in names and "reader" not in names
    assert_right(shared, two_layers("binary", middle_is_output=True))
    with pytest.raises(UnsupportedError, match="exclude each other; omit only='writer'"):
        make_plan(two_layers("binary", middle_is_output=True), tmp_path, only="writer").program(2)
