"""The reader of ONNX files is recorded for interfaces, attributes and constants of every form."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from gossamer.errors import GossamerError
from gossamer.model.metadata import ModelMetadata
from gossamer.model.readers.onnx.branches import known_branch
from gossamer.model.readers.onnx.constants import external_file, to_array
from gossamer.model.readers.onnx.metadata import entries as entries_of
from gossamer.model.readers.onnx.reader import load_onnx
from gossamer.model.readers.registry import (
    READERS,
    FurtherFile,
    Reader,
    descriptions,
    reader_of,
    stem,
)
from tests.model.onnx_models import model
from tests.model.test_metadata import FULL
from tests.recorded import Recorded, digest
from tests.recorded.graphs import array_text, error_text, graph_text, needs_onnx, outcome

pytestmark = needs_onnx

FLOAT = TensorProto.FLOAT


def relu(outputs: int = 1) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], [f"y{i}"], f"n{i}") for i in range(outputs)],
                 {"x": ["N", 3]}, {f"y{i}": 2 for i in range(outputs)})


def read(proto: onnx.ModelProto, most: int = 160, **options: Any) -> str:
    return outcome(lambda: graph_text(load_onnx(proto, **options)), most=most)


def test_interfaces(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    shapes: dict[str, Sequence[Any] | None] = {
        "none": None, "scalar": [], "free": ["N", 3], "open": ["N", "M"], "1": [1, 3], "2": [2, 3],
        "0": [0, 3], "below 0": [-1, 3], "rank 1": [3], "free rank 1": ["N"], "unnamed": [None, 3]}
    for (one, first), (two, second) in itertools.product(shapes.items(), shapes.items()):
        infos = [helper.make_tensor_value_info(name, FLOAT, shape)
                 for name, shape in (("a", first), ("b", second))]
        outputs = [helper.make_tensor_value_info(name, FLOAT, first) for name in ("y", "z")]
        nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["b"], ["z"])]
        found[f"{one}, {two}"] = read(helper.make_model(
            helper.make_graph(nodes, "g", infos, outputs), ir_version=8,
            opset_imports=[helper.make_opsetid("", 17)]), 120)
    for kind, narrows in itertools.product((*range(18), 21, 99), (False, True)):
        for name in ("x", "y0", "w"):
            proto = relu()
            if name == "w":
                if kind in (0, 8, 14, 15) or kind > 16:  # no kind, texts and complex numbers
                    continue
                proto.graph.node[0].op_type = "Add"
                proto.graph.node[0].input.append("w")
                proto.graph.initializer.append(helper.make_tensor("w", kind, [1], [1]))
            else:
                (proto.graph.input if name == "x" else proto.graph.output)[
                    0].type.tensor_type.elem_type = kind
            found[f"{name} of type {kind}{' narrowed' if narrows else ''}"] = read(
                proto, narrows=narrows)
    proto = relu()
    proto.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(FLOAT, [3])))
    found["sequence"] = read(proto)
    for name in ("ClearField", "initializer", "input", "two inputs", "two initializers",
                 "output twice", "output of an input", "output of nothing", "reads nothing",
                 "makes an input", "makes twice", "cycle", "no output name", "no outputs",
                 "ir version", "unused input", "unused node", "nan", "inf", "one inf",
                 "inf and nan",
                 "without an op", "broken names", "no graph name", "bool output"):
        proto = relu(2)
        _damage(proto, name)
        found[name] = read(proto)
    for outputs in (["y0"], ["y1"], ["y1", "y0"], ["y0", "y0"], ["z"], [], "y0"):
        found[f"outputs {outputs}"] = read(relu(2), outputs=outputs)
    for imports in ([], [("", 0)], [("", 1)], [("", 6)], [("", 7)], [("ai.onnx", 17)],
                    [("ai.onnx", 6), ("", 17)], [("other", 1)], [("", 13), ("other", 1)]):
        for op in ("Relu", "Add", "Softmax"):
            proto = relu()
            proto.graph.node[0].op_type = op
            proto.graph.node[0].input.extend(["x"] * (op == "Add"))
            del proto.opset_import[:]
            proto.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
            found[f"{op} of {imports}"] = read(proto)
    whole = relu().SerializeToString()
    contents: dict[str, Any] = {
        "bytes": whole, "cut": whole[:-1], "none": b"", "text": b"not a network",
        "packed": gzip.compress(whole), "packed and cut": gzip.compress(whole)[:-9], "number": 3,
        "external": _external().SerializeToString(),
        **{f"broken {name}": whole.replace(*pair) for name, pair in {
            "node": (b"n0", b"\xff0"), "op": (b"Relu", b"\xffelu"), "graph": (b"test", b"\xffest"),
            "value": (b"y0", b"\xff0")}.items()}}
    for name, content in contents.items():
        text = outcome(lambda content=content: graph_text(load_onnx(content)))
        found[f"content {name}"] = text.replace("ONNX bytes: ", "")
    recorded("onnx_interfaces", found)


def _external() -> onnx.ModelProto:
    proto = relu()
    tensor = TensorProto(name="w", dims=[1], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    proto.graph.initializer.append(tensor)
    return proto


def _damage(proto: onnx.ModelProto, name: str) -> None:
    """Changes a network of two Relu in the way that a case names."""
    graph = proto.graph
    numbers = {"nan": [np.nan, 1], "inf": [np.inf, 1], "one inf": [np.inf],
               "inf and nan": [np.inf, np.nan, -np.inf]}
    match name:
        case "ClearField":
            graph.ClearField("input")
        case "initializer" | "input":
            graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
            if name == "input":
                graph.input.append(helper.make_tensor_value_info("w", FLOAT, [3]))
            graph.node[0].input[0] = "w"
        case "two inputs":
            graph.input.append(graph.input[0])
        case "two initializers":
            graph.initializer.extend([numpy_helper.from_array(np.ones(3), "w")] * 2)
        case "output twice":
            graph.output.append(graph.output[0])
        case "output of an input":
            graph.output[0].name = "x"
        case "output of nothing":
            graph.output[0].name = "z"
        case "reads nothing":
            graph.node[0].input[0] = "z"
        case "makes an input":
            graph.node[0].output[0] = "x"
        case "makes twice":
            graph.node[0].output[0] = "y1"
        case "cycle":
            graph.node[0].input[0], graph.node[1].input[0] = "y1", "y0"
        case "no output name":
            graph.node[0].output[0] = ""
        case "no outputs":
            graph.ClearField("output")
        case "ir version":
            proto.ir_version = 0
        case "unused input":
            graph.input.append(helper.make_tensor_value_info("u", FLOAT, [3]))
        case "unused node":
            graph.node.append(helper.make_node("Relu", ["nothing"], ["u"]))
        case "without an op":
            graph.node[0].op_type = ""
        case "broken names":
            graph.node[0].name = graph.node[1].name = "same"
        case "no graph name":
            graph.name = ""
        case "bool output":
            graph.node[0].op_type = "IsNaN"
            graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
            graph.node[1].op_type, graph.node[1].input[0] = "Not", "y0"
        case _:
            graph.initializer.append(numpy_helper.from_array(np.float32(numbers[name]), "w"))
            graph.node[0].op_type = "Add"
            graph.node[0].input.append("w")


def test_forms_of_nodes(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    values: dict[str, Any] = {
        "f": 1.0, "i": 1, "s": b"NOTSET", "t": numpy_helper.from_array(np.ones(1)),
        "g": helper.make_graph([], "g", [], []), "floats": [1.0, 2.0], "ints": [1, 2],
        "strings": [b"a"]}
    kinds = AttributeProto.AttributeType.keys()
    for op, name in (("LeakyRelu", "alpha"), ("Flatten", "axis"), ("Transpose", "perm"),
                     ("Gelu", "approximate"), ("Relu", "zz"), ("Warp", "zz")):
        for kind in kinds:
            for held in values if op in ("LeakyRelu", "Relu") else ("i", "ints", "s"):
                proto = relu()
                proto.opset_import[0].version = 20
                proto.graph.node[0].op_type = op
                attribute = AttributeProto(name=name, type=kind)
                _hold(attribute, held, values[held])
                proto.graph.node[0].attribute.append(attribute)
                found[f"{op} {kind} with {held}"] = read(proto)
    for op, counts in (("Relu", (0, 1, 2)), ("Add", (1, 2, 3)), ("Clip", (0, 3, 4)),
                       ("Concat", (0, 1)), ("BatchNormalization", (4, 6)), ("Sum", (0, 5))):
        for count, outputs in itertools.product(counts, (0, 1, 2)):
            proto = relu()
            del proto.graph.node[0].input[:], proto.graph.node[0].output[:]
            proto.graph.node[0].op_type = op
            proto.graph.node[0].input.extend(["x"] * count)
            proto.graph.node[0].output.extend(["y0", "z"][:outputs])
            found[f"{op} of {count} inputs, {outputs} outputs"] = read(proto)
    proto = relu()
    proto.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2)
    found["two attributes"] = read(proto)
    proto = relu()
    proto.graph.node[0].op_type = "LeakyRelu"
    proto.graph.node[0].attribute.append(helper.make_attribute("alpha", 1.0))
    proto.graph.node[0].attribute[0].i = 3
    found["two values"] = read(proto)
    for op, attributes in (("ConstantOfShape", {"value": TensorProto(
            name="v", dims=[3], data_type=FLOAT, raw_data=b"12")}), ("Relu", {"zz": "a"})):
        proto = relu()
        proto.graph.node[0].op_type = op
        proto.graph.node[0].attribute.extend(
            helper.make_attribute(*each) for each in attributes.items())
        found[f"{op} with {list(attributes)}"] = read(proto)
    for taken in ("y0.b", "y0.c", "y0.bias", "v"):
        proto = model([helper.make_node("Gemm", ["x", "w", "v"], ["y0"], "n", alpha=2.0, beta=0.5)],
                      {"x": ["N", 3]}, {"y0": 2}, {
                          "w": np.ones((3, 2), np.float32), "v": np.ones((1, 2), np.float32),
                          taken: np.ones((1, 2), np.float32)})
        found[f"constant {taken} is there"] = read(proto, 400)
    recorded("onnx_forms", found)


def _hold(attribute: AttributeProto, field: str, value: Any) -> None:
    if field in ("t", "g"):
        getattr(attribute, field).CopyFrom(value)
    elif isinstance(value, list):
        getattr(attribute, field).extend(value)
    else:
        setattr(attribute, field, value)


def test_tensors(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}

    def array(tensor: TensorProto) -> Callable[[], str]:
        def text() -> str:
            try:
                return array_text(to_array(tensor))
            except ValueError as error:
                return f"! {error}" if str(error).startswith("it") else "! of onnx"
        return text

    for dims in ([], [0], [1], [2], [3], [2, 3], [6], [-1], [2, 0], [1] * 32, [1] * 33, [1] * 31):
        for size in (0, 4, 7, 8, 24):
            told = dims if len(dims) < 4 else f"{len(dims)} dimensions"
            found[f"{told} of {size} bytes"] = outcome(array(TensorProto(
                name="w", dims=dims, data_type=FLOAT, raw_data=bytes(range(size)))))
    for kind in range(24):
        for data in ({"int32_data": [1, 2]}, {"float_data": [1, 2]}, {"raw_data": b"\1\2"},
                     {"int64_data": [3, 4]}, {"raw_data": bytes(range(8))}):
            told = " ".join(f"{key}={value!r}" for key, value in data.items())
            found[f"type {kind} {told}"] = outcome(array(TensorProto(
                name="w", dims=[2], data_type=kind, **data)))
    for dims, values, indices in itertools.product(
            ([4], [2, 3], [0], [2, -1]), ([1], [1, 2], [], [[1]]),
            ([0], [3], [4], [-1], [0, 5], [[0, 1]], [[1, 2]], [[2, 0]], [[0], [1]], [], [0, 1, 2])):
        tensor = onnx.SparseTensorProto(dims=dims)
        tensor.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), "w"))
        tensor.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64), "i"))
        proto = relu()
        proto.graph.node[0].op_type = "Add"
        proto.graph.node[0].input.append("w")
        proto.graph.sparse_initializer.append(tensor)
        found[f"sparse {dims} {values} at {indices}"] = _without_arrays(read(proto))
        proto = relu()
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
        proto.graph.node[1].op_type = "Add"
        proto.graph.node[1].input.append("w")
        if len(values) == np.array(indices).reshape(-1).size == 1:
            found[f"sparse value {dims} {values} at {indices}"] = _without_arrays(read(proto))
    recorded("onnx_tensors", found)


def _without_arrays(text: str) -> str:
    return text.partition("is damaged")[0]


def test_external_data(tmp_path: Path, without_onnxruntime: None, recorded: Recorded,
                       monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    path, data = tmp_path / "f.onnx", tmp_path / "w.bin"
    data.write_bytes(np.arange(10, dtype=np.float32).tobytes())

    def case(name: str, dims: Sequence[int] = (3,), kind: int = FLOAT, limit: str = "",
             inner: bool = False, **entries: str) -> None:
        monkeypatch.setenv("GOSSAMER_MAX_BYTES", limit)
        tensor = TensorProto(name="w", dims=dims, data_type=kind,
                             data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "w.bin", **entries}.items():
            tensor.external_data.add(key=key, value=value)
        proto = relu()
        proto.graph.node[0].op_type = "Add"
        proto.graph.node[0].input.append("w")
        if inner:
            proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
        else:
            proto.graph.initializer.append(tensor)
        path.write_bytes(proto.SerializeToString())
        text = outcome(lambda: graph_text(load_onnx(path)), tmp_path)
        found[name] = text.partition("cannot be read (")[0]
        found[f"{name} in memory"] = f"{external_file(proto)} {read(proto)}"

    for length in ("", "0", "11", "12", "13"):
        case(f"length {length}", **({"length": length} if length else {}))
    for offset in ("0", "4", "27", "28", "29", "40"):
        case(f"offset {offset}", offset=offset)
    for dims in ((), (0,), (10,), (11,), (-1,), (2, 5)):
        case(f"dims {dims}", dims)
    for kind in (0, TensorProto.STRING, TensorProto.INT4, TensorProto.INT8, TensorProto.DOUBLE,
                 TensorProto.UINT4):
        case(f"type {kind}", (5,), kind)
        case(f"type {kind} of 40 bytes", (5,), kind, length="40")
    for limit in ("11", "12", "13"):
        case(f"limit {limit}", limit=limit)
    case("of a constant", inner=True)
    case("absent", location="v.bin")
    case("above", location="../w.bin")
    recorded("onnx_external", found)


def test_folding_within_limits(without_onnxruntime: None, recorded: Recorded,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants of 40 bytes that nodes make one from another, under limits of some bytes."""
    found: dict[str, str] = {}
    make = helper.make_node
    networks: dict[str, list[onnx.NodeProto]] = {
        "chain": [make("Neg", ["w"], ["a"]), make("Neg", ["a"], ["b"]), make("Neg", ["b"], ["c"])],
        "kept": [make("Neg", ["w"], ["a"]), make("Neg", ["a"], ["b"]), make("Add", ["a", "b"],
                                                                            ["c"])],
        "expanded": [make("Expand", ["w", "sizes"], ["a"]), make("Neg", ["a"], ["b"]),
                     make("ReduceSum", ["b", "zero"], ["c"], keepdims=0)],
        "places": [make("NonZero", ["w"], ["a"]), make("Squeeze", ["a", "zero"], ["b"]),
                   make("Cast", ["b"], ["c"], to=1)],
        "axis": [make("Neg", ["zero"], ["a"]), make("CumSum", ["x", "a"], ["c"])],
        "split": [make("Split", ["w"], ["a", "b"], axis=0), make("Concat", ["a", "b"], ["c"],
                                                                 axis=0)],
        "compressed": [make("Compress", ["w", "chosen"], ["c"], axis=0)],
        "quant": [make("Quant", ["w", "scale", "scale", "bits"], ["c"],
                       domain="qonnx.custom_op.general")],
        "constant": [make("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(10)))],
        "random": [make("RandomNormal", [], ["c"], shape=[10])],
        "unknown": [make("Hardmax", ["w"], ["c"])], "wrong": [make("MatMul", ["w", "sizes"],
                                                                   ["c"])]}
    for name, nodes in networks.items():
        for limit in (1, 39, 40, 41, 79, 80, 81, 119, 120, 121, 399, 400, 401, 10**9):
            monkeypatch.setenv("GOSSAMER_MAX_BYTES", str(limit))
            proto = model([*nodes, make("Add", ["x", "c"], ["y"])], {"x": ["N", 10]}, {"y": 2}, {
                "w": np.arange(10, dtype=np.float32), "sizes": np.array([10, 10]),
                "zero": np.array([0]), "scale": np.float32(2), "bits": np.float32(4),
                "chosen": np.arange(10) > 3})
            proto.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
            found[f"{name} {limit}"] = read(proto)
    recorded("onnx_folding", found)


METADATA: dict[str, tuple[str, ...]] = {
    "classes": ('["a", "b"]', '["a", 1]', '[1.5]', '{"a": 1}', "[]", "[", "", "null", '"ab"',
                "[true]", "[null]"),
    "names": ("{0: 'a', 1: 'b'}", "['a', 'b']", "{1: 'a'}", "{0: 1}", "[1]", "{0: 'a', 2: 'b'}",
              "x",
              "", "{}", "('a',)", "{1: 'b', 0: 'a'}"),
    "outputs": ("scores", "other", ""),
    "picture": (
        *(f'{{"height": {height}, "width": {width}, "channels": "grey"}}' for height, width in (
            (1, 2), (0, 2), (2, 0), (1, 1), ("1.0", 2), (1, '"a"'), ("true", 2), (2, "true"))),
        *(f'{{"height": 1, "width": 2, "channels": "grey", "brightness": {number}}}'
          for number in (0.5, 1, "true", '"a"')),
        '{"height": 1, "width": 2, "channels": "rgb"}', "[]", '{"height": 1}',
        '{"channels": "grey"}'),
    "anchors": ("[[1, 2]]", "[]", "[[1]]", "[[0, 1]]", '{"a": 1}'),
    "detector": (*(f'{{"heads": [{{"kind": "yolo", "mask": [{mask}]}}], "classes": 2}}'
                   for mask in ("0", "1", "0, 1", "")), "[]", "{}"),
    "preprocessing": ('{"size": [6, 5]}', "[]", '{"size": [0, 5]}'),
    "columns": ('[{"name": "a", "fill": 1}]', "[]", "[1]"),
}
"""Texts of a file's metadata by their key."""


def test_metadata(without_onnxruntime: None, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    cases: list[dict[str, str]] = [{}, {"classes": "[", "names": "['z']"},
                                   {"classes": '["a"]', "names": "['z']"}]
    for key, texts in METADATA.items():
        for text in texts:
            cases.append({key: text})
            if key == "detector":
                cases.append({key: text, "anchors": "[[1, 2]]"})
    for entries in cases:
        proto = relu()
        for key, text in entries.items():
            proto.metadata_props.add(key=key, value=text)
        metadata = load_onnx(proto).metadata
        changed = {name: value for name, value in vars(metadata).items()
                   if value != type(metadata)().__dict__[name]}
        found[str(entries).replace(": ", "=")] = str(changed)
    fields = vars(FULL)
    for name in fields:
        texts = entries_of(ModelMetadata(**{name: fields[name]}))
        found[f"written {name}"] = str(dict(texts))
    found["written whole"], found["written nothing"] = (
        str(dict(entries_of(each))) for each in (FULL, ModelMetadata()))
    found["written without brightness"] = str(dict(entries_of(ModelMetadata(picture=(3, 4)))))
    recorded("onnx_metadata", found)


def test_files(tmp_path: Path, recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for name in ("a.onnx", "a.ONNX", "a.onnx.gz", "a.b.onnx.gz", "a.gz", "a.cfg", ".onnx", "onnx",
                 "a.weights", "a.tar.gz", "a.cfg.onnx", "A.Cfg", "a"):
        reader = reader_of(name)
        found[name] = f"{reader and reader.description} {stem(Path(name))!r}"
    readers = {"onnx": READERS[0], "darknet": READERS[1], "two": Reader(
        "two files", (".two",), load_onnx, (FurtherFile("mean", ".m"), FurtherFile("labels",
                                                                                   ".l")))}
    for (name, reader), there, beside, given in itertools.product(
            readers.items(), (True, False), ((), (".weights",), (".m",), (".m", ".l")), range(4)):
        folder = tmp_path / name / str(there) / "-".join(beside)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"net{reader.suffixes[0]}"
        for suffix in ([reader.suffixes[0]] if there else []) + list(beside):
            (folder / f"net{suffix}").touch()
        further = [Path(f"{index}.f") for index in range(given)]
        try:
            files = reader.files(path, further)
            text = " ".join(map(str, files))
        except GossamerError as error:
            text = error_text(error)
        found[f"{name}{' there' * there} beside {beside}, {given} given"] = text.replace(
            f"{folder}/", "")
    path = tmp_path / "r.onnx"
    path.write_bytes(relu().SerializeToString())
    found["read"] = graph_text(READERS[0].read(path, outputs=["y0"]), names=True)
    assert READERS[0].read_onnx is not None
    found["read as a model"] = str(READERS[0].read_onnx(path).graph.node[0].op_type)
    found["descriptions"] = descriptions()
    recorded("reader_files", found)


def test_branches_in_which_a_node_has_no_graph(recorded: Recorded) -> None:
    graph = load_onnx(relu())
    graph.constants.update({"t": np.array(True), "f": np.array(False), "two": np.array([0, 1])})
    found: dict[str, str] = {}
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["i"])], "g", [], [
        helper.make_tensor_value_info("i", FLOAT, None)])
    for given, taken, outputs, attributes in itertools.product(
            ("t", "f", "two", "x", ""), ((), ("i",), ("j",)), (0, 1, 2), (
                {}, {"then_branch": inner}, {"else_branch": inner})):
        node = helper.make_node("If", [given] if given else [], ["y", "z"][:outputs], "n",
                                **attributes)
        result = known_branch(node, graph, None, taken)
        found[f"{given or 'nothing'} {taken} {outputs} {list(attributes)}"] = (
            "none" if result is None else
            f"{result[0]} {[f'{each.op_type} {each.input}>{each.output}' for each in result[1]]}")
    by_text: dict[str, list[str]] = {}
    for case, text in found.items():
        by_text.setdefault(text, []).append(case)
    recorded("onnx_branches", {text.replace(": ", ":"): f"{len(names)} {names[0]} {digest(names)}"
                               for text, names in by_text.items()})
