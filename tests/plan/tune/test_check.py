"""Comparison of outputs with what is expected, as the spec stores it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.plan.tune.check import GUARD, error_of
from gossamer.plan.tune.discontinuity import Bounds
from gossamer.tensor import Format, TensorSpec, pack

IMAGES = [0, 3, 6]


@pytest.mark.parametrize("form", [Format("packed64", "bits"), Format("NHWC", "float16")])
@pytest.mark.parametrize("changed", [None, "value", "guard"])
def test_only_memory_that_is_as_expected_is_right(
        form: Format, changed: str | None) -> None:
    device = find("host")
    margin = device.alignment
    signs = np.where(np.random.default_rng(0).random((7, 64, 20, 20)) < 0.5, -1, 1)
    array = signs.astype(np.float32)
    spec = TensorSpec(array.shape, form)
    memory = np.full(spec.nbytes + 2 * margin, GUARD, np.uint8)
    memory[margin:-margin] = pack(array, spec).reshape(-1).view(np.uint8)
    if changed:
        memory[margin + 1 if changed == "value" else 5] ^= 0x7F
    buffer = device.upload(memory, "a test output")
    found = error_of(buffer, spec, array[IMAGES], IMAGES)
    assert found == 0 if changed is None else found > 1e-3


@pytest.mark.parametrize(("changes", "is_right"), [
    ({}, True), ({0: 2.5}, True), ({1: 2.5}, False), ({1: math.nan}, False), ({3: 0.0}, False)])
def test_numbers_that_must_be_exact_are(changes: dict[int, float], is_right: bool) -> None:
    """The first number is doubtful, and the last one is a NaN in the reference, too."""
    device, spec = find("host"), TensorSpec((4,))
    expected = np.float32([1, 2, 3, math.nan])
    result = expected.copy()
    for index, value in changes.items():
        result[index] = value
    limits = Bounds(np.arange(4) == 0, np.ones(4, bool))
    memory = np.full(spec.nbytes + 2 * device.alignment, GUARD, np.uint8)
    memory[device.alignment:-device.alignment] = result.view(np.uint8)
    error = error_of(device.upload(memory, "a test output"), spec, expected, None, limits)
    assert error == 0 if is_right else error == math.inf


def test_images_that_were_not_written_are_found_beside_equal_ones() -> None:
    device = find("host")
    margin = device.alignment
    spec = TensorSpec((7, 64, 20, 20), Format("NHWC", "float16"))
    array = np.ones(spec.shape, np.float32)
    memory = np.full(spec.nbytes + 2 * margin, GUARD, np.uint8)
    size = spec.nbytes // 7
    memory[margin:margin + 4 * size] = pack(array[:4], spec.first(4)).reshape(-1).view(np.uint8)
    memory[margin + 6 * size:-margin] = pack(array[:1], spec.first(1)).reshape(-1).view(np.uint8)
    buffer = device.upload(memory, "a test output")
    assert error_of(buffer, spec, array[IMAGES], IMAGES) == math.inf
