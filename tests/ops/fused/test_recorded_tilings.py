"""Records of the divisions of fusions into tiles: every number of tiles that fit a device and of
tiles that do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gossamer.expression import Expression, ExpressionStep, apply, identity
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.fused.channel_attention import channel_attention
from gossamer.ops.fused.convolution_pool.layers import convolution_pool_of
from gossamer.ops.fused.convolution_pool.tiling import PoolTile, PoolTiling
from gossamer.ops.fused.inverted_residual import macros
from gossamer.ops.fused.inverted_residual.block import (
    Block,
    block_of,
    excited_block_of,
    stem_block_of,
)
from gossamer.ops.fused.inverted_residual.inverted_residual import Tile
from gossamer.ops.fused.inverted_residual.macros import block_macros, without_bias
from gossamer.ops.fused.inverted_residual.sizes import BlockTile
from gossamer.ops.fused.inverted_residual.tiling import WARPS, BlockTiling
from gossamer.ops.fused.pointwise_pair.layers import pointwise_pair_of
from gossamer.ops.fused.pointwise_pair.tiling import PairTile, PairTiling
from gossamer.ops.fused.problem import FusionProblem
from tests.ops.drawn import Draw
from tests.ops.fused.blocks import BIAS_SILU, block, excited, stem
from tests.ops.fused.drawn import fusions
from tests.ops.offers import MADE
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, properties

LIMITS = [MADE[name].limits for name in ("h200", "sm_80")]
BLOCKS = {
    "narrow": block(1, 16, 32, 16, (6, 6)), "wide": block(1, 72, 160, 80, (5, 6)),
    "wider": block(2, 160, 960, 320, (14, 14)), "strided": block(64, 24, 144, 32, (56, 56),
                                                                 stride=(2, 2)),
    "large filter": block(1, 40, 240, 40, (28, 28), kernel=(5, 5), activation=BIAS_SILU),
    "larger filter": block(1, 64, 192, 64, (14, 17), kernel=(7, 7), stride=(1, 3)),
    "flat": block(1, 16, 24, 8, (6, 11), kernel=(1, 3), stride=(3, 2)),
    "odd": block(1, 8, 32, 24, (13, 9), kernel=(5, 3), stride=(2, 1)),
    "separable": block(2, 0, 512, 512, (14, 14), expands=False),
    "large separable": block(1, 0, 64, 768, (7, 9), kernel=(5, 5), expands=False),
    "tall": block(1, 8, 16, 8, (65536, 4)), "many": block(65536, 8, 16, 8, (2, 2)),
    "stem": stem(block(2, 0, 32, 16, (9, 11), expands=False), 3, (18, 21)),
    "excited": excited(block(2, 40, 240, 112, (14, 14)), 10),
    "excited separable": excited(block(1, 0, 96, 320, (7, 7), expands=False), 24)}


def of_kind(problem: FusionProblem) -> Block:
    found = (block_of(problem, True) if len(problem.parts) == 3 else None) or (
        block_of(problem, False) if len(problem.parts) == 2 else None) or (
        excited_block_of(problem) if len(problem.parts) > 4 else stem_block_of(problem))
    assert found is not None
    return found


def test_tiles_of_blocks(recorded: Recorded) -> None:
    texts = {}
    for name, problem in BLOCKS.items():
        of_problem = of_kind(problem)
        for number in range(40):
            draw = Draw(f"tile {name} {number}")
            tile = BlockTile(*draw.pick((1, 4), (2, 7), (4, 4), (7, 7), (4, 8), (8, 8), (7, 14),
                                        (14, 14), (8, 16), (16, 16), (16, 32)),
                             draw.pick(16, 32, 48, 64, 96, 128), draw.pick(1, 1, 2, 3, 8, 16),
                             draw.pick(2, *WARPS, *WARPS), draw.pick(0, 1))
            for precision in ("fp16", draw.pick("tf32", "fp32")):
                divided = BlockTiling(of_problem, tile, precision)
                if tile.wgmma and (tile.warps < 4 or precision == "fp32"):
                    tile = replace(tile, wgmma=0)
                    divided = BlockTiling(of_problem, tile, precision)
                found = properties(divided)
                written = block_macros(divided, "float16", bulk=number % 2 > 0)
                texts[f"{name} {number} {precision}"] = " ".join((
                    *map(str, (tile.rows, tile.columns, tile.chunk, tile.cluster, tile.warps,
                               tile.wgmma)), "has", *(f"{key}={found[key]}" for key in (
                                   "sums", "shared_bytes", "expand_tiles", "run")),
                    *(str(divided.why_unfit(limits)).split(" ")[0] for limits in LIMITS),
                    digest([found, written, *(
                        [divided.why_unfit(limits), f"{divided.cycles(limits):.4g}"]
                        for limits in LIMITS)])))
    recorded("tilings_blocks", texts)


def test_tiles_of_blocks_for_any_device(recorded: Recorded) -> None:
    texts = {}
    for name, problem in BLOCKS.items():
        of_problem = of_kind(problem)
        for number in range(10):
            draw = Draw(f"dialect tile {name} {number}")
            tile = Tile(draw.pick(1, 3, 4, 7, 8), draw.pick(1, 4, 7, 8, 9), draw.pick(8, 16, 32),
                        draw.pick(64, 128, 256))
            texts[f"{name} {number}"] = " ".join(map(str, (
                as_text(tile), tile.sums(of_problem), tile.hidden(of_problem),
                tile.shared_bytes(of_problem), tile.count(of_problem),
                f"{tile.products(of_problem):.6g}",
                *(f"{tile.expected_us(of_problem, MADE[device]):.4g}"
                  for device in ("h200", "sm_75")))))
    recorded("tilings_dialect", texts)


def test_tiles_of_pools_pairs_and_attentions(recorded: Recorded) -> None:
    texts = {}
    for kind in ("pool", "pair", "attention"):
        for case, problem in fusions(kind, 40).items():
            if isinstance(problem, str) or not all(part.outputs[0].size for part in problem.parts):
                continue
            draw = Draw(f"tiling {case}")
            divided: list[PoolTiling | PairTiling | channel_attention._Division] = []
            for _ in range(3):
                if kind == "pool" and (layers := convolution_pool_of(problem)) is not None:
                    divided.append(PoolTiling(layers.convolution, layers.pool, PoolTile(
                        draw.pick(1, 2, 3, 4, 8), draw.pick(8, 16, 32, 48, 64), draw.pick(0, 1))))
                elif kind == "pair" and (pair := pointwise_pair_of(problem)) is not None and (
                        problem.sources[0][0][0] < 0):
                    divided.append(PairTiling(pair, PairTile(
                        draw.pick(1, 2), draw.pick(2, 3, 4, 6), draw.pick(0, 2, 3, 4))))
                elif kind == "attention":
                    layer = channel_attention._layer_of(problem)
                    if layer is not None:
                        divided.append(channel_attention._Division(
                            layer, draw.pick(1, 49, 196, 3136), draw.pick(4, 8),
                            draw.pick(1, 2, 8, 16), draw.pick(8, 16),
                            draw.pick(48, 163, 227) * 1024))
            for number, each in enumerate(divided):
                times = (each.cycles(3, 132) if isinstance(each, channel_attention._Division)
                         else each.microseconds(LIMITS[0]))
                found = properties(each)
                shown = " ".join(f"{name}={value}" for name, value in found.items()
                                 if isinstance(value, int))
                texts[f"{case} {number}"] = f"{shown} {digest(found)} {times:.4g}"
    recorded("tilings_others", texts)


def expressions() -> Iterator[tuple[str, Epilogue]]:
    """Yields epilogues: one step, two steps in each order, results that are used twice."""
    steps = {"add": (1, ()), "mul": (1, ()), "relu": (0, ()), "clip": (0, (0.0, 6.0)),
             "clip 1": (0, (-1.0, 1.0)), "clip 65519": (0, (0.0, 65519.0)),
             "clip 0.1": (0, (0.1, 2.0)), "clip -0.1": (0, (-2.0, 0.1)), "tanh": (0, ())}
    for names in ((), *itertools.product(steps, repeat=1), *itertools.product(steps, repeat=2)):
        joined = apply_all([(name.split(" ")[0], steps[name][1]) for name in names])
        for kind in ("channel", "tensor"):
            yield f"{' '.join(names)}, {kind}", Epilogue(joined, (kind,) * (joined.inputs - 1))
    for arguments in itertools.product(range(2), repeat=2):
        for outputs in ((0,), (1,), (2,), (3,), (0, 2), (3, 2)):
            yield f"{arguments} {outputs}", Epilogue(Expression(2, (
                ExpressionStep("add", arguments), ExpressionStep("relu", (2,))), outputs),
                ("channel",))
    for first in range(3):
        yield f"relu of {first}", Epilogue(Expression(3, (ExpressionStep("relu", (first,)),)),
                                           ("channel", "tensor"))


def apply_all(steps: Sequence[tuple[str, tuple[float, ...]]]) -> Expression:
    joined = identity()
    for name, constants in steps:
        joined = joined.then(apply(name, *constants))
    return joined


def test_epilogues_of_blocks(recorded: Recorded) -> None:
    texts = {}
    for case, epilogue in expressions():
        bias, rest = without_bias(epilogue)
        written = [outcome(macros._inner_epilogue, epilogue, "INNER_", halves=halves)
                   for halves in (False, True)]
        texts[case] = (f"{bias} {macros._half_bounds(epilogue.expression)} "
                       f"{macros._half_bounds(rest.expression)} {digest([rest, written])}")
    recorded("epilogues_of_blocks", texts)
