"""Tests bit_tensor_core: its tables everywhere, and its kernels where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from gossamer.ops.conv2d.binary.tensor_core.tables import Tables, halo_pixels
from gossamer.ops.conv2d.binary.tensor_core.tiles import (
    MMA_TILES,
    WGMMA_TILES,
    Tile,
    WgmmaTile,
    steps_of,
)
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, TensorSpec, pack
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


class HostWeights(Weights):
    """Weights whose packed forms stay arrays on the host."""

    def packed(self, key: str, pack: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Any:
        return pack(self.arrays)


@pytest.mark.parametrize("word_bits", [32, 64])
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
@pytest.mark.parametrize("unit, by_registers, padding", [
    (32, True, 0), (64, True, 1), (64, False, -1), (256, False, 0)])
def test_the_tables_state_the_convolution(word_bits: int, known: ValueFacts, unit: int,
                                          by_registers: bool, padding: int) -> None:
    """Computes a convolution from the tables alone, each output pixel by the products of a step's
    256 bits with the columns of the channels' units."""
    problem = replace(SMALL, facts=(known,))
    rng = np.random.default_rng(1)
    inputs, arrays = problem.example_inputs(rng), weights_of(problem, rng)
    weights: Any = HostWeights(arrays, RecordingDevice())
    together = 2 if by_registers else 1
    units = -(-problem.out_channels // (unit * together)) * together
    tables = Tables(BinaryLayer(problem, padding), word_bits, unit, units, together,
                    steps_of(problem, word_bits) + 1, by_registers)
    planes = 2 if known == TERNARY else 1
    x = pack(inputs[0], TensorSpec(inputs[0].shape, Format(
        f"packed{word_bits}", "bits" if planes == 1 else "trits")))
    x = x.reshape(problem.batch, -1, planes)
    taps = np.asarray(tables.taps(weights))
    flat = np.ascontiguousarray(tables.weights(weights))
    if by_registers:
        # axes: tile, step, unit, plane, two of eights, quarter, column, word, eight, half
        by_channel = flat.reshape(-1, tables.steps, together, planes, unit // 16, 4, 2, 4, 2, 2)
        by_channel = by_channel.transpose(0, 2, 5, 4, 8, 6, 1, 3, 7, 9)
    else:
        # axes: unit, step, plane, half, eight, quarter, column, word
        by_channel = flat.reshape(-1, tables.steps, planes, 2, unit // 8, 4, 2, 4).transpose(
            0, 5, 4, 6, 1, 2, 7, 3)
    by_channel = by_channel.reshape(tables.tile_channels, tables.steps, planes, 8)
    constants = np.asarray(tables.constants(weights, False))
    classes = np.asarray(tables.classes(weights))
    accumulators = np.zeros((problem.batch, problem.out_channels, problem.out_height,
                             problem.out_width))
    for image, row, column in np.ndindex(problem.batch, problem.out_height, problem.out_width):
        top, left = row * problem.stride[0] - problem.pads[0], column * problem.stride[1] - (
            problem.pads[1])
        rows, columns = (taps[:, 1] >> 16) + top, (taps[:, 1] & 0xffff) + left
        inside = ((rows >= 0) & (rows < problem.height) & (columns >= 0)
                  & (columns < problem.width))
        place = np.where(inside, taps[:, 0] + top * problem.width + left, 0)
        words = np.where(inside[:, None], x[image, place], 0).astype(x.dtype)
        counted = int(np.bitwise_count(words[:, 0]).sum())
        operands = [words[:, 0]] if planes == 1 else [words[:, 1], words[:, 0] & ~words[:, 1]]
        ones = np.zeros(tables.tile_channels, np.int64)
        for plane, operand in enumerate(operands):
            parts = np.ascontiguousarray(operand).view(np.uint32).reshape(
                tables.steps, *((4, 2) if word_bits == 64 else (2, 4)))
            if word_bits == 32:
                parts = parts.swapaxes(1, 2)
            ones += np.bitwise_count(parts.reshape(tables.steps, 8) & by_channel[:, :, plane]).sum(
                axis=(1, 2), dtype=np.int64)
        pixel_class = classes[row] * tables.column_classes + classes[problem.out_height + column]
        sums = (3 - planes) * (2 * ones - counted) + constants[pixel_class]
        accumulators[image, :, row, column] = sums[:problem.out_channels]
    signs = np.where(arrays["weight"] > 0, np.float32(1), np.float32(-1))
    top, left, bottom, right = problem.pads
    padded = np.pad(inputs[0], ((0, 0), (0, 0), (top, bottom), (left, right)),
                    constant_values=padding)
    whole = replace(problem, height=padded.shape[2], width=padded.shape[3], pads=(0, 0, 0, 0),
                    epilogue=Epilogue())
    (expected,) = reference(whole, [padded], {"weight": signs})
    np.testing.assert_array_equal(accumulators, expected)


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
