"""Tests the kernel of pointwise_pair_mma in emulation."""

from __future__ import annotations

import pytest

from gossamer.ops.fused.pointwise_pair.tiling import PairTile
from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_pointwise_pair import ALGORITHM, PROBLEMS, check, variant_of


@pytest.mark.parametrize("mode, name, units, tile", [
    ("bounds", "one slice more", 1, PairTile(2, 2, 0)),
    ("plain", "resnet", 2, PairTile(1, 3, 2)),
    ("bounds", "unlike widths", 1, PairTile(1, 2, 2)),
    ("bounds", "nothing added", 1, PairTile(2, 2, 0)),
    ("bounds", "nothing else read", 1, PairTile(1, 2, 3)),
    ("bounds", "few pixels", 4, PairTile(2, 3, 2)),
    ("races", "nothing else read", 1, PairTile(1, 2, 2)),
    ("races", "nothing added", 1, PairTile(2, 2, 2)),
    ("races", "one slice more", 1, PairTile(2, 2, 0)),
])
def test_it_computes_both_layers(emulate: Emulate, mode: str, name: str, units: int,
                                 tile: PairTile) -> None:
    device = emulate(mode, schedule=2, wgmma=True, compute_units=units)
    problem = PROBLEMS[name]
    assert ALGORITHM.supports(problem, device) is None
    check(problem, device, [variant_of(problem, tile, device)])
