"""Formats: pack and unpack are inverse to each other, packed values included."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from gossamer.tensor import (
    PACKED_DTYPES,
    Format,
    TensorSpec,
    bfloat16_bits,
    default_spec,
    held,
    memory_format,
    of_bfloat16_bits,
    pack,
    unpack,
)

SHAPES = [(1, 1, 1, 1), (2, 3, 4, 5), (1, 32, 2, 3), (2, 33, 1, 2), (1, 70, 3, 1), (0, 5, 2, 2),
          (2, 0, 3, 3)]
PLAIN = [Format(layout, dtype, multiple, border)
         for layout, dtype, multiple, border in itertools.product(
             ("NCHW", "NHWC", "CHWN"), ("float32", "float16", "int8"), (1, 8),
             ((0, 0, 0, 0), (1, 2, 0, 3)))]
PLAIN += [Format("NHWC", dtype, other_channels=(8, 3)) for dtype in ("float32", "float16")]
PLACED = [Format(layout, dtype, multiple, border)
          for layout, dtype, multiple, border in itertools.product(
              ("NCHW", "NHWC", "CHWN"), ("float32", "bfloat16"), (1, 2, 4),
              ((0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (1, 0, 1, 2)))]
PLACED += [Format("NHWC", border=border, other_channels=others) for border, others in
           itertools.product(((0, 0, 0, 0), (0, 1, 1, 0)), ((1, 0), (0, 1), (2, 1)))]
PACKED = [Format(layout, dtype, multiple, border)
          for layout, dtype, multiple, border in itertools.product(
              ("packed32", "packed64"), PACKED_DTYPES, (1, 128), ((0, 0, 0, 0), (1, 2, 0, 3)))]


def values_of(spec):
    rng = np.random.default_rng(0)
    if spec.format.is_packed:
        return rng.choice(np.float32(PACKED_DTYPES[spec.dtype].values), spec.shape)
    return rng.integers(-9, 9, spec.shape).astype(spec.dtype)


@pytest.mark.parametrize(("shape", "format_"), [
    *itertools.product(SHAPES, PLAIN + PACKED),
    *itertools.product([(0, 5), (1, 1), (2, 70)], PACKED)], ids=str)
def test_unpack_returns_what_was_packed(shape, format_):
    spec = TensorSpec(shape, format_)
    values = values_of(spec)
    stored = pack(values, spec)
    assert stored.flags.c_contiguous and stored.nbytes == spec.nbytes
    assert (stored.shape, stored.dtype) == (spec.stored_shape, spec.stored_dtype)
    np.testing.assert_array_equal(unpack(stored, spec), values)
    np.testing.assert_array_equal(unpack(stored.reshape(-1), spec), values)


@pytest.mark.parametrize("format_", PLAIN + PACKED, ids=str)
def test_paddings_are_zero(format_):
    spec = TensorSpec((2, 5, 3, 3), format_)
    values = np.ones(spec.shape, np.float32)
    stored = pack(values, spec)
    if spec.format.is_packed:
        ones = np.unpackbits(np.ascontiguousarray(stored).view(np.uint8)).sum()
        assert ones == values.size * PACKED_DTYPES[spec.dtype].planes
    else:
        assert np.count_nonzero(stored) == values.size


@pytest.mark.parametrize("format_", PACKED, ids=str)
def test_a_matrix_is_packed_like_images_of_one_pixel(format_):
    matrix, images = TensorSpec((3, 70), format_), TensorSpec((3, 70, 1, 1), format_)
    values = values_of(matrix)
    np.testing.assert_array_equal(pack(values, matrix), pack(values.reshape(images.shape), images))


def test_words_of_bits():
    spec = TensorSpec((1, 35, 1, 2), Format("packed32", "bits"))
    values = np.full(spec.shape, -1, np.float32)
    values[0, 0, 0, 0] = values[0, 31, 0, 0] = values[0, 34, 0, 1] = 1
    np.testing.assert_array_equal(pack(values, spec)[0, :, 0],
                                  np.array([[0x80000001, 0], [0, 4]], np.uint32))


def test_words_of_trits():
    spec = TensorSpec((1, 3, 1, 1), Format("packed64", "trits"))
    stored = pack(np.float32([-1, 0, 1]).reshape(spec.shape), spec)
    np.testing.assert_array_equal(stored.reshape(-1), np.array([0b101, 0b100], np.uint64))


@pytest.mark.parametrize("format_", PACKED, ids=str)
def test_other_values_are_refused(format_):
    values = np.full((1, 2, 1, 1), 0.5, np.float32)
    with pytest.raises(ValueError, match=f"{format_.dtype} holds only the values"):
        pack(values, TensorSpec(values.shape, format_))


def test_a_format_in_words():
    assert str(default_spec((3, 4)).format) == "row" and Format().images_are_apart
    assert str(Format("packed32", "bits")) == "packed32 bits"
    assert str(Format("NHWC", channel_multiple=8, border=(1, 0, 1, 2))) == "NHWC c8 b1,0,1,2"
    assert str(Format("packed64", "trits", 128)) == "packed64 trits c128"
    assert str(Format("NHWC", "float16", other_channels=(8, 0))) == "NHWC float16 o8,0"


WRONG = [
    {"dtype": "bits"}, {"layout": "packed32"}, {"layout": "row", "dtype": "trits"},
    {"layout": "HCNW"}, {"channel_multiple": 0}, {"border": (0, -1, 0, 0)},
    {"layout": "row", "channel_multiple": 8}, {"layout": "row", "border": (1, 0, 0, 0)},
    *({"layout": "NHWC", "other_channels": (8, 0), **options} for options in (
        {"layout": "NCHW"}, {"layout": "row"}, {"layout": "packed32", "dtype": "bits"},
        {"channel_multiple": 2}, {"other_channels": (-1, 1)}))]


def test_formats_that_do_not_exist(golden):
    golden.refusals("formats", {
        str(options): lambda options=options: Format(**{"layout": "NCHW", **options})
        for options in WRONG}, kind=ValueError)


def test_a_part_of_the_channels_of_a_larger_tensor():
    part = TensorSpec((2, 3, 4, 5), Format("NHWC", other_channels=(8, 5)))
    assert (part.strides, part.offset, part.nbytes) == ((320, 1, 80, 16), 8, 4 * 640)
    whole = np.arange(640, dtype=np.float32)
    np.testing.assert_array_equal(
        unpack(whole, part), whole.reshape(2, 4, 5, 16)[..., 8:11].transpose(0, 3, 1, 2))
    assert not part.same_memory(TensorSpec(part.shape, Format("NHWC")))


def test_bfloat16_is_the_nearest_of_its_numbers() -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate([
        rng.standard_normal(1000).astype(np.float32),
        rng.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32),
        np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45], np.float32)])
    with np.errstate(all="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(of_bfloat16_bits(bfloat16_bits(numbers)), expected)
    spec = TensorSpec((2, 3, 4, 5), Format("NHWC", "bfloat16"))
    array = held(rng.standard_normal((2, 3, 4, 5)).astype(np.float32), spec)
    stored = pack(array, spec)
    assert (stored.shape, stored.dtype) == ((2, 4, 5, 3), np.uint16)
    assert spec.logical_dtype == np.float32
    assert not default_spec((1, 6)).same_memory(default_spec((2, 3)))
    np.testing.assert_array_equal(unpack(stored, spec), array)


def places(spec: TensorSpec) -> np.ndarray:
    """Returns where in memory each element lies, as is found by reading numbers there."""
    stored = np.arange(spec.nbytes // spec.stored_dtype.itemsize, dtype=np.uint16)
    if spec.dtype == "bfloat16":
        return bfloat16_bits(unpack(stored, spec)).astype(int)
    return unpack(stored.astype(spec.dtype), spec).astype(int)


@pytest.mark.parametrize("shape", [(2, 3, 2, 3), (1, 4, 1, 2), (2, 1, 2, 1), (1, 1, 1, 1),
                                   (3, 2, 1, 1), (1, 2, 3, 3)], ids=str)
def test_formats_share_memory_where_all_elements_have_the_same_places(shape) -> None:
    specs = [TensorSpec(shape, format_) for format_ in PLACED]
    found = list(map(places, specs))
    for spec, place in zip(specs, found, strict=True):
        steps = zip(np.indices(shape), spec.strides, strict=True)
        np.testing.assert_array_equal(place, spec.offset + sum(i * step for i, step in steps))
        (top, left, bottom, right), (n, c, h, w) = spec.format.border, shape
        channels = c + -c % spec.format.channel_multiple + sum(spec.format.other_channels)
        assert spec.nbytes == n * channels * (h + top + bottom) * (w + left + right) * (
            2 if spec.dtype == "bfloat16" else 4)
        assert spec.is_default == spec.same_memory(default_spec(shape, spec.dtype))
        assert spec.format.images_are_apart == (spec.layout != "CHWN")
        for other, its_place in zip(specs, found, strict=True):
            same = np.array_equal(place, its_place) and (
                spec.nbytes, spec.dtype) == (other.nbytes, other.dtype)
            assert spec.same_memory(other) == same, (spec.format, other.format)
            if same and spec.format.border == other.format.border and not any(
                    (*spec.format.other_channels, *other.format.other_channels)):
                assert memory_format(spec) == memory_format(other)
                assert spec.same_memory(TensorSpec(shape, memory_format(spec)))
