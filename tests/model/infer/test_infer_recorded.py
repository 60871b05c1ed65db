"""Shapes, constants, facts and refusals at several batch sizes stay as they were recorded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gossamer.errors import GossamerError
from gossamer.expression import apply
from gossamer.model.batch_axis import along_batch, mixing_node
from gossamer.model.builder import GraphBuilder
from gossamer.model.facts import derive
from gossamer.model.graph import Graph, StaticGraph, ValueInfo
from gossamer.model.infer.resolve import check_open_dimensions, is_open, resolve, with_shapes
from gossamer.model.infer.shapes_by_batch import ShapesByBatch, shapes_by_batch
from tests.model.graph_text import graph_text
from tests.recorded import Recorded, digest
from tests.recorded.graphs import array_text
from tests.recorded.outcomes import outcome
from tests.recorded.varied import varied

BATCHES = (-1, 0, 1, 2, 3, 4)
NODES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("relu", {}, []), ("sign", {}, []), ("add", {}, ["*"]), ("mul", {}, ["*"]),
    ("softmax", {"axis": 0, "log": False}, []), ("softmax", {"axis": 1, "log": False}, []),
    ("softmax", {"axis": -1, "log": True}, []),
    ("transpose", {"permutation": (1, 0, 2)}, []), ("transpose", {"permutation": (0, 2, 1)}, []),
    ("transpose", {"permutation": (2, 1, 0)}, []),
    ("reduce", {"kind": "mean", "axes": (0,), "keepdims": True}, []),
    ("reduce", {"kind": "max", "axes": (1,), "keepdims": True}, []),
    ("reduce", {"kind": "sum", "axes": (2,), "keepdims": False}, []),
    ("concat", {"axis": 0}, ["*"]), ("concat", {"axis": 1}, ["*"]), ("matmul", {}, ["*"]),
    ("flatten", {"axis": 0}, []), ("flatten", {"axis": 1}, []), ("flatten", {"axis": 2}, []),
    *[("reshape", {"shape": shape}, []) for shape in (
        (0, -1), (0, -1, 4), (-1, 4, 4), (1, -1, 4), (2, -1, 4), (4, 4, -1), (2, 4, 4),
        (0, 3, -1))],
    ("gather", {"axis": 0}, [np.array(0)]), ("gather", {"axis": 1}, [np.array([1, 0])]),
    ("gather", {"axis": 0}, [np.array([0])]),
    *[("slice", {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (step,)}, [])
      for start, end, axis, step in ((0, 1, 0, 1), (0, 2, 1, 1), (-1, -9, 0, -1), (-1, -9, 1, -1),
                                     (1, 9, 2, 1))],
    ("unsqueeze", {"axes": (0,)}, []), ("unsqueeze", {"axes": (1,)}, []), ("squeeze", {}, []),
    *[("expand", {"shape": shape}, []) for shape in ((4, 1, 1), (1, 4, 4), (2, 4, 4), (3, 1, 4))],
    ("shape", {"start": 0, "end": None}, []), ("shape", {"start": 1, "end": 3}, []),
    ("shape", {"start": 2, "end": 3}, []),
    *[(op, {"kind": "sum", "keepdims": True} if op == "reduce" else {}, [np.array(numbers)])
      for op, numbers in (("reshape", [0, -1]), ("reshape", [2, -1, 4]), ("expand", [1, 4, 4]),
                          ("reduce", [1]), ("reduce", [0]))],
    ("cast", {"dtype": "int32"}, []), ("cast", {"dtype": "float32"}, []),
    ("split", {"axis": 0, "sizes": (1, 1)}, []), ("split", {"axis": 1, "sizes": None}, []),
    ("add", {}, [np.float32([1.0, 2.0, 3.0, 4.0])]), ("mul", {}, [np.ones((2, 1, 1), np.float32)]),
    ("magic", {}, []), ("add", {}, ["nothing"]), ("gather", {"axis": 5}, [np.array(0)]),
]


def drawn(seed: int) -> Graph:
    """Returns a graph of a few nodes whose batch is free, or that is written for batch 1 or 2."""
    rng = np.random.default_rng(seed)
    build = GraphBuilder("drawn", file="drawn.onnx" if seed % 2 else "")
    values = [build.input("x", (None, 4, 4)), build.constant(
        "c", np.full((1 if seed % 3 else 2, 4, 4), 0.5))]
    for _ in range(int(rng.integers(1, 6))):
        # nodes that no graph can have come seldom
        op, attributes, others = NODES[int(rng.integers(len(NODES) - 3 * (rng.random() < 0.9)))]
        inputs = [values[-1] if rng.random() < 0.7 else str(rng.choice(values))]
        for other in others:
            inputs.append(str(rng.choice(values)) if isinstance(other, str) and other == "*" else
                          build.constant("n", other) if isinstance(other, np.ndarray) else "none")
        if op in ("relu", "sign", "add", "mul"):
            values.append(build.apply(op, *inputs))
        elif op == "split":
            first = build.add("split", inputs, **attributes)
            build.graph.nodes[-1].outputs.append(f"{first}.b")
            values += [first, f"{first}.b"]
        else:
            values.append(build.add(op, inputs, **attributes))
    for value in dict.fromkeys((values[-1], *map(str, rng.choice(values, int(
            rng.integers(0, 2)))))):
        build.output(value, ())
    build.graph.fixed_batch = (None, None, 1, 2)[seed % 4]
    return build.graph


def static_text(static: StaticGraph) -> str:
    shapes = " ".join(f"{name}:{static.dtypes[name]}{list(shape)}".replace(", ", ",")
                      for name, shape in static.shapes.items())
    facts = " ".join(f"{name}:{known}" for name, known in derive(static).items())
    return f"{shapes}; {graph_text(static)}; {facts}"


def text_at(graph: Graph, batch: int) -> str:
    try:
        return static_text(resolve(graph, batch))
    except GossamerError as error:
        return f"{type(error).__name__}, {error}"


def shapes_text(graph: Graph) -> str:
    """Returns all that is known of the values at two batch sizes."""
    try:
        shapes = shapes_by_batch(graph)
    except GossamerError as error:
        return f"{type(error).__name__}, {error}"
    names = dict.fromkeys([info.name for info in graph.inputs]
                          + [name for node in graph.nodes for name in node.outputs])
    parts = []
    for name in names:
        constant = shapes.constant(name)
        equal = "".join(str(int(shapes.equal(name, other))) for other in names)
        parts.append(f"{name} {shapes.shapes(name)} {shapes.rank(name)} {shapes.dtype(name)} "
                     f"{shapes.depends_on_data(name):d} {equal} "
                     f"{'' if constant is None else array_text(constant)}")
    parts += [f"{node.name} {concrete and sorted(concrete.attributes)}" for node in graph.nodes
              for concrete in [attributes_of(shapes, node)] if len(node.inputs) > 1]
    return "; ".join(parts)


def attributes_of(shapes: ShapesByBatch, node: Any) -> Any:
    try:
        return shapes.with_attributes(node)
    except (GossamerError, KeyError):
        return None


def test_drawn_graphs(recorded: Recorded) -> None:
    texts = {}
    for seed in range(160):
        graph = drawn(seed)
        for batch in BATCHES:
            text = text_at(graph, batch)
            # the whole text of one batch size is enough to read
            texts[f"{seed} at {batch}"] = text if batch == 3 or "Error" in text[:20] else digest(
                text)
        texts[f"{seed} rows"] = sorted_rows(graph, 3)
        texts[f"{seed} shapes"] = digest(shapes_text(graph))
        for shape in ((None, None, 4), (None, 4, None)):
            graph.inputs = [ValueInfo("x", shape)]
            texts[f"{seed} {shape[1:]} shapes"] = digest(shapes_text(graph))
    recorded("infer_graphs", texts)


def sorted_rows(graph: Graph, batch: int) -> str:
    reason, names = along_batch(graph, batch)
    return f"{reason} {sorted(names)} {mixing_node(graph, batch)}"


VISITED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("conv2d", {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1,
                "epilogue": apply("add")}, ["x", "w", "b"]),
    ("gemm", {"trans_a": False, "trans_b": False, "epilogue": apply("add")}, ["r", "m", "b"]),
    ("matmul", {}, ["r", "m"]), ("reduce", {"kind": "sum", "keepdims": True}, ["r", "axes"]),
    ("reshape", {}, ["r", "sizes"]), ("split", {"axis": 1}, ["r", "halves"]),
    ("expand", {}, ["r", "sizes"]), ("slice", {}, ["r", "axes", "halves", "axes", "axes"]),
    ("gather", {"axis": 1}, ["r", "axes"]), ("concat", {"axis": 0}, ["r", "r"]),
    ("layer_norm", {"axes": (1,), "epsilon": 0.0, "centred": True}, ["r", "b", "b"]),
    ("softmax", {"axis": 1, "log": False}, ["r"]), ("tile", {}, ["r", "sizes"]),
    ("top_k", {"axis": 1, "largest": True}, ["r", "axes"]), ("unknown", {}, ["r"]),
    ("transpose", {"permutation": (1, 0)}, ["r"]), ("shape", {"start": 0, "end": None}, ["r"]),
]


def visited(op: str, attributes: dict[str, Any], inputs: list[str], change: str,
            place: int) -> str:
    """Returns the static graph of one node of which one input or attribute is changed."""
    build = GraphBuilder("one", file="one.onnx")
    build.input("x", (None, 4, 3, 3))
    build.input("r", (None, 4))
    build.input("whole", (None, 4), "int32")
    build.input("sizes of data", (2,), "int64")
    for name, array in (("w", np.ones((4, 4, 1, 1))), ("m", np.ones((4, 4))), ("b", np.ones(4))):
        build.constant(name, array)
    for name, numbers in (("axes", [1]), ("sizes", [1, 4]), ("halves", [2, 2])):
        build.graph.constants[name] = np.array(numbers)
    new = {"absent": "", "whole": "whole", "data": "sizes of data", "unmade": "nothing",
           "constant": "halves"}.get(change)
    inputs = [new if index == place and new is not None else name
              for index, name in enumerate(inputs)]
    kept = dict(attributes)
    if change == "less" and kept:
        del kept[sorted(kept)[place % len(kept)]]
    outputs = ["y", "y.b"] if op in ("split", "top_k") else ["y"]
    build.add(op, inputs, outputs, **kept)
    build.output("y", ())
    return text_at(build.graph, 1)


def test_single_nodes(recorded: Recorded) -> None:
    """Inputs that are absent, of another dtype, decided by data or made by nothing."""
    texts = {}
    for op, attributes, inputs in VISITED:
        for change in ("none", "absent", "whole", "data", "unmade", "constant", "less"):
            for place in range(max(len(inputs), 2 if change == "less" else 0)):
                if change != "none" or place == 0:
                    texts[f"{op} {change} {place}"] = visited(op, attributes, inputs, change, place)
    recorded("infer_nodes", texts)


def test_networks_of_one_image(recorded: Recorded) -> None:
    """Networks that take one image at a time, with and without a row for it in the outputs."""
    texts = {}
    for shapes, size, fixed in itertools.product(
            ([(1, -1)], [(1, -1), (4, 6)], [(4, 6)], [(-1,)], [(1, 8, 3)], [(2, 12)]), (1, 2),
            (None, 1)):
        build = GraphBuilder("alone")
        build.input("x", (None, 4, 3))
        both = build.concat(["x", build.constant("c", np.ones((1, 4, 3)))])
        for shape in shapes:
            build.output(build.apply("relu", both), ())
            build.output(build.reshape(both, shape), ())
        build.graph.fixed_batch = fixed
        texts[f"{shapes} {size} {fixed}"] = outcome(sorted_rows, build.graph, size, text=str)
        del build.graph.outputs[::2]
        texts[f"{shapes} {size} {fixed} alone"] = outcome(sorted_rows, build.graph, size, text=str)
    recorded("infer_one_image", texts)


def two_inputs(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> Graph:
    build = GraphBuilder("two", file="two.onnx")
    build.input("x", shape, labels=("N", "C", "H", "W")[:len(shape)])
    build.input("z", other)
    build.output(build.apply("relu", "x"), ())
    build.output(build.apply("neg", "z"), ())
    return build.finish()


def test_open_dimensions(recorded: Recorded) -> None:
    texts = {}
    shapes = [(None, 3), (None, None), (None, 3, None), (2, 3), (2, None), (None, 3, None, None),
              (), (None,)]
    overrides: list[dict[str, tuple[int, ...]]] = [
        {}, {"x": (3,)}, {"x": (3, 5)}, {"x": (4,)}, {"x": (3, 0)}, {"x": (3, 1)}, {"x": (2, 3)},
        {"x": (3, 5, 6)}, {"z": (1,)}, {"y": (1,)}, {"x": ()}, {"x": (-1,)}]
    for shape, given in itertools.product(shapes, overrides):
        graph = two_inputs(shape, (None, 1))
        found = [f"{is_open(graph):d}", outcome(opened, graph, text=str),
                 outcome(overridden, graph, given, text=str),
                 outcome(shapes_at, graph, given, text=str)]
        texts[f"{shape} {given}".replace(": ", ":")] = "; ".join(found)
    recorded("infer_open_dimensions", texts)


def opened(graph: Graph) -> str:
    check_open_dimensions(graph)
    return "closed"


def overridden(graph: Graph, overrides: dict[str, tuple[int, ...]]) -> str:
    return str([info.shape for info in with_shapes(graph, overrides).inputs])


def shapes_at(graph: Graph, overrides: dict[str, tuple[int, ...]]) -> str:
    return str(resolve(graph, 2, overrides).shapes)


ENDS = {
    "output": ("made", "input", "constant", "whole constant", "shape", "bytes", "text",
               "identity of input", "twice"),
    "declared": ("float32", "int64", "uint8"), "file": ("", "ends.onnx"),
    "batch": (None, 1, 2, 5), "fixed": (None, 1, 2),
}


def ending(options: dict[str, Any]) -> Graph:
    build = GraphBuilder("ends", file=options["file"])
    build.input("x", (options["batch"], 3))
    build.input("bytes", (None, 2), "uint8")
    build.constant("c", np.ones(2))
    build.graph.constants["whole"] = np.arange(3)
    kind = options["output"]
    names = {"input": ["x"], "constant": ["c"], "whole constant": ["whole"], "bytes": ["bytes"],
             "text": [build.add("identity", ["bytes"])] if kind == "text" else [],
             "shape": [build.add("shape", ["x"], start=0, end=None)] if kind == "shape" else [],
             "identity of input": [build.add("identity", ["x"])]
             if kind == "identity of input" else [],
             "made": [build.apply("relu", "x")] if kind == "made" else [],
             "twice": [build.apply("relu", "x"), build.add("identity", [
                 "elementwise_0"])] if kind == "twice" else []}[kind]
    build.graph.outputs = [ValueInfo(name, (None, None), options["declared"]) for name in names]
    build.graph.fixed_batch = options["fixed"]
    return build.graph


def test_what_a_graph_ends_in(recorded: Recorded) -> None:
    texts = {}
    for case, options in varied(ENDS, 40):
        graph = ending(options)
        for batch in (0, 1, 2, 3):
            texts[f"{case} at {batch}"] = text_at(graph, batch)
        texts[f"{case} rows"] = sorted_rows(graph, 2)
    recorded("infer_ends", texts)


def test_broadcasts(recorded: Recorded) -> None:
    """Operands broadcast to a result's shape at both batch sizes or not at all."""
    build = GraphBuilder("sums")
    build.input("x", (None, 3, 4))
    build.input("row", (4,))
    build.input("two", (2, 1, 1))
    values = ["x", "row", "two", build.apply("relu", "x"),
              build.reduce("x", "sum", (1,)), build.add("shape", ["x"], start=0, end=None)]
    graph, texts = build.graph, {}
    for first, second in itertools.product(values, values):
        graph.nodes = graph.nodes[:3]
        graph.outputs = []
        result = build.elementwise(apply("add"), first, second)
        build.output(result, ())
        shapes = shapes_by_batch(graph) if "shape_2" not in (first, second) else None
        found = shapes and [shapes.broadcast_to(result, operands, constants)
                            for operands in ([first], [second], [first, second], [first, "c"])
                            for constants in ({"c": np.ones(4)}, {"c": np.ones((5, 1, 1, 1))},
                                              {first: np.ones((1, 1)), "c": np.ones(1)})
                            if shapes.shapes(result)]
        texts[f"{first} {second}"] = str(found)
    recorded("infer_broadcasts", texts)
