"""Tests the kernel of convolution_pool_mma in emulation, with tensor cores simulated in memory."""

from __future__ import annotations

import pytest

from gossamer.ops.fused.convolution_pool.tiling import PoolTile
from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_convolution_pool_mma import (
    ALL,
    check,
    check_bias,
    check_not_finite,
    variant_of,
)


@pytest.mark.parametrize("mode, name, tile", [
    ("bounds", "resnet", PoolTile(2, 64, 0)),
    ("bounds", "resnet", PoolTile(3, 64, 1)),
    ("bounds", "two tiles across", PoolTile(4, 32, 1)),
    ("plain", "two tiles across", PoolTile(5, 64, 0)),
    ("bounds", "unlike pads", PoolTile(14, 48, 1)),
    ("bounds", "unlike pads", PoolTile(2, 16, 0)),
    ("bounds", "yolo", PoolTile(4, 16, 0)),
    ("bounds", "yolo", PoolTile(2, 16, 1)),
    ("bounds", "up to the end", PoolTile(3, 16, 0)),
    ("bounds", "steps of one", PoolTile(5, 8, 0)),
    ("bounds", "gaps", PoolTile(2, 8, 0)),
    ("bounds", "large steps", PoolTile(2, 32, 1)),
    ("bounds", "large steps", PoolTile(4, 16, 0)),
    ("bounds", "single column", PoolTile(1, 8, 0)),
    ("bounds", "bytes", PoolTile(4, 64, 1)),
    ("bounds", "planes", PoolTile(4, 16, 0)),
    ("bounds", "halves", PoolTile(4, 48, 0)),
    ("bounds", "bfloats", PoolTile(4, 40, 0)),
    ("bounds", "floats", PoolTile(4, 32, 0)),
    ("races", "resnet", PoolTile(3, 64, 1)),
    ("races", "yolo", PoolTile(4, 16, 0)),
    ("races", "gaps", PoolTile(3, 8, 0)),
    ("races", "bytes", PoolTile(2, 32, 0)),
])
def test_it_computes_both_layers(emulate: Emulate, mode: str, name: str, tile: PoolTile) -> None:
    device = emulate(mode, schedule=2)
    check(ALL[name], device, [variant_of(ALL[name], tile, device)])


@pytest.mark.parametrize("wgmma", [0, 1])
def test_unusual_numbers(emulate: Emulate, wgmma: int) -> None:
    device = emulate("plain", schedule=1)
    check_not_finite(device, PoolTile(2, 16, wgmma))
    check_bias(device, PoolTile(2, 16, wgmma))
