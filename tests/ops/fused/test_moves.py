"""Copies and reshapes one after another, as one copy."""

from __future__ import annotations

import pytest

from gossamer.device.base import Device
from gossamer.ops.fused.moves import StridedMoves
from gossamer.ops.fused.problem import FusionProblem
from tests.ops.fused.layers import Layers, operand
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice

ALGORITHM = StridedMoves()


def patches(batch: int, channels: int, size: tuple[int, int], side: int) -> FusionProblem:
    """The pixels of an image at the same place in each patch, as rows of channels."""
    rows, columns = size[0] // side, size[1] // side
    p = Layers()
    x = p.input((batch, channels, *size))
    x = p.transpose(p.reshape(x, batch * channels * rows, side, columns, side), 0, 2, 1, 3)
    x = p.transpose(p.reshape(x, batch, channels, rows * columns, side * side), 0, 3, 2, 1)
    return p.fusion(p.reshape(x, batch * side * side, rows * columns, channels))


def images(batch: int, channels: int, size: tuple[int, int], side: int) -> FusionProblem:
    """The inverse of patches()."""
    rows, columns = size[0] // side, size[1] // side
    p = Layers()
    x = p.reshape(p.input((batch * side * side, rows * columns, channels)), batch, side * side,
                  rows * columns, channels)
    x = p.reshape(p.transpose(x, 0, 3, 2, 1), batch * channels * rows, columns, side, side)
    return p.fusion(p.reshape(p.transpose(x, 0, 2, 1, 3), batch, channels, *size))


def slices(batch: int, channels: int) -> FusionProblem:
    """Every second row of an image, with two groups of channels interleaved."""
    p = Layers()
    x = p.slice(p.input((batch, 2 * channels, 6, 5)), 2, 1, 6)
    x = p.transpose(p.reshape(x, batch, 2, channels, 5, 5), 0, 2, 1, 3, 4)
    return p.fusion(p.reshape(x, batch, 2 * channels, 5, 5))


PROBLEMS = {"patches": patches(2, 12, (6, 8), 2), "images": images(2, 12, (6, 8), 2),
            "slices": slices(3, 10), "one patch": patches(1, 3, (4, 4), 4)}


@pytest.mark.parametrize("name", PROBLEMS)
def test_moves(device: Device, name: str) -> None:
    if not device.compiles:
        pytest.skip("the host computes the parts")
    assert ALGORITHM.recognises(PROBLEMS[name])
    check_variants(ALGORITHM, PROBLEMS[name], device)


def test_images_are_read_and_written_with_channels_last() -> None:
    device = RecordingDevice()
    assert {v.inputs[0].layout for v in ALGORITHM.variants(PROBLEMS["patches"], device)} == {
        "NCHW", "NHWC"}
    assert {v.outputs[0].layout for v in ALGORITHM.variants(PROBLEMS["images"], device)} == {
        "NCHW", "NHWC"}


def test_two_values_and_other_arithmetic_are_not_recognised() -> None:
    p = Layers()
    x = p.input((2, 3, 4))
    first = p.transpose(x, 0, 2, 1)
    assert not ALGORITHM.recognises(p.fusion(first, p.transpose(first, 1, 0, 2)))
    p = Layers()
    doubled = p.compute(operand("x") * 2.0, x=p.input((2, 3)))
    assert not ALGORITHM.recognises(p.fusion(p.transpose(doubled, 1, 0)))


def test_values_without_elements_are_not_recognised() -> None:
    p = Layers()
    x = p.transpose(p.input((4, 0)), 1, 0)
    assert not ALGORITHM.recognises(p.fusion(p.reshape(x, 0, 8)))
