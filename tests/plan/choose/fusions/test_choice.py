"""Fusions compete with their layers: which is taken, what is reported, and what is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.measure import SLACK
from gossamer.plan.plan import Plan
from gossamer.plan.tune.network_reference import reference
from tests.plan.choose.fusions.toy import (
    ALONE_US,
    FUSION,
    LAYERS,
    NAME,
    FusedBlock,
    FusedPair,
    blocks,
    images,
    make_plan,
    no_comparison,
    set_costs,
    step_names,
    with_algorithm,
)
from tests.plan.small import reloaded
from tests.tolerances import normalised_error, tolerance

ALONE = 3 * ALONE_US


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_algorithm(monkeypatch, FusedBlock())
    no_comparison(monkeypatch)


@pytest.mark.parametrize(("time", "taken"), [
    (1.0, [FUSION]), (0.97 * ALONE, [FUSION]), (0.99 * ALONE, LAYERS), (ALONE, LAYERS),
    (1.01 * ALONE, LAYERS), (2 * ALONE, LAYERS)])
def test_a_fusion_is_taken_where_it_saves_more_than_the_slack(
        time: float, taken: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, time)
    graph = blocks(1)
    plan = make_plan(graph, tmp_path)
    assert step_names(plan) == taken
    x = images(2)
    (expected,) = reference(graph, {"x": x}).values()
    assert normalised_error(plan(x), expected) <= tolerance("network")


def test_rows_name_the_layers_and_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 12.0)
    plan = make_plan(blocks(2), tmp_path)
    report = plan.report(2)
    first = next(row for row in report.rows if row["layer"] == FUSION)
    assert first["layers"] == LAYERS and first["algorithm"] == NAME
    assert first["rejected"]["layer by layer"] == "30.0 us against 12.0 us"
    assert first["flops"] == 3 * 2 * 4 * 4 * 9 * 2 + 4 * 9 * 2
    assert [candidate["algorithm"] for candidate in first["candidates"]] == [NAME] * 4
    assert "host ran all 6 layers" in report.notes
    assert FUSION in str(report)
    set_costs(monkeypatch, 29.7)
    rows = {row["layer"]: row for row in make_plan(blocks(1), tmp_path).report(2).rows}
    assert rows["grow0"]["rejected"][NAME] == (
        f"{FUSION}: 29.7 us against 30.0 us: equal within {SLACK:.0%}")


def test_of_fusions_that_share_layers_one_is_taken(monkeypatch: pytest.MonkeyPatch,
                                                   tmp_path: Path) -> None:
    with_algorithm(monkeypatch, FusedPair(), FusedBlock())
    set_costs(monkeypatch, 12.0)
    plan = make_plan(blocks(1), tmp_path)
    assert step_names(plan) == [FUSION]
    rejected = plan.report(2).rows[0]["rejected"]
    assert rejected["layer by layer"] == "30.0 us against 12.0 us"
    # whether the pair is timed at all depends on how long the layers really took
    assert rejected["fused_pair"] in {
        f"middle0 + shrink0: its layers are computed in {FUSION}",
        "not tried: its layers are computed by a fusion that takes much less"}


def test_a_second_reader_of_a_value_inside_keeps_the_layers_apart(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(1, second_reader=True), tmp_path)
    assert step_names(plan) == LAYERS
    row = next(row for row in plan.report(2).rows if row["layer"] == "grow0")
    assert row["rejected"][NAME] == "a value inside the block is read elsewhere"
    assert [y.shape for y in plan(images(2))] == [(2, 4, 3, 3)] * 2


def test_nothing_is_fused_without_measurements() -> None:
    plan = gossamer.compile(blocks(2), "host")
    assert step_names(plan) == [*LAYERS, *(name.replace("0", "1") for name in LAYERS)]
    forced = gossamer.compile(blocks(2), "host", only=NAME)
    assert step_names(forced) == [FUSION, FUSION.replace("0", "1")]
    np.testing.assert_allclose(forced(images(2)), plan(images(2)), rtol=1e-5, atol=1e-5)


def test_a_forced_algorithm_goes_before_the_times(monkeypatch: pytest.MonkeyPatch,
                                                  tmp_path: Path) -> None:
    set_costs(monkeypatch, 1000.0)
    forced = make_plan(blocks(1), tmp_path, only=NAME)
    assert step_names(forced) == [FUSION]
    assert forced.report(2).rows[0]["rejected"] == {"layer by layer": f"{NAME} is forced"}
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(1), tmp_path, only="host_im2col")
    assert step_names(plan) == LAYERS
    assert plan.report(2).rows[0]["rejected"][NAME] == "host_im2col is forced"


def test_an_unfused_plan_has_no_fusions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(1), tmp_path, unfused=True)
    assert step_names(plan) == LAYERS
    assert [known.layer.name for known in plan.program(2).measured] == LAYERS
    assert step_names(make_plan(blocks(1), tmp_path)) == [FUSION]


def test_a_saved_plan_keeps_its_fusions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(2), tmp_path)
    x = images(2)
    y = plan(x)
    loaded = reloaded(plan, tmp_path)
    assert step_names(loaded) == step_names(plan) == [FUSION, FUSION.replace("0", "1")]
    np.testing.assert_array_equal(loaded(x), y)
    # another batch size takes the fusions too
    assert step_names(loaded, 5) == step_names(plan)
    np.testing.assert_array_equal(loaded(images(5)), plan(images(5)))
    monkeypatch.setattr(FusedBlock, "patterns", (("conv2d", "conv2d"),))
    with pytest.raises(InputError, match="cannot be computed as planned"):
        Plan.load(tmp_path / "saved.plan")


def test_another_batch_size_falls_back_to_layers(monkeypatch: pytest.MonkeyPatch,
                                                 tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(1), tmp_path)
    plan.program(2)
    loaded = reloaded(plan, tmp_path)
    supports = FusedBlock.supports
    monkeypatch.setattr(FusedBlock, "supports", lambda self, problem, device: (
        supports(self, problem, device) if problem.inputs[0].shape[0] == 2 else "batch 2 only"))
    assert step_names(loaded, 3) == LAYERS
    assert any("grow0, middle0, shrink0, for which they are not valid" in note
               for note in loaded.report(3).notes)
    x = images(3)
    (expected,) = reference(blocks(1), {"x": x}).values()
    assert normalised_error(loaded(x), expected) <= tolerance("network")


def test_fusions_are_profiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    plan = make_plan(blocks(1), tmp_path)
    report = plan.profile(2)
    (row,) = [row for row in report.rows if row["layer"] == FUSION]
    assert row["median_us"] > 0 and row["share"] > 0 and report.end_to_end_us is not None


def test_many_blocks_are_all_fused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_costs(monkeypatch, 1.0)
    assert len(step_names(make_plan(blocks(50), tmp_path))) == 50
