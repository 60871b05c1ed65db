from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.ops.copy import PackedCopy
from gossamer.ops.copy.problem import CopyProblem, convert, expand, slice_, split, transpose
from gossamer.ops.copy.strided import StridedCopy
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, PACKED_DTYPES, Format, TensorSpec, default_spec
from tests.fixtures import is_slow
from tests.ops.harness import candidates, check, op_of, random_inputs, run_variant
from tests.ops.recording import RecordingDevice

PACKED_LAYOUTS = ("packed32", "packed64")
FACTS = {"bits": PLUS_MINUS_ONE, "trits": TERNARY}


def _reference(problem, x):
    return op_of(problem).reference(problem, [x], {})[0]


@pytest.mark.parametrize("target", AXES)
def test_paddings_are_written_as_zero(device: Device, target: str) -> None:
    shape = (2, 9, 3, 2) if is_slow(device) else (3, 37, 5, 11)
    padded = TensorSpec(shape, Format(target, channel_multiple=4, border=(1, 2, 0, 3)))
    plain = TensorSpec(shape, Format("NCHW"))
    check(convert(plain, padded), device)
    check(convert(padded, plain), device)


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float32")])
def test_changes_of_precision(device: Device, dtypes: tuple[str, str]) -> None:
    start, end = (TensorSpec((2, 9, 2, 5), Format("NHWC", dtype)) for dtype in dtypes)
    check(convert(start, end.with_format(channel_multiple=4, border=(1, 2, 0, 3))), device)
    check(convert(*(default_spec((7, 13), dtype) for dtype in dtypes)), device)
    with pytest.raises(ValueError, match="keeps the dtype"):
        convert(default_spec((7,), "float16"), default_spec((7,), "int32"))


@given(shape=st.tuples(*map(st.sampled_from, ([1, 2, 9], [1, 2, 3, 4, 9], [1, 2, 3],
                                              [1, 3, 4, 8]))),
       dtypes=st.sampled_from([("float32", "float16"), ("float16", "float32"),
                               *((dtype,) * 2 for dtype in ("float32", "float16", "uint8"))]),
       layouts=st.tuples(*[st.sampled_from(list(AXES))] * 2))
@settings(max_examples=80)
def test_changes_of_layout_and_precision(device: Device, shape: tuple[int, ...],
                                         dtypes: tuple[str, str], layouts: tuple[str, str]) -> None:
    check(convert(*(TensorSpec(shape, Format(layout, dtype))
                    for layout, dtype in zip(layouts, dtypes, strict=True))), device)


@st.composite
def packings(draw: st.DrawFn) -> CopyProblem:
    """Conversions into, out of and between packed formats, with paddings."""
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 100)), *draw(
        st.tuples(st.integers(1, 7), st.integers(1, 11))))
    dtype = draw(st.sampled_from(list(PACKED_DTYPES)))
    border = st.tuples(*[st.integers(0, 2)] * 4)

    def format_of(dtypes: list[str], layouts: tuple[str, ...]) -> Format:
        return Format(draw(st.sampled_from(layouts)), draw(st.sampled_from(dtypes)),
                      draw(st.sampled_from([1, 8, 128])), draw(border))

    others = [format_of(["float32", "float16"], tuple(AXES)),
              format_of(list(PACKED_DTYPES), PACKED_LAYOUTS)]
    pair = [TensorSpec(shape, format_) for format_ in
            (format_of([dtype], PACKED_LAYOUTS), draw(st.sampled_from(others)))]
    dtypes = {spec.dtype for spec in pair}
    facts = PLUS_MINUS_ONE if "bits" in dtypes else TERNARY
    return convert(*draw(st.permutations(pair)), (facts,))


@given(problem=packings())
@settings(max_examples=80)
def test_packed_values(device: Device, problem: CopyProblem) -> None:
    check(problem, device)


@pytest.mark.parametrize("packed", PACKED_LAYOUTS)
def test_packed_matrices(device: Device, packed: str) -> None:
    for shape in [(0, 5), (3, 70), (1, 64)]:
        bits, trits = (TensorSpec(shape, Format(packed, dtype)) for dtype in PACKED_DTYPES)
        for floats in (default_spec(shape), default_spec(shape, "float16")):
            check(convert(floats, trits, (TERNARY,)), device)
            check(convert(bits, floats, (PLUS_MINUS_ONE,)), device)
        check(convert(bits, trits, (PLUS_MINUS_ONE,)), device)


@pytest.mark.parametrize(("facts", "fits"), [
    (PLUS_MINUS_ONE, True), (TERNARY, False), (REAL, False), (ValueFacts(1.0, 1.0), False)],
    ids=str)
def test_what_may_be_packed(recorder: RecordingDevice, facts: ValueFacts, fits: bool) -> None:
    floats, bits, trits = (TensorSpec((1, 5, 2, 2), format_) for format_ in (
        Format("NCHW"), Format("packed32", "bits"), Format("packed32", "trits")))
    for source in (floats, trits):
        reason = PackedCopy().supports(convert(source, bits, (facts,)), recorder)
        assert reason == (None if fits else f"bits cannot hold all of {facts}")
    for source, target in [(bits, trits), (bits, floats), (trits, floats)]:
        assert PackedCopy().supports(convert(source, target, (facts,)), recorder) is None


@pytest.mark.parametrize(("channels", "packs", "unpacks"), [
    (96, True, True), (33, False, False), (36, False, True)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_four_floats_are_moved_together_where_they_lie_so(channels: int, packs: bool,
                                                          unpacks: bool, dtype: str) -> None:
    floats = TensorSpec((2, channels, 3, 5), Format("NHWC", dtype))
    planes = floats.with_format(layout="NCHW")
    bits = TensorSpec(floats.shape, Format("packed32", "bits"))

    def macros(source: TensorSpec, target: TensorSpec, name: str) -> set[int]:
        """Return the values of a macro in the kernels of all variants."""
        device, problem = RecordingDevice(), convert(source, target, (PLUS_MINUS_ONE,))
        for variant in PackedCopy().variants(problem, device):
            PackedCopy().prepare(Weights({}, device, "a test"), problem, variant, device)
        return {int(dict(kernel.defines)[name]) for kernel in device.sources}

    assert macros(floats, bits, "FOURS") == {int(packs)}
    assert macros(bits, floats, "CHANNELS") == {1, 32, *([4] if unpacks else [])}
    assert macros(planes, bits, "FOURS") == {0}
    assert macros(bits, planes, "CHANNELS") == {1, 32}


def kernel_of(problem: CopyProblem) -> tuple[str, dict[str, object]]:
    """Return the kernel and the macros of a copy in its problem's format."""
    device = RecordingDevice()
    variant = next(variant for variant in StridedCopy().variants(problem, device)
                   if (variant.inputs, variant.outputs) == (problem.inputs, problem.outputs))
    StridedCopy().prepare(Weights({}, device, "a test"), problem, variant, device)
    (kernel,) = device.sources
    return kernel.function, dict(kernel.defines)


@pytest.mark.parametrize(("shape", "target", "kernel"), [
    ((1, 8, 2, 4), "NHWC", "tiled"), ((8, 2, 2, 2), "CHWN", "tiled"),
    ((2, 3, 2, 8), "NHWC", "interleaved"), ((1, 7, 2, 4), "NHWC", "strided"),
    ((1, 8, 1, 7), "NHWC", "strided"), ((2, 3, 3, 3), "NHWC", "strided"),
    ((7, 2, 2, 2), "CHWN", "strided"), ((8, 1, 1, 7), "CHWN", "strided"),
    ((2, 9, 3, 3), "NCHW", "strided")])
def test_elements_copied_together(shape: tuple[int, ...], target: str, kernel: str) -> None:
    nchw, other = TensorSpec(shape, Format("NCHW")), TensorSpec(shape, Format(target))
    for problem in (convert(nchw, other), convert(nchw, other.with_format(dtype="float16"))):
        assert kernel_of(problem)[0] == f"copy_{kernel}"
    back, macros = kernel_of(convert(other, nchw))
    assert (back == "copy_tiled") == ("TILE" in macros) == (kernel == "tiled")
    macros = kernel_of(convert(nchw, nchw.with_format(dtype="float16")))[1]
    assert ("FOUR" in macros) == (nchw.size % 4 == 0)


@pytest.mark.parametrize(("dtype", "start", "end", "element"), [
    ("float32", 0, 4, "int4"), ("float32", 4, 16, "int4"), ("float32", 2, 6, "INT64"),
    ("float32", 4, 10, "INT64"), ("float32", 1, 5, "int"), ("float32", 4, 7, "int"),
    ("float16", 8, 16, "int4"), ("float16", 4, 8, "INT64"), ("float16", 2, 6, "int"),
    ("float16", 3, 7, "unsigned short"), ("uint8", 0, 16, "int4"), ("uint8", 4, 8, "int"),
    ("uint8", 2, 6, "unsigned short"), ("uint8", 5, 8, "uchar"), ("int64", 2, 4, "int4"),
    ("int64", 1, 3, "INT64")])
def test_elements_are_as_wide_as_sizes_strides_and_offsets_let_them(
        dtype: str, start: int, end: int, element: str) -> None:
    name, macros = kernel_of(slice_(default_spec((3, 16), dtype), [start], [end], [1]))
    assert (name, macros["ELEMENT"]) == ("copy_strided", element)
    # a row of 15 elements begins at a multiple of one element only
    name, macros = kernel_of(slice_(default_spec((3, 15), dtype), [0], [8], [1]))
    assert macros["ELEMENT"] == {1: "uchar", 2: "unsigned short", 4: "int", 8: "INT64"}[
        np.dtype(dtype).itemsize]


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_nan_is_packed_as_the_least_value(device: Device, dtype: str) -> None:
    x = np.full((1, 3, 2, 2), np.nan, np.float32)
    problem = convert(default_spec(x.shape), TensorSpec(x.shape, Format("packed32", dtype)),
                      (FACTS[dtype],))
    for algorithm, variant in candidates(problem, device):
        (y,) = run_variant(algorithm, problem, variant, device, Weights({}, device, "a test"), [x])
        assert (y == -1).all()


def test_packing_does_nothing_else(recorder: RecordingDevice) -> None:
    bits = TensorSpec((1, 5, 2, 2), Format("packed32", "bits"))
    problem = CopyProblem(bits, TensorSpec((1, 5, 2, 2), Format("NCHW")), (0, 1, 3, 2),
                          (1,) * 4, (0,) * 4)
    assert "changes only the format" in PackedCopy().supports(problem, recorder)
    assert "packed values" in PackedCopy().supports(transpose(default_spec((2, 3)), (1, 0)),
                                                         recorder)


dtypes = st.sampled_from(["float32", "int64", "bool", "uint8"])


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data(), dtype=dtypes)
@settings(max_examples=30)
def test_transpose(device: Device, shape: list[int], data: st.DataObject, dtype: str) -> None:
    permutation = data.draw(st.permutations(range(len(shape))))
    problem = transpose(default_spec(tuple(shape), dtype), permutation)
    check(problem, device)
    x = random_inputs(problem)[0]
    np.testing.assert_array_equal(_reference(problem, x), x.transpose(permutation))


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data(), dtype=dtypes)
@settings(max_examples=30)
def test_slice(device: Device, shape: list[int], data: st.DataObject, dtype: str) -> None:
    starts = data.draw(st.lists(st.integers(-12, 12), min_size=len(shape), max_size=len(shape)))
    ends = data.draw(st.lists(st.integers(-12, 12), min_size=len(shape), max_size=len(shape)))
    steps = data.draw(st.lists(st.sampled_from([-3, -1, 1, 2]),
                               min_size=len(shape), max_size=len(shape)))
    problem = slice_(default_spec(tuple(shape), dtype), starts, ends, range(len(shape)), steps)
    check(problem, device)


@pytest.mark.parametrize(("bounds", "expected"), [
    (([0], [2], [1], [1]), np.s_[:, 0:2]),
    (([-1], [-1000], [1], [-1]), np.s_[:, ::-1]),
    (([4, 1], [-100, 100], [0, 2], [-2, 3]), np.s_[4::-2, :, 1::3]),
    (([5], [2], [0], [1]), np.s_[5:2]),
])
def test_slice_means_what_numpy_means(bounds, expected) -> None:
    x = np.arange(210, dtype=np.float32).reshape(5, 6, 7)
    np.testing.assert_array_equal(_reference(slice_(default_spec(x.shape), *bounds), x),
                                  x[expected])


def test_split_and_expand(device: Device) -> None:
    for problem in split(default_spec((2, 6, 3, 4)), 1, [1, 3, 2]):
        check(problem, device)
    problem = expand(default_spec((3, 1, 4)), (2, 3, 5, 4))
    check(problem, device)
    x = random_inputs(problem)[0]
    np.testing.assert_array_equal(_reference(problem, x), np.broadcast_to(x, (2, 3, 5, 4)))


def test_reading_outside_is_refused() -> None:
    problem = slice_(default_spec((4,)), [0], [4])
    with pytest.raises(ValueError, match="not all in"):
        type(problem)(problem.input, problem.output, (0,), (1,), (1,))


@given(seed=st.integers(0, 2**32 - 1))
def test_a_copy_of_a_copy_is_a_copy(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def drawn(source: TensorSpec) -> CopyProblem:
        shape = source.shape
        axis = int(rng.integers(len(shape)))
        match rng.integers(3):
            case 0:
                return transpose(source, [int(dim) for dim in rng.permutation(len(shape))])
            case 1:
                return expand(source, (int(rng.integers(1, 4)), *shape))
            case _:
                start, end = sorted(map(int, rng.permutation(shape[axis] + 1)[:2]))
                step = int(rng.integers(1, 3))
                backwards = ([end - 1], [start - 1 if start else -shape[axis] - 1], [axis], [-step])
                return slice_(source, *(backwards if rng.integers(2) else (
                    [start], [end], [axis], [step])))

    first = drawn(default_spec(tuple(map(int, rng.integers(1, 6, rng.integers(1, 4))))))
    second = drawn(first.output)
    x = rng.standard_normal(first.input.shape)
    np.testing.assert_array_equal(_reference(first.then(second), x),
                                  _reference(second, _reference(first, x)))
