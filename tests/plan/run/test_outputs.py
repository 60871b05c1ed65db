"""Outputs of calls: names, order, empty and constant ones, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from tests.fixtures import is_slow
from tests.model.onnx_models import model, save, weights
from tests.plan.small import assert_as_runtime, compiled

node = helper.make_node


def matches(proto: onnx.ModelProto, device: Device, folder: Path, *inputs: np.ndarray) -> None:
    """Asserts that a plan agrees with ONNX Runtime, at this batch size and again after another."""
    plan = compiled(proto, device, folder, strict=True)
    assert [info.name for info in plan.outputs] == [info.name for info in proto.graph.output]
    for _ in range(1 if is_slow(device) else 3):
        assert_as_runtime(plan, proto, *inputs)
        plan(*[x[:1] for x in inputs])


X = weights(2, 4, 3, 5, seed=4)
ROWS = weights(3, 4, seed=5)


def test_several_outputs_in_the_order_of_the_file(device: Device, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["a"]), node("Sigmoid", ["a"], ["b"]),
                   node("Neg", ["a"], ["c"])], {"x": ["N", 4]}, {"c": 2, "a": 2, "b": 2})
    matches(proto, device, tmp_path, ROWS)


def test_an_output_that_is_named_twice_is_returned_twice(device: Device, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"])], {"x": ["N", 4]},
                  {"a": 2, "b": 2})
    proto.graph.output.append(proto.graph.output[0])
    matches(proto, device, tmp_path, ROWS)
    plan = compiled(proto, device, tmp_path)
    relu = np.maximum(ROWS, 0)
    given = tuple(np.ones_like(ROWS) for _ in range(3))
    for results in (plan.bind(ROWS)(), plan(ROWS, out=given), given, *plan.stream([ROWS])):
        for y, right in zip(results, (relu, -relu, relu), strict=True):
            np.testing.assert_array_equal(y, right)


def test_inputs_in_the_order_of_the_file(device: Device, tmp_path: Path) -> None:
    proto = model([node("Sub", ["b", "a"], ["y"])], {"a": ["N", 4], "b": ["N", 4]}, {"y": 2})
    matches(proto, device, tmp_path, ROWS, weights(3, 4, seed=6))


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3, 5)])
def test_an_input_goes_straight_to_the_output(shape: tuple[int, ...], device: Device,
                                             tmp_path: Path) -> None:
    x = weights(*shape)
    proto = model([node("Identity", ["x"], ["y"])], {"x": ["N", *shape[1:]]}, {"y": len(shape)})
    matches(proto, device, tmp_path, x)
    plan = compiled(proto, device, tmp_path)
    y = plan(x)
    assert not np.shares_memory(y, x)
    report = plan.profile()
    assert len(report.rows) == len(plan.program(2).steps)
    assert str(report)


def test_an_output_is_an_input(device: Device, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ["N", 4]}, {"x": 2, "y": 2})
    plan = compiled(proto, device, tmp_path)
    x, y = plan(ROWS)
    np.testing.assert_array_equal(x, ROWS)
    np.testing.assert_array_equal(y, np.maximum(ROWS, 0))
    assert not np.shares_memory(x, ROWS)


def test_an_output_is_an_input_and_nothing_else_is_there(device: Device, tmp_path: Path) -> None:
    plan = compiled(model([], {"x": ["N", 4]}, {"x": 2}), device, tmp_path)
    np.testing.assert_array_equal(plan(ROWS), ROWS)
    assert plan.report().rows == []
    assert str(plan.report())


def test_an_output_is_a_constant(device: Device, tmp_path: Path) -> None:
    constant = weights(2, 3)
    proto = model([node("Relu", ["x"], ["y"]), node("Exp", ["c"], ["e"]),
                   node("Reshape", ["c", "shape"], ["r"])],
                  {"x": ["N", 4]}, {"c": 2, "y": 2, "e": 2, "r": 1},
                  {"c": constant, "shape": np.array([6])})
    matches(proto, device, tmp_path, ROWS)


def test_an_output_is_a_shape(device: Device, tmp_path: Path) -> None:
    proto = model([node("Shape", ["x"], ["s"]), node("Relu", ["x"], ["y"])],
                  {"x": ["N", 4, 3, 5]}, {"s": 1, "y": 4}, types={"s": TensorProto.INT64})
    plan = compiled(proto, device, tmp_path)
    for batch in (2, 1):
        shape, _ = plan(X[:batch])
        np.testing.assert_array_equal(shape, [batch, 4, 3, 5])
        assert shape.dtype == np.int64


def test_outputs_that_are_the_same_memory(device: Device, tmp_path: Path) -> None:
    """The outputs are a layer's value and an input, reshaped and flattened."""
    proto = model([node("Relu", ["x"], ["a"]), node("Flatten", ["a"], ["b"]),
                   node("Reshape", ["b", "shape"], ["c"]), node("Flatten", ["x"], ["d"]),
                   node("Identity", ["b"], ["e"])],
                  {"x": ["N", 4, 3, 5]}, {"a": 4, "b": 2, "c": 3, "d": 2, "e": 2},
                  {"shape": np.array([0, 12, 5])})
    matches(proto, device, tmp_path, X)


def test_a_reshape_is_read_long_after_what_it_reshapes(device: Device, tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Flatten", ["a"], ["b"])]
    nodes += [node("MaxPool", [f"p{i}" if i else "a"], [f"p{i + 1}"], kernel_shape=[3, 3],
                   pads=[1, 1, 1, 1]) for i in range(4)]
    nodes += [node("Flatten", ["p4"], ["c"]), node("Sub", ["c", "b"], ["y"])]
    matches(model(nodes, {"x": ["N", 4, 3, 5]}, {"y": 2}), device, tmp_path, X)


def test_a_layout_is_changed_once_for_all_who_read_it(quick_device: Device,
                                                      tmp_path: Path) -> None:
    """A convolution may leave its result channels-last; who reshapes it needs it row-major."""
    proto = model([node("Conv", ["x", "w"], ["a"]), node("Conv", ["x", "v"], ["b"]),
                   node("Flatten", ["a"], ["c"]), node("Flatten", ["a"], ["d"], axis=2),
                   node("Concat", ["a", "b"], ["y"], axis=1)],
                  {"x": ["N", 4, 3, 5]}, {"c": 2, "d": 2, "a": 4, "y": 4},
                  {"w": weights(4, 4, 3, 3), "v": weights(4, 4, 3, 3, seed=1)})
    matches(proto, quick_device, tmp_path, X)
    program = compiled(proto, quick_device, tmp_path).program(2)
    changes = [(step.inputs, step.problem) for step in program.steps if step.problem.op == "copy"]
    assert all(changes.count(change) == 1 for change in changes)


def test_reshape_of_a_layer_in_another_layout(device: Device, tmp_path: Path) -> None:
    """A convolution may leave its result channels-last; what is reshaped must be row-major."""
    proto = model([node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
                   node("Conv", ["a", "v"], ["b"], pads=[1, 1, 1, 1]),
                   node("Reshape", ["b", "shape"], ["y"]), node("Flatten", ["b"], ["z"], axis=2)],
                  {"x": ["N", 4, 3, 5]}, {"y": 3, "z": 2, "b": 4},
                  {"w": weights(8, 4, 3, 3), "v": weights(6, 8, 3, 3),
                   "shape": np.array([0, 2, 45])})
    matches(proto, device, tmp_path, X)


@pytest.mark.parametrize("joins", [
    [node("Add", ["a", "b"], ["y"])], [node("Concat", ["a", "b", "x"], ["y"], axis=1)],
    [node("Mul", ["a", "x"], ["p"]), node("Add", ["p", "b"], ["y"])],
])
def test_branches_in_different_layouts_join(joins: list[onnx.NodeProto], device: Device,
                                            tmp_path: Path) -> None:
    """One branch through convolutions, one through depthwise and pooling, and the input."""
    proto = model([node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
                   node("Conv", ["x", "v"], ["c"], group=4, pads=[1, 1, 1, 1]),
                   node("MaxPool", ["c"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), *joins],
                  {"x": ["N", 4, 3, 5]}, {"y": 4},
                  {"w": weights(4, 4, 3, 3), "v": weights(4, 1, 3, 3)})
    matches(proto, device, tmp_path, X)


def test_residual_blocks(quick_device: Device, tmp_path: Path) -> None:
    """Each sum is read by the next block's branch and by its shortcut."""
    nodes, constants, value = [], {}, "x"
    for block in range(3):
        for layer in range(2):
            constants[f"w{block}{layer}"] = weights(4, 4, 3, 3, seed=10 * block + layer) / 6
        nodes += [node("Conv", [value, f"w{block}0"], [f"a{block}"], pads=[1, 1, 1, 1]),
                  node("Relu", [f"a{block}"], [f"b{block}"]),
                  node("Conv", [f"b{block}", f"w{block}1"], [f"c{block}"], pads=[1, 1, 1, 1]),
                  node("Add", [f"c{block}", value], [f"d{block}"])]
        value = f"d{block}"
    proto = model(nodes, {"x": ["N", 4, 3, 5]}, {"d0": 4, "d2": 4}, constants)
    matches(proto, quick_device, tmp_path, X)


def test_a_value_read_twice_by_one_layer(device: Device, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["a"]), node("Concat", ["a", "a"], ["b"], axis=1),
                   node("MatMul", ["a", "t"], ["c"]), node("Transpose", ["a"], ["t2"]),
                   node("MatMul", ["a", "t2"], ["d"])],
                  {"x": ["N", 4]}, {"b": 2, "c": 2, "d": 2}, {"t": weights(4, 4)})
    assert_as_runtime(compiled(proto, device, tmp_path), proto, ROWS)


def test_an_empty_value_within_a_network(device: Device, tmp_path: Path) -> None:
    """The value is sliced to length 0 along one dimension, and then concatenated."""
    bounds = {"zero": np.array([0]), "axis": np.array([1])}
    proto = model([node("Slice", ["x", "zero", "zero", "axis"], ["none"]),
                   node("Exp", ["none"], ["still"]), node("Concat", ["still", "x"], ["y"], axis=1),
                   node("ReduceSum", ["none", "axis"], ["sum"])],
                  {"x": ["N", 4]}, {"y": 2, "still": 2, "sum": 2}, bounds)
    plan = compiled(proto, device, tmp_path)
    y, still, total = plan(ROWS)
    np.testing.assert_array_equal(y, ROWS)
    assert still.shape == (3, 0)
    np.testing.assert_array_equal(total, np.zeros((3, 1)))


def test_a_network_without_a_batch(device: Device, tmp_path: Path) -> None:
    proto = model([node("Add", ["x", "c"], ["y"])], {"x": []}, {"y": 1}, {"c": weights(3)})
    plan = compiled(proto, device, tmp_path)
    x = np.float32(2.5)
    np.testing.assert_array_equal(plan(np.asarray(x)), x + weights(3))


def test_integers_and_truth_values_go_in_and_out(device: Device, tmp_path: Path) -> None:
    types = {"i": TensorProto.INT64, "t": TensorProto.BOOL, "above": TensorProto.BOOL,
             "next": TensorProto.INT64, "chosen": TensorProto.INT64}
    proto = model([node("Add", ["i", "one"], ["next"]), node("Greater", ["x", "half"], ["a"]),
                   node("And", ["a", "t"], ["above"]),
                   node("Where", ["a", "i", "one"], ["chosen"])],
                  {"i": ["N", 2], "x": ["N", 2], "t": ["N", 2]},
                  {"next": 2, "above": 2, "chosen": 2},
                  {"one": np.array(1), "half": np.float32(0.5)}, types=types)
    assert_as_runtime(compiled(proto, device, tmp_path), proto, np.array([[2**53 - 1, -7]]),
                      np.float32([[0.7, 0.2]]), np.array([[False, True]]))


def test_a_convolution_without_output_channels(device: Device, tmp_path: Path,
                                               own_cache: Path, effort: str | None) -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
                  {"x": ["N", 3, 5, 5]}, {"y": 4}, {"w": weights(0, 3, 3, 3)})
    plan = compiled(proto, device, tmp_path) if effort is None else gossamer.compile(
        str(save(proto, tmp_path)), device, effort=effort)
    assert plan(np.ones((2, 3, 5, 5), np.float32)).shape == (2, 0, 3, 3)


def test_an_index_out_of_range_is_refused() -> None:
    plan = gossamer.compile(model(
        [helper.make_node("Gather", ["table", "i"], ["y"], "embedding")], {"i": ("N", 2)},
        {"y": 3}, {"table": weights(5, 3)}, types={"i": TensorProto.INT64}), "host")
    np.testing.assert_array_equal(plan(np.array([[4, -5]])), weights(5, 3)[[[4, 0]]])
    with pytest.raises(InputError, match=r"Gather 'embedding': index 5 is outside dimension 0 of "
                                         r"shape \[5, 3\]"):
        plan(np.array([[0, 5]]))


@pytest.mark.parametrize(("op", "attributes", "right"), [
    ("IsNaN", {}, [True, False, False, False]), ("IsInf", {}, [False, True, True, False]),
    ("IsInf", {"detect_negative": 0}, [False, True, False, False]),
    ("IsInf", {"detect_positive": 0}, [False, False, True, False])])
def test_values_that_are_no_numbers_are_found(op: str, attributes: dict[str, int],
                                              right: list[bool], device: Device) -> None:
    proto = model([helper.make_node(op, ["x"], ["found"], **attributes),
                   helper.make_node("Where", ["found", "zero", "x"], ["y"])], {"x": ("N", 4)},
                  {"found": 2, "y": 2}, {"zero": np.float32(0)}, types={"found": TensorProto.BOOL})
    assert all(node.op != "onnx_part" for node in gossamer.load(proto).nodes)
    x = np.array([[np.nan, np.inf, -np.inf, 3]], np.float32)
    found, y = gossamer.compile(proto, device)(x)
    np.testing.assert_array_equal(found, [right])
    np.testing.assert_array_equal(y, np.where(found, 0, x))


@pytest.mark.usefixtures("without_onnxruntime")
@pytest.mark.parametrize(("op", "kind", "text"), [
    ("Add", TensorProto.UINT32, "Add 'layer': computes with uint32; gossamer computes elements in"),
    ("MatMul", TensorProto.INT32, "MatMul 'layer': computes with int32"),
    ("Reshape", TensorProto.INT64, "Reshape 'layer': has a shape that depends on the data in 'b'"),
])
def test_what_no_call_can_compute_is_refused_by_compile(op: str, kind: int, text: str) -> None:
    proto = model([helper.make_node(op, ["a", "b"], ["y"], "layer")], {"a": (2, 2), "b": (2, 2)},
                  {"y": 2}, types=dict.fromkeys("aby", kind))
    with pytest.raises(UnsupportedError, match=text):
        gossamer.compile(proto, "host")
