"""Plans of networks of which ONNX Runtime computes a part."""

from __future__ import annotations

import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer import onnx_model
from gossamer.device.base import Device
from gossamer.errors import InputError, UnsupportedError
from gossamer.ops.onnx_part import session
from tests.model.onnx_models import model, runtime
from tests.model.readers.operator_cases import made
from tests.networks.compared import session_of
from tests.onnx_parts import bytes_of, choosing, counting, sampled, texts
from tests.plan.small import reloaded
from tests.processes import python

RNG = np.random.default_rng(2)
X = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
GRID = RNG.uniform(-1, 1, (2, 4, 4, 2)).astype(np.float32)
ROWS = RNG.standard_normal((5, 4)).astype(np.float32)


def expected(proto: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    return runtime(proto, dict(zip((info.name for info in proto.graph.input), inputs,
                                   strict=True)), optimised=True)


def test_constants_that_are_settings_of_an_operator() -> None:
    """ONNX Runtime reads settings when a session begins, and only where the model holds them."""
    proto = model([helper.make_node("Resize", ["x", "", "scales"], ["y"])],
                  {"x": [1, 3, 8, 8], "scales": [4]}, {"y": 4})
    scaled = session.Session(proto.SerializeToString(), {1: np.float32([1, 1, 2, 3])})
    np.testing.assert_array_equal(scaled.run([X[:1]])[0], X[:1].repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_constants_of_any_type_and_size(dtype: str, size: int) -> None:
    constant = np.arange(size).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(constant.dtype)
    proto = model([helper.make_node("Neg", ["c"], ["y"])], {"c": [size]}, {"y": 1},
                  types={"c": code, "y": code})
    (y,) = session.Session(proto.SerializeToString(), {0: constant}).run([])
    np.testing.assert_array_equal(y, -constant, strict=True)


NODES = {"r": ("Relu", ["x"], {}), "s": ("Shape", ["r"], {}), "g": ("Greater", ["r", "c"], {}),
         "i": ("Cast", ["r"], {"to": TensorProto.INT32}), "places": ("NonZero", ["g"], {}),
         "f": ("Cast", ["r"], {"to": TensorProto.FLOAT}), "atan": ("Atan", ["f"], {}),
         "d": ("Cast", ["r"], {"to": TensorProto.DOUBLE}), "constant": ("Sqrt", ["c"], {}),
         "gelu": ("com.microsoft.QuickGelu", ["f"], {})}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_outputs_without_a_type(dtype: str, device: Device) -> None:
    x = RNG.standard_normal((2, 3)).astype(dtype)
    nodes = [helper.make_node(op.split(".")[-1], inputs, [name], **attributes,
                              domain="com.microsoft" if "." in op else "")
             for name, (op, inputs, attributes) in NODES.items()]
    proto = model(nodes, {"x": ("N", 3)}, {}, {"c": np.array(1e-3, dtype)},
                  types={"x": helper.np_dtype_to_tensor_dtype(x.dtype)})
    proto.opset_import.add(domain="com.microsoft", version=1)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in NODES)
    for y, right in zip(gossamer.compile(proto, device)(x), runtime(proto, {"x": x}), strict=True):
        np.testing.assert_allclose(y, right, rtol=1e-3, strict=True)


def test_float64_outputs_that_constants_decide(device: Device) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Sqrt", ["c"], ["root"]),
             helper.make_node("Mul", ["root", "c"], ["y"]), helper.make_node("Neg", ["y"], ["n"]),
             helper.make_node("Cast", ["y"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("Add", ["x", "f"], ["sum"])]
    proto = model(nodes, {"x": ("N", 2)}, dict.fromkeys(["z", "c", "y", "n", "sum"]),
                  {"c": np.array([1e90, 0.1])}, types=dict.fromkeys("cyn", TensorProto.DOUBLE))
    for y, right in zip(gossamer.compile(proto, device)(ROWS[:, :2]),
                        runtime(proto, {"x": ROWS[:, :2]}), strict=True):
        np.testing.assert_allclose(y, right, rtol=1e-15 if y.dtype == float else 1e-6, strict=True)


EMPTY: list[tuple[str, dict[str, Any], list[Any], str]] = [
    *[(f"Reduce{op}", {"keepdims": 0}, [(0, 3), np.array([0])], "float32") for op in (
        "Max", "Min", "Sum", "Prod", "L1", "L2", "LogSumExp", "SumSquare")],
    *[("Einsum", {"equation": "bij,bjk->bik"}, [(b, i, j), (b, j, k)], dtype)
      for b, i, j, k in ((2, 3, 0, 4), (0, 3, 2, 4), (2, 0, 3, 4), (2, 3, 4, 0))
      for dtype in ("float32", "float64")],
    *[(op, {"hidden_size": 3}, [(5, 0, 2), (1, gates, 2), (1, gates, 3)], "float32")
      for op, gates in (("LSTM", 12), ("GRU", 9), ("RNN", 3))],
    ("Unique", {"axis": 0}, [(3, 0)], "float32"), ("Conv", {}, [(2, 0, 5), (3, 0, 2)], "float32"),
    ("Conv", {"strides": [2, 2]}, [(2, 3, 0, 5), np.ones((4, 3, 2, 2), np.float32)], "float32"),
    ("MatMul", {}, [(2, 0), (0, 3)], "float32"), ("NonZero", {}, [(3, 0)], "float32"),
    ("Concat", {"axis": 1}, [(2, 0, 4), (2, 3, 4)], "float64")]
"""Operator, attributes, shapes of inputs or constants, and dtype of the inputs."""


@pytest.mark.library_parts
@pytest.mark.parametrize(("op", "attributes", "given", "dtype"), EMPTY)
def test_tensors_without_elements(op: str, attributes: dict[str, Any], given: list[Any],
                                  dtype: str, device: Device) -> None:
    """ONNX Runtime ends the process or never returns at some of these nodes."""
    proto = made(op, 18, given, attributes, dtype=dtype)
    inputs = {f"x{index}": np.ones(shape, dtype) for index, shape in enumerate(given)
              if isinstance(shape, tuple)}
    for info in proto.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim[1:]):
            dim.dim_param = f"{info.name}_{axis}"
    y = gossamer.compile(proto, device)(**inputs)
    np.testing.assert_array_equal(y, ReferenceEvaluator(proto).run(None, inputs)[0], strict=True)


def test_layers_of_onnxruntime_at_a_batch_of_0(device: Device) -> None:
    proto = model(
        [helper.make_node("Shape", ["x"], ["s"], end=2),
         helper.make_node("LRN", ["x"], ["l"], size=3),
         helper.make_node("Concat", ["s", "sides"], ["sizes"], axis=0),
         helper.make_node("Resize", ["l", "", "", "sizes"], ["y"], mode="linear"),
         helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])],
        {"x": ("N", 3, 4, 5, 6)}, {"y": 5, "q": 5, "scale": None, "zero": None},
        {"sides": np.array([7, 8, 9])}, 18, dict.fromkeys(["q", "zero"], TensorProto.UINT8))
    results = gossamer.compile(proto, device)(np.zeros((0, 3, 4, 5, 6), np.float32))
    assert [(array.shape, array.tolist()) for array in results] == [
        ((0, 3, 7, 8, 9), []), ((0, 3, 4, 5, 6), []), ((), 1), ((), 0)]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools_that_round_up(op: str, rank: int, device: Device) -> None:
    """ONNX's inference counts windows that begin beyond the input, and takes pads in place of
    auto_pad; ONNX Runtime does neither, but uses the inference where it knows the sizes."""
    for seed in range(12):
        rng = np.random.default_rng([rank, seed])
        nodes, value, names = [], "x", ["shape", "size"]
        for name in "ab"[seed % 2:]:
            window = {"kernel_shape": rng.integers(1, 4, rank), "strides": rng.integers(1, 4, rank),
                      **({"auto_pad": ["SAME_UPPER", "VALID"][seed // 3 % 2],
                          **({"pads": [0] * 2 * rank} if seed < 4 else {})} if seed % 3 == 0 else
                         {"pads": rng.integers(0, 2, 2 * rank),
                          "dilations": rng.integers(1, 3, rank)})}
            places = [f"{name}.places"] * (op == "MaxPool" and seed % 4 > 1)
            nodes.append(helper.make_node(op, [value], [name, *places],
                                          ceil_mode=int(seed > 0), **window))
            value, names = name, [*names, *places]
        nodes += [helper.make_node("Shape", [value], ["shape"]),
                  helper.make_node("Size", [value], ["size"])]
        x = rng.standard_normal((2, 3, *rng.integers(1, 9, rank))).astype(np.float32)
        fixed, opened, constant = (
            model(nodes, inputs, dict.fromkeys([value, *names]), constants, 19,
                  dict.fromkeys(names, TensorProto.INT64))
            for inputs, constants in (({"x": ("N", *x.shape[1:])}, {}), ({"x": [
                f"d{i}" for i in range(rank + 2)]}, {}), ({}, {"x": x})))
        try:
            right = runtime(opened, {"x": x})
        except Exception:  # pads as large as a kernel
            continue
        if right[0].size:
            for proto, inputs in ((fixed, [x]), (constant, [])):
                for y, r in zip(gossamer.compile(proto, device)(*inputs), right, strict=True):
                    np.testing.assert_allclose(y, r, rtol=1e-5, atol=1e-5, strict=True)


def test_a_part_in_the_middle(device: Device) -> None:
    plan = gossamer.compile(sampled(), device)
    np.testing.assert_allclose(plan(X, GRID), expected(sampled(), X, GRID)[0], rtol=1e-4,
                               atol=1e-5)
    report = plan.profile()
    row = next(row for row in report.rows if row["op"] == "onnx_part")
    assert (row["algorithm"], row["device"]) == ("onnxruntime", "host")
    assert any("of the layers' time): ONNX Runtime computes 1 node: GridSample 'sample' (gossamer "
               "computes no GridSample) on the host" in note for note in report.notes)


def test_a_part_whose_rank_the_sizes_decide() -> None:
    proto = parse_model("""<ir_version: 8, opset_import: ["": 17]>
        part (float[N, 8] x) => (float[] y) {
            a = Squeeze(x)
            b = Asinh(a)
            y = Relu(b)
        }""")
    plan = gossamer.compile(proto, "host")
    for x in (RNG.standard_normal((7, 8), np.float32), RNG.standard_normal((1, 8), np.float32)):
        np.testing.assert_allclose(plan(x), np.maximum(np.arcsinh(x), 0), rtol=1e-5)


def test_a_part_in_float16_may_be_rounded() -> None:
    proto = parse_model("""<ir_version: 8, opset_import: ["": 20]>
        part (float16[N, 1] x) => (float16[N, 1] y) {
            y = Asinh(x)
        }""")
    plan = gossamer.compile(proto, "host", effort="quick")
    x = RNG.standard_normal((3, 1)).astype(np.float16)
    np.testing.assert_allclose(plan(x), np.arcsinh(x), rtol=2e-3)


def test_it_is_measured_and_saved(tmp_path: Path) -> None:
    plan = gossamer.compile(sampled(), "host", effort="quick")
    y = plan(X, GRID)
    np.testing.assert_array_equal(reloaded(plan, tmp_path)(X, GRID), y)


@pytest.mark.parametrize("proto", [sampled(), choosing()], ids=["part", "tail"])
def test_strict_refuses_it(proto: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime computes .* strict allows"):
        gossamer.compile(proto, "host", strict=True).program(1)


def test_outputs_whose_shape_the_data_decide(device: Device, tmp_path: Path) -> None:
    plan = gossamer.compile(choosing(), device)
    assert [info.name for info in plan.outputs] == ["rows", "scores"]
    for rows in (ROWS, -np.abs(ROWS), ROWS[:2]):
        right = expected(choosing(), rows)
        chosen, scores = plan(rows)
        np.testing.assert_array_equal(chosen, right[0])
        np.testing.assert_allclose(scores, right[1], rtol=1e-5, atol=1e-5)
    assert "the end of the network: ONNX Runtime computes 2 nodes" in str(plan.report())
    loaded = reloaded(plan, tmp_path, device)
    np.testing.assert_array_equal(loaded(x=ROWS)[0], plan(ROWS)[0])
    with pytest.raises(InputError, match="cannot be bound: NonZero 'places'"):
        plan.bind(ROWS)
    with pytest.raises(InputError, match="cannot be streamed: NonZero 'places'"):
        plan.stream([ROWS])
    with pytest.raises(InputError, match="has shape 5x3"):
        plan(ROWS[:, :3])


def test_texts_and_sequences() -> None:
    plan = gossamer.compile(texts(), "host")
    x = np.array([[-1, 0, 2]], np.float32)
    joined, y = plan(np.array(["a", "b"]), x)
    assert joined.tolist() == ["a!", "b!"]
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    with pytest.raises(InputError, match="input 'a' is an array of float32, expected strings"):
        plan(x, x)
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        split (float[N, 2] x) => (seq(float[]) s) { [split] s = SplitToSequence<axis = 0>(x) }""")
    parts = gossamer.compile(proto, "host")(ROWS[:, :2])
    np.testing.assert_array_equal(np.concatenate(parts), ROWS[:, :2])


@pytest.mark.slow
def test_ctrl_c_ends_a_loop() -> None:
    plan = gossamer.compile(counting(2**62), "host")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    # a shell starts background processes with this signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            plan(np.zeros(2, np.float32))
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_onnxruntime_refuses_too_is_said_in_one_line() -> None:
    # the operator is defined by onnx and computed by nobody
    proto = model([helper.make_node("ImageDecoder", ["x"], ["y"], "layer")], {"x": ("N",)},
                  {"y": 3}, types=dict.fromkeys("xy", TensorProto.UINT8), opset=20)
    with pytest.raises(UnsupportedError, match="ImageDecoder 'layer'"):
        gossamer.load(proto)
    wrong = bytes_of([helper.make_node("Sine", ["x"], ["y"])], ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime does not compute it either: .*Sine"):
        session.Session(wrong.tobytes(), {})


@pytest.mark.parametrize(("op", "shape"), [("Det", (3, 3)), ("Softmax", (2, 3))])
def test_a_dtype_that_onnxruntime_refuses_too_is_refused_by_compile(
        op: str, shape: tuple[int, ...], capsys: pytest.CaptureFixture[str]) -> None:
    proto = model([helper.make_node(op, ["x"], ["y"], "layer")], {"x": ("N", *shape)},
                  {"y": None}, types=dict.fromkeys("xy", TensorProto.INT32))
    with pytest.raises(UnsupportedError, match=rf"{op} 'layer': ONNX Runtime does not compute it "
                                               r"either: .*Type 'tensor\(int32\)'"):
        gossamer.compile(proto, "host")
    assert capsys.readouterr() == ("", "")


def test_a_file_without_onnx_own_domain_is_for_each_onnxruntime(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 10**4)
    proto = parse_model("""<ir_version: 8, opset_import: ["ai.onnx.ml" : 1]>
        s (float[N, 3] x) => (float[N, 3] y) { y = ai.onnx.ml.Binarizer<threshold = 0.5>(x) }""")
    result = gossamer.compile(proto, "host")(np.float32([[-1, 0.25, 1]]))
    np.testing.assert_array_equal(result, [[0, 0, 1]])


@pytest.mark.library_parts
def test_values_that_a_whole_network_cannot_take_name_the_node() -> None:
    proto = model([helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
                   helper.make_node("Gather", ["a", "i"], ["y"], "pick", axis=1)],
                  {"x": ("N", 3), "i": (2,)}, {"y": 2}, {"w": np.eye(3, dtype=np.float32)},
                  types={"i": TensorProto.INT64})
    plan = gossamer.compile(proto, "host")
    assert [step.algorithm.name for step in plan.program(1).steps] == ["onnxruntime"]
    for call in (plan, lambda x, i: plan.bind(x, i)()):
        with pytest.raises(InputError, match=r"^Gather 'pick': ONNX Runtime: .*idx=7"):
            call(np.ones((1, 3), np.float32), np.array([0, 7]))


def test_the_end_of_a_network_of_float16_gets_float16() -> None:
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        test (float16[N, 4] x) => (int64[2, M] places, float16[N, 4] y) {
            a = Exp(x)    places = NonZero(x)    y = Add(a, x) }""")
    x = np.array([[0, 1, -2, 0.5]], np.float16)
    places, y = gossamer.compile(proto, "host")(x)
    np.testing.assert_array_equal(places, np.nonzero(x))
    np.testing.assert_allclose(y, np.exp(x) + x, rtol=2e-3)


def test_values_that_it_cannot_take_name_the_node() -> None:
    proto = model([helper.make_node("GatherElements", ["x", "i"], ["y"], "pick")],
                  {"x": (2, 2), "i": (2, 2)}, {"y": 2}, types={"i": TensorProto.INT64})
    plan = gossamer.compile(proto, "host")
    with pytest.raises(InputError, match=r"GatherElements 'pick': ONNX Runtime: [^/]*"
                                         r"Out of range value in index tensor"):
        plan(np.zeros((2, 2), np.float32), np.full((2, 2), 7))


@pytest.mark.parametrize("shape", [("N",), ("N", 5), (1, "W")])
def test_a_part_whose_shapes_fit_at_some_sizes_only(shape: tuple[int | str, ...]) -> None:
    proto = model([helper.make_node("BitwiseOr", ["c", "x"], ["y"], "bits")], {"x": shape},
                  {"y": None}, {"c": np.arange(5, dtype=np.int8)[None]}, 18,
                  {"x": TensorProto.INT8, "y": TensorProto.INT8})
    plan = gossamer.compile(proto, "host")
    for size in (1, 5):
        x = np.full([size if isinstance(each, str) else each for each in shape], 8, np.int8)
        if not (shape == ("N", 5) and size == 5):
            np.testing.assert_array_equal(plan(x), np.arange(5)[None] | x)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_quantised_layers_behind_the_plan_are_computed_as_the_file_says(kind: type) -> None:
    node, drawn = helper.make_node, np.random.default_rng(5)
    proto = model([node("Compress", ["x", "chosen"], ["c"], "choose", axis=0),
                   node("QuantizeLinear", ["c", "s", "z"], ["q"]),
                   node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                   node("DequantizeLinear", ["w", "sw"], ["wd"]),
                   node("Conv", ["d", "wd"], ["y"], "conv"),
                   node("QuantizeLinear", ["y", "s", "z"], ["p"])],
                  {"x": ("N", 2, 5, 5), "chosen": ("N",)}, {"y": 4, "p": 4},
                  {"w": drawn.integers(-100, 100, (4, 2, 3, 3)).astype(np.int8),
                   "s": np.float32(0.03), "sw": np.float32(0.01), "z": np.asarray(3, kind)},
                  types={"chosen": TensorProto.BOOL,
                         "p": helper.np_dtype_to_tensor_dtype(np.dtype(kind))})
    x, chosen = X[:, :2, :5, :5], np.array([False, True])
    y, p = gossamer.compile(proto, "host")(x, chosen)
    right = session_of(proto, is_optimised=False).run(None, {"x": x, "chosen": chosen})
    np.testing.assert_allclose(y, right[0], atol=1e-5)
    np.testing.assert_array_equal(p, right[1])


def test_a_part_names_no_file() -> None:
    proto = onnx.load_model_from_string(bytes_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], ["x"], ["y"]).tobytes())
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2],
                                         data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(UnsupportedError, match="names another file"):
        session.Session(proto.SerializeToString(), {})
    with pytest.raises(UnsupportedError, match="damaged"):
        session.Session(b"\xff" * 9, {})


def test_onnxruntime_is_looked_for_under_its_name() -> None:
    assert onnx_model.has_runtime() == (find_spec("onnxruntime") is not None)


def test_onnxruntime_keeps_no_file_of_its_use(tmp_path: Path) -> None:
    python("from gossamer import onnx_model; onnx_model.runtime()", timeout=60,
           env={**os.environ, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_all_else_works(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["onnxruntime"] = None
import numpy as np, onnx, gossamer
x = np.array([[-1, 2]], np.float32)
assert (gossamer.compile(sys.argv[1], "host")(x) == [[0, 2]]).all()
try:
    gossamer.compile(sys.argv[2], "host")
except gossamer.GossamerError as error:
    print(error)
"""
    known = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 2)}, {"y": 2})
    unknown = model([helper.make_node("Sinh", ["x"], ["y"], "s")], {"x": ("N", 2)}, {"y": 2})
    for name, proto in (("known", known), ("unknown", unknown)):
        onnx.save(proto, tmp_path / f"{name}.onnx")
    result = python(code, tmp_path / "known.onnx", tmp_path / "unknown.onnx")
    assert "does not compute Sinh 's'" in result.stdout
    assert "pip install '.[onnxruntime]' in gossamer's checkout" in result.stdout


def test_networks_without_parts_do_not_load_onnxruntime(tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 2)}, {"y": 2})
    onnx.save(proto, tmp_path / "known.onnx")
    code = ("import sys, numpy as np, gossamer; "
            "gossamer.compile(sys.argv[1], 'host', vendors=False)(np.zeros((1, 2), np.float32)); "
            "assert 'onnxruntime' not in sys.modules")
    python(code, tmp_path / "known.onnx")


def test_a_part_is_measured_with_the_shape_that_it_takes() -> None:
    """A node of ONNX Runtime takes a shape that the network's batch size decides."""
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        test (float[N, 4, 6] x) => (float[N, 2, 4] y) <int64[2] sizes = {2, 4}, float[N, 2, 4] b> {
            batch = Shape<end = 1>(x)    shape = Concat<axis = 0>(batch, sizes)
            a = Relu(x)    b = CenterCropPad(a, shape)    y = Neg(b) }""")
    plan = gossamer.compile(proto, "host", effort="quick")
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 4, 6)).astype(np.float32)
        np.testing.assert_array_equal(plan(x), -np.maximum(x[:, 1:3, 1:5], 0))


@pytest.mark.parametrize("nodes", [
    [helper.make_node("GatherElements", ["a", "places"], ["b"], axis=1)],
    [helper.make_node("ScatterElements", ["a", "places", "a"], ["b"], axis=1)]],
    ids=["gather", "scatter"])
def test_a_part_is_measured_with_indices_in_range(nodes: list[onnx.NodeProto]) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["a"]), *nodes,
                   helper.make_node("Neg", ["b"], ["y"])],
                  {"x": ("N", 1, 6), "places": ("N", 1, 6)}, {"y": 3},
                  types={"places": TensorProto.INT64}, opset=16)
    x = RNG.standard_normal((3, 1, 6)).astype(np.float32)
    plan = gossamer.compile(proto, "host", effort="quick")
    np.testing.assert_array_equal(plan(x, np.zeros(x.shape, np.int64)), -np.maximum(x, 0))


@pytest.mark.library_parts
def test_a_part_that_refuses_drawn_inputs_leaves_the_report_without_times() -> None:
    """The indices of a table that begins at 100 are no numbers that a profile draws."""
    nodes = [helper.make_node("Sub", ["x", "first"], ["place"]),
             helper.make_node("Unsqueeze", ["place", "last"], ["places"]),
             helper.make_node("ScatterND", ["rows", "places", "u"], ["table"], "scatter"),
             helper.make_node("Relu", ["table"], ["positive"]),
             helper.make_node("MatMul", ["positive", "weight"], ["y"])]
    proto = model(nodes, {"x": (2,), "u": (2, 4)}, {"y": 2},
                  {"first": np.array(100), "last": np.array([-1]), "rows": ROWS,
                   "weight": ROWS[:4]}, types={"x": TensorProto.INT64})
    plan = gossamer.compile(proto, "host", effort="quick", only="onnxruntime")
    report = plan.report()
    assert any(note.startswith("the times of single layers are missing: ScatterND 'scatter': ")
               for note in report.notes)
    x, u = np.array([101, 104]), ROWS[:2]
    np.testing.assert_allclose(plan(x, u), expected(proto, x, u)[0], rtol=1e-5)
