"""The code in the pages add-*.md is loaded and run."""

import dataclasses
import importlib
import importlib.util
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import gossamer
import gossamer.ops
from gossamer import tensor
from gossamer.errors import ModelError
from gossamer.expression import apply
from gossamer.facts import ValueFacts
from gossamer.model import readers
from gossamer.model.builder import GraphBuilder
from gossamer.model.opset import definition, reductions
from gossamer.model.opset.registry import OPSET
from gossamer.model.readers import registry
from gossamer.model.readers.onnx import layout, load_nodes
from gossamer.ops.algorithm import Algorithm, Epilogue
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import convert
from gossamer.ops.op import Op
from gossamer.ops.part import operators
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.lower import rules
from gossamer.plan.plan import Plan
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format, TensorSpec, default_spec, pack, unpack
from tests.cli.command_line import fails
from tests.model.onnx_models import model, save
from tests.ops import harness

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def direct(tmp_path_factory) -> Algorithm:
    """The algorithm that the page add-an-algorithm.md adds, loaded from the page."""
    folder = tmp_path_factory.mktemp("example")
    text = (DOCS / "add-an-algorithm.md").read_text()
    for language, name in (("c", "direct.cl"), ("python", "direct.py")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(block)
    spec = importlib.util.spec_from_file_location("direct", folder / "direct.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Direct()


@pytest.mark.parametrize("problem", [
    Conv2dProblem(1, 3, 5, 6, 4, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(3, 4, 7, 5, 6, (3, 2), stride=(2, 1), pads=(0, 1, 2, 0), groups=2,
                  epilogue=Epilogue(apply("add").then(apply("relu")), ("channel",))),
    Conv2dProblem(2, 4, 6, 6, 4, (2, 2), dilation=(2, 2), groups=4,
                  epilogue=Epilogue(apply("add"), ("tensor",))),
    Conv2dProblem(0, 3, 5, 5, 4, (3, 3)),
], ids=Conv2dProblem.describe)
def test_add_an_algorithm(direct, compiled_device, problem, monkeypatch):
    op = Op("conv2d", Conv2dProblem, OP.reference, (direct,))
    monkeypatch.setattr(harness, "op_of", lambda _: op)
    assert len(harness.check(problem, compiled_device)) == 2


def _blocks_by_file(page: Path) -> dict[str, str]:
    """Returns the Python code below each heading that names a file, by file."""
    sections = re.split(r"^## .*?`(gossamer/[\w./]+)`$", page.read_text(), flags=re.MULTILINE)
    blocks: dict[str, str] = {}
    for file, text in zip(sections[1::2], sections[2::2], strict=True):
        code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
        blocks[file] = f"{blocks[file]}\n{code}" if file in blocks else code
    return blocks


@pytest.fixture
def cumsum(tmp_path, monkeypatch):
    """The op that the page add-an-op.md adds, registered as the page says."""
    blocks = _blocks_by_file(DOCS / "add-an-op.md")
    (tmp_path / "cumsum").mkdir()
    for file, code in blocks.items():
        if file.startswith("gossamer/ops/cumsum/"):
            (tmp_path / "cumsum" / Path(file).name).write_text(code)
    monkeypatch.setattr(gossamer.ops, "__path__", [*gossamer.ops.__path__, str(tmp_path)])
    op = importlib.import_module("gossamer.ops.cumsum").OP
    monkeypatch.setitem(OPS, "cumsum", op)

    def made(module, file, name="_cumsum", **names):
        namespace = {**vars(module), **names}
        exec(blocks[file], namespace)
        return namespace[name]

    monkeypatch.setitem(load_nodes._CONVERTERS, "CumSum",
                        made(layout, "gossamer/model/readers/onnx/layout.py"))
    monkeypatch.setitem(OPSET, "cumsum", made(
        reductions, "gossamer/model/opset/reductions.py", "CUMSUM",
        nothing_known=definition.nothing_known))
    monkeypatch.setitem(operators.OPERATORS, "cumsum", made(
        operators, "gossamer/ops/part/operators.py", CumsumProblem=op.problem, np=np))
    monkeypatch.setitem(rules._RULES, "cumsum",
                        made(rules, "gossamer/plan/lower/rules.py", CumsumProblem=op.problem))
    rules.check_rules(OPSET, rules._RULES)
    yield op
    for name in [name for name in sys.modules if name.startswith("gossamer.ops.cumsum")]:
        del sys.modules[name]


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_add_an_op(cumsum, axis):
    host = gossamer.device.registry.find("host")
    assert harness.check(cumsum.problem(default_spec((2, 3, 4, 5)), axis, axis == 1), host)
    with pytest.raises(ValueError, match="axis 4 is not one of"):
        cumsum.problem(default_spec((2, 3, 4, 5)), 4)


def assert_sums(plan, algorithm):
    """Assert that a plan adds the numbers before each along the last axis, by that algorithm."""
    x = np.random.default_rng(0).random((5, 3, 4), np.float32)
    np.testing.assert_allclose(plan(x), np.cumsum(x, axis=-1) - x, rtol=1e-5, atol=1e-6)
    (row,) = plan.report().rows
    assert (row["op"], row["algorithm"]) == ("cumsum", algorithm)


def test_add_an_op_from_a_file_to_numbers(cumsum, tmp_path):
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1)]
    file = save(model(nodes, {"x": ("N", 3, 4)}, {"y": 3}, {"axis": np.array(-1)}), tmp_path)
    assert_sums(gossamer.compile(str(file), device="host"), "numpy")


@pytest.mark.library_parts
def test_add_an_op_that_onnx_runtime_computes_too(cumsum):
    build = GraphBuilder("sums")
    x = build.input("x", (None, 3, 4))
    build.output(build.add("cumsum", [x], axis=2, exclusive=True), (None, 3, 4))
    assert_sums(gossamer.compile(build.finish(), device="host"), "onnxruntime")


@pytest.fixture
def formats(tmp_path, monkeypatch):
    """The layout and the packed dtype that the page add-a-format.md adds, registered as the page
    says, and its algorithm."""
    blocks = _blocks_by_file(DOCS / "add-a-format.md")
    namespace = {**vars(tensor), "PACKED_DTYPES": dict(tensor.PACKED_DTYPES)}
    exec(blocks["gossamer/tensor.py"], namespace)
    for table in ("AXES", "PACKED_DTYPES"):
        for key, entry in namespace[table].items():
            monkeypatch.setitem(getattr(tensor, table), key, entry)
    (tmp_path / "by_pixel.py").write_text(blocks["gossamer/ops/conv2d/by_pixel.py"])
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("by_pixel").ByPixel
    del sys.modules["by_pixel"]


def test_add_a_layout(formats, compiled_device, monkeypatch):
    host = gossamer.device.registry.find("host")
    spec = TensorSpec((2, 3, 4, 5), Format("HWNC"))
    assert spec.strides == (3, 1, 30, 6)
    for device in (host, compiled_device):
        # a change of layout is one of strides, and pools take up all layouts of the table
        assert harness.check(convert(default_spec(spec.shape), spec), device)
        ran = harness.check(PoolProblem(default_spec(spec.shape), "max", (2, 2)), device)
        assert any("HWNC" in name for name in ran)
    op = Op("conv2d", Conv2dProblem, OP.reference, (formats(),))
    monkeypatch.setattr(harness, "op_of", lambda _: op)
    assert harness.check(Conv2dProblem(2, 3, 4, 5, 6, (1, 1), epilogue=Epilogue(
        apply("add").then(apply("relu")), ("channel",))), host)


def test_add_a_layout_to_a_plan(formats, monkeypatch, tmp_path):
    monkeypatch.setitem(OPS, "conv2d", dataclasses.replace(
        OPS["conv2d"], algorithms=(*OPS["conv2d"].algorithms, formats())))
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: math.inf if self.measured.failure
        else 1.0 if self.algorithm.name == "by_pixel" else 10.0))
    # the plan is that of the layers' times, whatever it takes as a whole
    monkeypatch.setattr("gossamer.plan.choose.refine._restrictions",
                        lambda *arguments: {})
    build = GraphBuilder("pixels")
    x = build.input("x", (None, 4, 3, 3))
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    for index in range(3):
        x = build.conv2d(x, build.constant(f"w{index}", weights), name=f"conv{index}")
    build.output(x, (None, 4, 3, 3))
    host = gossamer.device.registry.find("host")
    plan = Plan(build.finish(), host, tuner=Tuner(host, "quick", cache=TuningCache(host, tmp_path)))
    assert [row["algorithm"] for row in plan.report(2).rows if row["op"] == "conv2d"] == [
        "by_pixel"] * 3
    images = np.random.default_rng(1).standard_normal((2, 4, 3, 3)).astype(np.float32)
    expected = gossamer.compile(plan.graph, "host")(images)
    np.testing.assert_allclose(plan(images), expected, rtol=1e-4, atol=1e-4)


def test_add_a_packed_dtype(formats):
    spec = TensorSpec((2, 35, 3, 1), Format("packed32", "two_bits"))
    values = np.random.default_rng(0).choice(np.float32([-3, -1, 1, 3]), spec.shape)
    stored = pack(values, spec)
    assert stored.shape == (2, 2, 3, 1, 2) and stored.nbytes == spec.nbytes == 96
    np.testing.assert_array_equal(unpack(stored, spec), values)
    host = gossamer.device.registry.find("host")
    facts = (ValueFacts(-3.0, 3.0, 2.0),)
    for problem in (convert(default_spec(spec.shape), spec, facts),
                    convert(spec, default_spec(spec.shape), facts)):
        assert harness.check(problem, host, inputs=[values])


@pytest.fixture
def ncnn(tmp_path, monkeypatch) -> Path:
    """A folder with net.param and net.bin, and the reader for them that the page add-a-reader.md
    adds, registered as the page says."""
    blocks = _blocks_by_file(DOCS / "add-a-reader.md")
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "ncnn.py").write_text(blocks["gossamer/model/readers/ncnn.py"])
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path / "readers")])
    namespace = dict(vars(registry))
    exec(blocks["gossamer/model/readers/registry.py"], namespace)
    monkeypatch.setattr(registry, "READERS", namespace["READERS"])
    (tmp_path / "net.param").write_text(
        "7767517\n5 5\nInput x 0 1 x 0=4 1=6 2=3\n"
        "Convolution first 1 1 x a 0=5 1=3 3=1 4=1 5=1 6=135\nReLU slope 1 1 a b 0=0.1\n"
        "Pooling half 1 1 b c 0=0 1=2 2=2 5=1\nConvolution last 1 1 c y 0=2 1=1 5=0 6=10\n")
    numbers = np.random.default_rng(0).standard_normal(150).astype("<f4")
    (tmp_path / "net.bin").write_bytes(bytes(4) + numbers[:140].tobytes() + bytes(4)
                                       + numbers[140:].tobytes())
    yield tmp_path
    sys.modules.pop("gossamer.model.readers.ncnn", None)


def test_add_a_reader_from_files_to_numbers(ncnn, tmp_path):
    graph = gossamer.load(ncnn / "net.param")
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 4)).astype(np.float32)
    weight, bias, weight2 = np.split(np.random.default_rng(0).standard_normal(150), [135, 140])
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    y = windows.transpose(0, 2, 3, 1, 4, 5).reshape(2, 6, 4, 27) @ weight.reshape(5, 27).T + bias
    y = np.where(y < 0, 0.1 * y, y).reshape(2, 3, 2, 2, 2, 5).max((2, 4))
    expected = (y @ weight2.reshape(2, 5).T).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(gossamer.compile(graph, "host")(x), expected, rtol=1e-4, atol=1e-5)
    (ncnn / "net.bin").rename(tmp_path / "trained")
    for again in (gossamer.load(str(ncnn / "net.param"), tmp_path / "trained"),
                  gossamer.load(ncnn / "net.param", weights=tmp_path / "trained")):
        np.testing.assert_array_equal(again.constants["weight"].ravel(), np.float32(weight))


def test_add_a_reader_with_bad_files(ncnn):
    param, weights = ncnn / "net.param", ncnn / "net.bin"
    text, numbers = param.read_text(), weights.read_bytes()
    for old, new, message in (
            ("ReLU", "Dropout", r"net.param: Dropout 'slope' is not computed"),
            ("2=2", "2=x", r"Pooling 'half': parameter 2 is 'x', expected a number"),
            ("1 1 c y", "1 1 d y", "Convolution 'last': reads 'd', which no layer before it makes"),
            ("1 1 c y", "9 1 c y", "Convolution 'last': names 6 of 10 values"),
            ("7767517", "1", "net.param: does not begin with 7767517")):
        param.write_text(text.replace(old, new))
        with pytest.raises(ModelError, match=message):
            gossamer.load(param)
    param.write_text(text)
    weights.write_bytes(numbers[:-4])
    with pytest.raises(ModelError, match=r"net.bin: ends within .*'last'.*10 numbers"):
        gossamer.load(param)
    weights.unlink()
    assert "net.param: its weights file is missing" in fails(2, "inspect", param)
