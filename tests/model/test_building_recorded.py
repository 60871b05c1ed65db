"""Graphs that are built, named, chosen from, written as ONNX and loaded stay as was recorded."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply, identity
from gossamer.model import zoo
from gossamer.model.builder import GraphBuilder
from gossamer.model.choose_outputs import chosen, with_outputs
from gossamer.model.graph import Graph, Tail, UniqueNames, ValueInfo, new_name
from gossamer.model.load import expected_models, load
from gossamer.model.onnx_writer import to_onnx
from tests.model.graph_text import graph_text
from tests.recorded import Recorded, digest
from tests.recorded.graphs import array_text
from tests.recorded.outcomes import outcome
from tests.recorded.varied import Options, varied


def test_names(recorded: Recorded) -> None:
    texts, taken = {}, {"a", "a_", "b"}
    unique = UniqueNames()
    for index, name in enumerate(["a", "a", "b", "a", "a_2", "a_2", "b_2", "b", "a", "", ""]):
        texts[str(index)] = f"{unique.unique(name)} {new_name(taken, name)}"
    for count, inputs in itertools.product((0, 1, 2), ((), ("x",), ("x", "z"))):
        build = GraphBuilder("net")
        for name in inputs:
            build.input(name, (None, 3) if name == "x" else (), "int64" if name == "z" else
                        "float32")
        for _ in range(count):
            build.output(build.apply("relu", "x"), (None, 3))
        build.constant("c", np.ones((40, 50), np.float64))
        texts[f"{count} nodes {len(inputs)} inputs"] = (
            f"{build.graph!r} {outcome(build.finish, text=str)}")
    recorded("building_names", texts)


LAYER: dict[str, list[Any]] = {
    "op": ["conv2d", "gemm", "batch_norm", "apply", "pool", "reduce", "concat", "reshape",
           "flatten", "resize", "softmax", "slice", "pad", "transpose", "layer_norm",
           "batch_norm_training", "gather"],
    "bias": ["b", ""], "epilogue": [None, "relu", "identity", "add twice", "add both"],
    "kind": ["average", "max", "mean", "sum"], "flag": [False, True],
    "dilations": [(1, 1), (2, 1)], "axes": [(2, 3), "spatial", (1,), 1],
    "scales": [(1.0, 1.0, 2.0, 2.0), None], "mode": ["nearest", "linear", "constant", "edge"],
    "coordinates": ["asymmetric", "half_pixel"], "nearest": ["floor", "ceil"],
    "value": [0.0, 1.0], "pad axes": [None, (2, 3)],
}


def built(o: Options) -> GraphBuilder:
    """Returns a graph of one layer, with the options that its op has."""
    build = GraphBuilder("net")
    x = build.input("x", (None, 4, 6, 6))
    for name, shape in (("w", (4, 4, 1, 1)), ("m", (6, 6)), ("b", (4,))):
        build.constant(name, np.ones(shape))
    epilogue = {None: None, "relu": apply("relu"), "identity": identity(), "add twice": Expression(
        2, (ExpressionStep("add", (0, 1)), ExpressionStep("add", (2, 1)))), "add both": Expression(
        3, (ExpressionStep("add", (0, 1)), ExpressionStep("add", (3, 2))))}[o["epilogue"]]
    op, flag, axes = o["op"], o["flag"], o["axes"]
    if op == "conv2d":
        y = build.conv2d(x, "w", o["bias"], dilations=o["dilations"], epilogue=epilogue)
    elif op == "gemm":
        y = build.gemm(x, "m", o["bias"], trans_b=flag, trans_a=flag, epilogue=epilogue)
    elif op == "batch_norm":
        y = build.batch_norm(x, "b", "b", "b", "b")
    elif op == "apply":
        expression = epilogue or apply("add")
        y = build.elementwise(expression, *("x", "b", "b")[:expression.inputs])
    elif op == "pool":
        y = build.pool(x, o["kind"], (2, 2), dilations=o["dilations"], ceil_mode=flag,
                       count_include_pad=not flag)
    elif op == "reduce":
        y = build.reduce(x, {"average": "mean"}.get(o["kind"], o["kind"]), axes if not isinstance(
            axes, int) else (axes,), keepdims=flag)
    elif op == "concat":
        y = build.concat([x, x], **({"axis": 2} if flag else {}))
    elif op == "reshape":
        y = build.reshape(x, (0, -1))
    elif op == "flatten":
        y = build.flatten(x, **({"axis": 2} if flag else {}))
    elif op == "resize":
        y = build.resize(x, o["scales"], sizes=None if o["scales"] else (1, 4, 12, 12),
                         mode=o["mode"], coordinates=o["coordinates"], nearest_mode=o["nearest"])
    elif op == "softmax":
        y = build.softmax(x, log=flag)
        if o["value"]:
            build.graph.nodes[-1].attributes["flatten"] = True
    elif op == "slice":
        y = build.add("slice", [x], starts=(0,), ends=(2,), axes=(1,), steps=(1,))
    elif op == "pad":
        y = build.add("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1), mode={"nearest": "constant"}.get(
            o["mode"], o["mode"]), value=o["value"],
            **({"axes": o["pad axes"]} if o["pad axes"] else {}))
    elif op == "transpose":
        y = build.add("transpose", [x], permutation=(0, 2, 3, 1))
    elif op == "layer_norm":
        y = build.add("layer_norm", [x, "b", "b"], axes=axes, epsilon=1e-5, centred=not flag)
    elif op == "batch_norm_training":
        y = build.add(op, [x, "b", "b", "b", "b"], ["y", "mean", "variance"], epsilon=1e-3,
                      momentum=0.9)
    else:
        y = build.add(op, [x, "b"], axis=1)
    if o["epilogue"] == "add both" and op in ("conv2d", "gemm"):
        build.graph.nodes[-1].inputs.append("b")
    build.output(y, (None, 4, 6, 6))
    return build


def written(graph: Graph) -> str:
    """Returns the nodes of the ONNX model of a graph, and its constants that the graph has not."""
    model = to_onnx(graph)
    parts = []
    for node in model.graph.node:
        attributes = " ".join(f"{each.name}={onnx.helper.get_attribute_value(each)}"
                              for each in node.attribute)
        parts.append(f"{node.name} {node.op_type}({','.join(node.input)}) "
                     f"{','.join(node.output)} {attributes}".strip())
    parts += [f"{tensor.name} {array_text(onnx.numpy_helper.to_array(tensor))}"
              for tensor in model.graph.initializer if tensor.name not in graph.constants]
    shapes = [[d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
              for info in (*model.graph.input, *model.graph.output)]
    return f"{'; '.join(parts)} {shapes}".replace("b'", "'")


def test_layers(recorded: Recorded) -> None:
    texts = {}
    for op in LAYER["op"]:
        for case, options in varied({**LAYER, "op": [op]}, 6, 3):
            build = built(options)
            text = f"{graph_text(build.graph)} / {outcome(written, build.graph, text=str)}"
            if text not in texts.values():
                texts[f"{op} {case}"] = text
    for name, function in FUNCTIONS.items():
        build = GraphBuilder("net")
        values = [build.input(each, (None, 4)) for each in "xyz"[:function.arity]]
        middle = build.apply(name, *values, constants=(0.25, 0.75)[:function.constants])
        build.output(middle, (None, 4))
        texts[f"function {name}"] = outcome(written, build.graph, text=str)
        step = ExpressionStep(name, tuple(range(function.arity)), (0.25, 0.75)[:function.constants])
        for outputs in ((), (function.arity,)):
            build = GraphBuilder("net")
            values = [build.input(each, (None, 4)) for each in "xyz"[:function.arity]]
            build.output(build.elementwise(Expression(function.arity, (
                step, ExpressionStep("neg", (function.arity,))), outputs), *values), (None, 4))
            texts[f"function {name} and neg {outputs}"] = outcome(written, build.graph, text=str)
    recorded("building_layers", texts)


def test_outputs_that_are_chosen(recorded: Recorded) -> None:
    build = GraphBuilder("net")
    build.input("x", (None, 4))
    build.constant("c", np.ones(4))
    values = [build.apply("add", "x", "c", output="a"), build.apply("relu", "a", output="b"),
              build.apply("neg", "x", output="d"), "c"]
    for value in values:
        build.output(value, (None, 4))
    graph, texts = build.finish(), {}
    for names in (None, [], "a", ["a"], ["b", "a"], ["d"], ["c"], ["a", "a"], ["e"], ["a", "e"],
                  ["b", "d", "b"], "abc", ("d", "c", "b", "a")):
        texts[str(names)] = (f"{outcome(chosen_names, names, text=str)} "
                             f"{outcome(text_with_outputs, graph, names, text=str)}")
    graph.tail = Tail(np.zeros(1, np.uint8), {}, (), [], [])
    texts["with a tail"] = outcome(text_with_outputs, graph, ["a"], text=str)
    recorded("building_outputs", texts)


def chosen_names(names: Any) -> str:
    infos = [ValueInfo(name, ()) for name in "abd"]
    return str([info.name for info in chosen(infos, names, "file")])


def text_with_outputs(graph: Graph, names: Any) -> str:
    found = with_outputs(graph, names)
    return f"{[info.name for info in found.outputs]} {sorted(found.constants)} {graph_text(found)}"


class Module:
    """Stands for a class of a module, whose name says where it comes from."""


def test_models_that_are_refused(recorded: Recorded, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "net.cfg", "net.weights", "text.txt"):
        Path(name).write_bytes(b"")
    texts = {"kinds": expected_models()}
    for model, more, weights in itertools.product(
            ("net", "net.onnx", "none.onnx", "net.cfg", "none.cfg", "net.weights", "net.plan",
             "net.PLAN", "text.txt", "a/b", "yolov9", "net.names", "", "net.onnx.gz", ".onnx"),
            ((), ("net.weights",), ("net.weights", "text.txt", "more")), (None, "net.weights")):
        text = outcome(load, model, *more, weights=weights, text=str)
        # the kinds of models are in the middle
        texts[f"{model} {len(more)} {weights}"] = (
            f"{text[:80]}...{text[-100:]}" if len(text) > 250 else text)
    outside = [type("Net", (), {"__module__": module}) for module in (
        "torch.nn.modules", "torch.nn", "torch", "mine.torch.nn", "torch.nnx")]
    for index, value in enumerate((3, None, b"", io.StringIO("a"), io.BytesIO(b"abc"), [], 0.5,
                                   bytearray(b"a"), *(kind() for kind in outside))):
        for more in ((), ("file",)):
            texts[f"value {index} {more}"] = outcome(load, value, *more, text=str)[:300]
    closed = io.BytesIO(b"abc")
    closed.close()
    texts["closed"] = outcome(load, closed, text=str)
    recorded("building_refused", texts)


def test_the_zoo(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"unknown": outcome(zoo.build, "resnet", text=str),
             "seed": outcome(zoo.build, "yolov4-tiny", 1, text=str)}
    graph = zoo.build("mobilenet_v2", seed=5)
    for node in graph.nodes:
        texts[node.name] = f"{node.op} {node.inputs} {node.outputs} {node.source} " + (
            " ".join(f"{name}={value}" for name, value in node.attributes.items()
                     if not isinstance(value, Expression))).replace(": ", ":")
    texts["weights"] = digest([(name, array.shape, f"{array.min():.4g} {array.max():.4g}")
                               for name, array in graph.constants.items()])
    monkeypatch.setattr(zoo.importlib.util, "find_spec", lambda name: None)
    for name in zoo.MODELS:
        texts[f"absent {name}"] = outcome(zoo.build, name, text=str)
    recorded("building_zoo", texts)


def test_damaged_files_of_the_zoo(recorded: Recorded, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that a file lacks, or has in another form, and files with other sums."""
    texts = {}
    good = {"a.weight": np.ones((2, 3), np.float32), "a.bias": np.ones(2, np.float32)}
    for case, change in {"as they are": {}, "absent": {"a.bias": None}, "shape": {
            "a.weight": np.ones((3, 2), np.float32)}, "dtype": {"a.bias": np.ones(2)}}.items():
        tensors = {name: array for name, array in (good | change).items() if array is not None}
        build = GraphBuilder("net", file="net.pth")
        build.input("x", (None, 3))
        texts[case] = outcome(zoo._ZooBuilder(build, tensors, None).linear, "x", "a", 3, 2,
                              text=str)
    for stem in ("net-e3b0c442", "net-e3b0c441"):
        path = tmp_path / f"{stem}.pth"
        path.write_bytes(b"")
        texts[stem] = outcome(zoo._verified, path, text=str).replace(str(tmp_path), "")
    recorded("building_zoo_files", texts)
