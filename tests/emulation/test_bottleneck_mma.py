"""Tests the kernel of bottleneck_mma in emulation, with tensor cores simulated in memory."""

from __future__ import annotations

import pytest

from gossamer.ops.fused.bottleneck.tiling import BottleneckTile
from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_bottleneck_mma import PROBLEMS, check, variant_of


@pytest.mark.parametrize("mode, name, density, tile", [
    ("bounds", "residual", 0.1, BottleneckTile(4, 1, 32, 1, 8, 1)),
    ("bounds", "residual", 1.0, BottleneckTile(9, 2, 32, 2, 8, 0)),
    ("bounds", "residual", 1e-4, BottleneckTile(3, 2, 32, 1, 8, 0)),
    ("bounds", "odd channels", 0.1, BottleneckTile(5, 1, 32, 1, 8, 0)),
    ("bounds", "odd channels", 0.02, BottleneckTile(2, 1, 32, 2, 8, 1)),
    ("bounds", "odd channels", 1.0, BottleneckTile(11, 1, 32, 1, 16, 1)),
    ("bounds", "projected", 0.4, BottleneckTile(7, 1, 32, 2, 8, 1)),
    ("bounds", "projected", 1e-4, BottleneckTile(2, 2, 32, 1, 8, 1)),
    ("bounds", "plain", 0.1, BottleneckTile(5, 1, 64, 1, 8, 0)),
    ("bounds", "plain", 1.0, BottleneckTile(3, 1, 32, 1, 8, 1)),
    ("bounds", "large window", 0.1, BottleneckTile(3, 2, 32, 1, 8, 1)),
    ("bounds", "large window", 0.4, BottleneckTile(4, 1, 32, 1, 8, 0)),
    ("bounds", "no pads", 1.0, BottleneckTile(4, 2, 32, 1, 8, 0)),
    ("bounds", "no pads", 0.1, BottleneckTile(2, 1, 32, 2, 8, 1)),
    ("plain", "wide", 0.1, BottleneckTile(8, 1, 64, 1, 16, 1)),
    ("plain", "wide", 1.0, BottleneckTile(4, 1, 128, 2, 16, 0)),
    ("races", "residual", 0.1, BottleneckTile(5, 2, 32, 1, 8, 1)),
    ("races", "odd channels", 1.0, BottleneckTile(4, 1, 32, 1, 8, 0)),
    ("races", "plain", 0.4, BottleneckTile(5, 1, 32, 2, 8, 0)),
    ("races", "plain", 0.02, BottleneckTile(3, 1, 32, 1, 8, 1)),
])
def test_it_computes_the_block(emulate: Emulate, mode: str, name: str, density: float,
                               tile: BottleneckTile) -> None:
    device = emulate(mode, schedule=2)
    problem = PROBLEMS[name]
    check(problem, device, [variant_of(problem, tile, device)], density)
