"""Tests of the check on which the tests of all ops rely."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.strided import HostAlgorithm, layout_variants
from gossamer.tensor import default_spec
from tests.ops import harness


class _Wrong(HostAlgorithm):
    """A concatenation whose result or inputs a function changes."""

    op = "concat"

    def __init__(self, change) -> None:
        self._change = change

    def supports(self, problem, device):
        return None

    def variants(self, problem, device):
        return layout_variants(problem, ("NHWC",))

    def compute(self, problem, inputs, weights):
        result = np.concatenate(list(inputs), problem.axis)
        return self._change(result, inputs)


def _one_off(result, inputs):
    result[0, 0, 0, 0] += 0.01
    return [result]


def _changed_input(result, inputs):
    inputs[0][0, 0, 0, 0] += 1
    return [result]


def _nothing_written(result, inputs):
    return []


@pytest.mark.parametrize(("change", "message"), [
    (_one_off, "is off by"), (_changed_input, "wrote to its input"), (_nothing_written, None)])
def test_a_wrong_algorithm_is_caught(monkeypatch, change, message) -> None:
    from gossamer.device.registry import find

    problem = ConcatProblem((default_spec((1, 2, 3, 4)), default_spec((1, 5, 3, 4))), 1)
    op = harness.op_of(problem)
    wrong = type(op)(op.name, op.problem, op.reference, (_Wrong(change),))
    monkeypatch.setattr(harness, "op_of", lambda problem: wrong)
    with pytest.raises((AssertionError, ValueError), match=message):
        harness.check(problem, find("host"))


@pytest.mark.parametrize("position", [0, -1])
def test_a_write_outside_is_caught(device: Device, position: int) -> None:
    guarded = harness.Guarded(device, 40)
    guarded.contents("nobody")
    everything = np.full(guarded._whole.nbytes, 0xFF, np.uint8)
    everything[position] = 0
    device.write(guarded._whole, everything)
    with pytest.raises(AssertionError, match="outside of its output"):
        guarded.contents("somebody")


def test_unwritten_outputs_are_not_taken_for_results(device: Device) -> None:
    guarded = harness.Guarded(device, 40)
    assert np.isnan(guarded.contents("nobody").view(np.float32)).all()
