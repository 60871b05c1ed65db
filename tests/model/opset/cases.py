"""Small nodes of every op that a static graph may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.expression import Expression, ExpressionStep, apply, identity
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.infer.resolve import resolve
from tests.onnx_parts import sine


@dataclass(frozen=True)
class NodeCase:
    """The inputs of a node, as shapes of run-time values or as constants, and its attributes.

    integers: largest number of integer inputs, None where they are floats. outputs: their number.
    """

    inputs: tuple[tuple[int, ...] | np.ndarray, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    integers: int | None = None
    outputs: int = 1


_IMAGE = (2, 4, 5, 6)
_WINDOW = {"strides": (1, 2), "pads": (1, 0, 1, 1), "dilations": (2, 1)}
_AXES = {"axis": -1}

CASES: dict[str, list[NodeCase]] = {
    "conv2d": [NodeCase((_IMAGE, np.ones((6, 2, 2, 3), np.float32)),
                        {**_WINDOW, "groups": 2, "epilogue": identity()})],
    "conv_transpose2d": [NodeCase((_IMAGE, np.ones((4, 3, 2, 3), np.float32)),
                                  {**_WINDOW, "groups": 2, "output_padding": (0, 1)})],
    "gemm": [NodeCase(((3, 4), np.ones((5, 4), np.float32)),
                      {"trans_a": False, "trans_b": True, "epilogue": identity()}),
             NodeCase(((2, 3, 4), np.ones((4, 5), np.float32)),
                      {"trans_a": False, "trans_b": False, "epilogue": identity()})],
    "matmul": [NodeCase(((2, 3, 4), (2, 4, 5))), NodeCase(((3, 4), (2, 4, 5))),
               NodeCase(((4,), (4, 5)))],
    "batch_norm_training": [NodeCase((_IMAGE, *[np.ones(4, np.float32)] * 4),
                                     {"epsilon": 1e-3, "momentum": 0.9}, outputs=3)],
    "layer_norm": [
        NodeCase((_IMAGE, np.ones(6, np.float32), np.ones(6, np.float32)),
                 {"axes": -1, "epsilon": 1e-3, "centred": True}),
        NodeCase((_IMAGE, np.ones((1, 4), np.float32), np.ones(1, np.float32)),
                 {"axes": (1,), "epsilon": 1e-3, "centred": False})],
    "pool": [NodeCase((_IMAGE,), {**_WINDOW, "kind": "average", "kernel": (2, 2),
                                  "ceil_mode": True, "count_include_pad": False})],
    "elementwise": [
        NodeCase(((2, 3), (3,)), {"expression": apply("add").then(apply("tanh"))}),
        NodeCase(((2, 3), (2, 1), (1, 3)), {"expression": apply("where")}),
        NodeCase(((2, 3), (3,)), {"expression": Expression(2, (
            ExpressionStep("less", (0, 1)), ExpressionStep("sub", (0, 2))), (2, 3))}, outputs=2),
        NodeCase(((2, 3), (3,)), {"expression": apply("mul")}, integers=9)],
    "cast": [NodeCase(((2, 3),), {"dtype": dtype}) for dtype in ("int32", "int64", "bool")] + [
        NodeCase(((2, 3),), {"dtype": "float32"}, integers=9)],
    "reduce": [NodeCase((_IMAGE,), {"kind": kind, "axes": axes, "keepdims": keepdims})
               for kind in ("mean", "max", "sum")
               for axes, keepdims in (((1,), True), ("spatial", False), (None, False))],
    "softmax": [NodeCase((_IMAGE,), {"axis": 1, "log": False})],
    "top_k": [NodeCase((_IMAGE,), {"axis": axis, "count": (count,), "largest": largest},
                       integers, outputs=2)
              for axis, count, largest, integers in (
                  (1, 3, True, None), (-1, 6, False, None), (2, 1, True, 9), (3, 2, False, 9))],
    "reshape": [NodeCase((_IMAGE,), {"shape": (0, -1, 3)})],
    "transpose": [NodeCase((_IMAGE,), {"permutation": (0, 2, 3, 1)})],
    "expand": [NodeCase(((2, 1, 4),), {"shape": (2, 3, 1)}), NodeCase(((4,),), {"shape": (2, 4)})],
    "concat": [NodeCase(((2, 3), (2, 4)), _AXES)],
    "split": [NodeCase(((2, 7),), {**_AXES, "sizes": (2, 4, 1)}, outputs=3)],
    "slice": [NodeCase((_IMAGE,), {"starts": (-1, 1), "ends": (-9, 3), "axes": (2, -1),
                                   "steps": (-2, 1)})],
    "gather": [NodeCase((_IMAGE, np.array([[2, -1], [0, 1]])), {"axis": 1})],
    "onnx_part": [NodeCase(((2, 3),), {"model": sine()})],
    "pad": [NodeCase((_IMAGE,), {"pads": (0, 0, 1, 2, 0, 0, 0, 1), "mode": "edge"})],
    "resize": [NodeCase((_IMAGE,), {"scales": (1, 1, 2, 1.5), "mode": "nearest",
                                    "coordinates": "asymmetric", "nearest_mode": "floor"})],
}


def node_of(op: str, case: NodeCase) -> tuple[Node, StaticGraph, dict[str, np.ndarray]]:
    """Returns the node of a case as a static graph has it, the graph, and random inputs."""
    rng = np.random.default_rng(7)
    graph = Graph("one node", [], [ValueInfo(f"y{i}", ()) for i in range(case.outputs)], [], {})
    arrays: dict[str, np.ndarray] = {}
    for index, given in enumerate(case.inputs):
        name = f"x{index}"
        if isinstance(given, np.ndarray):
            graph.constants[name] = given
        elif case.integers is not None:
            arrays[name] = rng.integers(-case.integers, case.integers, given)
        else:
            arrays[name] = 2 * rng.standard_normal(given, dtype=np.float32)
    graph.inputs = [ValueInfo(name, array.shape, array.dtype.name)
                    for name, array in arrays.items()]
    graph.nodes = [Node(op, "node", [f"x{i}" for i in range(len(case.inputs))],
                        [info.name for info in graph.outputs], dict(case.attributes))]
    static = resolve(graph, 1)
    (node,) = static.nodes
    return node, static, {**static.constants, **arrays}
