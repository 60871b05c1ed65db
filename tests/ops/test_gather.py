from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.ops.gather.problem import GatherProblem
from gossamer.tensor import default_spec
from tests.ops.harness import candidates, check, op_of, random_array


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
@settings(max_examples=25)
def test_any_axis_and_indices(device: Device, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    indices_shape = data.draw(st.lists(st.integers(0, 4), max_size=2))
    dtype = data.draw(st.sampled_from(["int32", "int64"]))
    constants = data.draw(st.sampled_from([(), (0,), (1,)]))
    kind = "float32" if 0 in constants else data.draw(st.sampled_from(["float32", "int64", "bool"]))
    problem = GatherProblem(default_spec(tuple(shape), kind),
                            default_spec(tuple(indices_shape), dtype), axis,
                            constants)
    rng = np.random.default_rng(0)
    operands = [random_array(rng, shape, kind),
                rng.integers(-shape[axis], shape[axis], indices_shape).astype(dtype)]
    check(problem, device, inputs=[o for i, o in enumerate(operands) if i not in constants],
          weights={f"operand{i}": operands[i] for i in constants})


@pytest.mark.parametrize(("channels", "taken"), [(6, 3), (1, 2), (58, 58)])
def test_channels_in_any_layout_and_precision(device: Device, channels: int, taken: int) -> None:
    problem = GatherProblem(default_spec((2, channels, 3, 2)), default_spec((taken,), "int64"), 1,
                            (1,))
    rng = np.random.default_rng(0)
    assert not device.compiles or len(list(candidates(problem, device))) == 6
    check(problem, device, inputs=[random_array(rng, (2, channels, 3, 2), "float32")],
          weights={"operand1": rng.integers(0, channels, taken)})


def test_indices_beyond_the_ends_stay_inside(device: Device) -> None:
    problem = GatherProblem(default_spec((3,)), default_spec((4,), "int64"), 0)
    inputs = [np.array([5, 6, 7], np.float32), np.array([-9, 2**40, 3, -3])]
    if device.compiles:
        check(problem, device, inputs=inputs)
    else:
        with pytest.raises(InputError, match=r"index -9 is outside dimension 0 of shape \[3\]"):
            check(problem, device, inputs=inputs)
    assert op_of(problem).reference(problem, inputs, {})[0].tolist() == [5, 7, 7, 5]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_example_indices_are_in_range(length: int) -> None:
    problem = GatherProblem(default_spec((3, length)), default_spec((50,), "int64"), 1)
    _, indices = problem.example_inputs(np.random.default_rng(0))
    assert set(indices.tolist()) == set(range(min(length, 2)))


def test_an_example_of_a_single_index_has_its_dtype() -> None:
    problem = GatherProblem(default_spec((3, 4)), default_spec((), "int32"), 1)
    assert problem.example_inputs(np.random.default_rng(0))[1].dtype == np.int32


def test_nothing_to_take_is_refused() -> None:
    with pytest.raises(ValueError, match="which is empty"):
        GatherProblem(default_spec((0,)), default_spec((1,), "int64"), 0)
