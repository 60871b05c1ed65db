"""Tests the CUDA kernels of fusions in emulation, with tensor cores simulated in memory."""

from __future__ import annotations

import pytest

from gossamer.expression import Expression
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, ValueFacts
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.fused.convolution_pool import PoolTile
from gossamer.ops.fused.inverted_residual.tiling import BlockTile
from gossamer.ops.fused.pointwise_pair import PairTile
from gossamer.ops.fused.popcount_chain import PopcountChain
from gossamer.ops.rows.config import RowConfig
from tests.emulation.device import Emulate
from tests.ops import harness
from tests.ops.conv2d.binary.signs import BAND_SIGN, BATCH_NORM_BITS, BATCH_NORM_SIGN
from tests.ops.fused import test_attention as attentions
from tests.ops.fused import test_channel_attention as attention
from tests.ops.fused import test_convolution as convolutions
from tests.ops.fused import test_convolution_pool_mma as pools
from tests.ops.fused import test_gather_expression as gathers
from tests.ops.fused import test_inverted_residual_mma as blocks
from tests.ops.fused import test_normalised as norms
from tests.ops.fused import test_pointwise_mean as means
from tests.ops.fused import test_pointwise_pair as pairs
from tests.ops.fused import test_popcount_chain as chains
from tests.ops.fused import test_quantised as quantised
from tests.ops.fused import test_row_expression as rows


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
        ("bounds", "races") * (len(blocks.WARPGROUP_TILES) // 2),
        ("fp16", "fp16", "tf32", "fp16", "tf32", "fp16", "tf32", "fp16", "tf32", "fp16"),
        blocks.WARPGROUP_TILES, strict=True)),
])
def test_inverted_residual(emulate: Emulate, mode: str, name: str, precision: str,
                               tile: BlockTile) -> None:
    device = emulate(mode, schedule=2)
    problem = blocks.PROBLEMS[name]
    blocks.check(problem, device, blocks.variants_of(problem, device, tile, [precision]))


@pytest.mark.parametrize(("name", "precision", "tile"), [
    ("residual", "fp16", BlockTile(5, 4, 16, 3, 4)),
    ("separable residual", "tf32", BlockTile(3, 5, 16, 1, 2)),
    ("excited", "fp16", BlockTile(7, 6, 16, 3, 4))])
def test_blocks_write_parts_of_larger_tensors(emulate: Emulate, name: str, precision: str,
                                           tile: BlockTile) -> None:
    device, problem = emulate("bounds", schedule=2), blocks.PROBLEMS[name]
    variants = blocks.variants_of(problem, device, tile, [precision])
    blocks.check(problem, device, blocks.into_parts(variants))


@pytest.mark.parametrize(("mode", "name", "precision"), [
    ("bounds", "residual", "fp16"), ("races", "strided", "fp32"), ("bounds", "separable", "tf32")])
def test_devices_without_clusters_copy_word_by_word(emulate: Emulate, mode: str, name: str,
                                                    precision: str) -> None:
    device, problem = emulate(mode, cluster=1), blocks.PROBLEMS[name]
    tile = BlockTile(4, 5, 16, 1, 4)
    blocks.check(problem, device, blocks.variants_of(problem, device, tile, [precision]))


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_a_nan_in_a_block_stays_a_nan(emulate: Emulate, precision: str) -> None:
    device, tile = emulate("plain"), BlockTile(9, 11, 32, 1, 4)
    blocks.check_nan(device, blocks.variants_of(blocks.STEM, device, tile, [precision]))


@pytest.mark.parametrize("mode, name, precision", [
    ("plain", "usual", "fp16"), ("bounds", "usual", "fp32"), ("races", "usual", "fp16"),
    ("bounds", "residual", "fp16"), ("races", "residual", "fp32"),
    ("bounds", "unused", "fp16"), ("plain", "unused", "fp32"), ("bounds", "large", "fp32"),
    ("bounds", "wide", "fp16"), ("races", "wide", "fp32")])
def test_channel_attention(emulate: Emulate, mode: str, name: str, precision: str) -> None:
    device, problem = emulate(mode, schedule=1), attention.PROBLEMS[name]
    variants = harness.variants_of(attention.ALGORITHM, problem, device, precision)
    attention.check(problem, device, variants if mode == "plain" else [variants[0], variants[-1]])


@pytest.mark.parametrize("mode, name, precision", [
    ("plain", "usual", "fp16"), ("bounds", "usual", "fp32"), ("races", "usual", "fp16"),
    ("plain", "pooled", "fp32"), ("bounds", "pooled", "fp16"),
    ("bounds", "large", "tf32"), ("races", "large", "fp32"), ("plain", "large", "fp16"),
    ("bounds", "unused channels", "fp16"), ("plain", "unused channels", "fp32")])
def test_pointwise_mean(emulate: Emulate, mode: str, name: str, precision: str) -> None:
    device, problem = emulate(mode, schedule=1), means.PROBLEMS[name]
    variants = harness.variants_of(means.ALGORITHM, problem, device, precision)
    means.check(problem, device, [variants[0], variants[-1]] if mode == "plain" else variants[:1])


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
def test_pointwise_pair(emulate: Emulate, mode: str, name: str, units: int,
                        tile: PairTile) -> None:
    device = emulate(mode, schedule=2, wgmma=True, compute_units=units)
    problem = pairs.PROBLEMS[name]
    assert pairs.ALGORITHM.supports(problem, device) is None
    pairs.check(problem, device, [harness.with_tile(pairs.ALGORITHM, problem, device, tile)])


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
def test_convolution_pool(emulate: Emulate, mode: str, name: str, tile: PoolTile) -> None:
    device, problem = emulate(mode, schedule=2), pools.ALL[name]
    pools.check(problem, device, [harness.with_tile(pools.ALGORITHM, problem, device, tile)])


@pytest.mark.parametrize("wgmma", [0, 1])
def test_unusual_numbers_before_a_maximum(emulate: Emulate, wgmma: int) -> None:
    device = emulate("plain", schedule=1)
    pools.check_not_finite(device, PoolTile(2, 16, wgmma))
    pools.check_bias(device, PoolTile(2, 16, wgmma))


@pytest.mark.parametrize("mode, sizes, epilogues, known, signs, layouts", [
    ("bounds", [70, 300, 10], [BATCH_NORM_SIGN, chains.LINEAR], TERNARY, chains.SIGN,
     ("row", "row")),
    ("bounds", [200, 65, 70], [BATCH_NORM_BITS] * 2, PLUS_MINUS_ONE, None,
     ("packed64", "packed64")),
    ("bounds", [33, 40, 96], [BAND_SIGN, BATCH_NORM_SIGN], TERNARY, None,
     ("packed32", "packed64")),
    ("bounds", [64, 1100, 40], [BATCH_NORM_BITS, BATCH_NORM_SIGN], TERNARY, None,
     ("packed64", "packed32")),
    ("races", [70, 300, 80, 10], [BATCH_NORM_SIGN] * 2 + [chains.LINEAR], TERNARY, chains.SIGN,
     ("row", "row")),
    ("races", [40, 64, 600], [BATCH_NORM_BITS] * 2, PLUS_MINUS_ONE, None,
     ("packed32", "packed32")),
])
def test_popcount_chain(emulate: Emulate, mode: str, sizes: list[int],
                        epilogues: list[Epilogue], known: ValueFacts,
                        signs: Expression | None, layouts: tuple[str, str]) -> None:
    device = emulate(mode, schedule=2)
    problem = chains.chain(sizes, epilogues, rows=2, known=known, signs=signs)
    chosen = [variant for variant in PopcountChain().variants(problem, device)
              if (variant.inputs[0].layout, variant.outputs[0].layout) == layouts]
    assert len(chosen) == 2
    for variant in chosen[:1 if mode == "races" else 2]:
        chains.check(problem, variant, device)


def first_in_float16(variants: list[Variant]) -> list[Variant]:
    return [variant for variant in variants if variant.precision == "fp16"][:1]


@pytest.mark.parametrize("name", quantised.FUSIONS)
def test_fusions_of_quantised_layers_are_exact(emulate: Emulate, name: str) -> None:
    problem = quantised.quantised(quantised.FUSIONS[name])
    harness.check(problem, emulate("plain"), weights=quantised.weights_of(problem),
                  taken=first_in_float16)


@pytest.mark.parametrize(("mode", "name", "config"), [
    ("plain", "group norm", RowConfig(128, 1)),
    ("bounds", "group norm", RowConfig(64, 1, cluster=4)),
    ("races", "EvoNorm", RowConfig(64, 2, cluster=2)),
    ("races", "instance norm", RowConfig(16, 4, splits=3)),
    ("bounds", "instance norm", RowConfig(32, 2, cluster=2)),
    ("races", "softmax", RowConfig(32, 2, cluster=2)),
    ("plain", "length of channels", RowConfig(128, 2, cluster=4)),
    ("bounds", "length of channels", RowConfig(16, 4, splits=2)),
])
def test_row_expressions(emulate: Emulate, mode: str, name: str, config: RowConfig) -> None:
    device, problem = emulate(mode, schedule=2), rows.LONG[name]
    variants = rows.with_configs(problem, device, [config])
    rows.check(problem, device, variants if mode == "plain" else variants[1::3])


@pytest.mark.parametrize(("mode", "name"), [
    ("plain", "rotary"), ("bounds", "gated, many"), ("bounds", "shuffled"),
    ("bounds", "overlapping")])
def test_gather_expressions(emulate: Emulate, mode: str, name: str) -> None:
    device, problem = emulate(mode), gathers.PROBLEMS[name]
    gathers.check(problem, device, list(gathers.ALGORITHM.variants(problem, device)))


@pytest.mark.parametrize(("mode", "name"), [
    ("plain", "tokens"), ("bounds", "odd tokens"), ("races", "odd tokens"), ("bounds", "long"),
    ("races", "long"), ("plain", "windows"), ("bounds", "images"), ("races", "images"),
    ("bounds", "heads"), ("bounds", "values first"), ("plain", "steep")])
def test_attention(emulate: Emulate, mode: str, name: str) -> None:
    device, problem = emulate(mode, schedule=1), attentions.PROBLEMS[name]
    variants = list(attentions.ALGORITHM.variants(problem, device))
    with_32 = [variant for variant in variants if "queries=32" in variant.config_text]
    attentions.check(problem, device, [
        *(variants[::4] if mode == "plain" else [variants[0], variants[-1]]), with_32[0]])


@pytest.mark.parametrize("mode", ["plain", "bounds", "races"])
@pytest.mark.parametrize("name", norms.PROBLEMS)
def test_products_of_norms(emulate: Emulate, mode: str, name: str) -> None:
    device = emulate(mode, schedule=1, wgmma=True)
    variants = list(norms.ALGORITHM.variants(norms.PROBLEMS[name], device))
    forms = {(variant["wgmma"], variant["keeps_weights"], variant["warps_m"] > 1): variant
             for variant in reversed(variants)}
    norms.check(name, device, [*forms.values()])


@pytest.mark.parametrize("mode", ["plain", "bounds", "races"])
@pytest.mark.parametrize("name", convolutions.PROBLEMS)
def test_merged_convolutions(emulate: Emulate, mode: str, name: str) -> None:
    problem, device = convolutions.PROBLEMS[name], emulate(mode, schedule=1, wgmma=True)
    forms = {(form["wgmma"], form["keeps_weights"], form["warps_k"], form.precision): form
             for form in reversed(list(convolutions.ALGORITHM.variants(problem, device)))}
    variants = [*forms.values()]
    harness.check_variants(convolutions.ALGORITHM, problem, device, [
        *variants[::2], *convolutions.into_parts(variants[1::2])])


def test_masks_and_large_scores_of_attention(emulate: Emulate) -> None:
    attentions.check_masks(emulate("plain"))
    attentions.check_large_scores(emulate("plain"))
