"""Tests the kernel of inverted_residual_mma, whose clusters add up sums, in emulation."""

from __future__ import annotations

import pytest

from gossamer.ops.fused.inverted_residual.sizes import BlockTile
from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_inverted_residual_mma import (
    PROBLEMS,
    STEM,
    WARPGROUP_TILES,
    check,
    check_nan,
    into_parts,
    variants_of,
)


@pytest.mark.parametrize("mode, name, precision, tile", [
    ("plain", "residual", "fp16", BlockTile(5, 4, 16, 3, 4)),
    ("bounds", "residual", "fp16", BlockTile(4, 5, 16, 1, 2)),
    ("bounds", "residual", "fp32", BlockTile(3, 4, 32, 2, 2)),
    ("bounds", "strided", "tf32", BlockTile(3, 3, 32, 2, 4)),
    ("bounds", "strided", "fp16", BlockTile(2, 5, 16, 3, 4)),
    ("bounds", "large filter", "fp32", BlockTile(4, 4, 16, 2, 4)),
    ("bounds", "large filter", "fp16", BlockTile(4, 6, 32, 1, 4)),
    ("bounds", "even filter", "fp16", BlockTile(4, 5, 32, 1, 4)),
    ("races", "flat filter", "fp16", BlockTile(3, 6, 16, 2, 4)),
    ("bounds", "tall filter", "fp16", BlockTile(6, 7, 48, 1, 4)),
    ("bounds", "unused channels", "fp16", BlockTile(6, 3, 32, 2, 2)),
    ("bounds", "separable", "fp16", BlockTile(4, 4, 16, 1, 4)),
    ("bounds", "separable", "fp32", BlockTile(5, 7, 32, 2, 2)),
    ("races", "residual", "fp16", BlockTile(9, 5, 16, 2, 2)),
    ("races", "strided", "fp32", BlockTile(3, 5, 16, 1, 4)),
    ("races", "strided", "fp16", BlockTile(4, 3, 16, 2, 4)),
    ("races", "separable residual", "tf32", BlockTile(3, 5, 16, 2, 2)),
    ("plain", "strided", "fp16", BlockTile(6, 5, 16, 10, 2)),
    ("bounds", "stem", "fp16", BlockTile(4, 6, 32, 1, 4)),
    ("races", "stem", "fp32", BlockTile(5, 4, 16, 2, 4)),
    ("bounds", "large stem", "fp16", BlockTile(3, 3, 16, 1, 2)),
    ("plain", "large stem", "tf32", BlockTile(2, 4, 16, 2, 4)),
    ("bounds", "stem of bytes", "fp16", BlockTile(4, 6, 32, 1, 4)),
    ("races", "stem of bytes", "fp16", BlockTile(5, 4, 16, 2, 4)),
    ("plain", "stem of planes", "tf32", BlockTile(5, 4, 16, 2, 4)),
    ("bounds", "stem of halves", "fp16", BlockTile(3, 3, 16, 1, 2)),
    ("bounds", "stem of bfloats", "fp32", BlockTile(5, 4, 16, 2, 4)),
    ("races", "stem of halves", "fp32", BlockTile(2, 4, 16, 2, 4)),
    ("plain", "excited", "fp16", BlockTile(7, 6, 16, 3, 4)),
    ("plain", "excited", "tf32", BlockTile(7, 6, 16, 2, 4)),
    ("plain", "excited strided", "fp32", BlockTile(5, 6, 32, 2, 4)),
    ("plain", "excited separable", "fp16", BlockTile(6, 5, 16, 1, 4)),
    ("bounds", "excited", "fp32", BlockTile(7, 6, 16, 1, 2)),
    ("bounds", "excited strided", "fp16", BlockTile(5, 6, 16, 2, 4)),
    ("bounds", "excited unused channels", "fp16", BlockTile(6, 6, 32, 2, 2)),
    ("bounds", "excited separable", "tf32", BlockTile(6, 5, 16, 2, 2)),
    ("races", "excited", "fp16", BlockTile(7, 6, 16, 2, 2)),
    ("races", "excited strided", "fp16", BlockTile(5, 6, 16, 1, 4)),
    ("races", "excited separable", "fp32", BlockTile(6, 5, 16, 3, 2)),
    ("races", "narrow", "fp16", BlockTile(6, 6, 16, 4, 4)),
    *((mode, name, precision, tile) for mode, precision, (name, tile) in zip(
        ("bounds", "races") * (len(WARPGROUP_TILES) // 2),
        ("fp16", "fp16", "tf32", "fp16", "tf32", "fp16", "tf32", "fp16", "tf32", "fp16"),
        WARPGROUP_TILES, strict=True)),
])
def test_it_computes_the_block(emulate: Emulate, mode: str, name: str, precision: str,
                               tile: BlockTile) -> None:
    device = emulate(mode, schedule=2)
    problem = PROBLEMS[name]
    check(problem, device, variants_of(problem, device, tile, [precision]))


@pytest.mark.parametrize(("name", "precision", "tile"), [
    ("residual", "fp16", BlockTile(5, 4, 16, 3, 4)),
    ("separable residual", "tf32", BlockTile(3, 5, 16, 1, 2)),
    ("excited", "fp16", BlockTile(7, 6, 16, 3, 4))])
def test_it_writes_parts_of_larger_tensors(emulate: Emulate, name: str, precision: str,
                                           tile: BlockTile) -> None:
    device, problem = emulate("bounds", schedule=2), PROBLEMS[name]
    check(problem, device, into_parts(variants_of(problem, device, tile, [precision])))


@pytest.mark.parametrize(("mode", "name", "precision"), [
    ("bounds", "residual", "fp16"), ("races", "strided", "fp32"), ("bounds", "separable", "tf32")])
def test_devices_without_clusters_copy_word_by_word(emulate: Emulate, mode: str, name: str,
                                                    precision: str) -> None:
    device = emulate(mode, cluster=1)
    problem = PROBLEMS[name]
    check(problem, device, variants_of(problem, device, BlockTile(4, 5, 16, 1, 4), [precision]))


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_a_nan_stays_a_nan(emulate: Emulate, precision: str) -> None:
    device = emulate("plain")
    check_nan(device, variants_of(STEM, device, BlockTile(9, 11, 32, 1, 4), [precision]))
