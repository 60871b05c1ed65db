"""The error of a candidate's output."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.plan.tune.discontinuity import Bounds
from gossamer.plan.tune.output_errors import GUARD, error_of
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec, pack

HOST = find("host")
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
    ({}, True), ({0: 2.5}, True), ({0: 8.5}, False), ({0: math.nan}, False), ({1: 2.5}, False),
    ({1: math.nan}, False), ({3: 0.0}, False)])
def test_numbers_that_must_be_exact_are(changes: dict[int, float], is_right: bool) -> None:
    """The first number may be off by 4, and the last one is a NaN in the reference, too."""
    device, spec = find("host"), TensorSpec((4,))
    expected = np.float32([1, 2, 3, math.nan])
    result = expected.copy()
    for index, value in changes.items():
        result[index] = value
    limits = Bounds(np.float64([4, 1e-5, 1e-5, 1e-5]), np.arange(4) == 0)
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


SPECS = [TensorSpec((5, 7, 6, 5), Format(layout, dtype))
         for layout in ("NCHW", "NHWC", "CHWN") for dtype in ("float32", "float16")]
SPECS += [TensorSpec(shape, Format(ROW_MAJOR, dtype))
          for shape in ((3, 40), (64,), (4, 3, 2), ()) for dtype in ("float32", "float16")]
FEW, ALL = "first and last image", "all images"


def numbers(spec: TensorSpec) -> np.ndarray:
    return np.asarray(np.random.default_rng(0).standard_normal(spec.shape), np.float32)


def written(spec: TensorSpec, array: np.ndarray | None = None) -> np.ndarray:
    """Returns the bytes of an output between its guards."""
    packed = np.ascontiguousarray(pack(numbers(spec) if array is None else array, spec))
    margin = np.full(HOST.alignment, GUARD, np.uint8)
    return np.concatenate([margin, packed.reshape(-1).view(np.uint8), margin])


def images_of(spec: TensorSpec, which: str | None) -> list[int] | None:
    if which is None or not spec.shape:
        return None
    return sorted({0, spec.shape[0] - 1}) if which == FEW else list(range(spec.shape[0]))


def error(spec: TensorSpec, memory: np.ndarray, expected: np.ndarray,
          images: list[int] | None) -> float:
    return error_of(HOST.upload(memory, "an output"), spec,
                    expected if images is None else expected[images], images)


@pytest.mark.parametrize("which", [None, FEW, ALL])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_error_is_the_norm_of_the_difference(spec: TensorSpec, which: str | None) -> None:
    expected = numbers(spec).astype(np.float64)
    expected += 1e-3 * np.abs(expected)
    assert 5e-4 < error(spec, written(spec), expected, images_of(spec, which)) < 2e-3


@pytest.mark.parametrize("which", [None, FEW, ALL])
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("place", ["before", "after", "element", "last element"])
def test_guards_written_over_and_elements_left_out_are_found(spec: TensorSpec, place: str,
                                                             which: str | None) -> None:
    memory, margin = written(spec), HOST.alignment
    size = spec.stored_dtype.itemsize
    if place == "before":
        memory[margin - 1] = 0
    elif place == "after":
        memory[margin + spec.nbytes] = 0
    else:
        index = spec.size - 1 if place == "last element" else spec.size // 2
        memory[margin + index * size:margin + (index + 1) * size] = GUARD
    assert error(spec, memory, numbers(spec).astype(np.float64),
                 images_of(spec, which)) == math.inf


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[3]], ids=str)
@pytest.mark.parametrize("image", range(5))
def test_a_wrong_image_is_seen_where_it_is_compared(spec: TensorSpec, image: int) -> None:
    spoilt = numbers(spec)
    spoilt[image] = 0
    for which in (None, FEW, ALL):
        found = error(spec, written(spec, spoilt), numbers(spec).astype(np.float64),
                      images_of(spec, which))
        assert (found > 1e-2) == (which != FEW or image in (0, 4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_must_be_the_same(value: float) -> None:
    spec = SPECS[0]
    odd, right = numbers(spec), numbers(spec).astype(np.float64)
    odd[0, 0, 0, 0] = value
    assert error(spec, written(spec, odd), right, None) == math.inf
    right[0, 0, 0, 0] = value
    assert error(spec, written(spec, odd), right, None) == 0.0
    right[0, 0, 0, 0] = -value if value == value else 1.0
    assert error(spec, written(spec, odd), right, None) == math.inf


@pytest.mark.parametrize("scale", [1e-16, 1e25, 0.0])
def test_squares_beyond_float32_are_no_errors(scale: float) -> None:
    spec = SPECS[0]
    array = (scale * numbers(spec)).astype(np.float32)
    assert error(spec, written(spec, array), array.astype(np.float64), images_of(spec, FEW)) == 0.0
