"""Which regions are requested beside a network's layers: the largest ones, and those within others
that do not leave their parts out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.device.registry import find
from gossamer.plan.choose import region_requests
from gossamer.plan.choose.region_requests import RegionRequests
from gossamer.plan.program import Layer
from gossamer.plan.tune.search import Search
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


def region(*covers: str) -> Layer:
    return Layer(" + ".join(covers), "region", [], [], [], None, {}, covers=covers)


LAYERS_OF = {name: Layer(name, "conv2d", [], [], [], None, {}) for name in "abcd"}
LARGE, FIRST, SECOND, OTHER = (region(*names) for names in ("abc", "ab", "bc", "cd"))


def requests(allowed: Any = lambda each: ["an algorithm"]) -> RegionRequests:
    return RegionRequests([FIRST, LARGE, SECOND, OTHER], LAYERS_OF, find("host"), allowed)


def names(found: Any) -> list[str]:
    return [request.layer.name for request in found]


def test_the_largest_regions_are_requested_first() -> None:
    of = requests()
    parts = of.in_parts(2)
    assert [len(part) for part in parts] == [2, 2] and parts[0][0] is LARGE
    assert [names(of.largest(part)) for part in parts] == [["a + b + c"], ["c + d"]]
    assert requests().in_parts(9) == [[each] for each in (LARGE, FIRST, SECOND, OTHER)]


@pytest.mark.parametrize(("region_us", "within"), [(31.0, []), (33.0, ["a + b", "b + c"])])
def test_a_region_that_is_much_faster_than_its_layers_leaves_its_parts_out(
        region_us: float, within: list[str]) -> None:
    of = requests()
    for part in of.in_parts(1):
        of.largest(part)
    best_us = {LARGE.name: region_us, OTHER.name: 40.0, "a": 10.0, "b": 10.0, "c": 20.0, "d": 9.0}
    assert names(of.within(lambda each: best_us[each.name])) == within
    assert of.left_to(FIRST) is (None if within else LARGE)
    assert of.left_to(LARGE) is None


def test_regions_within_one_that_nothing_computes_are_the_largest() -> None:
    of = requests(lambda each: [] if each is LARGE else ["an algorithm"])
    assert names(of.largest(of.in_parts(1)[0])) == ["a + b", "b + c", "c + d"]
    assert of.left_to(LARGE) is None


@pytest.mark.parametrize("is_fast", [True, False])
def test_layers_and_regions_are_measured_in_one_search(
        is_fast: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[list[str]] = []
    run = Search.run

    def recorded(self: Search, *arguments: Any) -> None:
        run(self, *arguments)
        found.append(list(dict.fromkeys(request.layer.name for request in self._requests)))

    monkeypatch.setattr(Search, "run", recorded)
    monkeypatch.setattr(region_requests, "_PARTS_LEFT_OUT", 1e9 if is_fast else 0.0)
    with_algorithm(monkeypatch, FusedBlock(), FusedPair())
    no_comparison(monkeypatch)
    make_plan(blocks(1), tmp_path)(images(2))
    assert found[0] == [*LAYERS, REGION] + (
        [] if is_fast else ["grow0 + middle0", "middle0 + shrink0"])
