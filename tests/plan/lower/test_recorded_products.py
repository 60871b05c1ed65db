"""The layers of products of all ranks, with constants on either side and with or without what
follows them, are those that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.errors import GossamerError
from gossamer.expression import apply
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Node
from gossamer.model.infer.resolve import resolve
from gossamer.ops.weights import WeightsStore
from gossamer.plan.lower import products
from gossamer.plan.lower.state import LowerState
from tests.model.onnx_models import model, weights
from tests.plan.lower.test_recorded import layer_text, lowered_file_text
from tests.recorded import Recorded

LEFT: tuple[tuple[int, ...], ...] = ((6,), (1, 6), (2, 6), (3, 2, 6), (2, 3, 2, 6))
RIGHT: tuple[tuple[int, ...], ...] = ((6,), (6, 1), (6, 4), (3, 6, 4), (1, 1, 6, 4))


def matmuls() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields products of each rank: of two values, and of a value and a constant."""
    node = helper.make_node
    for left, right, constant, after in product(LEFT, RIGHT, ("", "a", "b"),
                                                ("", "relu", "value")):
        if after and (len(left) + len(right)) % 2:
            continue
        inputs = {"a": left, "b": right}
        constants = {constant: weights(*inputs.pop(constant))} if constant else {}
        nodes = [node("MatMul", ["a", "b"], ["p" if after else "y"], "product")]
        if after == "relu":
            nodes.append(node("Relu", ["p"], ["y"], "relu"))
        elif after:
            inputs["c"] = _shape_of_product(left, right)
            nodes.append(node("Add", ["p", "c"], ["y"], "sum"))
        yield (f"{left} by {right}, constant {constant or 'none'}, then {after or 'nothing'}",
               model(nodes, inputs, {"y": None}, constants))


def _shape_of_product(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a product, or any shape where the matrices cannot be multiplied."""
    try:
        return np.matmul(np.zeros(left), np.zeros(right)).shape
    except ValueError:
        return (1,)


def transposed() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields products that read transposed matrices on either side, or on both."""
    node = helper.make_node
    for rank, sides, also_read in product((2, 3, 4), ("a", "b", "ab"), (False, True)):
        inputs = {name: (*(2, 3)[:rank - 2], 5, 5) for name in "ab"}
        order = [*range(rank - 2), rank - 1, rank - 2]
        nodes = [node("Transpose", [side], [f"{side}t"], f"turned {side}", perm=order)
                 for side in sides]
        read = [f"{side}t" if side in sides else side for side in "ab"]
        nodes.append(node("MatMul", read, ["y"], "product"))
        if also_read:
            nodes.append(node("Relu", [f"{sides[0]}t"], ["z"], "relu"))
        yield (f"rank {rank}, turned {sides}, read again {also_read}",
               model(nodes, inputs, {"y": None, **({"z": None} if also_read else {})}))


def gemms() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields Gemm nodes with each transposition, addend and factor."""
    node = helper.make_node
    for trans_a, trans_b, constant, addend, alpha, beta in product(
            (0, 1), (0, 1), (False, True), ("", "row", "matrix", "value"), (1.0, 0.5), (1.0, 2.0)):
        if beta != 1 and not addend:
            continue
        a, b = ((5, 3), (3, 5))[trans_a], ((3, 4), (4, 3))[trans_b]
        inputs = {"a": a}
        constants = {}
        if constant:
            constants["b"] = weights(*b)
        else:
            inputs["b"] = b
        if addend == "value":
            inputs["c"] = (5, 4)
        elif addend:
            constants["c"] = weights(*((4,) if addend == "row" else (5, 4)))
        yield (f"transposed {trans_a}{trans_b}, constant {constant}, plus {addend or 'nothing'}, "
               f"{alpha} and {beta}",
               model([node("Gemm", ["a", "b", *(["c"] if addend else [])], ["y"], "gemm",
                           transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)],
                     inputs, {"y": None}, constants))


def convolutions() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields convolutions and transposed convolutions with constants or values as weights."""
    node = helper.make_node
    for op, groups, weight, bias in product(("Conv", "ConvTranspose"), (1, 2),
                                            ("constant", "value"), ("", "constant", "value")):
        inputs: dict[str, tuple[int | str, ...]] = {"x": ("N", 4, 6, 5)}
        constants, names = {}, ["x", "w"]
        kernel = (4, 4 // groups, 3, 2)
        if weight == "constant":
            constants["w"] = weights(*kernel)
        else:
            inputs["w"] = kernel
        if bias:
            names.append("b")
            channels = 4 if op == "Conv" else 4 // groups * groups
            if bias == "constant":
                constants["b"] = weights(channels)
            else:
                inputs["b"] = (channels,)
        for pads in ((0, 0, 0, 0), (1, 0, 0, 1), (-1, 0, 0, 0), (0, 0, 0, -1)):
            if min(pads) < 0 and (groups, bias) != (1, ""):
                continue
            yield (f"{op} of {groups} groups, weight {weight}, bias {bias or 'none'}, pads {pads}",
                   model([node(op, names, ["y"], "conv", pads=pads, group=groups,
                               strides=(2, 1))], inputs, {"y": None}, constants))


@pytest.mark.parametrize("cases", [matmuls, transposed, gemms, convolutions],
                         ids=lambda cases: cases.__name__)
def test_layers_of_products(cases: Callable[[], Iterator[tuple[str, onnx.ModelProto]]],
                            recorded: Recorded, tmp_path: Path,
                            without_onnxruntime: None) -> None:
    recorded(f"lowered_{cases.__name__}", {
        case: lowered_file_text(proto, tmp_path, 3) for case, proto in cases()})


def _lowered(op: str, kinds: str, shapes: Sequence[tuple[int, ...]],
             attributes: dict[str, Any]) -> str:
    """Returns the layers of one node that is given to its rule.

    kinds: for each input a letter: w for weights, b for a constant of this batch size only, v for
    another value, t for a value that is transposed from another one.
    """
    build = GraphBuilder("one")
    build.output(build.apply("relu", build.input("x", (2,))), (2,))
    static = resolve(build.finish(), 1)
    state = LowerState(static, WeightsStore(), {})
    names = []
    for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
        name = f"{kind}{index}"
        names.append(name)
        static.shapes[name], static.dtypes[name] = shape, "float32"
        if kind in "wb":
            static.constants[name] = weights(*shape)
        if kind == "w":
            static.graph.constants[name] = static.constants[name]
        if kind == "t":
            state.swapped[name] = f"{name} before"
            turned = (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape
            static.shapes[f"{name} before"], static.dtypes[f"{name} before"] = turned, "float32"
    result = (*shapes[0][:-1], *shapes[1][-1:])
    static.shapes["y"], static.dtypes["y"] = result, "float32"
    node = Node(op, "node", names, ["y"], attributes)
    try:
        getattr(products, op)(state, node)
    except (GossamerError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{'; '.join(map(layer_text, state.layers))}; constants {' '.join(state.constants)}"


def test_layers_of_single_nodes(recorded: Recorded) -> None:
    """Readers and passes change products of matrices and constants, so that their rules see some
    of these nodes from builders alone."""
    texts = {}
    for left, right, kinds in product(LEFT, RIGHT, ("vv", "vw", "vb", "wv", "bv", "tv", "vt",
                                                    "tt", "tw")):
        texts[f"matmul {kinds} {left} by {right}"] = _lowered("matmul", kinds, (left, right), {})
    plus = apply("add")
    for trans_a, trans_b, kinds in product(
            (False, True), (False, True), ("vv", "vw", "vb", "vww", "vwv", "vvv", "vvw", "vwb")):
        attributes = {"trans_a": trans_a, "trans_b": trans_b}
        if len(kinds) > 2:
            attributes["epilogue"] = plus
        third = [(4,) if kinds[2] == "w" else (4, 4)] if len(kinds) > 2 else []
        texts[f"gemm {kinds} {trans_a} {trans_b}"] = _lowered(
            "gemm", kinds, [(4, 4), (4, 4), *third], attributes)
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1,
              "output_padding": (0, 0)}
    for op, kinds, pads in product(("conv2d", "conv_transpose2d"),
                                   ("vw", "vv", "vb", "vww", "vwv", "vvw", "vvv", "vwb"),
                                   ((0, 0, 0, 0), (0, 0, -1, 0), (1, 0, 0, 0))):
        attributes = {**window, "pads": pads}
        if len(kinds) > 2 and op == "conv2d":
            attributes["epilogue"] = plus
        texts[f"{op} {kinds} {pads}"] = _lowered(
            op, kinds, [(2, 4, 5, 6), (4, 4, 3, 2), (4,)][:len(kinds)], attributes)
    recorded("lowered_products", texts)
