"""HashedOnce: equal objects have equal hashes, here and in other processes."""

from __future__ import annotations

import pickle
from dataclasses import replace

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.tensor import Format, TensorSpec


def problem() -> Conv2dProblem:
    return Conv2dProblem(2, 8, 5, 5, 16, (3, 3))


def test_equal_objects_have_equal_hashes() -> None:
    assert problem() == problem() and hash(problem()) == hash(problem())
    assert len({TensorSpec((2, 3)), TensorSpec((2, 3)), TensorSpec((3, 2))}) == 2


def test_a_changed_copy_has_its_own_hash() -> None:
    one = problem()
    known = {one: "one"}
    other = replace(one, batch=3)
    assert other not in known and replace(other, batch=2) in known
    assert other.outputs[0].shape[0] == 3


def test_only_the_fields_are_copied_to_another_process() -> None:
    one = problem()
    assert hash(one) and one.inputs and hash(one.inputs[0])
    text = pickle.dumps(one)
    # neither a kept hash nor a kept property makes a message longer
    assert text == pickle.dumps(problem())
    copy = pickle.loads(text)
    assert copy == one and {copy: 1}[one] == 1 and copy.inputs == one.inputs


def test_formats_have_texts_of_their_own() -> None:
    assert {str(Format("NHWC")), str(Format("NHWC", "float16", 8)), str(Format("NHWC"))} == {
        "NHWC", "NHWC float16 c8"}
