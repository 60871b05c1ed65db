from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.copy.problem import convert, expand, slice_, split, transpose
from gossamer.tensor import AXES, Format, TensorSpec, default_spec
from tests.conftest import is_slow
from tests.ops.harness import check, op_of, random_inputs


def _reference(problem, x):
    return op_of(problem).reference(problem, [x], {})[0]


@pytest.mark.parametrize("source", AXES)
@pytest.mark.parametrize("target", AXES)
def test_changes_of_layout(device: Device, source: str, target: str) -> None:
    shape = (2, 9, 2, 5) if is_slow(device) else (3, 37, 5, 11)
    check(convert(TensorSpec(shape, Format(source)), TensorSpec(shape, Format(target))),
          device)


@pytest.mark.parametrize("target", AXES)
def test_paddings_are_written_as_zero(device: Device, target: str) -> None:
    shape = (2, 9, 3, 2) if is_slow(device) else (3, 37, 5, 11)
    padded = TensorSpec(shape, Format(target, channel_multiple=4, border=(1, 2, 0, 3)))
    plain = TensorSpec(shape, Format("NCHW"))
    check(convert(plain, padded), device)
    check(convert(padded, plain), device)


@pytest.mark.parametrize("source", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float32")])
def test_changes_of_precision(device: Device, source: str, dtypes: tuple[str, str]) -> None:
    shape = (2, 9, 2, 5) if is_slow(device) else (3, 37, 5, 11)
    start, end = (TensorSpec(shape, Format(source, dtype)) for dtype in dtypes)
    for target in ("NHWC", "CHWN"):
        check(convert(start, end.with_format(layout=target)), device)
    check(convert(start, end.with_format(channel_multiple=4, border=(1, 2, 0, 3))), device)
    rows = [default_spec((7, 13), dtype) for dtype in dtypes]
    check(convert(*rows), device)
    with pytest.raises(ValueError, match="keeps the dtype"):
        convert(default_spec((7,), "float16"), default_spec((7,), "int32"))


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data())
@settings(max_examples=20)
def test_transpose(device: Device, shape: list[int], data: st.DataObject) -> None:
    permutation = data.draw(st.permutations(range(len(shape))))
    problem = transpose(default_spec(tuple(shape)), permutation)
    check(problem, device)
    x = random_inputs(problem)[0]
    np.testing.assert_array_equal(_reference(problem, x), x.transpose(permutation))


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
@settings(max_examples=20)
def test_slice(device: Device, shape: list[int], data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(-12, 12), min_size=len(shape), max_size=len(shape)))
    ends = data.draw(st.lists(st.integers(-12, 12), min_size=len(shape), max_size=len(shape)))
    steps = data.draw(st.lists(st.sampled_from([-3, -1, 1, 2]),
                               min_size=len(shape), max_size=len(shape)))
    problem = slice_(default_spec(tuple(shape)), starts, ends, range(len(shape)), steps)
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


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8"])
def test_every_element_size(device: Device, dtype: str) -> None:
    spec = default_spec((3, 10, 12), dtype)
    check(transpose(spec, (0, 2, 1)), device)
    check(transpose(spec, (1, 0, 2)), device)
    check(slice_(spec, [1], [6], [2]), device)


def test_split_and_expand(device: Device) -> None:
    for problem in split(default_spec((2, 6, 3, 4)), 1, [1, 3, 2]):
        check(problem, device)
    problem = expand(default_spec((3, 1, 4)), (2, 3, 5, 4))
    check(problem, device)
    x = random_inputs(problem)[0]
    np.testing.assert_array_equal(_reference(problem, x), np.broadcast_to(x, (2, 3, 5, 4)))


def test_six_dimensions(device: Device) -> None:
    check(transpose(default_spec((2, 3, 2, 3, 2, 3)), (5, 0, 3, 2, 1, 4)), device)


def test_reading_outside_is_refused() -> None:
    problem = slice_(default_spec((4,)), [0], [4])
    with pytest.raises(ValueError, match="not all in"):
        type(problem)(problem.input, problem.output, (0,), (1,), (1,))
