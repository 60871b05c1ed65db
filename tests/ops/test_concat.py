from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import gossamer
from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.ops.concat import PackedConcat, SliceCopies
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec
from tests.model.onnx_models import model, runtime, weights
from tests.ops.harness import check
from tests.ops.recording import RecordingDevice
from tests.plan.caches import empty_cache


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data())
@settings(max_examples=25)
def test_any_axis_and_layout(device: Device, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=6))
    dtype = data.draw(st.sampled_from(["float32", "int64", "bool"]))
    parts = tuple(default_spec((*shape[:axis], length, *shape[axis + 1:]), dtype)
                  for length in lengths)
    check(ConcatProblem(parts, axis), device)


@given(axis=st.integers(0, 3), facts=st.sampled_from([PLUS_MINUS_ONE, TERNARY]),
       counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
@settings(max_examples=15)
def test_packed_values(compiled_device: Device, axis: int, facts: ValueFacts,
                       counts: list[int], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from([32, 64]))
    sizes = [count * word if axis == 1 else count for count in counts]
    sizes[-1] += data.draw(st.integers(0, 40)) if axis == 1 else 0
    shape = [2, data.draw(st.integers(1, 70)), 3, 2]
    parts = tuple(default_spec((*shape[:axis], size, *shape[axis + 1:])) for size in sizes)
    ran = [name.split()[:3] for name in check(ConcatProblem(parts, axis, (facts,) * len(parts)),
                                              compiled_device)]
    assert any(name[0] == "packed" for name in ran)


@pytest.mark.parametrize(("channels", "facts", "reason"), [
    ((32, 5), (PLUS_MINUS_ONE, TERNARY), None),
    ((5, 32), (PLUS_MINUS_ONE, TERNARY), "fill whole words"),
    ((32, 32), (PLUS_MINUS_ONE, REAL), "known to be"), ((32, 32), (), "known to be")], ids=str)
def test_what_may_stay_packed(channels: tuple[int, ...], facts: tuple[ValueFacts, ...],
                              reason: str | None) -> None:
    parts = tuple(default_spec((1, count, 2, 2)) for count in channels)
    problem = ConcatProblem(parts, 1, facts)
    refusal = PackedConcat().supports(problem, RecordingDevice())
    assert refusal is None if reason is None else reason in refusal
    rows = ConcatProblem((default_spec((32, 2)),), 0, (PLUS_MINUS_ONE,))
    assert PackedConcat().supports(rows, RecordingDevice()) == "needs (N, C, H, W)"


@pytest.mark.parametrize(("channels", "layout", "expected"), [
    ((8, 4), "NHWC", [("int4", 2, 3)]), ((8, 6), "NHWC", [("INT64", 2, 7)]),
    ((8, 3), "NHWC", [("int", 2, 11)]), ((3, 5), "NCHW", [("int4", 2, 8)]),
    ((4, 0, 4, 4, 0, 4, 8), "NHWC", [("int4", 4, 4), ("int4", 1, 2)]), ((0, 0), "NHWC", [])])
def test_launches_take_four_inputs_and_the_widest_elements(
        channels: tuple[int, ...], layout: str, expected: list[tuple[str, int, int]]) -> None:
    problem = ConcatProblem(tuple(default_spec((2, count, 2, 2)) for count in channels), 1)
    algorithm, device = SliceCopies(), RecordingDevice()
    variant = next(variant for variant in algorithm.variants(problem, device)
                   if variant.outputs[0].layout == layout)
    launches = algorithm.prepare(Weights({}, device), problem, variant, device).launches
    macros = [dict(launch.kernel.source.defines) for launch in launches]
    found = [(defines["ELEMENT"], int(defines["SOURCES"]), launch.arguments[2])
             for defines, launch in zip(macros, launches, strict=True)]
    assert found == expected


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be concatenated"):
        ConcatProblem((default_spec((2, 3)), default_spec((3, 3))), 1)


@pytest.mark.parametrize("node", [
    helper.make_node("Pad", ["x", "pads"], ["y"], "pad"),
    helper.make_node("Concat", ["x", "x"], ["y"], "join", axis=0)], ids=lambda node: node.op_type)
def test_truth_values_are_not_packed_as_numbers_are(node: onnx.NodeProto) -> None:
    proto = model([node], {"x": (2, 32, 4, 4)}, {"y": 4}, {"pads": np.array([0, 0, 1, 1] * 2)},
                  types=dict.fromkeys("xy", TensorProto.BOOL))
    x = weights(2, 32, 4, 4) > 0
    with empty_cache():
        y = gossamer.compile(proto, "host", effort="quick")(x)
    np.testing.assert_array_equal(y, runtime(proto, {"x": x})[0])
