"""Tests direct_sparse_mma: its tables everywhere, and its kernel where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.reference import reference
from gossamer.ops.conv2d.sparse.common.row_blocks import cluster
from gossamer.ops.conv2d.sparse.common.tensor_cores import DENSEST, ROWS
from gossamer.ops.conv2d.sparse.mma_batch.direct_sparse_mma import BatchTile, DirectSparseMma
from gossamer.ops.conv2d.sparse.mma_batch.order import (
    KINDS,
    Kind,
    TileBlock,
    alike,
    dealt,
    scheduled,
)
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.tensor import pack
from tests.cubins import check_builds
from tests.ops.conv2d.sparse.test_direct_sparse import check as check_sparse
from tests.ops.conv2d.sparse.test_direct_sparse import of, sparse_weights
from tests.ops.conv2d.test_conv2d import BIAS_RESIDUAL_RELU
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error

EMPTY_OUTPUTS = (Conv2dProblem(0, 4, 8, 8, 8, (3, 3)), Conv2dProblem(8, 4, 2, 2, 8, (3, 3)),
                 Conv2dProblem(8, 4, 8, 8, 0, (3, 3)))


def check_no_launch(algorithm: Algorithm, problem: Conv2dProblem) -> None:
    """Checks that an algorithm has one variant for the problem, which launches nothing."""
    device = RecordingDevice()
    (variant,) = algorithm.variants(problem, device)
    weights = {"weight": np.zeros((problem.out_channels, 4, 3, 3), np.float32)}
    assert not algorithm.prepare(Weights(weights, device), problem, variant, device).launches


class UploadRecorder(RecordingDevice):
    """A device that records the arrays that are uploaded, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.uploaded: list[np.ndarray] = []

    def upload(self, array: np.ndarray, purpose: str):
        self.uploaded.append(array)
        return super().upload(array, purpose)


def variants(problem: Conv2dProblem, precision: str) -> list[Variant]:
    return [variant for variant in DirectSparseMma().variants(problem, RecordingDevice())
            if variant.precision == precision]


def check(problem: Conv2dProblem, device: Device, chosen: Sequence[Variant]) -> None:
    """Checks variants against the reference, with guards around their outputs."""
    check_sparse(problem, sparse_weights(problem, 0.2), device, chosen,
                 algorithm=DirectSparseMma())


def by_tables(problem: Conv2dProblem, weights: dict[str, np.ndarray], variant: Variant,
              x: np.ndarray) -> np.ndarray:
    """Returns the convolution that the tables describe, without its epilogue, in float64. Every
    pixel is computed as the first one of a tile; chunks that are absent in a phase are NaN."""
    device = UploadRecorder()
    DirectSparseMma().prepare(Weights(weights, device), problem, variant, device)
    starts, places, values, channels = device.uploaded
    geometry = BatchTile(**dict(variant.config)).geometry(problem, device.limits)
    assert geometry is not None
    depth = places.shape[2]
    fragments = values.view(np.float16 if variant.precision == "fp16" else np.float32)
    # axes: fragment, row, quarter, columns' half, rows' half, columns that share a register
    fragments = fragments.reshape(-1, 8, 4, 2, 2, depth // 8).astype(np.float64)
    matrix = fragments.transpose(0, 4, 1, 3, 2, 5).reshape(len(places), -1, 16, depth)
    tiles = channels.reshape(len(channels), -1, 16)
    kinds = [[0]] if variant["tiles"] == 1 else [[0, 1], [0], [1]]
    phases = (starts.shape[1] - 1) // len(kinds)
    images = pack(x, variant.inputs[0]).astype(np.float64)
    # padded enough for every tile, and for what is between the rows of a channel
    padded = np.pad(images, ((0, 0), (problem.pads[0], problem.pads[2] + geometry.height),
                             (problem.pads[1], problem.pads[3] + geometry.width), (0, 0)))
    per_group = problem.channels // problem.groups
    group_blocks = len(channels) // problem.groups
    y = np.zeros((problem.out_channels, problem.out_height, problem.out_width, problem.batch))
    for row, column in np.ndindex(y.shape[1:3]):
        top, left = row * problem.stride[0], column * problem.stride[1]
        tile = padded[:, top:top + geometry.height, left:left + geometry.width]
        for group in range(problem.groups):
            pool = np.full((geometry.stages, geometry.stage_rows, problem.batch), np.nan)
            blocks = range(group * group_blocks, (group + 1) * group_blocks)
            step = {block: starts[block, 0] for block in blocks}
            for phase in range(phases):
                first = phase * geometry.chunk
                chunk = tile[group * per_group:][first:min(first + geometry.chunk, per_group)]
                for channel, pixels in enumerate(chunk):
                    at = channel * geometry.pitch
                    pool[phase % geometry.stages, at:at + pixels[..., 0].size] = pixels.reshape(
                        -1, problem.batch)
                for coming in range(phase + 1, min(phase + 3, phases)):
                    pool[coming % geometry.stages] = np.nan
                rows = pool.reshape(-1, problem.batch)
                for block, (kind, needing) in product(blocks, enumerate(kinds)):
                    while step[block] < starts[block, 1 + phase * len(kinds) + kind]:
                        # both fragments of a step are for the same tile where it is for one tile
                        for number, needed in enumerate(np.resize(needing, variant["tiles"])):
                            channel = tiles[block][needed]
                            y[channel[channel >= 0], row, column] += (
                                matrix[step[block], number]
                                @ rows[places[step[block], number] >> 7])[channel >= 0]
                        step[block] += 1
    return y.transpose(3, 0, 1, 2)


@st.composite
def problems(draw: st.DrawFn) -> Conv2dProblem:
    groups = draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    two = st.tuples(*[st.integers(1, 2)] * 2)
    return Conv2dProblem(
        draw(st.sampled_from([8, 16])), groups * draw(st.sampled_from([1, 3, 40, 100])),
        draw(st.integers(5, 7)), draw(st.integers(5, 7)),
        groups * draw(st.sampled_from([1, 16, 21, 40])),
        draw(st.tuples(*[st.integers(1, 3)] * 2)), draw(two), pads, draw(two), groups)


@given(problem=problems(), precision=st.sampled_from(["tf32", "fp16"]),
       density=st.sampled_from([0.0, 0.05, 0.3]), choice=st.integers(0, 7))
@settings(max_examples=30)
def test_the_tables_state_the_convolution(problem: Conv2dProblem, precision: str, density: float,
                                          choice: int) -> None:
    weights = sparse_weights(problem, density)
    candidates = variants(of(weights, problem), precision)
    x = np.random.default_rng(3).standard_normal(problem.inputs[0].shape).astype(
        candidates[0].inputs[0].dtype)
    actual = by_tables(problem, weights, candidates[choice % len(candidates)], x)
    (expected,) = reference(problem, [x], weights)
    assert normalised_error(actual, expected) <= 1e-3


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=6), stages=st.integers(3, 6),
       kind=st.sampled_from(list(KINDS.values())), seed=st.integers(0, 9))
def test_a_schedule(counts: list[int], stages: int, kind: Kind, seed: int) -> None:
    """Every column is scheduled once, while its chunk is in shared memory."""
    chunks = np.repeat(np.arange(len(counts)), counts)
    classes = np.random.default_rng(seed).integers(0, kind.apart, len(chunks))
    stages = min(stages, len(counts))
    steps, ends = scheduled(chunks, classes, len(counts), stages, kind.apart, kind.depth)
    assert ends[-1] == len(steps) and ends == sorted(ends) and len(ends) == len(counts)
    columns = [column for step in steps for column in step if column >= 0]
    assert sorted(columns) == list(range(len(chunks)))
    for number, step in enumerate(steps):
        phase = int(np.searchsorted(ends, number, side="right"))
        step_chunks = chunks[[column for column in step if column >= 0]]
        assert len(step) == kind.depth and step[0] >= 0
        assert step_chunks.max() <= phase
        assert phase == len(counts) - 1 or step_chunks.min() + stages - 3 >= phase or stages < 3
    if len(counts) == 1:
        assert len(steps) == -(-len(chunks) // kind.depth)


def test_columns_read_at_once_lie_in_different_banks() -> None:
    problem = Conv2dProblem(64, 128, 6, 6, 64, (3, 3), pads=(1, 1, 1, 1))
    weights = sparse_weights(problem, 0.1)

    def passes(places: np.ndarray, kind: Kind) -> float:
        """Returns the passes of a read on average: as many as its most frequent class has."""
        return float(np.mean([max(np.bincount(np.unique(read) % kind.apart))
                              for read in places.reshape(-1, kind.apart)]))

    for precision, kind in KINDS.items():
        for variant in variants(of(weights, problem), precision):
            device = UploadRecorder()
            DirectSparseMma().prepare(Weights(weights, device), problem, variant, device)
            places = device.uploaded[1].reshape(-1)
            in_any_order = passes(np.random.default_rng(0).permutation(places), kind)
            assert passes(places, kind) - 1 < 0.3 * (in_any_order - 1), variant.config_text


ON_A_GPU = [
    Conv2dProblem(8, 6, 6, 5, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(16, 6, 5, 5, 42, (3, 3), dilation=(1, 2), groups=2),
    Conv2dProblem(24, 9, 4, 4, 16, (7, 7), pads=(3, 3, 3, 3)),
    Conv2dProblem(72, 20, 5, 4, 100, (1, 1)),
    Conv2dProblem(8, 100, 3, 4, 20, (3, 3), pads=(1, 1, 1, 1)),
]


@pytest.mark.parametrize("problem", ON_A_GPU, ids=Conv2dProblem.describe)
def test_every_shape_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    check(problem, cuda, list(DirectSparseMma().variants(problem, cuda)))


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", ON_A_GPU[:2], ids=Conv2dProblem.describe)
def test_some_shapes_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    """Runs both precisions and each way to share the work, and no more: a sanitizer is slow."""
    chosen = {(variant.precision, variant["tiles"], variant["sets"] > 1): variant
              for variant in DirectSparseMma().variants(problem, cuda)}
    check(problem, cuda, list(chosen.values()))


def test_it_builds_without_spills() -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    problem = Conv2dProblem(64, 8, 6, 6, 64, (3, 3), pads=(1, 1, 1, 1),
                            epilogue=BIAS_RESIDUAL_RELU)
    device = RecordingDevice()
    weights = Weights(sparse_weights(problem, 0.2), device)
    for variant in DirectSparseMma().variants(problem, device):
        DirectSparseMma().prepare(weights, problem, variant, device)
    assert len(device.sources) >= 12
    check_builds(device.sources)


def test_weights_are_rounded_to_nearest() -> None:
    """TF32 has 10 bits of mantissa; truncation would make all weights smaller."""
    problem = Conv2dProblem(4, 64, 3, 3, 16, (3, 3))
    weights = sparse_weights(problem, 0.3)
    device = UploadRecorder()
    variant = variants(of(weights, problem), "tf32")[0]
    DirectSparseMma().prepare(Weights(weights, device), problem, variant, device)
    stored = device.uploaded[2].view(np.float32)
    assert not (stored.view(np.uint32) & 0x1FFF).any()
    stored, exact = np.sort(stored[stored != 0]), np.sort(weights["weight"][weights["weight"] != 0])
    assert np.abs(stored / exact - 1).max() <= 2**-11
    assert abs(np.mean(stored / exact - 1)) < 2**-15


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_preserved(value: float) -> None:
    problem = Conv2dProblem(8, 1, 1, 1, 1, (1, 1))
    weights = {"weight": np.full((1, 1, 1, 1), value, np.float32)}
    for precision in KINDS:
        device = UploadRecorder()
        variant = variants(problem, precision)[0]
        DirectSparseMma().prepare(Weights(weights, device), problem, variant, device)
        stored = device.uploaded[2].view(
            np.float16 if precision == "fp16" else np.float32).reshape(-1)
        np.testing.assert_array_equal(stored[~np.isfinite(stored)], [value])


def test_similar_rows_share_a_block() -> None:
    """Rows of four kinds alternate: in their order each block would need every column."""
    problem = Conv2dProblem(8, 64, 1, 1, 64, (1, 1))
    weight = np.zeros((64, 64, 1, 1), np.float32)
    for row in range(64):
        weight[row, row % 4 * 16:row % 4 * 16 + 16] = 1 + row
    device = UploadRecorder()
    for precision, steps in (("tf32", 2), ("fp16", 1)):
        variant = next(candidate for candidate in variants(problem, precision)
                       if candidate["tiles"] == 1)
        device.uploaded.clear()
        DirectSparseMma().prepare(Weights({"weight": weight}, device), problem, variant, device)
        starts, _, _, channels = device.uploaded
        assert (channels[4:] == -1).all()
        np.testing.assert_array_equal(starts[:4, -1] - starts[:4, 0], steps)
        assert (starts[4:, -1] == starts[4:, 0]).all()
        assert {tuple(sorted(block % 4)) for block in channels[:4]} == {(k,) * 16 for k in range(4)}


@pytest.mark.parametrize("rows", [5, 16, 70])
def test_swaps_leave_fewer_columns(rows: int) -> None:
    mask = np.random.default_rng(2).random((rows, 90)) < 0.1
    tiles = alike(np.packbits(mask).tobytes(), mask.shape)
    assert sorted(row for tile in tiles for row in tile) == list(range(rows))
    assert sorted(map(len, tiles)) == sorted(map(len, cluster(mask, ROWS)))
    after, before = (sum(mask[tile].any(axis=0).sum() for tile in grouping)
                     for grouping in (tiles, cluster(mask, ROWS)))
    assert after < before if rows > ROWS else after == before


def test_both_precisions_are_among_the_first() -> None:
    """A search of a few configs only measures some of each precision."""
    problem = Conv2dProblem(64, 64, 14, 14, 64, (3, 3), weights_info=WeightsInfo(0.1, "a pattern"))
    precisions = [variant.precision
                  for variant in DirectSparseMma().variants(problem, RecordingDevice())]
    assert precisions[:4] == ["tf32", "fp16"] * 2
    assert precisions.count("tf32") == precisions.count("fp16") >= 6


@pytest.mark.parametrize("problem", EMPTY_OUTPUTS, ids=Conv2dProblem.describe)
def test_an_empty_output_needs_no_launch(problem: Conv2dProblem) -> None:
    check_no_launch(DirectSparseMma(), problem)


@pytest.mark.parametrize("change, reason", [
    ({"batch": 6}, "four or eight at a time"),
    ({"height": 64, "width": 64, "dilation": (16, 31)}, "windows span 33 x 63 pixels: 128 bytes"),
    ({"weights_info": WeightsInfo(DENSEST + 0.01, "a pattern")}, "density 31%"),
    ({"batch": 2**12, "channels": 2**10}, "32-bit"),
])
def test_reasons(change: dict, reason: str) -> None:
    problem = Conv2dProblem(8, 4, 32, 32, 8, (3, 3), weights_info=WeightsInfo(0.1, "a pattern"))
    algorithm, device = DirectSparseMma(), RecordingDevice()
    assert algorithm.supports(problem, device) is None
    assert reason in (algorithm.supports(replace(problem, **change), device) or "")


def test_other_devices_are_told_what_is_missing(device) -> None:
    problem = Conv2dProblem(8, 4, 8, 8, 8, (3, 3), weights_info=WeightsInfo(0.1, "a pattern"))
    if not device.limits.mma:
        assert "tensor cores" in (DirectSparseMma().supports(problem, device) or "")


def test_every_config_serves_every_batch() -> None:
    """A plan for another batch size takes the config of the nearest one."""
    problem = Conv2dProblem(64, 8, 9, 9, 32, (3, 3), pads=(1, 1, 1, 1))
    for precision in KINDS:
        configs = {batch: [variant.config for variant in
                           variants(replace(problem, batch=batch), precision)]
                   for batch in (8, 16, 24, 64)}
        assert len({frozenset(of_batch) for of_batch in configs.values()}) == 1
        assert all(len(of_batch) == len(set(of_batch)) for of_batch in configs.values())


def test_schedulers_of_a_work_group_get_similar_work() -> None:
    """No swap of two blocks makes the sums of steps of the four schedulers more even."""
    problem = Conv2dProblem(8, 192, 8, 8, 192, (1, 1), weights_info=WeightsInfo(0.5, "stairs"))
    weight = np.zeros((192, 192, 1, 1), np.float32)
    for row in range(192):
        # whole steps of 8 or 16 columns
        weight[row, :16 * (1 + row // 16)] = 1
    warps_a_block = set()
    for variant in DirectSparseMma().variants(problem, RecordingDevice()):
        shape, device = BatchTile(**dict(variant.config)), UploadRecorder()
        if shape.tiles > 1:
            continue  # a step is the work of one tile or of both
        DirectSparseMma().prepare(Weights({"weight": weight}, device), problem, variant, device)
        starts = device.uploaded[0]
        warps_a_block.add((shape.parts, shape.sets))
        warps = np.arange(shape.warps)

        def unevenness(steps: np.ndarray, shape: BatchTile = shape,
                       warps: np.ndarray = warps) -> float:
            of_warps = steps[(warps + warps // shape.blocks) % shape.blocks]
            return float(np.square(np.bincount(warps % 4, of_warps)).sum())

        for steps in (starts[:, -1] - starts[:, 0]).reshape(-1, shape.blocks):
            for pair in combinations(range(shape.blocks), 2):
                swapped = steps.copy()
                swapped[list(pair)] = steps[list(reversed(pair))]
                assert unevenness(steps) <= unevenness(swapped), variant.config_text
    assert {1, 2} <= {parts * sets for parts, sets in warps_a_block}


@given(work=st.lists(st.integers(0, 9), min_size=1, max_size=9), tiles=st.integers(1, 2),
       together=st.integers(1, 4), warps=st.integers(1, 4))
@settings(max_examples=50)
def test_empty_blocks_fill_the_last_work_group(work: list[int], tiles: int, together: int,
                                               warps: int) -> None:
    rows = np.arange(len(work) * tiles * 3).reshape(len(work), tiles, 3)
    blocks = [TileBlock(list(own), np.tile(np.arange(9) < columns, (tiles, 1)))
              for own, columns in zip(rows, work, strict=True)]
    groups = dealt(blocks, together, warps)
    assert len(groups) == -(-len(blocks) // together) * together
    assert sorted(np.concatenate([tile for block in groups for tile in block.tiles])) == list(
        range(rows.size))
    assert {(len(block.tiles), block.needed.shape) for block in groups} == {(tiles, (tiles, 9))}
    assert sum(block.work for block in groups) == sum(work) * tiles
