"""Tests direct_sparse_pixels: its tables everywhere, and its kernel where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.sparse.direct_sparse_pixels import DENSEST, DirectSparsePixels
from gossamer.ops.conv2d.sparse.pixel_tiling import MOST_IMAGES, PixelTile, PixelTiling
from gossamer.ops.weights import Weights, WeightsInfo
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.sparse.test_direct_sparse import check as check_sparse
from tests.ops.conv2d.sparse.test_direct_sparse import of
from tests.ops.conv2d.test_conv2d import BIAS_RESIDUAL_RELU
from tests.ops.recording import RecordingDevice, check_kernels_build
from tests.tolerances import normalised_error

ALEXNET = Conv2dProblem(1, 256, 13, 13, 384, (3, 3), pads=(1, 1, 1, 1),
                        weights_info=WeightsInfo(0.05, "a pattern"))


class UploadRecorder(RecordingDevice):
    """A device that records the arrays that are uploaded, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.uploaded: list[np.ndarray] = []

    def upload(self, array: np.ndarray, purpose: str):
        self.uploaded.append(array)
        return super().upload(array, purpose)


def check(problem: Conv2dProblem, device: Device, chosen: Sequence[Variant]) -> None:
    """Checks variants against the reference, with guards around their outputs."""
    check_sparse(problem, sparse(problem, 0.2), device, chosen,
                 algorithm=DirectSparsePixels())


def tables(problem: Conv2dProblem, weights: dict[str, np.ndarray],
           variant: Variant) -> list[np.ndarray]:
    device = UploadRecorder()
    DirectSparsePixels().prepare(Weights(weights, device), problem, variant, device)
    return device.uploaded


def shared_memory(divided: PixelTiling, x: np.ndarray, line: int, fragment: int) -> np.ndarray:
    """Returns what shared memory holds of an image's channels (C, H, W) for a tile, as
    (vectors, 8)."""
    problem = divided.problem
    memory = np.zeros((divided.vectors, 8))
    top = line * problem.stride[0] - problem.pads[0]
    left = fragment * 8 * problem.stride[1] - problem.pads[1]
    for channel, row, tap in np.ndindex(len(x), divided.span[0], problem.kernel[1]):
        y = top + row
        columns = left + tap * problem.dilation[1] + np.arange(8 * divided.width) * (
            problem.stride[1])
        inside = (columns >= 0) & (columns < problem.width) & (0 <= y < problem.height)
        values = np.where(inside, x[channel, y % problem.height, columns % problem.width], 0)
        first = (channel * divided.channel_vectors + tap * divided.tap_vectors
                 + row % problem.stride[0] * divided.residue_vectors
                 + row // problem.stride[0] * divided.width)
        memory[first:first + divided.width] = values.reshape(-1, 8)
    return memory


def by_tables(problem: Conv2dProblem, weights: dict[str, np.ndarray], variant: Variant,
              x: np.ndarray) -> np.ndarray:
    """Returns the convolution that the tables describe, without its epilogue, in float64."""
    starts, offsets, values, channels = tables(problem, weights, variant)
    shape = sizes_of(PixelTile, variant)
    divided = PixelTiling(problem, shape, variant.precision)
    vectors = offsets.reshape(-1, 16) // divided.vector_bytes
    if variant.precision == "fp16":
        # axes: step, tile, row, quarter, columns' half, rows' half, column of two
        steps = values.view(np.float16).reshape(-1, shape.tiles, 8, 4, 2, 2, 2)
        matrix = steps.transpose(0, 1, 5, 2, 4, 3, 6)
    else:
        # axes: step, tile, instruction, row, quarter, columns' half, rows' half
        steps = values.view(np.float32).reshape(-1, shape.tiles, 2, 8, 4, 2, 2)
        matrix = steps.transpose(0, 1, 6, 3, 2, 5, 4)
        vectors = vectors.reshape(-1, 4, 4).swapaxes(1, 2).reshape(-1, 16)
    matrix = matrix.reshape(-1, shape.rows, 16).astype(np.float64)
    y = np.full(problem.outputs[0].shape, np.nan)
    depth = problem.channels // problem.groups
    down = -(-problem.out_height // divided.lines)
    for image, tile_y, tile_x, part in np.ndindex(
            problem.batch, down, divided.tiles_across, problem.groups * shape.cluster):
        group, rank = divmod(part, shape.cluster)
        line, fragment = tile_y * divided.lines, tile_x * divided.width
        first = group * depth + rank * divided.channels
        channels_of_part = x[image, first:min(first + divided.channels, (group + 1) * depth)]
        memory = shared_memory(divided, channels_of_part.astype(np.float64), line, fragment)
        fragments = np.arange(divided.lines * divided.width)
        for block in range(group * divided.blocks, (group + 1) * divided.blocks):
            total = np.zeros((shape.rows, len(fragments), 8))
            for step in range(*starts[block * shape.cluster + rank:][:2]):
                total += np.einsum("rk,kop->rop", matrix[step],
                                   memory[vectors[step][:, None] + fragments])
            lines = total.reshape(shape.rows, divided.lines, -1)
            used = channels[block] >= 0
            target = y[image, :, line:line + divided.lines, fragment * 8:][..., :8 * divided.width]
            lines = lines[used, :target.shape[1], :target.shape[2]]
            so_far = target[channels[block][used]]
            target[channels[block][used]] = lines if rank == 0 else so_far + lines
    return y


@st.composite
def problems(draw: st.DrawFn) -> Conv2dProblem:
    groups = draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    two = st.tuples(*[st.integers(1, 3)] * 2)
    return Conv2dProblem(
        draw(st.sampled_from([1, 1, 2])), groups * draw(st.sampled_from([1, 3, 9])),
        draw(st.integers(7, 20)), draw(st.integers(7, 20)),
        groups * draw(st.sampled_from([1, 16, 21, 40])),
        draw(st.tuples(*[st.integers(1, 3)] * 2)), draw(two), pads, draw(two), groups)


@given(problem=problems(), density=st.sampled_from([0.0, 0.05, 0.3]), choice=st.integers(0, 31))
@settings(max_examples=40)
def test_the_tables_state_the_convolution(problem: Conv2dProblem, density: float,
                                          choice: int) -> None:
    weights = sparse(problem, density)
    candidates = list(DirectSparsePixels().variants(of(weights, problem), RecordingDevice()))
    variant = candidates[choice % len(candidates)]
    x = np.random.default_rng(3).standard_normal(problem.inputs[0].shape).astype(
        variant.inputs[0].dtype)
    actual = by_tables(problem, weights, variant, x)
    (expected,) = reference(problem, [x], weights)
    assert normalised_error(actual, expected) <= 1e-3


ON_A_GPU = [
    Conv2dProblem(1, 6, 6, 5, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(3, 10, 13, 13, 42, (3, 3), pads=(1, 1, 1, 1), dilation=(1, 2), groups=2),
    Conv2dProblem(2, 19, 9, 40, 70, (5, 5), (2, 3), (2, 2, 2, 2)),
    Conv2dProblem(1, 20, 5, 120, 100, (1, 1)),
    replace(ALEXNET, weights_info=WeightsInfo()),
]


@pytest.mark.parametrize("problem", ON_A_GPU, ids=Conv2dProblem.describe)
def test_every_shape_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    check(problem, cuda, list(DirectSparsePixels().variants(problem, cuda)))


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", ON_A_GPU[:2], ids=Conv2dProblem.describe)
def test_some_shapes_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    """Runs both precisions with and without clusters and parts, and no more: a sanitizer is
    slow."""
    chosen = {(variant.precision, variant["cluster"] > 1, variant["parts"] > 1): variant
              for variant in DirectSparsePixels().variants(problem, cuda)}
    check(problem, cuda, list(chosen.values()))


def test_it_builds_without_spills() -> None:
    check_kernels_build(DirectSparsePixels(), [replace(ALEXNET, epilogue=BIAS_RESIDUAL_RELU)],
                        every=3, arrays=lambda problem: sparse(problem, 0.05))


def test_columns_of_eight_are_in_banks_of_their_own() -> None:
    """Loads of a layer of AlexNet take little longer than they would without bank conflicts."""
    weights = sparse(ALEXNET, 0.05)
    for variant in DirectSparsePixels().variants(ALEXNET, RecordingDevice()):
        _, offsets, _, _ = tables(ALEXNET, weights, variant)
        divided = PixelTiling(ALEXNET, sizes_of(PixelTile, variant), variant.precision)
        if variant.precision == "tf32":
            offsets = offsets.reshape(-1, 4, 4).swapaxes(1, 2)
        passes = [np.bincount(np.unique(loaded) // divided.vector_bytes % divided.banks).max()
                 for loaded in offsets.reshape(-1, divided.banks)]
        assert np.mean(passes) < 1.6, variant.config_text


def test_similar_rows_share_a_block() -> None:
    """Every other row has weights for every other channel: the tables have as many steps as where
    the rows of each kind follow one another."""
    alternating = sparse(ALEXNET, 1)["weight"]
    alternating[::2, ::2] = alternating[1::2, 1::2] = 0
    in_order = np.concatenate([alternating[::2], alternating[1::2]])
    for variant in DirectSparsePixels().variants(ALEXNET, RecordingDevice()):
        found, expected = (tables(ALEXNET, {"weight": weight}, variant)[0][-1]
                           for weight in (alternating, in_order))
        assert found == expected > 0, variant.config_text


def test_groups_get_long_and_short_blocks(recorder: RecordingDevice) -> None:
    """Every 16 rows have 16 columns more than the last: work-groups differ by one step per tile."""
    problem = Conv2dProblem(1, 192, 8, 8, 192, (1, 1))
    weight = np.zeros((192, 192, 1, 1), np.float32)
    for row in range(192):
        weight[row, :16 * (1 + row // 16)] = 1
    recorder.limits = replace(recorder.limits, cluster=1)
    for variant in DirectSparsePixels().variants(problem, recorder):
        shape = sizes_of(PixelTile, variant)
        starts, _, _, channels = tables(problem, {"weight": weight}, variant)
        assert sorted(channels[channels >= 0]) == list(range(192))
        together = np.diff(starts).reshape(-1, shape.blocks).sum(axis=1)
        assert np.ptp(together) <= shape.tiles, variant.config_text


def test_a_device_without_clusters_has_shapes_of_its_own(recorder: RecordingDevice) -> None:
    recorder.limits = replace(recorder.limits, cluster=1)
    variants = list(DirectSparsePixels().variants(ALEXNET, recorder))
    assert variants and all(variant["cluster"] == 1 for variant in variants)


@pytest.mark.parametrize("problem", [Conv2dProblem(8, 4, 2, 2, 8, (3, 3)),
                                     Conv2dProblem(8, 4, 8, 8, 0, (3, 3))],
                         ids=Conv2dProblem.describe)
def test_an_empty_output_needs_no_launch(recorder: RecordingDevice, problem: Conv2dProblem) -> None:
    (variant,) = DirectSparsePixels().variants(problem, recorder)
    weights = {"weight": np.zeros((problem.out_channels, 4, 3, 3), np.float32)}
    state = DirectSparsePixels().prepare(Weights(weights, recorder), problem, variant, recorder)
    assert not state.launches


@pytest.mark.parametrize("change, reason", [
    ({"weights_info": WeightsInfo(DENSEST + 0.01, "a pattern")}, "has 31%"),
    ({"channels": 2**13, "height": 200, "width": 200}, "bytes of shared memory"),
    ({"channels": 2**10, "height": 2**11, "width": 2**11}, "32-bit"),
    ({"channels": 1, "height": 4_000_000, "width": 1}, "more than 65535 work-groups"),
    ({"channels": 1, "height": 1, "width": 4_000_000}, "more than 65535 work-groups"),
    ({"height": 0, "pads": (2, 2, 2, 2)}, "the input is empty"),
    ({"channels": 0}, "the input is empty"),
])
def test_reasons(change: dict, reason: str) -> None:
    algorithm, device = DirectSparsePixels(), RecordingDevice()
    assert algorithm.supports(ALEXNET, device) is None
    assert reason in (algorithm.supports(replace(ALEXNET, **change), device) or "")


def test_a_long_signal_is_divided_into_tiles_that_a_launch_takes(recorder: RecordingDevice) -> None:
    problem = Conv2dProblem(2, 3, 1, 1_000_000, 20, (1, 9), weights_info=WeightsInfo(0.1, "some"))
    weights = Weights(sparse(problem, 0.1), recorder)
    variants = list(DirectSparsePixels().variants(problem, recorder))
    assert variants
    for variant in variants:
        (launch,) = DirectSparsePixels().prepare(weights, problem, variant, recorder).launches
        assert max(launch.work_groups[1:]) <= 65535, variant.config_text


def test_other_devices_are_told_what_is_missing(device) -> None:
    if not device.limits.mma:
        assert "tensor cores" in (DirectSparsePixels().supports(ALEXNET, device) or "")


def test_every_config_serves_every_batch() -> None:
    """A plan for another batch size takes the config of the nearest one."""
    configs = [[(variant.config, variant.precision) for variant in DirectSparsePixels().variants(
        replace(ALEXNET, batch=batch), RecordingDevice())] for batch in range(1, MOST_IMAGES + 1)]
    assert len({frozenset(of_batch) for of_batch in configs}) == 1
    assert len(set(configs[0])) == len(configs[0])


def test_the_first_have_both_precisions_and_all_sizes_of_clusters() -> None:
    """A search of a few configs only measures some of each precision and cluster size."""
    variants = list(DirectSparsePixels().variants(ALEXNET, RecordingDevice()))
    assert [variant.precision for variant in variants[:12]] == ["tf32", "fp16"] * 6
    assert [variant["cluster"] for variant in variants[:12:2]] == [8, 4, 1] * 2
    assert all(first.config == second.config
               for first, second in zip(variants[:12:2], variants[1:12:2], strict=True))
