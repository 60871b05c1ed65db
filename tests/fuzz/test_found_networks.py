"""Networks that once did harm: each is read, or refused in one line, and takes little memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import gossamer
from gossamer.device.base import Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.errors import InputError, ModelError
from gossamer.model.passes.fusion import MOST_STEPS
from gossamer.model.prune import prune
from tests.fuzz import seeds
from tests.fuzz.refusal import MIB, one_node, refusal, resolved
from tests.model.onnx_models import model, save, weights
from tests.onnx_parts import counting, texts
from tests.plan.small import small


def test_long_chains_are_merged_in_parts(tmp_path: Path) -> None:
    count = 3000
    nodes = [helper.make_node("Neg" if index % 2 else "Relu", [f"v{index}" if index else "x"],
                              [f"v{index + 1}"]) for index in range(count)]
    graph = resolved(model(nodes, {"x": ("N", 4)}, {f"v{count}": None}), tmp_path)
    lengths = [len(node.attributes["expression"].steps) for node in graph.nodes]
    assert len(lengths) == -(-count // MOST_STEPS) and max(lengths) == MOST_STEPS
    assert sum(lengths) == count


def test_a_part_of_a_model_is_not_quoted() -> None:
    message = refusal(lambda: gossamer.load(small().graph), InputError)
    assert "cannot load a GraphProto" in message and len(message) < 200


def test_long_names_are_cut(tmp_path: Path) -> None:
    proto = one_node("Relu")
    proto.graph.node[0].name = "n" * 10**6
    proto.graph.node[0].input[0] = "v" * 10**6
    message = refusal(lambda: gossamer.load(save(proto, tmp_path)), ModelError)
    assert "nnn...nnn" in message and "vvv...vvv" in message
    assert message.endswith("which no input, initializer or node provides")


def test_a_name_within_a_loop_that_is_no_text(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["s"], ["t"]), helper.make_node("Identity", ["go"], ["on"])],
        "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []),
                 helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                 helper.make_tensor_value_info("s", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])])
    proto = model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], {"x": [2]},
                  {"y": 1}, {"n": np.int64(3)})
    data = proto.SerializeToString().replace(b"Relu", b"R\xff\xfeu")
    message = refusal(lambda: gossamer.load(data), ModelError)
    assert "is no text in UTF-8" in message


def test_a_string_initializer_is_in_order(tmp_path: Path) -> None:
    proto = one_node("Relu")
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"]))
    plan = gossamer.compile(str(save(proto, tmp_path)), "host")
    np.testing.assert_array_equal(plan(-np.ones((2, 4), np.float32)), np.zeros((2, 4)))


@pytest.mark.parametrize("key", ["classes", "anchors", "preprocessing", "picture"])
@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 400 + "1"
                                  + "}" * 400, '{"mean": ' + "[" * 700 + "]" * 700 + "}"])
def test_deep_metadata_is_passed_over(key: str, text: str, tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(small().SerializeToString())
    proto.metadata_props.add(key=key, value=text)
    graph = gossamer.load(save(proto, tmp_path))
    assert graph.metadata.classes == () and graph.metadata.anchors == ()


@pytest.mark.parametrize("scale", [1e9, 3e38, np.inf, np.nan, -1.0])
def test_scales_without_bounds(scale: float, tmp_path: Path) -> None:
    proto = model([helper.make_node("Resize", ["x", "", "s"], ["y"], "layer")],
                  {"x": ("N", 1, 4, 4)}, {"y": None},
                  {"s": np.array([1, 1, scale, scale], np.float32)})
    assert "Resize 'layer'" in refusal(lambda: resolved(proto, tmp_path), ModelError)


@pytest.mark.parametrize(("attribute", "text"), [
    (helper.make_attribute("transB", 1.0), "'transB' is of type"),
    (helper.make_attribute("transB", "1"), "'transB' is of type"),
    (helper.make_attribute("transB", [1]), "'transB' is of type"),
    (helper.make_attribute("alpha", 1), "'alpha' is of type"),
    (onnx.AttributeProto(name="transB", type="INT", i=1, f=0.0), "holds f and i")])
def test_attributes_of_other_values(attribute: onnx.AttributeProto, text: str,
                                    tmp_path: Path) -> None:
    proto = one_node("Gemm", constants={"w": weights(4, 4)})
    proto.graph.node[0].attribute.append(attribute)
    assert text in refusal(lambda: resolved(proto, tmp_path), ModelError)


def test_more_outputs_than_the_op_has(tmp_path: Path) -> None:
    proto = one_node("Gather", constants={"i": np.array([0, 1])})
    proto.graph.node[0].output.append("z")
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert "Gather 'layer': has 2 outputs, expected 1" in message


@pytest.mark.parametrize("name", ["transB", "unknown"])
@pytest.mark.parametrize("kind", sorted(onnx.AttributeProto.AttributeType.values()))
def test_an_integer_that_says_it_is_of_any_type(kind: int, name: str, tmp_path: Path) -> None:
    """No definition of an op says which type an unknown attribute has."""
    proto = one_node("Gemm", constants={"w": weights(4, 4)})
    proto.graph.node[0].attribute.append(onnx.AttributeProto(name=name, type=kind, i=1))
    if kind == onnx.AttributeProto.INT:
        resolved(proto, tmp_path)
        return
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    shown = onnx.AttributeProto.AttributeType.Name(kind) if kind else "0"
    assert f"attribute '{name}' is of type {shown} and holds i" in message


@pytest.mark.parametrize("dims", [[-1, 4], [4, -1], [-4, -4], [2**62, 4], [5, 4]])
def test_shapes_that_initializers_cannot_have(dims: list[int], tmp_path: Path) -> None:
    proto = one_node("MatMul", constants={"w": weights(4, 4)})
    proto.graph.initializer[0].dims[:] = dims
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert "initializer 'w' is damaged" in message


def test_external_data_that_many_tensors_share_is_bounded(tmp_path: Path) -> None:
    proto = one_node("Relu")
    for index in range(2000):
        tensor = TensorProto(name=f"t{index}", dims=[MIB], data_type=TensorProto.UINT8,
                             data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="w.bin")
        proto.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes(MIB))
    message = refusal(lambda: gossamer.load(save(proto, tmp_path)), InputError)
    assert "with its external data: unpacks to more than 256 MiB" in message


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8])
def test_outputs_of_another_type_than_the_graph(kind: int, tmp_path: Path) -> None:
    proto = one_node("Relu")
    proto.graph.output[0].type.tensor_type.elem_type = kind
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert "output 'y' is declared as" in message and "its node makes float32" in message


@pytest.mark.parametrize("op, attributes, constants", [
    ("Pad", {}, {"p": np.array([0, 0, 2**24, 0])}),
    ("Pad", {}, {"p": np.array([2**62, 0, 0, 0])}),
    ("Expand", {}, {"s": np.array([2**20, 2**20, 1, 4])}),
    ("Expand", {}, {"s": np.array([2**40, 1, 4])})])
def test_values_without_bounds(op: str, attributes: dict[str, Any],
                               constants: dict[str, np.ndarray], tmp_path: Path) -> None:
    proto = one_node(op, attributes, constants, (1, 4))
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert f"{op} 'layer': makes a value of shape" in message
    assert "if this is intended, set GOSSAMER_MAX_BYTES=" in message


@pytest.mark.parametrize("op, constants", [
    ("ConstantOfShape", {"s": np.array([2**20, 2**20])}),
    ("Tile", {"c": weights(4, 4), "r": np.array([2**20, 2**20])}),
    ("Range", {"a": np.array(0), "b": np.array(2**60), "c": np.array(1)}),
    ("Expand", {"c": weights(1), "s": np.array([2**20, 2**20])})])
def test_constants_without_bounds(op: str, constants: dict[str, np.ndarray],
                                  tmp_path: Path) -> None:
    proto = model([helper.make_node(op, list(constants), ["c0"], "layer"),
                   helper.make_node("Add", ["x", "c0"], ["y"], "sum")], {"x": ("N", 4)},
                  {"y": None}, constants)
    assert f"{op} 'layer'" in refusal(lambda: resolved(proto, tmp_path))


WINDOW = {"w": np.ones((1, 1, 3, 3), np.float32)}


@pytest.mark.parametrize("op, attributes, constants", [
    ("MaxPool", {"kernel_shape": [30000] * 2, "pads": [29999] * 4, "strides": [20000] * 2}, {}),
    ("AveragePool", {"kernel_shape": [30000] * 2, "pads": [29999] * 4}, {}),
    ("MaxPool", {"kernel_shape": [2] * 2, "pads": [10**6] * 4, "dilations": [10**6] * 2}, {}),
    ("Conv", {"strides": [2**15] * 2, "pads": [2**15] * 4}, WINDOW),
    ("ConvTranspose", {"strides": [2**15] * 2, "pads": [2**15] * 4}, WINDOW)])
def test_windows_without_bounds(op: str, attributes: dict[str, Any],
                                constants: dict[str, np.ndarray], tmp_path: Path) -> None:
    proto = one_node(op, attributes, constants, ("N", 1, 4, 4))
    assert f"{op} 'layer'" in refusal(lambda: resolved(proto, tmp_path), ModelError)


def test_long_pools_are_looked_at_in_little_memory(tmp_path: Path) -> None:
    proto = one_node("MaxPool", {"kernel_shape": [60000, 1]}, shape=("N", 1, 120_000, 1))
    plan = gossamer.compile(str(save(proto, tmp_path)), "host")
    assert plan.layers(1)


def test_a_step_beyond_all_integers(tmp_path: Path) -> None:
    bounds = {name: np.array([value]) for name, value in
              (("starts", -2**62), ("ends", 2**62), ("axes", 1), ("steps", 2**62))}
    plan = gossamer.compile(str(save(one_node("Slice", None, bounds), tmp_path)), "host")
    x = weights(2, 4)
    np.testing.assert_array_equal(plan(x), x[:, :1])


def test_pictures_in_a_network_are_not_decoded(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(seeds.PIXELS).save(file, "EPS")
    proto = model([helper.make_node("ImageDecoder", ["c"], ["d"], "layer"),
                   helper.make_node("Cast", ["d"], ["y"], to=TensorProto.FLOAT)],
                  {"x": ("N", 4)}, {"y": None},
                  {"c": np.frombuffer(file.getvalue(), np.uint8)}, opset=20)
    message = refusal(lambda: gossamer.load(save(proto, tmp_path)))
    assert "does not compute ImageDecoder 'layer'" in message


@pytest.mark.parametrize("kind", [1000, -1])
def test_tensors_of_unknown_types_are_kept_when_pruning(kind: int) -> None:
    proto = one_node("MatMul", constants={"w": weights(4, 4)})
    proto.graph.initializer[0].data_type = kind
    (layer,) = prune(proto, 0.5)
    assert layer.kept == f"its weights are of the unknown type {kind}"


@pytest.mark.parametrize("index", range(5))
def test_no_name_of_a_network_comes_into_a_kernel(index: int, compiled_device: Device,
                                                  monkeypatch: pytest.MonkeyPatch,
                                                  tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(seeds.onnx_files()[index])
    mark = 'MARK"); system("'
    proto.graph.name = mark
    for named in (proto.graph.node, proto.graph.input, proto.graph.output,
                  proto.graph.initializer):
        for entry in named:
            entry.name = mark + entry.name
    for node in proto.graph.node:
        node.input[:] = [name and mark + name for name in node.input]
        node.output[:] = [mark + name for name in node.output]
    sources: list[KernelSource] = []
    build = type(compiled_device).compile

    def recorded(self: Device, source: KernelSource) -> Kernel:
        sources.append(source)
        return build(self, source)

    monkeypatch.setattr(type(compiled_device), "compile", recorded)
    plan = gossamer.compile(str(save(proto, tmp_path)), compiled_device)
    plan(*[np.zeros([1 if size is None else size for size in info.shape], info.dtype)
           for info in plan.inputs])
    assert sources and all("MARK" not in source.text() for source in sources)


@pytest.mark.usefixtures("without_onnxruntime")
def test_loops_in_a_file_are_not_run(tmp_path: Path) -> None:
    assert "does not compute Loop 'loop'" in refusal(
        lambda: gossamer.load(save(counting(2**62), tmp_path)))


def test_nodes_without_inputs_or_outputs_stop_no_pruning() -> None:
    node = helper.make_node
    proto = model([node("Constant", [], [], value=numpy_helper.from_array(weights(2))),
                   node("Identity", [], ["w"]), node("MatMul", ["x", "w"], ["y"]),
                   node("Relu", ["v"], []), node("MatMul", ["x", "v"], ["z"])],
                  {"x": ("N", 4)}, {"y": None}, {"v": weights(4, 4)})
    (layer,) = prune(proto, 0.5)
    assert layer.kept == "Relu 'Relu_' reads its weights too"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_constants_that_are_no_finite_numbers(value: float, tmp_path: Path) -> None:
    proto = one_node("LeakyRelu", {"alpha": float(value)})
    with np.errstate(all="ignore"):
        y = gossamer.compile(str(save(proto, tmp_path)), "host")(np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(y, np.ones((2, 4)))


@pytest.mark.parametrize("kind", [2**31 - 1, 1000])
def test_an_output_of_an_unknown_type_is_refused(kind: int, tmp_path: Path) -> None:
    proto = texts()
    proto.graph.output[1].CopyFrom(helper.make_tensor_value_info("b", kind, ["N", 3]))
    message = refusal(lambda: gossamer.compile(str(save(proto, tmp_path)), "host")(
        np.array(["p", "q"]), np.zeros((1, 3), np.float32)))
    assert f"output 'b' is declared as number {kind}, its node makes object" in message
