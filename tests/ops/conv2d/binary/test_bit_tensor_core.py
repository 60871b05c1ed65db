"""Tests bit_tensor_core: its tiles and reasons everywhere, and its kernels on a GPU;
tests/emulation/test_signs.py runs the kernels anywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.binary.layer import BinaryLayer
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import (
    BitTensorCore,
    tiles_and_words,
    variant_of,
)
from gossamer.ops.conv2d.binary.tensor_core.tables import halo_pixels
from gossamer.ops.conv2d.binary.tensor_core.tiles import (
    MMA_TILES,
    WGMMA_TILES,
    Tile,
    WgmmaTile,
)
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.cubins import build_info
from tests.ops.conv2d.binary.signs import (
    BAND_SIGN,
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    RESIDUAL_BITS,
    SCALED,
    check_exact,
    problems,
    weights_of,
)
from tests.ops.recording import RecordingDevice

ALGORITHM = BitTensorCore()
SMALL = Conv2dProblem(2, 70, 5, 4, 72, (3, 2), (1, 2), (1, 0, 1, 2), (2, 1), 1, BATCH_NORM_BITS,
                      SCALED, (PLUS_MINUS_ONE,))


@pytest.mark.parametrize("size, stride, pads, batch", [
    ((7, 7), (1, 1), (1, 1, 1, 1), 70), ((9, 6), (2, 1), (1, 0, 2, 1), 5),
    ((8, 8), (1, 1), (0, 0, 0, 0), 3), ((28, 28), (2, 2), (1, 1, 1, 1), 2)])
def test_a_halo_holds_all_pixels_under_a_tile(size: tuple[int, int], stride: tuple[int, int],
                                              pads: tuple[int, int, int, int], batch: int) -> None:
    problem = Conv2dProblem(batch, 64, *size, 64, (3, 2), stride, pads, (1, 2))
    plane = problem.height * problem.width
    firsts = np.array([
        image * plane + (row * stride[0] - pads[0]) * problem.width + column * stride[1] - pads[1]
        for image, row, column in np.ndindex(batch, problem.out_height, problem.out_width)])
    last = firsts + 2 * problem.width + 2
    spans = [last[at:at + 64].max() - firsts[at] + 1 for at in range(0, len(firsts), 64)]
    assert halo_pixels(problem, 64) == max(spans)


def test_windows_that_begin_before_those_of_earlier_pixels_have_no_halo(
        recorder: RecordingDevice) -> None:
    problem = Conv2dProblem(1, 64, 3, 3, 64, (1, 2), pads=(0, 4, 0, 4))
    assert halo_pixels(problem, 64) == 0
    layer = BinaryLayer(replace(problem, weights_info=SCALED, facts=(PLUS_MINUS_ONE,)))
    assert not any(isinstance(tile, WgmmaTile) and tile.halo
                   for tile, _ in tiles_and_words(layer, recorder))


@given(problem=problems(300), choice=st.integers(0, 10**6), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_every_bit_of_any_convolution(cuda: Device, problem: Conv2dProblem, choice: int,
                                      seed: int) -> None:
    assume(ALGORITHM.supports(problem, cuda) is None)
    variants = list(ALGORITHM.variants(problem, cuda))
    check_exact(ALGORITHM, problem, variants[choice % len(variants)], cuda, seed)


@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_every_tile(cuda: Device, known: ValueFacts) -> None:
    problem = Conv2dProblem(3, 200, 13, 11, 330, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1,
                            BATCH_NORM_BITS, SCALED, (known,))
    by_tile: dict[tuple, list[Variant]] = {}
    for variant in ALGORITHM.variants(problem, cuda):
        by_tile.setdefault(variant.config, []).append(variant)
    assert len(by_tile) > len(MMA_TILES) // 2
    # each tile in one of its formats in turn
    for number, variants in enumerate(by_tile.values()):
        check_exact(ALGORITHM, problem, variants[number % len(variants)], cuda)


@pytest.mark.sanitize
@pytest.mark.parametrize("epilogue", [BATCH_NORM_BITS, BATCH_NORM_SIGN, RESIDUAL, RESIDUAL_BITS,
                                      BAND_SIGN], ids=["bits", "sign", "residual", "both", "band"])
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
def test_every_form(cuda: Device, epilogue: Epilogue, known: ValueFacts) -> None:
    problem = replace(SMALL, epilogue=epilogue,
                      facts=(known, *[integers(-9, 9)] * epilogue.tensor_count))
    chosen = {(variant["instruction"], dict(variant.config).get("copiers"),
               dict(variant.config).get("halo"), variant.inputs[0].layout,
               variant.outputs[0].layout): variant
              for variant in ALGORITHM.variants(problem, cuda)}
    packed = [variant for variant in chosen.values() if variant.outputs[0].format.is_packed]
    others = [variant for variant in chosen.values() if variant not in packed]
    for variant in (*packed, *others[::3]):
        check_exact(ALGORITHM, problem, variant, cuda)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_whole_words(cuda: Device, groups: int) -> None:
    problem = Conv2dProblem(2, 64 * groups, 5, 4, 96 * groups, (2, 2), groups=groups,
                            epilogue=BATCH_NORM_BITS, weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    variants = list(ALGORITHM.variants(problem, cuda))
    assert {v.outputs[0].layout for v in variants} == {"packed32", "NHWC", "NCHW"}
    for variant in variants:
        check_exact(ALGORITHM, problem, variant, cuda)


@pytest.mark.parametrize("tile", [*WGMMA_TILES, *MMA_TILES], ids=lambda tile: " ".join(
    str(value) for _, value in tile.config))
def test_it_builds_without_spills(recorder: RecordingDevice, tile: Tile) -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    # halos have words of 64 bits
    narrow = 64 if isinstance(tile, WgmmaTile) and tile.halo else 32
    for known, word_bits, layout in ((PLUS_MINUS_ONE, 64, "packed64"), (TERNARY, narrow, "NHWC")):
        problem = replace(SMALL, facts=(known,))
        weights = Weights(weights_of(problem, np.random.default_rng(0)), recorder)
        ALGORITHM.prepare(weights, problem, variant_of(problem, tile, word_bits, layout), recorder)
    assert len(recorder.sources) == 2
    for source in recorder.sources:
        for architecture in set(source.architectures):
            info = build_info(source, architecture)
            assert info.spill_bytes == 0, f"{source} spills on {architecture}"
            assert "warning" not in info.log and "Performance" not in info.log, info.log


@pytest.mark.parametrize("change, reason", [
    ({"facts": (REAL,)}, "any floats"),
    ({"channels": 60, "groups": 2, "out_channels": 4}, "multiple of 32 channels, has 30"),
    ({"batch": 2**20, "height": 64}, "32-bit"),
])
def test_reasons(recorder: RecordingDevice, change: dict, reason: str) -> None:
    assert ALGORITHM.supports(SMALL, recorder) is None
    assert reason in (ALGORITHM.supports(replace(SMALL, **change), recorder) or "")


def test_a_device_without_tensor_cores_is_told_so(device: Device) -> None:
    if not device.limits.mma:
        assert "tensor cores for bits" in (ALGORITHM.supports(SMALL, device) or "")


def test_tiles_are_ordered_by_their_expected_times(recorder: RecordingDevice) -> None:
    for batch in (1, 128):
        problem = Conv2dProblem(batch, 512, 7, 7, 512, (3, 3), pads=(1, 1, 1, 1),
                                weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
        times = [ALGORITHM.expected_us(problem, variant, recorder)
                 for variant in ALGORITHM.variants(problem, recorder)
                 if variant.inputs[0].layout == "packed64"]
        assert times == sorted(times) and times[0] > 0
