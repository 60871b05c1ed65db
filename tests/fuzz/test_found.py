"""Files that once did harm: each is read, or refused in one line, and takes little memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import gossamer
from gossamer.bench.rows import read_rows
from gossamer.bench.sparse_files import read_archive, read_sparse
from gossamer.device.base import Device, Kernel
from gossamer.device.source import KernelSource
from gossamer.errors import MOST_CHARACTERS, GossamerError, InputError, ModelError
from gossamer.io.arrays import read_arrays
from gossamer.io.images import load_image
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.fusion import MOST_STEPS
from gossamer.model.passes.optimise import optimise
from gossamer.model.prune import prune
from gossamer.plan.plan import Plan
from gossamer.plan.store import tuning_file
from gossamer.train import MLP
from gossamer.train.data import sources
from tests.bench.rows import row
from tests.fuzz import seeds
from tests.model.onnx_models import model, save, weights
from tests.plan.small import small

MIB = 2**20


def refusal(read: Callable[[], object], kind: type[GossamerError] = GossamerError) -> str:
    """Returns the message with which a file is refused, which is one line of bounded length."""
    with pytest.raises(kind) as caught:
        read()
    message = str(caught.value)
    assert message.isprintable() and len(message) <= MOST_CHARACTERS
    return message


def resolved(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph = optimise(gossamer.load(save(proto, folder)))
    resolve(graph, 2)
    return graph


def one_node(op: str, attributes: dict[str, Any] | None = None,
             constants: dict[str, np.ndarray] | None = None, shape: tuple[Any, ...] = ("N", 4),
             opset: int = 17) -> onnx.ModelProto:
    """Returns a network of one node, which reads x and the constants."""
    node = helper.make_node(op, ["x", *(constants or {})], ["y"], "layer", **(attributes or {}))
    return model([node], {"x": shape}, {"y": None}, constants, opset)


def no_program(arguments: str) -> None:
    """Runs a piece of Python that ends with an error where it starts a program."""
    watch = ("import sys\ndef hook(event, _):\n"
             "    if event.startswith(('subprocess', 'os.system', 'os.exec', 'os.posix_spawn')):\n"
             "        sys.exit(9)\nsys.addaudithook(hook)\n")
    finished = subprocess.run([sys.executable, "-c", watch + arguments], check=False, timeout=60)
    assert finished.returncode == 0


def test_a_picture_of_another_format_starts_no_program(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.fromarray(seeds.PIXELS).save(path, "EPS")
    no_program("from gossamer.io.images import load_image\nfrom gossamer.errors import InputError\n"
               f"try:\n    load_image({str(path)!r})\nexcept InputError:\n    pass\n"
               "else:\n    sys.exit(1)")


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_MAX_BYTES", "1M")


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("name, read", [
    ("a.onnx.gz", gossamer.load), ("a.csv.gz", sources.load), ("a.tsv.gz", sources.load),
    ("a-images-idx3-ubyte.gz", sources.load), ("a.mtx.gz", read_sparse),
    ("a.tar.gz", read_archive)])
def test_a_packed_file_is_bounded(name: str, read: Callable[[Path], object],
                                  tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(2 * MIB)))
    (tmp_path / "a-labels-idx1-ubyte.gz").touch()
    message = refusal(lambda: read(path), InputError)
    assert "unpacks to more than 1 MiB" in message and "set GOSSAMER_MAX_BYTES=1G" in message


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("read", [lambda path: read_arrays(str(path), "--input"), sources.load])
def test_a_packed_archive_is_bounded(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((2 * MIB, 1), np.uint8), y=np.zeros(2 * MIB, np.uint8))
    assert "unpacks to more than 1 MiB" in refusal(lambda: read(path), InputError)


def test_a_limit_that_is_no_number(tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"1,2\n"))
    for text in ("9x", "-1", "many", "1e9"):
        monkeypatch.setenv("GOSSAMER_MAX_BYTES", text)
        assert "expected a number of bytes" in refusal(lambda: sources.load(packed), InputError)


def test_a_member_with_holes_is_bounded(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.smtx")
        info.size = 512
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                            "GNU.sparse.name": "a.smtx", "GNU.sparse.realsize": str(2**40)}
        archive.addfile(info, io.BytesIO(f"1\n{2**40 - 1}\n1\n".encode().ljust(512, b"\0")))
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(file.getvalue()))
    assert "unpacks to more than 256 MiB" in refusal(lambda: read_archive(path), InputError)


def test_a_long_line_is_not_split(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"0," * (10 * MIB)))
    assert "line 1 has 16777216 characters or more" in refusal(lambda: sources.load(path))


def test_long_chains_are_merged_in_parts(tmp_path: Path) -> None:
    count = 3000
    nodes = [helper.make_node("Neg" if index % 2 else "Relu", [f"v{index}" if index else "x"],
                              [f"v{index + 1}"]) for index in range(count)]
    graph = resolved(model(nodes, {"x": ("N", 4)}, {f"v{count}": None}), tmp_path)
    lengths = [len(node.attributes["expression"].steps) for node in graph.nodes]
    assert len(lengths) == -(-count // MOST_STEPS) and max(lengths) == MOST_STEPS
    assert sum(lengths) == count


def test_a_model_in_memory_is_not_quoted() -> None:
    message = refusal(lambda: gossamer.load(small()), InputError)  # type: ignore[arg-type]
    assert "cannot load a ModelProto" in message and len(message) < 200


def test_long_names_are_cut(tmp_path: Path) -> None:
    proto = one_node("Relu")
    proto.graph.node[0].name = "n" * 10**6
    proto.graph.node[0].input[0] = "v" * 10**6
    message = refusal(lambda: gossamer.load(save(proto, tmp_path)), ModelError)
    assert "nnn...nnn" in message and "vvv...vvv" in message
    assert message.endswith("which no input, initializer or node provides")


def test_a_string_initializer_is_in_order(tmp_path: Path) -> None:
    proto = one_node("Relu")
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"]))
    plan = gossamer.compile(str(save(proto, tmp_path)), "host")
    np.testing.assert_array_equal(plan(-np.ones((2, 4), np.float32)), np.zeros((2, 4)))


@pytest.mark.parametrize("header", [
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (", b"(" * 300, b"\x00" * 60,
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
    b"{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }", b"'''", b"1e", b"[0] * 9"])
def test_damaged_headers_of_arrays(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "cannot be read as a .npy array" in refusal(lambda: read_arrays(str(path), "--input"))


def test_a_label_without_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4)), y=np.array(1))
    message = refusal(lambda: sources.load(tmp_path / "a.npz"), InputError)
    assert "y is scalar int64, expected one label a sample" in message


@pytest.mark.parametrize("key", ["classes", "anchors", "preprocessing", "picture"])
@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 400 + "1"
                                  + "}" * 400, '{"mean": ' + "[" * 700 + "]" * 700 + "}"])
def test_deep_metadata_is_passed_over(key: str, text: str, tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(small().SerializeToString())
    proto.metadata_props.add(key=key, value=text)
    graph = gossamer.load(save(proto, tmp_path))
    assert graph.metadata.classes == () and graph.metadata.anchors == ()


def test_more_outputs_than_the_op_has(tmp_path: Path) -> None:
    proto = one_node("Gather", constants={"i": np.array([0, 1])})
    proto.graph.node[0].output.append("z")
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert "Gather 'layer': has 2 outputs, expected 1" in message


@pytest.mark.parametrize("scale", [1e9, 3e38, np.inf, np.nan, -1.0])
def test_scales_without_bounds(scale: float, tmp_path: Path) -> None:
    proto = model([helper.make_node("Resize", ["x", "", "s"], ["y"], "layer")],
                  {"x": ("N", 1, 4, 4)}, {"y": None},
                  {"s": np.array([1, 1, scale, scale], np.float32)})
    assert "Resize 'layer'" in refusal(lambda: resolved(proto, tmp_path), ModelError)


@pytest.mark.parametrize("attribute", [
    helper.make_attribute("transB", 1.0), helper.make_attribute("transB", "1"),
    helper.make_attribute("transB", [1]), helper.make_attribute("alpha", 1)])
def test_attributes_of_another_type(attribute: onnx.AttributeProto, tmp_path: Path) -> None:
    proto = one_node("Gemm", constants={"w": weights(4, 4)})
    proto.graph.node[0].attribute.append(attribute)
    message = refusal(lambda: resolved(proto, tmp_path), ModelError)
    assert f"attribute '{attribute.name}' is of type" in message


def test_an_attribute_that_holds_two_values(tmp_path: Path) -> None:
    proto = one_node("Gemm", {"transB": 1}, {"w": weights(4, 4)})
    proto.graph.node[0].attribute[0].f = 0.0
    assert "holds f and i" in refusal(lambda: resolved(proto, tmp_path), ModelError)


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
    assert "where that is meant, set GOSSAMER_MAX_BYTES=" in message


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
    message = refusal(lambda: resolved(proto, tmp_path))
    assert "does not compute ImageDecoder 'layer'" in message


def _with_hash(archive: bytes) -> bytes:
    return b"gossamer checkpoint 2\n" + hashlib.sha256(archive).digest() + archive


def _changed(**changes: Any) -> bytes:
    """Returns a checkpoint whose arrays or header have other values, with the right hash."""
    data = seeds.checkpoints()[0][len(b"gossamer checkpoint 2\n") + 32:]
    with np.load(io.BytesIO(data)) as loaded:
        arrays = dict(loaded)
    header = json.loads(arrays["header"].tobytes())
    header.update({key: value for key, value in changes.items() if key not in arrays})
    arrays.update({key: value for key, value in changes.items() if key in arrays})
    if "header" not in changes:
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return _with_hash(file.getvalue())


@pytest.mark.parametrize("changes", [
    {"epochs_done": 10**9}, {"epochs_done": -1}, {"epochs_done": "2"}, {"epochs_done": True},
    {"first": "x"}, {"first": []}, {"rng": None}, {"rng": {}},
    {"rng": {"bit_generator": "MT19937"}},
    {"settings": []}, {"settings": {}}, {"settings": {"sizes": [4, 6, 3]}}, {"data": 1},
    {"parameters": np.zeros(3, np.float32)}, {"parameters": np.zeros((2, 2))},
    {"parameters": np.array(["a"])}, {"curve": np.zeros((2, 2))}, {"curve": np.zeros(0)},
    {"curve": np.array([1, 2])}, {"header": np.zeros(9, np.uint8)},
    {"header": np.frombuffer(b"[" * 5000, np.uint8)}, {"header": np.frombuffer(b"[1]", np.uint8)}],
    ids=lambda changes: next(iter(changes)))
def test_checkpoints_of_a_right_hash_and_wrong_content(changes: dict[str, Any],
                                                       tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(_changed(**changes))
    message = refusal(lambda: seeds.trainer(3).fit(*seeds.blobs(), checkpoint=path, resume=True),
                      InputError)
    assert message.startswith(str(path))


def test_checkpoints_that_are_no_archive_or_lack_an_array(tmp_path: Path) -> None:
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w"):
        pass
    path = tmp_path / "c"
    for content in (b"", b"PK", empty.getvalue()):
        path.write_bytes(_with_hash(content))
        assert "holds what gossamer does not write" in refusal(
            lambda: seeds.trainer(3).fit(*seeds.blobs(), checkpoint=path, resume=True))


def test_a_changed_checkpoint_is_otherwise_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(_changed())
    resumed = MLP.fit(seeds.trainer(3), *seeds.blobs(), checkpoint=path, resume=True)
    assert len(resumed.loss_curve_) == 3


@pytest.mark.parametrize("values", [
    {"batch": "1"}, {"batch": -1}, {"median_us": None}, {"median_us": "fast"}, {"median_us": 0},
    {"median_us": float("nan")}, {"error": []}, {"versions": []}, {"versions": {"a": 1}},
    {"commit": 1}, {"suite": None}, {"notice": 3}, {"speed_of_light_us": "x"}, {"density": {}},
    {"case": ["a"]}], ids=repr)
def test_result_rows_with_values_of_other_types(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    fields = vars(row("gossamer", 10.0)) | values
    path.write_text(json.dumps(fields) + "\n")
    (key,) = values
    assert f"line 1: {key} is " in refusal(lambda: read_rows(path), InputError)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_measurements_with_numbers_that_json_lacks(number: str) -> None:
    content = json.loads(seeds.measurements()[0])
    (problem,) = content["sections"][0]["problems"].values()
    problem["fields"] = {"op": "NUMBER"}
    with pytest.raises(tuning_file.BadFile, match="corrupt or cut short"):
        tuning_file.parse(json.dumps(content).replace('"NUMBER"', number).encode())


@pytest.mark.parametrize("kind", [1000, -1])
def test_tensors_of_unknown_types_are_kept_when_pruning(kind: int) -> None:
    proto = one_node("MatMul", constants={"w": weights(4, 4)})
    proto.graph.initializer[0].data_type = kind
    (layer,) = prune(proto, 0.5)
    assert layer.kept == f"its weights are of the unknown type {kind}"


def test_names_in_an_archive_do_not_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("a\nb\r\n\x1b[31m.smtx")
        archive.addfile(info, io.BytesIO())
    assert r"a b \x1b[31m.smtx" in refusal(lambda: read_archive(path))


def test_cells_of_a_table_do_not_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('label\ta\n1\t"x\ny\n' + "z" * 5000 + '"\n')
    message = refusal(lambda: sources.load(path), InputError)
    assert r"x\ny" in message and "zz...zz" in message


def test_photos_with_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (9000, 9000)).save(path)
    assert "too many pixels; scale it down to 67108864 or fewer" in refusal(
        lambda: load_image(path), InputError)


@pytest.mark.parametrize("text", ["); system(1", "a b", "x\ny", "1", "0x1", "é"])
def test_no_text_of_a_plan_comes_near_a_kernel(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    source = zipfile.ZipFile(io.BytesIO(seeds.plan_files()[0]))
    with zipfile.ZipFile(path, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name == "graph.json":
                graph = json.loads(content)
                graph["nodes"][0]["attributes"]["strides"] = {"tuple": [text, 1]}
                content = json.dumps(graph).encode()
            archive.writestr(name, content)
    assert "is corrupt or cut short" in refusal(lambda: Plan.load(path, "host"), InputError)


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


def test_a_constant_of_an_expression_is_a_number(tmp_path: Path) -> None:
    from gossamer.expression import Expression, ExpressionStep

    for constants in (("1); system(",), (), (1.0, 2.0)):
        with pytest.raises(ValueError, match="bad constants"):
            Expression(1, (ExpressionStep("leaky_relu", (0,), constants),))  # type: ignore[arg-type]


def test_loops_in_a_file_are_not_run(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])])
    proto = model([helper.make_node("Loop", ["count", "go"], ["n"], "loop", body=body),
                   helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 4)}, {"y": None},
                  {"count": np.array(2**62), "go": np.array(True)})
    assert "does not compute Loop 'loop'" in refusal(lambda: gossamer.load(save(proto, tmp_path)))


def test_tensors_are_read_as_before(tmp_path: Path) -> None:
    proto = one_node("MatMul", constants={"w": weights(4, 4)})
    tensor = proto.graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), resolved(
        proto, tmp_path).constants["w"])


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
