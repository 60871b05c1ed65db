"""Rows of networks that are checked: judged results, packed files, and quantised layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gossamer
from gossamer.errors import DeviceLostError, InputError, UnsupportedError
from tests.model.onnx_models import model, runtime, weights
from tests.networks.compared import drawn_inputs, judged, outcome_of, results_of, session_of
from tests.networks.packed import pack, restored
from tests.networks.quantised import equal_layers, own_inputs, with_own_inputs
from tests.networks.rows import rows_of, run_all
from tests.tolerances import WHOLE_NETWORK


def ends(outcome: str) -> dict[str, Any]:
    """Returns a row with an outcome, or ends its process."""
    if outcome == "end":
        os._exit(3)
    return {"outcome": outcome, "pid": os.getpid()}


def tasks(*outcomes: str) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    return [({"network": index}, (outcome,)) for index, outcome in enumerate(outcomes)]


def test_a_process_that_ends_is_a_row_and_the_rest_is_run(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    assert run_all(tasks("ok", "end", "ok"), ends, file) == 1
    first, second, third = rows_of(file)
    assert second["outcome"] == "crashed: its process ended"
    assert first["pid"] != third["pid"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 rows: 1 crashed, 2 ok; ")


def test_rows_of_a_file_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for _ in range(2):
        assert run_all(tasks("ok"), ends, file) == 0
    assert len(rows_of(file)) == 1
    assert run_all(tasks("ok", "ok"), ends, file, minutes=0) == 0
    assert len(rows_of(file)) == 1


def subtracting(size: float) -> onnx.ModelProto:
    """Returns a network of two products whose results are nearly equal where the size is large."""
    w = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    return model([helper.make_node("MatMul", ["x", "a"], ["p"], "first"),
                  helper.make_node("MatMul", ["x", "b"], ["q"], "second"),
                  helper.make_node("Sub", ["p", "q"], ["y"], "difference")],
                 {"x": ("N", 64)}, {"y": 2}, {"a": size * w, "b": (size * w + w[::-1])})


@pytest.mark.parametrize("precision", WHOLE_NETWORK)
def test_right_results_are_allowed(precision: str) -> None:
    proto = subtracting(1)
    given = drawn_inputs(session_of(proto), 3)
    plan = gossamer.compile(proto, "host")
    error, allowed = judged(plan, given, results_of(plan, given), runtime(proto, given), precision)
    assert error <= allowed == WHOLE_NETWORK[precision]


@pytest.mark.parametrize(("size", "precision", "is_allowed"), [
    (1, "fp16", False), (300, "fp16", True), (300, "fp32", False)])
def test_only_float16_may_be_twice_as_far_from_float64_as_rounded_layers(
        size: float, precision: str, is_allowed: bool) -> None:
    proto = subtracting(size)
    given = drawn_inputs(session_of(proto), 3)
    expected = runtime(proto, given)
    error, allowed = judged(gossamer.compile(proto, "host"), given, [1.05 * expected[0]], expected,
                            precision)
    assert error == pytest.approx(0.05, rel=0.1)
    assert (error <= allowed) == is_allowed
    if precision == "fp32":
        assert allowed == WHOLE_NETWORK["fp32"]


@pytest.mark.parametrize(("error", "outcome"), [
    (UnsupportedError("Sin of x"), "refused: Sin of x"),
    (InputError("x has 3 rows"), "refused: x has 3 rows"),
    (DeviceLostError("cuda:0 failed"), "crashed: DeviceLostError: cuda:0 failed"),
    (ZeroDivisionError(), "crashed: ZeroDivisionError: ZeroDivisionError")])
def test_a_device_that_fails_is_a_crash(error: Exception, outcome: str) -> None:
    assert outcome_of(error) == outcome


def network() -> onnx.ModelProto:
    """Returns a network with pruned weights, and with variances, which have to stay above 0."""
    pruned = weights(64, 32, 3, 3)
    pruned[np.abs(pruned) < 1] = 0
    rows = weights(4, 512)
    return model(
        [helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1],
                          doc_string="File net.py, line 3"),
         helper.make_node("BatchNormalization", ["a", *rows_of_norm()], ["b"], "norm"),
         helper.make_node("Conv", ["b", "v"], ["y"], "second")],
        {"x": ("N", 32, 6, 6)}, {"y": 4},
        {"w": pruned, "v": weights(512, 64, 1, 1),
         **dict(zip(rows_of_norm(), (*rows[:3, :64], 1e-3 + np.abs(rows[3, :64])), strict=True))})


def rows_of_norm() -> list[str]:
    return ["gamma", "beta", "mean", "variance"]


def saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_restored_network_computes_finite_numbers_of_the_same_shapes(tmp_path: Path) -> None:
    proto, feeds = network(), {"x": weights(2, 32, 6, 6)}
    data = pack(proto)
    assert len(data) < len(proto.SerializeToString()) / 50
    (y,), (expected,) = (runtime(each, feeds) for each in (
        restored(saved(tmp_path / "net.onnx.gz", data)), proto))
    assert y.shape == expected.shape
    assert np.isfinite(y).all()
    assert y.std() == pytest.approx(expected.std(), rel=0.3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_drawn_weights_are_distributed_like_those_of_the_file(dtype: str, tmp_path: Path) -> None:
    array = np.abs(8 * weights(100, 100)).astype(dtype)
    array[:, :70] = 0
    proto = model([helper.make_node("Identity", ["w"], ["y"], "same")], {}, {"y": 2}, {"w": array})
    (tensor,) = restored(saved(tmp_path / "net.onnx.gz", pack(proto))).graph.initializer
    drawn = numpy_helper.to_array(tensor)
    assert (drawn.dtype, drawn.shape) == (array.dtype, array.shape)
    assert not np.array_equal(drawn, array)
    assert drawn.min() == 0
    assert drawn.max() <= array.max()
    numbers, expected = drawn.astype(float), array.astype(float)
    for statistic in (np.mean, np.std, np.count_nonzero):
        assert statistic(numbers) == pytest.approx(statistic(expected), rel=0.3)


def test_files_that_are_small_with_their_weights_keep_them(tmp_path: Path) -> None:
    proto = network()
    whole = restored(saved(tmp_path / "net.onnx.gz", pack(proto, most_bytes=10**6)))
    assert whole.graph.initializer == proto.graph.initializer
    assert not whole.graph.node[0].doc_string


def test_what_is_no_network_is_an_error_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"net\.onnx\.gz: .*expected an ONNX file"):
        restored(saved(tmp_path / "net.onnx.gz", b"no network"))


RNG = np.random.default_rng(3)


def constants() -> dict[str, np.ndarray]:
    return {"s": np.float32(0.03), "z": np.uint8(117), "ws": np.float32(0.01), "wz": np.int8(0),
            "v": RNG.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8),
            "w": RNG.integers(-90, 90, (4, 4, 1, 1)).astype(np.int8)}


def qoperator() -> onnx.ModelProto:
    return model(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "begin"),
         helper.make_node("QLinearConv", ["q", "s", "z", "v", "ws", "wz", "s", "z"], ["a"], "one"),
         helper.make_node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2]),
         helper.make_node("QLinearConv", ["b", "s", "z", "w", "ws", "wz", "s", "z"], ["c"], "two"),
         helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"], "end")],
        {"x": ("N", 3, 8, 8)}, {"y": 4}, constants())


def qdq() -> onnx.ModelProto:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"], "begin")]
    for index, weight in enumerate("vw"):
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{index}", "s", "z"], [f"f{index}"]),
            helper.make_node("DequantizeLinear", [weight, "ws", "wz"], [f"{weight}f"]),
            helper.make_node("Conv", [f"f{index}", f"{weight}f"], [f"y{index}"], f"conv{index}"),
            helper.make_node("QuantizeLinear", [f"y{index}", "s", "z"], [f"q{index + 1}"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["y"], "end"))
    return model(nodes, {"x": ("N", 3, 8, 8)}, {"y": 4}, constants())


def image() -> np.ndarray:
    return RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(("proto", "names"), [
    (qoperator(), ["q", "a", "c"]), (qdq(), ["q0", "q1", "q2"])], ids=["qoperator", "qdq"])
def test_layers_of_both_forms_are_compared(proto: onnx.ModelProto, names: list[str]) -> None:
    rows = equal_layers(proto, image(), "host")
    assert [name for name, _, _ in rows] == names
    assert all(share > 0.99 and largest <= 1 for _, share, largest in rows)


def test_a_layer_gets_no_differences_of_those_before_it() -> None:
    """Another weight of one layer changes its own integers alone."""
    proto, x = qoperator(), image()
    given, expected = own_inputs(proto, x)
    changed = with_own_inputs(proto, expected)
    (weight,) = (tensor for tensor in changed.graph.initializer if tensor.name == "v")
    weight.raw_data = bytes(len(weight.raw_data))
    feeds = {info.name: given[info.name] for info in changed.graph.input}
    results = dict(zip(expected, runtime(changed, feeds), strict=True))
    assert {name for name in expected if not np.array_equal(results[name], expected[name])} == {"a"}
