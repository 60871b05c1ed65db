"""Regions are measured in one queue with their layers, and each knows of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.device.host import HostDevice
from gossamer.plan.tune.listing import Listing, Work
from tests.plan.choose.regions.toy import (
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


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Returns what is listed to be measured, one after another."""
    listed: list[Work] = []
    work = Listing.work

    def recorded(self: Listing, *arguments: Any) -> Work:
        listed.append(work(self, *arguments))
        return listed[-1]

    monkeypatch.setattr(Listing, "work", recorded)
    return listed


@pytest.mark.parametrize("side_by_side", [True, False])
def test_the_largest_regions_are_in_the_queue_of_the_layers_where_many_are_built_at_once(
        side_by_side: bool, works: list[Work], monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path) -> None:
    with_algorithm(monkeypatch, FusedBlock(), FusedPair())
    no_comparison(monkeypatch)
    monkeypatch.setattr(HostDevice, "builds_side_by_side", property(lambda self: side_by_side))
    make_plan(blocks(1), tmp_path)(images(2))
    first = works[0]
    times = {each.name: each for each in first.times.values()}
    if not side_by_side:
        assert times.keys() == {GROW, SHRINK}
        assert not any(each.covered_by for each in times.values())
        return
    assert times.keys() == {GROW, SHRINK, REGION}, "no region within the largest one"
    assert [part.name for part in times[REGION].parts] == [GROW, GROW, SHRINK]
    assert times[GROW].covered_by == 2 * [[times[REGION]]]
    assert times[SHRINK].covered_by == [[times[REGION]]]
    assert {problem.op for problem, _ in first.required} == {"conv2d"}
