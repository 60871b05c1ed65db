"""Tests shifted_sparse_mma, and what both algorithms of shifted products have in common.

The kernels run on a GPU; tests/emulation/test_convolutions.py runs this one anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.product import Places, registers
from gossamer.ops.conv2d.shifted.windows_fp16_sparse import (
    ROWS,
    SLICE,
    STAGE_HEADER,
    ShiftedSparseMma,
    SparseTile,
    packed_stages,
    stage_counts,
)
from gossamer.ops.weights import WeightsInfo
from tests.cubins import check_builds
from tests.ops.conv2d.shifted.test_windows_fp16 import ALGORITHM as DENSE
from tests.ops.conv2d.shifted.test_windows_fp16 import PROBLEMS as DENSE_PROBLEMS
from tests.ops.harness import check_variants, random_weights
from tests.ops.recording import RecordingDevice

ALGORITHM = ShiftedSparseMma()
BOTH = (DENSE, ALGORITHM)
NAMES = [algorithm.name for algorithm in BOTH]
TWO_OF_FOUR = WeightsInfo(0.5, "a pattern", dense_groups=0.0)
PROBLEMS = {name: replace(problem, weights_info=TWO_OF_FOUR)
            for name, problem in DENSE_PROBLEMS.items()}
PATTERNS = ("2:4", "few", "many", "dense", "none", "one row")


def pruned(problem: Conv2dProblem, pattern: str, seed: int = 3) -> dict[str, np.ndarray]:
    """Returns random constants of a problem whose weights have a pattern of nonzeros: two of each
    four neighbours, 5%, 40% or all of them, none, or all of one output channel."""
    arrays = random_weights(problem)
    weight = arrays["weight"]
    rng = np.random.default_rng(seed)
    if pattern == "2:4":
        order = np.argsort(rng.random((*weight.shape[:1], -(-weight.shape[1] // 4), 4,
                                       *weight.shape[2:])), axis=2)
        kept = (order < 2).reshape(weight.shape[0], -1, *weight.shape[2:])[:, :weight.shape[1]]
    elif pattern == "one row":
        kept = np.zeros(weight.shape, bool)
        kept[weight.shape[0] // 2] = True
    else:
        density = {"few": 0.05, "many": 0.4, "dense": 1.0, "none": 0.0}[pattern]
        kept = rng.random(weight.shape) < density
    return {**arrays, "weight": np.where(kept, weight, 0)}


def check(problem: Conv2dProblem, device: Device, variants: Sequence[Variant],
          pattern: str = "2:4", algorithm: Algorithm = ALGORITHM) -> None:
    """Compares the outputs of variants, all in float16, with the reference."""
    assert {variant.precision for variant in variants} == {"fp16"}
    check_variants(algorithm, problem, device, variants, pruned(problem, pattern))


def unpacked(packed: np.ndarray, counts: np.ndarray, problem: Conv2dProblem, tile: SparseTile
             ) -> np.ndarray:
    """Returns the weights that stages state, as tensor cores read them: the instruction's indices
    name each lane's row and inputs."""
    across = tile.channel_warpgroups
    slices = -(-problem.channels // SLICE)
    axes = Places(problem).rows, Places(problem).columns
    runs = list(np.ndindex(slices, axes[0].remainders, axes[1].remainders))
    weight = np.zeros((tile.parts(problem), tile.part, slices, SLICE, *problem.kernel))
    for part, count in enumerate(counts):
        run = 0
        for stage in packed[:count, part]:
            header = int(stage[-STAGE_HEADER:].view(np.uint32)[0])
            part_slice, *remainders = runs[run]
            row, column = (
                remainder + shift // lines.step * lines.remainders
                for shift, remainder, lines in zip((header >> 16 & 0x7fff, header & 0xffff),
                                                   remainders, axes, strict=True))
            values = stage[:4096 * across].view(np.float16).reshape(across, 2, 2, ROWS, 8)
            words = stage[4096 * across:-STAGE_HEADER].view(np.uint32).reshape(across, 128)
            for group in range(across):
                for item in range(128):
                    step, half = item % 4 // 2, item % 2
                    for lower in range(2):
                        channel = item // 32 * 16 + item % 32 // 4 + 8 * lower
                        bits = int(words[group, item]) >> 16 * lower & 0xffff
                        for stored in range(8):
                            pair = bits >> stored // 2 * 4 & 15
                            assert pair & 3 < pair >> 2
                            k = 32 * step + 16 * half + stored // 2 * 4
                            k += pair >> 2 if stored % 2 else pair & 3
                            weight[part, group * ROWS + channel, part_slice, k, row, column] += (
                                values[group, step, half, channel, stored])
            run += header >> 31
        assert run == len(runs)
    return weight.reshape(-1, slices * SLICE, *problem.kernel)


@given(channels=st.sampled_from([8, 64, 72, 136]), out_channels=st.sampled_from([8, 72, 136]),
       kernel=st.sampled_from([(1, 2), (2, 2), (3, 1)]), stride=st.sampled_from([(1, 1), (2, 1)]),
       dilation=st.sampled_from([(1, 1), (1, 2)]), across=st.sampled_from([1, 2]),
       pattern=st.sampled_from(PATTERNS))
@settings(max_examples=20, deadline=None)
def test_stages_state_the_weights(
        channels: int, out_channels: int, kernel: tuple[int, int], stride: tuple[int, int],
        dilation: tuple[int, int], across: int, pattern: str) -> None:
    problem = Conv2dProblem(1, channels, 4, 5, out_channels, kernel, stride=stride,
                            dilation=dilation)
    tile = SparseTile(64, across, 1, 2, 3)
    arrays = pruned(problem, pattern)
    counts = stage_counts(arrays, problem, tile)
    found = unpacked(packed_stages(arrays, problem, tile), counts, problem, tile)
    expected = np.zeros(found.shape, np.float16)
    expected[:out_channels, :channels] = arrays["weight"]
    assert np.array_equal(found, expected)


def test_only_dense_groups_and_their_taps_take_a_second_stage() -> None:
    problem, tile = Conv2dProblem(1, 128, 4, 4, 64, (2, 2)), SparseTile(64, 1, 1, 2, 3)
    assert list(stage_counts(pruned(problem, "2:4"), problem, tile)) == [8]
    assert list(stage_counts(pruned(problem, "dense"), problem, tile)) == [16]
    assert list(stage_counts(pruned(problem, "none"), problem, tile)) == [2]
    weight = np.zeros((64, 128, 2, 2), np.float32)
    weight[5, 8:11, 1, 0] = 1
    assert list(stage_counts({"weight": weight}, problem, tile)) == [3]
    # with stride 2 each of the four taps has a run of its own, which has to be read
    strides = replace(problem, stride=(2, 2))
    assert list(stage_counts({"weight": weight}, strides, tile)) == [9]


def test_dense_weights_give_a_reason() -> None:
    problem, device = PROBLEMS["same"], RecordingDevice()
    dense = replace(problem, weights_info=WeightsInfo())
    assert "more than two nonzeros" in (ALGORITHM.supports(dense, device) or "")
    few = replace(problem, weights_info=WeightsInfo(0.02, "a pattern", dense_groups=3e-5))
    assert ALGORITHM.supports(few, device) is None


def test_more_work_is_expected_to_take_longer(recorder: RecordingDevice) -> None:
    problem = replace(PROBLEMS["same"], height=56, width=56)
    many = replace(problem, batch=64, weights_info=WeightsInfo(0.1, "a pattern", dense_groups=1e-3))
    for variant in ALGORITHM.variants(problem, recorder):
        small, large = (ALGORITHM.expected_us(replace(problem, batch=batch), variant, recorder)
                        for batch in (1, 64))
        assert 1 < small < large < ALGORITHM.expected_us(many, variant, recorder)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_on_cuda(cuda: Device, pattern: str) -> None:
    problem = PROBLEMS["deep"]
    check(problem, cuda, list(ALGORITHM.variants(problem, cuda)), pattern)


def test_it_needs_tensor_cores_that_read_shared_memory(recorder: RecordingDevice) -> None:
    recorder.limits = replace(recorder.limits, wgmma=False)
    for algorithm in BOTH:
        assert "sm_90a" in (algorithm.supports(PROBLEMS["same"], recorder) or "")


@pytest.mark.parametrize("algorithm", BOTH, ids=NAMES)
def test_it_builds_without_spills(recorder: RecordingDevice, algorithm: Algorithm) -> None:
    pytest.importorskip("cuda.core")
    pytest.importorskip("gossamer.device.cuda.nvrtc")
    problems = [PROBLEMS[name] for name in ("same", "deep", "row", "strides")]
    if algorithm is ALGORITHM:
        problems = [replace(PROBLEMS[name], batch=batch, height=28, width=28)
                    for name in ("same", "deep", "strides") for batch in (1, 64)]
    check_builds({source for problem in problems
                  for variant in algorithm.variants(problem, recorder)
                  for source in algorithm.kernel_sources(problem, variant, recorder)})


@pytest.mark.parametrize("algorithm", BOTH, ids=NAMES)
def test_tiles_take_what_a_multiprocessor_has(recorder: RecordingDevice,
                                              algorithm: Algorithm) -> None:
    for problem in PROBLEMS.values():
        for variant in algorithm.variants(problem, recorder):
            tile = sizes_of(algorithm.tile, variant)
            copy, multiply = registers(tile.warpgroups)
            assert 128 * (copy + multiply * tile.warpgroups) <= 65536
            assert copy % 8 == multiply % 8 == 0
            assert tile.shared_bytes(problem) <= recorder.limits.shared_bytes_opt_in


@pytest.mark.parametrize("algorithm", BOTH, ids=NAMES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_tiles_on_cuda(cuda: Device, algorithm: Algorithm, name: str) -> None:
    check(PROBLEMS[name], cuda, list(algorithm.variants(PROBLEMS[name], cuda)),
          algorithm=algorithm)


@pytest.mark.parametrize("algorithm", BOTH, ids=NAMES)
@pytest.mark.parametrize("name", ["same", "deep", "uneven", "strides"])
def test_work_groups_that_take_several_tiles_on_cuda(
        cuda: Device, monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, name: str) -> None:
    problem = replace(PROBLEMS[name], batch=21)
    variants = list(algorithm.variants(problem, cuda))
    monkeypatch.setattr(cuda, "limits", replace(cuda.limits, compute_units=6))
    check(problem, cuda, variants, "few" if algorithm is ALGORITHM else "dense", algorithm)


@pytest.mark.sanitize
@pytest.mark.parametrize("algorithm", BOTH, ids=NAMES)
@pytest.mark.parametrize("name", ["same", "slices", "uneven", "strides"])
def test_few_tiles_on_cuda(cuda: Device, algorithm: Algorithm, name: str) -> None:
    check(PROBLEMS[name], cuda, list(algorithm.variants(PROBLEMS[name], cuda))[:2],
          "many" if algorithm is ALGORITHM else "dense", algorithm)
