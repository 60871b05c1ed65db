"""Regions are measured in one queue with their layers, and each knows of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.device.host import HostDevice
from gossamer.plan.choose import network_candidates, region_requests
from gossamer.plan.tune.layer_times import LayerTimes
from gossamer.plan.tune.listing import Listing
from gossamer.plan.tune.measures import When
from gossamer.plan.tune.tuner import Tuner
from gossamer.plan.tune.work import Work
from tests.plan.choose.regions.toy import (
    LAYERS,
    REGION,
    FusedBlock,
    FusedPair,
    blocks,
    images,
    make_plan,
    no_comparison,
    with_algorithm,
)

GROW, SHRINK = "grow0", "shrink0"
"""The first layers with each problem: that in the middle has the same problem as the first."""


PAIRS = ["grow0 + middle0", "middle0 + shrink0"]


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Returns what is listed to be measured, as it was after each addition."""
    listed: list[Work] = []
    add = Listing.add

    def recorded(self: Listing, requests: Any, work: Work, *arguments: Any, **options: Any) -> Any:
        new = add(self, requests, work, *arguments, **options)
        listed.append(replace(work, requests=list(work.requests), times=dict(work.times),
                              required=set(work.required)))
        return new

    monkeypatch.setattr(Listing, "add", recorded)
    return listed


def plan_block(monkeypatch: pytest.MonkeyPatch, folder: Path, *, side_by_side: bool) -> None:
    """Plans a block that toy algorithms compute as a whole or in pairs."""
    with_algorithm(monkeypatch, FusedBlock(), FusedPair())
    no_comparison(monkeypatch)
    monkeypatch.setattr(HostDevice, "builds_side_by_side", side_by_side)
    make_plan(blocks(1), folder)(images(2))


@pytest.mark.parametrize("side_by_side", [True, False])
def test_the_largest_regions_are_in_the_queue_of_the_layers_where_many_are_built_at_once(
        side_by_side: bool, works: list[Work], monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path) -> None:
    plan_block(monkeypatch, tmp_path, side_by_side=side_by_side)
    layers, largest = works[:2]
    assert {each.name for each in layers.times.values()} == {GROW, SHRINK}
    assert {problem.op for problem, _ in layers.required} == {"conv2d"}
    if not side_by_side:
        assert not any(each.covered_by for each in layers.times.values())
        return
    times = {each.name: each for each in largest.times.values()}
    assert times.keys() == {GROW, SHRINK, REGION}, "no region within the largest one"
    assert [part.name for part in times[REGION].parts] == [GROW, GROW, SHRINK]
    assert times[GROW].covered_by[0][0] is times[REGION]
    assert times[SHRINK].covered_by[0][0] is times[REGION]


@pytest.mark.parametrize("is_fast", [True, False])
def test_regions_within_one_that_is_not_clearly_faster_are_in_the_same_queue(
        is_fast: bool, works: list[Work], monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path) -> None:
    monkeypatch.setattr(LayerTimes, "best_us", property(
        lambda times: 1.0 if is_fast or not times.parts else 100.0, lambda times, value: None))
    plan_block(monkeypatch, tmp_path, side_by_side=True)
    first = max(works, key=lambda work: len(work.requests))
    names = [request.layer.name for request in first.requests]
    # the second requests of the layers are for the algorithms of vendors
    assert names[:7] == [*LAYERS, REGION, *LAYERS]
    assert names[7:] == ([] if is_fast else PAIRS)


def test_regions_within_others_are_requested_when_all_has_a_time_and_again_at_the_end(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moments: list[list[When]] = []
    measure_all = Tuner.measure_all

    def recorded(self: Tuner, requests: Any, further: Any = ()) -> None:
        moments.append([each.when for each in further])
        measure_all(self, requests, further)

    monkeypatch.setattr(Tuner, "measure_all", recorded)
    plan_block(monkeypatch, tmp_path, side_by_side=True)
    assert moments[0][0] is When.BUILDING and moments[0][-2:] == [When.TIMED, When.LAST]


def test_configs_of_regions_within_a_faster_one_are_not_listed(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: set[str] = set()
    refusal_reason = Tuner.refusal_reason

    def recorded(self: Tuner, algorithm: Any, problem: Any, device: Any) -> str | None:
        asked.add(algorithm.name)
        return refusal_reason(self, algorithm, problem, device)

    monkeypatch.setattr(Tuner, "refusal_reason", recorded)
    for module in (network_candidates, region_requests):
        monkeypatch.setattr(module, "leaves_parts_out", lambda region_us, alone_us: True)
    plan_block(monkeypatch, tmp_path, side_by_side=True)
    assert FusedBlock.name in asked and FusedPair.name not in asked
