"""Records of the divisions of pruned convolutions into tiles: every number of tiles that are
offered and of tiles that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace

import numpy as np

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated import configs
from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedConfig, GeneratedTiling
from gossamer.ops.conv2d.sparse.mma_batch import direct_sparse_mma, order
from gossamer.ops.conv2d.sparse.mma_batch.direct_sparse_mma import BatchTile
from gossamer.ops.conv2d.sparse.mma_batch.order import scheduled
from gossamer.ops.conv2d.sparse.mma_pixels import direct_sparse_pixels
from gossamer.ops.conv2d.sparse.mma_pixels.tiling import PixelTile, PixelTiling, cycles
from gossamer.ops.conv2d.sparse.table import tiling as table
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec
from tests.ops.candidates import DEVICES, described
from tests.ops.conv2d.drawn import sparse, with_arrays
from tests.ops.drawn import Draw
from tests.ops.offers import MADE
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome, properties

LIMITS = [MADE[name].limits for name in ("h200", "sm_80")]


def problems(count: int) -> Iterator[tuple[Draw, Conv2dProblem]]:
    """Yields pruned layers, some of them with larger images."""
    for number, layer in enumerate(sparse(count, 9)):
        draw = Draw(f"sparse tiling {number}")
        problem = layer.problem
        if problem.outputs[0].size and problem.inputs[0].size:
            more = draw.pick(0, 0, 5, 21)
            yield draw, replace(problem, height=problem.height + more, width=problem.width + more)


def test_tiles_of_pixels(recorded: Recorded) -> None:
    found = {}
    for number, (draw, problem) in enumerate(problems(60)):
        for _ in range(4):
            tile = PixelTile(draw.pick(1, 2), draw.pick(1, 2, 4, 6), draw.pick(1, 1, 2, 4, 7),
                             draw.pick(1, 2, 4, 8), draw.pick(2, 4, 6, 8), draw.pick(1, 2, 4, 8))
            for precision in ("tf32", "fp16"):
                divided = PixelTiling(problem, tile, precision)
                reasons = [divided.why_unfit(limits) for limits in LIMITS]
                places = divided.places(np.arange(3), np.arange(3) % 2, np.arange(3))
                found[f"{number} {astuple(tile)} {precision}"] = " ".join((
                    f"{divided.shared_bytes} {[str(reason)[:12] for reason in reasons]}",
                    *(f"{cycles(divided, limits):.4g}" for limits in LIMITS),
                    digest([properties(divided), properties(tile), reasons, places.tolist()])))
    recorded("tilings_pixels", found)


def test_architectures_of_clusters(recorded: Recorded) -> None:
    device, found = DEVICES["h200"](), {}
    plain = Conv2dProblem(1, 24, 9, 10, 40, (3, 3), pads=(1, 1, 1, 1))
    for stride in (1, 2):
        layer = with_arrays(replace(plain, stride=(stride, 1)), stride, lambda weight: np.where(
            np.random.default_rng(1).random(weight.shape) < 0.2, weight, 0))
        assert layer.arrays is not None
        for cluster in (1, 2, 3, 4):
            for precision in ("tf32", "fp16"):
                tile = PixelTile(1, 2, 1, 1, 2, cluster)
                variant = direct_sparse_pixels._variant(layer.problem, tile, precision)
                state = direct_sparse_pixels.DirectSparsePixels().prepare(
                    Weights(layer.arrays, device, "the test"), layer.problem, variant, device)
                found[f"{stride} {cluster} {precision}"] = digest(described(state))
    recorded("pixels_of_clusters", found)


def test_tiles_of_batches(recorded: Recorded) -> None:
    found = {}
    for number, (draw, problem) in enumerate(problems(60)):
        for _ in range(5):
            precision = draw.pick("tf32", "fp16")
            tile = BatchTile(draw.pick(1, 2), draw.pick(1, 2, 4, 8), draw.pick(1, 1, 2),
                             draw.pick(1, 2, 3), draw.pick(1, 2, 3, 4), draw.pick(1, 2, 3, 4, 7),
                             draw.pick(1, 2, 3))
            geometries = [outcome(tile.geometry, problem, limits) for limits in LIMITS]
            found[f"{number} {astuple(tile)} {precision}"] = (
                f"{digest([properties(tile), geometries, tile.tiles_of(problem)])} "
                f"{direct_sparse_mma._row_groups(problem, tile)} {geometries[0][:100]}")
    recorded("tilings_batches", found)


def generated(problem: Conv2dProblem, config: GeneratedConfig, halves: bool) -> str:
    """Returns the numbers of a way to generate code, and whether the code is offered."""
    divided, limits = GeneratedTiling(problem, config, halves), LIMITS[0]
    facts = [configs._fits(problem, config, limits, halves),
             configs._may_prefetch(problem, config), configs._holds(divided)]
    times = configs.estimate(divided, limits)
    return " ".join((
        f"{divided.shared_bytes} {facts} {configs._room(config, limits)}",
        f"{configs._needed_registers(divided)} {configs._conflicts(divided)}",
        f"{times.microseconds:.4g} {configs.lines(divided):.4g}",
        digest([f"{each:.4g}" for each in astuple(times)]),
        digest([list(map(astuple, configs._configs_per_unit(divided, limits)))]),
        digest({**properties(divided), "registers": [divided.registers_of(count)
                                                     for count in (1, 2, 3, 8)]})))


def test_tiles_of_generated_code(recorded: Recorded) -> None:
    found = {}
    for number, (draw, problem) in enumerate(problems(60)):
        for _ in range(4):
            config = GeneratedConfig(
                draw.pick(1, 2, 3, 8, 16, 48, 96), draw.pick(8, 16, 32), draw.pick(1, 2, 3, 4),
                draw.pick(1, 2, 4, 7), draw.pick(1, 2, 4, 8), draw.pick(1, 1, 2, 4),
                draw.pick(1, 4, 8), draw.pick(0, 0, 1), draw.pick(1, 1, 2, 4), draw.pick(1, 1, 2))
            halves = draw.pick(False, True)
            found[f"{number} {astuple(config)} {halves}"] = outcome(
                generated, problem, config, halves, text=str)
        found[f"{number} tiles"] = digest(list(configs._tiles(problem, False)))
    for size in range(1, 66):
        found[f"parts of {size}"] = str(configs._parts(size))
    recorded("tilings_generated", found)


def test_planes_of_tables(recorded: Recorded) -> None:
    found = {}
    for number, (draw, problem) in enumerate(problems(60)):
        for _ in range(4):
            form = table.TableForm(draw.pick(1, 2, 4, 8), draw.pick(1, 2, 4, 8), draw.pick(32, 64),
                                   draw.pick(1, 4, 8), draw.pick(1, 4, 8, 16), draw.pick(0, 1))
            x, y = (TensorSpec(spec.shape, Format(draw.pick("NCHW", "CHWN"), "float32"))
                    for spec in (problem.inputs[0], problem.outputs[0]))
            read = table.as_read(x, problem, form)
            walk = table.OutputPlanes.of(problem, form, read, y)
            divided = table.TableTiling(form, walk)
            cost = table._cost(problem, divided, read, LIMITS[0])
            found[f"{number} {astuple(form)} {x.layout} {y.layout}"] = (
                f"{astuple(walk)} {cost:.4g} {table._halo(problem, walk)} "
                f"{table._columns(problem, form.rows):.4g} "
                f"{digest([properties(divided), properties(form), read])}")
    for name, device in MADE.items():
        found[f"forms {name}"] = digest(table.fitting(device.limits))
    recorded("tilings_tables", found)


def test_orders_of_columns(recorded: Recorded) -> None:
    found = {}
    for number in range(80):
        rng = np.random.default_rng(number)
        apart, depth = int(rng.choice([1, 2, 4, 8])), int(rng.choice([8, 16]))
        phases, stages = int(rng.integers(1, 7)), int(rng.integers(1, 4))
        count = int(rng.choice([0, 1, 7, 8, 9, 30, 64]))
        chunks = np.sort(rng.integers(0, phases, count))
        classes = rng.integers(0, apart, count)
        rounding = float(rng.choice([0.0, 0.5, 0.9]))
        found[f"{number} {apart} {depth} {phases} {stages} {count} {rounding}"] = outcome(
            scheduled, chunks, classes, phases, stages, apart, depth, rounding)
    recorded("orders_of_columns", found)


def test_blocks_of_tiles(recorded: Recorded) -> None:
    found = {}
    for number in range(80):
        rng = np.random.default_rng(number)
        tiles, together = int(rng.choice([1, 2])), int(rng.choice([1, 2, 4]))
        rows = np.arange(int(rng.choice([1, 15, 16, 17, 33, 70, 130])))
        mask = rng.random((len(rows), int(rng.choice([1, 9, 40])))) < rng.random((len(rows), 1))
        warps = int(rng.choice([1, 2, 4]))
        blocks = order.blocks_of(rows, mask, tiles)

        def text(blocks: list[order.TileBlock]) -> str:
            return digest([[[tile.tolist() for tile in block.tiles], block.kinds, block.work, [
                block.columns(kind).tolist() for kind in block.kinds]] for block in blocks])

        found[f"{number} {len(rows)} x {mask.shape[1]}, {tiles} {together} {warps}"] = (
            f"{len(blocks)} {text(blocks)} "
            f"{outcome(order.dealt, blocks, together, warps, text=text)}")
    recorded("blocks_of_tiles", found)
