"""Example inputs: they do not depend on earlier calls, and take no more memory than allowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.errors import OutOfMemoryError
from gossamer.expression import Expression, ExpressionStep, apply, identity
from gossamer.ops.algorithm import Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import PartProblem, entry
from gossamer.plan.tune import memory as tune_examples
from gossamer.plan.tune.memory import Examples
from gossamer.tensor import Format, TensorSpec, default_spec, unpack
from tests.ops.fused.blocks import block
from tests.ops.recording import RecordingDevice

HOST = find("host")
ADD = Expression(2, (ExpressionStep("add", (0, 1)),))


def added(*shapes: tuple[int, ...], dtype: str = "float32") -> Problem:
    expression = ADD if len(shapes) == 2 else apply("relu") if dtype == "float32" else identity()
    return ElementwiseProblem(tuple(default_spec(shape, dtype) for shape in shapes), expression,
                              (dtype,))


@pytest.mark.parametrize("problem", [
    added((2, 3, 4, 4)), added((2, 3, 4, 4), (2, 3, 4, 4)), added((5,), (3, 5)),
    added((2, 7), dtype="int32")])
def test_they_are_what_the_problem_draws_whatever_was_asked_for_before(problem: Problem) -> None:
    drawn = problem.example_inputs(np.random.default_rng(0))
    for before in (added((1,)), added((4, 3, 4, 4), (4, 3, 4, 4))):
        examples = Examples(HOST)
        examples.of(before)
        for example, array in zip(examples.of(problem), drawn, strict=True):
            assert example.dtype == array.dtype
            np.testing.assert_array_equal(example, array)


def test_layers_with_the_same_input_share_its_memory() -> None:
    examples, spec = Examples(HOST), TensorSpec((2, 3, 4, 4), Format("CHWN"))
    one, other = added((2, 3, 4, 4)), added((2, 3, 4, 4), (2, 3, 4, 4))
    first = examples.buffer(one, 0, spec)
    assert examples.buffer(other, 0, spec) is first
    second, (_, y) = examples.buffer(other, 1, spec), examples.of(other)
    assert second is not first
    np.testing.assert_array_equal(host_array(second, spec), y.transpose(1, 2, 3, 0))
    examples.forget()
    assert examples.buffer(one, 0, spec) is not first


def test_inputs_of_one_shape_have_their_own_memory_where_a_problem_draws_them() -> None:
    add = added((2, 3), (2, 3))
    problem = PartProblem((add,), ((entry(0), entry(1)),), ((0, 0),))
    assert type(problem).example_inputs is not Problem.example_inputs
    examples = Examples(HOST)
    for index, (array, spec) in enumerate(zip(examples.of(problem), problem.inputs, strict=True)):
        np.testing.assert_array_equal(
            host_array(examples.buffer(problem, index, spec), spec), array)


def test_a_fusion_reads_the_numbers_of_its_first_part() -> None:
    problem = block(2, 8, 16, 8, (5, 5))
    examples = Examples(HOST)
    (x,) = examples.of(problem)
    (drawn,) = problem.example_inputs(np.random.default_rng(0))
    np.testing.assert_array_equal(x, drawn)
    layer = added(problem.inputs[0].shape)
    spec = problem.inputs[0].with_format(layout="NHWC")
    first = examples.buffer(layer, 0, spec)
    assert examples.buffer(problem, 0, spec) is first


class Small(RecordingDevice):
    """A device with memory for a few buffers, which counts uploads."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.limits = replace(self.limits, memory_bytes=tune_examples._SHARE * room)
        self.uploads, self.refused = 0, 0

    def upload(self, array: np.ndarray, purpose: str) -> object:  # type: ignore[override]
        self.uploads += 1
        if self.refused:
            self.refused -= 1
            raise OutOfMemoryError("no room")
        return super().upload(array, purpose)


def _asked(examples: Examples, *sizes: int) -> None:
    for size in sizes:
        problem = added((size,))
        examples.buffer(problem, 0, problem.inputs[0])


def test_those_used_least_lately_make_room() -> None:
    device = Small(room=400)
    _asked(Examples(device), 40, 50, 40, 60, 40)
    assert device.uploads == 3
    _asked(Examples(device), 40, 50, 60, 40)
    assert device.uploads == 3 + 4


def test_inputs_larger_than_the_allowed_memory_are_not_stored() -> None:
    device = Small(room=400)
    _asked(Examples(device), 40, 101, 101, 40)
    assert device.uploads == 3


def test_stored_inputs_are_freed_where_memory_runs_out() -> None:
    device = Small(room=10**6)
    examples = Examples(device)
    _asked(examples, 40)
    device.refused = 1
    _asked(examples, 50, 40)
    assert device.uploads == 4
    device.refused = 2
    with pytest.raises(OutOfMemoryError):
        _asked(examples, 60)


@pytest.mark.parametrize("count", [3, 5, 9])
def test_the_images_that_are_compared_have_their_places_among_repetitions(count: int) -> None:
    images = [round(index * 8 / (count - 1)) for index in range(count)]
    problem, examples = added((count, 70, 2, 2), (1, 70, 1, 1), dtype="float32"), Examples(HOST)
    x, y = examples.of(problem)
    for format_ in (Format("NCHW"), Format("CHWN"), Format("NHWC", "float16")):
        whole = TensorSpec((9, 70, 2, 2), format_)
        got = unpack(host_array(examples.buffer(problem, 0, whole, 0, images), whole), whole)
        np.testing.assert_array_equal(got[images], x.astype(got.dtype))
        assert len(np.unique(got, axis=0)) == count
    spec = problem.inputs[1]
    np.testing.assert_array_equal(
        host_array(examples.buffer(problem, 1, spec, 0, images), spec), y)
