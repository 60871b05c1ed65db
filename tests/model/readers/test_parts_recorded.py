"""Which nodes of an ONNX file are left to ONNX Runtime, in which parts and with which shapes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.onnx_part import nodes_of
from gossamer.model.readers.onnx.clusters import Clusters
from gossamer.model.readers.onnx.file_types import FileTypes, has_float64, known_shape, type_text
from gossamer.model.readers.onnx.order import in_order, reads, stable_order
from gossamer.model.readers.onnx.parts import in_reading_order
from gossamer.model.readers.onnx.probe import Probe
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.onnx_models import model, weights
from tests.onnx_parts import bytes_of, choosing, counting, sampled, sine, texts
from tests.recorded import Recorded, digest
from tests.recorded.graphs import brief, error_text, graph_text, needs_onnx, outcome, static_text

pytestmark = needs_onnx

make, FLOAT, INT64 = helper.make_node, TensorProto.FLOAT, TensorProto.INT64


def result(proto: onnx.ModelProto, batch: int = 2, most: int = 130, **options: Any) -> str:
    """Returns the nodes of a graph and its tail, a digest of the graph with its parts, and a digest
    of the static graph or the text of its error."""
    try:
        graph = load_onnx(proto, **options)
    except GossamerError as error:
        return error_text(error)
    nodes = " ".join(f"{node.op}({','.join(node.inputs)})>{','.join(node.outputs)}"
                     for node in graph.nodes)
    tail = "" if graph.tail is None else f" tail {graph.tail.reads}"
    try:
        static = digest(static_text(resolve(graph, batch)))
    except GossamerError as error:
        static = brief(error_text(error), 70)
    return f"{brief(nodes + tail, most)} |{digest(graph_text(graph, names=True))} |{static}"


OPS: tuple[tuple[str, int], ...] = (
    ("Relu", 1), ("Neg", 1), ("Add", 2), ("Mul", 2), ("Sinh", 1), ("Hardmax", 1), ("Acosh", 1),
    ("Einsum", 2), ("NonZero", 1), ("Unique", 1), ("Cast64", 1), ("Cast32", 1), ("CastInt", 1),
    ("Shape", 1), ("Identity", 1), ("Expand", 2), ("Bernoulli", 1), ("Reshape", 2), ("Concat", 2))
"""Operators that gossamer computes, those that it leaves to ONNX Runtime, and those whose results
have a shape that the data decide."""


def _drawn(rng: random.Random) -> onnx.ModelProto:
    kinds, nodes = dict.fromkeys(("x", "w", "v"), FLOAT), []
    for index in range(rng.randint(3, 9)):
        kind = 0
        op, count = rng.choice(OPS[:9] + OPS[13:15] if rng.random() < 0.8 else OPS)
        values = list(kinds)
        names = [rng.choice(values[-4:] if rng.random() < 0.8 else values) for _ in range(count)]
        attributes: dict[str, Any] = {}
        if op.startswith("Cast"):
            kind = attributes["to"] = {"64": TensorProto.DOUBLE, "32": FLOAT, "Int": INT64}[op[4:]]
            op = "Cast"
        if op == "Einsum":
            attributes["equation"] = "...,...->..."
        if op == "Concat":
            attributes["axis"] = 0
        output = f"v{index}"
        nodes.append(make(op, names, [output], f"n{index}", **attributes))
        kinds[output] = kind or (INT64 if op in ("Shape", "NonZero") else kinds[names[0]])
    values = list(kinds)
    read = {name for node in nodes for name in node.input}
    ends = [name for name in values[3:] if name not in read]
    ends += [name for name in values[3:] if name in read and rng.random() < 0.2]
    return model(nodes, {"x": ["N", 4] if rng.random() < 0.7 else [2, 4], "v": [4]},
                 dict.fromkeys(ends), {"w": weights(1, 4)}, types=kinds)


def test_random_networks(recorded: Recorded) -> None:
    rng = random.Random(2)
    found: dict[str, str] = {}
    for number in range(160):
        proto = _drawn(rng)
        told = " ".join(f"{node.op_type}({','.join(node.input)})" for node in proto.graph.node)
        found[f"{number} {brief(told, 60)}"] = result(proto)
    recorded("parts_of_networks", found)


def _branch(name: str, op: str, inputs: Sequence[str] = ("a",), *, constant: bool = False,
            output: str = "") -> onnx.GraphProto:
    nodes = [make(op, list(inputs), [output or name], f"in_{name}")]
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(output or name, FLOAT, None)],
        [numpy_helper.from_array(np.float32([2]), "k")] if constant else [])


def _conditional(first: Sequence[onnx.NodeProto], then: onnx.GraphProto, other: onnx.GraphProto,
                 shape: Sequence[Any], **constants: np.ndarray) -> onnx.ModelProto:
    nodes = [make("Relu", ["x"], ["a"], "a"), *first,
             make("If", ["c"], ["y0"], "if", then_branch=then, else_branch=other),
             make("Neg", ["y0"], ["y"], "end")]
    return model(nodes, {"x": shape}, {"y": None}, constants)


def test_branches(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    of_shape = [make("Shape", ["a"], ["s"], "s", start=1), make("Equal", ["s", "four"], ["c"], "e")]
    of_batch = [make("Shape", ["a"], ["s"], "s", end=1), make("Equal", ["s", "two"], ["c"], "e")]
    of_data = [make("ReduceMax", ["a"], ["m"], "m", keepdims=0), make("Greater", ["m", "zero"],
                                                                      ["c"], "e")]
    conditions: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
        "true": ([], {"c": np.array(True)}), "false": ([], {"c": np.array(False)}),
        "one": ([], {"c": np.array([True])}), "shape": (of_shape, {"four": np.array([4])}),
        "batch": (of_batch, {"two": np.array([2])}), "data": (of_data, {"zero": np.float32(0)})}
    branches = {
        "two": (_branch("t", "Neg"), _branch("e", "Abs")),
        "constant": (_branch("t", "Add", ("a", "k"), constant=True), _branch("e", "Abs")),
        "left": (_branch("t", "Sinh"), _branch("e", "Cosh")),
        "taken name": (_branch("a", "Neg", ("x",)), _branch("e", "Abs")),
        "taken else": (_branch("t", "Neg"), _branch("s", "Abs")),
        "outside": (_branch("t", "Identity", ("x",)), _branch("e", "Add", ("x", "a"))),
        "missing": (_branch("t", "Neg", ("nothing",)), _branch("e", "Abs"))}
    for (name, (first, constants)), (kind, (then, other)), shape in itertools.product(
            conditions.items(), branches.items(), (["N", 4], [2, 4], ["N", "M"], [1, 3])):
        proto = _conditional(first, then, other, shape, **constants)
        found[f"{name} {kind} {shape}"] = result(proto, 2 if shape[0] != 1 else 1, 90)
    nested = helper.make_graph(
        [make("If", ["c"], ["n"], "inner", then_branch=_branch("t", "Neg"),
              else_branch=_branch("e", "Abs"))], "nested", [],
        [helper.make_tensor_value_info("n", FLOAT, None)])
    for name in ("true", "shape"):
        first, constants = conditions[name]
        found[f"nested {name}"] = result(_conditional(
            first, nested, _branch("e", "Abs"), ["N", 4], **constants))
    recorded("onnx_conditions", found)


def test_parts_of_files(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for name, proto in {"sampled": sampled(), "choosing": choosing(), "texts": texts(),
                        "counting": counting(3)}.items():
        found[name] = result(proto, most=300)
        for info in proto.graph.output:
            found[f"{name} {info.name}"] = result(proto, outputs=[info.name])
    line = {"x": ["N", 4]}
    for size in (1023, 1024, 1025):
        for kind in ("float32", "float64", "float16", "int64"):
            constant = np.arange(size).astype(kind)
            for nodes in ([make("Pad4", ["x", "w"], ["y"], "n", domain="com.microsoft")],
                          [make("Sinh", ["w"], ["a"], "a"), make("Cosh", ["a"], ["y"], "y")],
                          [make("Sinh", ["w"], ["a"], "a"), make("Abs", ["w"], ["z"], "z")]):
                outputs = {"y": 1, "z": 1} if len(nodes) > 1 and nodes[1].name == "z" else {"y": 1}
                if "z" in outputs:
                    nodes = [*nodes, make("Identity", ["a"], ["y"], "y")]
                proto = model(nodes, line, outputs, {"w": constant}, types=dict.fromkeys(
                    outputs, helper.np_dtype_to_tensor_dtype(np.dtype(kind))))
                found[f"{size} of {kind}, {nodes[0].op_type} {len(nodes)}"] = result(proto, most=90)
    for kind in (FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, INT64,
                 TensorProto.UINT32, TensorProto.BOOL, TensorProto.STRING):
        for ops in (("Sinh",), ("Relu",), ("Relu", "Sinh"), ("Sinh", "Relu"), ("Cast", "Relu"),
                    ("Identity",)):
            names = ["x", *(f"v{index}" for index in range(1, len(ops))), "y"]
            nodes = [make(op, [names[index]], [names[index + 1]], f"n{index}",
                          **({"to": 1} if op == "Cast" else {})) for index, op in enumerate(ops)]
            for narrows in (False, True):
                found[f"{ops} of type {kind}{' narrowed' * narrows}"] = result(model(
                    nodes, line, {"y": 2}, types={"x": kind, "y": 1 if ops[0] == "Cast" else kind}),
                    narrows=narrows, most=80)
    wide = numpy_helper.from_array(np.float64([1, 2, 3, 4]), "c")
    for op, reader in itertools.product(("Sinh", "Add", "Relu"), ("x", "k")):
        nodes = [make("Constant", [], ["k"], "k", value=wide), make("Neg", ["k"], ["k2"], "k2"),
                 make(op, [reader, *(["k2"] if op == "Add" else [])], ["y"], "y")]
        for kind, narrows in itertools.product((FLOAT, TensorProto.DOUBLE), (False, True)):
            found[f"float64 constant, {op} {reader} {kind}{' narrowed' * narrows}"] = result(model(
                nodes, line, {"y": None}, types={"x": kind, "y": kind}), narrows=narrows, most=80)
    for outputs in ({"y": None, "x": 2}, {"a": None, "y": None}, {"k": None}):
        nodes = [make("Sinh", ["x"], ["a"], "a"), make("NonZero", ["a"], ["k"], "k"),
                 make("Cast", ["k"], ["y"], "y", to=1)]
        found[f"outputs {list(outputs)}"] = result(model(nodes, line, outputs, types={"k": INT64}))
    for domain in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "other"):
        for op in ("Warp", "EPContext", "ImageDecoder", "Relu", "Binarizer"):
            proto = model([make(op, ["x"], ["y"], "n", domain=domain)], line, {"y": 2})
            proto.opset_import.append(helper.make_opsetid(domain or "x", 1))
            found[f"{op} of {domain!r}"] = result(proto)
            inner = helper.make_graph([make(op, ["x"], ["i"], "n", domain=domain)], "g", [], [
                helper.make_tensor_value_info("i", FLOAT, None)])
            proto = model([make("If", ["c"], ["y"], "n", then_branch=inner, else_branch=inner)], {
                **line, "c": []}, {"y": 2}, types={"c": TensorProto.BOOL})
            found[f"{op} of {domain!r} in a branch"] = result(proto)
    function = helper.make_function("other", "Warp", ["a"], ["b"], [make("Neg", ["a"], ["b"])],
                                    [helper.make_opsetid("", 17)])
    proto = model([make("Warp", ["x"], ["y"], "n", domain="other")], line, {"y": 2})
    proto.functions.append(function)
    found["function"] = result(proto)
    shape = [make("Shape", ["x"], ["s"], "s")]
    for op, attributes, more in (
            ("BitShift", {"direction": "LEFT"}, ["u"]), ("ReduceProd", {"keepdims": 0}, []),
            ("OneHot", {}, ["depth", "values"]), ("NonZero", {}, []), ("Mod", {}, ["two"]),
            ("Neg", {}, []), ("ArgMax", {}, []), ("Hardmax", {}, []), ("Compress", {"axis": 0},
                                                                     ["chosen"])):
        nodes = [*shape, make(op, ["s", *more], ["k"], "k", **attributes),
                 make("Cast", ["k"], ["f"], "f", to=1), make("Mul", ["x", "f"], ["y"], "y")]
        for first in ("N", 3):
            found[f"{op} of a shape, {first}"] = result(model(
                nodes, {"x": [first, 2]}, {"y": None}, {
                    "u": np.array([1, 2]), "depth": np.array(4), "values": np.float32([0, 1]),
                    "two": np.array(2), "chosen": np.array([False, True])}), 3)
    recorded("onnx_parts", found)


def test_shapes_of_parts(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    models = {"sine": sine(), "damaged": np.frombuffer(b"zz", np.uint8),
              "reshape": bytes_of([make("Reshape", ["x", "s"], ["y"], "r")], ["x", "s"], ["y"]),
              "wrong": bytes_of([make("MatMul", ["x", "x"], ["y"], "m")], ["x"], ["y"]),
              "chosen": bytes_of([make("NonZero", ["x"], ["y"], "m")], ["x"], ["y"]),
              "bool": bytes_of([make("Not", ["x"], ["y"], "m")], ["x"], ["y"], TensorProto.BOOL)}
    for (name, data), shape, count in itertools.product(
            models.items(), ((), (3,), (2, 3), (0, 3)), (2, 1023, 1024, 1025)):
        if count > 2 and name != "reshape":
            continue
        graph = Graph("g", [], [], [], {})
        known = {"s": np.ones(count, np.int64)} if name == "reshape" else {}
        if known:
            known["s"][0] = -1
        graph.inputs, graph.outputs = [ValueInfo("x", shape)], [ValueInfo("y", ())]
        graph.constants.update(known)
        graph.nodes = [Node("onnx_part", "p", ["x", *known], ["y"], {"model": data})]
        found[f"{name} {list(shape)} {count}"] = outcome(
            lambda graph=graph: static_text(resolve(graph, 2)), most=200)
    for name, data in models.items():
        try:
            found[f"nodes of {name}"] = str(nodes_of(data))
        except ValueError as error:
            found[f"nodes of {name}"] = f"! {error}".partition("Expecting")[0]
    recorded("shapes_of_parts", found)


def test_orders(recorded: Recorded) -> None:
    rng = random.Random(3)
    found: dict[str, str] = {}
    for number in range(60):
        count = rng.randint(0, 8)
        before = [{rng.randrange(count) for _ in range(rng.randint(0, 2))} for _ in range(count)]
        if number % 3:
            before = [{other for other in each if other < index}
                      for index, each in enumerate(before)]
        order = list(range(count))
        rng.shuffle(order)
        nodes = [make("Op", [f"v{other}" for other in sorted(before[index])], [f"v{index}"],
                      f"n{index}") for index in order]
        ends = [f"v{rng.randrange(count)}" for _ in range(2)] if count else []
        graph = helper.make_graph(nodes, "g", [], [])
        found[f"{number}"] = f"{stable_order(before, range(count))} " + outcome(
            lambda graph=graph, ends=ends: " ".join(
                node.name for node in in_order(graph, ends, "f")))
        clusters, joined = Clusters(), []
        for index in range(count):
            clusters.add([f"v{other}" for other in sorted(before[index]) if other < index],
                         [f"v{index}"])
            if rng.random() < 0.6:
                clusters.join(index)
                joined.append(index)
        found[f"{number}"] += (f" {clusters.groups()} {[clusters.group_of(i) for i in joined]} "
                               f"{[clusters.maker(f'v{i}') for i in range(count + 1)]}")
        plain = [Node("op", node.name, list(node.input), list(node.output)) for node in nodes]
        found[f"{number}"] += f" {[node.name for node in in_reading_order(plain)]}"
    inner = helper.make_graph(
        [make("Add", ["o", "i"], ["t"]), make("Add", ["t", "k"], ["r"])], "g",
        [helper.make_tensor_value_info("i", FLOAT, [])],
        [helper.make_tensor_value_info(name, FLOAT, []) for name in ("r", "p")],
        [numpy_helper.from_array(np.ones(1), "k")])
    found["reads"] = str(list(reads(make("Loop", ["a", "", "b"], ["y"], body=inner))))
    found["twice"] = outcome(lambda: str(in_order(helper.make_graph(
        [make("A", [], ["y", ""], "a"), make("B", [], ["y"], "b")], "g", [], []), ["y"], "f")))
    recorded("orders", found)


def test_types_of_files(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for place, kind in itertools.product(("input", "output", "initializer", "value", "to", "other",
                                          "none"), (FLOAT, TensorProto.DOUBLE)):
        graph = model([make("Relu", ["x"], ["y"], "n")], {"x": [1]}, {"y": 1}).graph
        if place in ("input", "output"):
            getattr(graph, place)[0].type.tensor_type.elem_type = kind
        elif place == "initializer":
            graph.initializer.append(helper.make_tensor("w", kind, [1], [1]))
        elif place == "value":
            graph.node.append(make("Constant", [], ["w"], value=helper.make_tensor(
                "w", kind, [1], [1])))
        elif place in ("to", "other"):
            graph.node.append(make("Cast", ["x"], ["w"], **{place: kind}))
        found[f"float64 {place} {kind}"] = str(has_float64(graph))
    for name, kind in {
            "none": None, "no shape": helper.make_tensor_type_proto(1, None),
            "scalar": helper.make_tensor_type_proto(1, []),
            "open": helper.make_tensor_type_proto(1, ["N", 2]),
            "whole": helper.make_tensor_type_proto(1, [0, 2]),
            "below": helper.make_tensor_type_proto(1, [-2, 2]),
            "number": helper.make_tensor_type_proto(99, [1]),
            "text": helper.make_tensor_type_proto(8, [1]),
            "sequence": helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1])),
            "optional": helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [1])),
            "empty": onnx.TypeProto()}.items():
        found[f"type {name}"] = f"{known_shape(kind)} {kind and type_text(kind)}"
    proto = model([make("Sinh", ["x"], ["a"], "a"), make("Expand", ["a", "s"], ["y"], "y")],
                  {"x": ["N", 4]}, {"y": None}, {"s": np.array([3, 1, 1]), "b": np.ones(1025),
                                                 "h": np.float16([1])})
    proto.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT16, [1]))
    proto.graph.value_info.append(helper.make_tensor_value_info("q", 99, [1]))
    types = FileTypes(proto, list(proto.graph.node))
    for name in ("x", "a", "y", "s", "b", "h", "q", "nothing"):
        info = types.value_info(name) if name in ("x", "a", "y", "s", "h") else None
        has_shape = info is not None and info.type.tensor_type.HasField("shape")
        found[f"value {name}"] = f"{types.elem_type(name)} {has_shape}"
        tensor = types.tensor(name, np.ones(2))
        found[f"tensor {name}"] = f"{tensor.data_type} {list(tensor.dims)}"
    kinds = {"a": helper.make_tensor_type_proto(1, [2, 4])}
    for known in ({}, {"s": np.array([3, 1, 1])}, {"s": np.ones(1025, int)}):
        outputs = types.outputs_of(proto.graph.node[1], kinds, known)
        found[f"outputs with {len(known)} {sum(array.size for array in known.values())}"] = str(
            {name: known_shape(kind) for name, kind in outputs.items()})
    for shape, fixed, batch, size in itertools.product(
            ((None, 4), (None, None), (3, 4), (None,)), (None, 2), (1, 2), (256, 192)):
        graph = Graph("g", [ValueInfo("x", shape)], [], [], {"c": np.ones(2, np.float32)},
                      fixed_batch=fixed)
        probe = Probe(graph, batch, size)
        probe.add([Node("shape", "n", ["x"], ["s"], {}), Node("conv2d", "m", ["x", "c"], ["y"], {}),
                   Node("identity", "o", ["nothing"], ["z"], {})])
        found[f"probe {shape} {fixed} {batch} {size}"] = (
            f"{probe.is_only_size} {probe.shape('x')} {probe.known('s')} {probe.shape('c')} "
            f"{probe.shape('y')} {probe.shape('z')} {probe.dtype('s')}")
    recorded("types_of_files", found)


def test_networks_without_onnxruntime(without_onnxruntime: None, recorded: Recorded) -> None:
    rng = random.Random(2)
    recorded("parts_refused", {f"{number}": result(_drawn(rng), most=60) for number in range(60)})
