"""Places in memory, numbers of bytes and texts of all formats stay as they were recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from gossamer import tensor
from gossamer.tensor import AXES, Format, TensorSpec, memory_format, pack, unpack
from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (1, 8, 3, 3), (2, 1, 1, 4), (3, 31, 1, 2), (1, 32, 2, 1),
          (2, 33, 1, 1), (1, 64, 1, 2), (1, 65, 2, 2), (0, 3, 2, 2), (2, 0, 2, 2), (5, 7), (1, 64),
          (3, 65), (4,), (), (2, 3, 4)]


def formats() -> Iterator[Format]:
    for layout, dtype, multiple, border, others in itertools.product(
            ("row", *AXES, "packed32", "packed64"),
            ("float32", "float16", "bfloat16", "uint8", "bits", "trits"), (1, 4, 8),
            ((0, 0, 0, 0), (1, 0, 0, 0), (1, 2, 3, 4)), ((0, 0), (3, 0), (0, 5))):
        if (multiple > 1) + any(border) + any(others) < 2 or (layout, dtype) in (
                ("NHWC", "float16"), ("packed32", "trits")):
            try:
                yield Format(layout, dtype, multiple, border, others)
            except ValueError:
                continue


def values(spec: TensorSpec) -> np.ndarray:
    numbers = np.arange(spec.size).reshape(spec.shape)
    if spec.format.is_packed:
        held = tensor.PACKED_DTYPES[spec.dtype].values
        return np.float32(held)[numbers * 7 // 3 % len(held)]
    return (numbers % 199).astype(spec.logical_dtype)


def places(spec: TensorSpec) -> str:
    return ",".join(map(str, (*spec.strides, spec.offset)))


def test_places_in_memory(recorded: Recorded) -> None:
    texts = {}
    for format_ in formats():
        parts = [f"{format_.images_are_apart:d} {format_.stored_dtype} {format_.logical_dtype}"]
        for shape in SHAPES:
            try:
                spec = TensorSpec(shape, format_)
            except ValueError as error:
                parts.append(f"{len(shape)} dimensions" if "needs" in str(error) else str(error))
                continue
            array = values(spec)
            stored = pack(array, spec)
            assert stored.nbytes == spec.nbytes
            assert np.array_equal(unpack(stored, spec), array)
            parts.append(f"{','.join(map(str, spec.stored_shape))} {spec.nbytes} "
                         f"{outcome(places, spec, text=str)[:40]} "
                         f"{spec.is_default:d} {memory_format(spec)} "
                         f"{as_text(stored).split()[-1][:4]}")
        texts[str(format_)] = "; ".join(dict.fromkeys(parts))
    recorded("tensor_formats", texts)


def test_which_formats_share_memory(recorded: Recorded) -> None:
    known = [each for each in formats()
             if each.dtype in ("float32", "bfloat16", "bits") and each.layout != "row"]
    texts = {}
    for one in known:
        for shape in SHAPES[:6]:
            spec = TensorSpec(shape, one)
            same = [str(other) for other in known if spec.same_memory(TensorSpec(shape, other))]
            texts[f"{spec.shape} {one}"] = ", ".join(same)
    recorded("tensor_same_memory", texts)


def first_images(shape: tuple[int, ...], format_: Format) -> str:
    spec = TensorSpec(shape, format_)
    return f"{spec} {spec.first(1)}" if shape else str(spec)


def test_formats_that_are_refused(recorded: Recorded) -> None:
    texts = {}
    for layout, dtype in itertools.product(("row", "NCHW", "NHWC", "packed32", "rows"),
                                           ("float32", "bfloat16", "bits", "trits", "floats")):
        texts[f"{layout} {dtype}"] = outcome(Format, layout, dtype, text=str)
    for layout, multiple, border, others in itertools.product(
            ("row", "NHWC", "NCHW"), (0, 1, 2),
            ((0, 0, 0, 0), (0, 0, 0, 1), (-1, 0, 0, 0), (1, 0, 0, -1)),
            ((0, 0), (1, 0), (0, 1), (-1, 0), (2, -1))):
        texts[f"{layout} {multiple} {border} {others}"] = outcome(
            Format, layout, "float32", multiple, border, others, text=str)
    for shape, layout in itertools.product(
            ((), (1,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (1, 2, 3, 4, 5), (-1,), (1, -1, 2, 2),
             (0, 2), (0,)), ("row", "NCHW", "NHWC", "packed32")):
        format_ = Format(layout, "bits" if layout == "packed32" else "float32")
        texts[f"{shape} {layout}"] = outcome(first_images, shape, format_, text=str)
    for dtype, value in itertools.product(("bits", "trits"), (-1.0, 0.0, 1.0, 2.0)):
        spec = TensorSpec((1, 2), Format("packed32", dtype))
        array = np.array([[1.0, value]])
        texts[f"{dtype} {value}"] = " ".join((
            outcome(pack, array, spec, text=str), str(pack(array, spec, check=False).tolist()),
            outcome(tensor.logical_view, pack(array, spec, check=False), spec, text=str)))
    recorded("tensor_refused", texts)


def test_rounding(recorded: Recorded) -> None:
    texts = {f"up {multiple}": " ".join(str(tensor.rounded_up(number, multiple))
                                        for number in range(0, 18))
             for multiple in (1, 2, 4, 8, 3)}
    bits = np.array([0, 1, 0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F817FFF, 0x3F818000,
                     0x3F818001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000,
                     0xFFFFFFFF, 0x80000000, 0xBF80C000], np.uint32)
    numbers = bits.view(np.float32)
    rounded = tensor.bfloat16_bits(numbers)
    texts["bfloat16"] = " ".join(f"{number:04x}" for number in rounded.tolist())
    texts["back"] = " ".join(f"{number:g}" for number in tensor.of_bfloat16_bits(rounded).tolist())
    for dtype in ("bfloat16", "float16", "float32"):
        with np.errstate(over="ignore"):
            kept = tensor.held(numbers, TensorSpec(numbers.shape, Format("row", dtype)))
        texts[f"held {dtype}"] = f"{kept.dtype} " + " ".join(f"{x:.9g}" for x in kept.tolist())
    for shape in SHAPES:
        texts[f"default {shape}"] = (
            f"{tensor.default_spec(shape)} {tensor.default_format(shape, 'float16')} " + (
                str(tensor.image_shape(shape)) if len(shape) in (2, 4) else ""))
    recorded("tensor_rounding", texts)
