"""The layers of drawn networks and of single nodes, and the fusions, parts and layers in place that
are found among them, are those that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gossamer.errors import GossamerError
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import resolve
from gossamer.model.input_format import InputFormat
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.weights import WeightsStore
from gossamer.plan.fusion import find_fusions, with_fusions
from gossamer.plan.in_place import layers_in_place
from gossamer.plan.lower.inputs import given_inputs
from gossamer.plan.lower.rules import _onnx_part, flops_by_node, lower
from gossamer.plan.lower.state import LowerState
from gossamer.plan.part import _groups, part_of
from gossamer.plan.program import Layer
from gossamer.plan.store.keys import problem_key
from tests.model.onnx_models import model, save, weights
from tests.recorded import Recorded, digest
from tests.simulated.networks import random_network
from tests.simulated.plans import FORMATS
from tests.simulated.pruned import pruned_network

NETWORKS = 45


def layer_text(layer: Layer) -> str:
    """Returns all facts of a layer, the problem as the first digits of its key."""
    problem = ("" if layer.is_reshape else
               f"{layer.problem.describe()} {problem_key(layer.problem)[:8]}")
    weights_text = ", ".join(f"{name} {'x'.join(map(str, array.shape))}"
                             for name, array in layer.weights.items())
    read = layer.problem.inputs[0] if layer.is_reshape else None
    others = digest([layer.source, layer.facts, read, layer.inserted, layer.covers,
                     list(layer.problem.outputs)])
    return (f"{layer.name}: {layer.op} {problem} of {' '.join(layer.inputs)} to "
            f"{' '.join(layer.outputs)} with {weights_text or 'nothing'}, density "
            f"{layer.density}, {others}")


def lowered_text(graph: Graph, batch: int, *, short: bool = False) -> str:
    """Returns the layers of a graph at a batch size, or the error."""
    try:
        static = resolve(graph, batch)
        given = given_inputs(static, WeightsStore())
        own, constants = lower(static)
    except GossamerError as error:
        return str(error).rpartition("model.onnx: ")[2]
    layers = [*given.layers, *own]
    outputs = [info.name for info in graph.outputs]
    fusions = find_fusions(layers, outputs)
    disjoint: list[Layer] = []
    for fusion in fusions:
        if not any(set(fusion.covers) & set(other.covers) for other in disjoint):
            disjoint.append(fusion)
    left_out = [layer.name for index, layer in enumerate(layers) if index % 3 == 1]
    groups = [_groups(layers, names) for names in ([], left_out)]
    parts = [part_of(layers, [layers[index] for index in group], outputs)
             for several in groups for group in several]
    texts = list(map(layer_text, layers))
    return "; ".join([
        *([digest(texts)] if short else texts), f"constants {' '.join(constants)}",
        f"given {digest([given.specs, given.names])}",
        f"fusions {len(fusions)} {digest(list(map(layer_text, fusions)))}",
        f"with fusions {digest([layer.name for layer in with_fusions(layers, disjoint)])}",
        f"in place {' '.join(sorted(layers_in_place(layers)))}", f"groups {digest(groups)}",
        f"parts {digest([part and layer_text(part) for part in parts])}",
        f"flops {digest(flops_by_node(static))}"])


def lowered_file_text(proto: onnx.ModelProto, folder: Path, batch: int) -> str:
    """Returns the layers of a model that is written to a file and read from it, or the error.
    batch: the batch size of models that do not fix theirs."""
    try:
        graph = load(str(save(proto, folder)))
        return lowered_text(optimise(graph), graph.fixed_batch or batch)
    except GossamerError as error:
        return str(error).rpartition("model.onnx: ")[2]


def test_layers_of_drawn_networks(recorded: Recorded, tmp_path: Path) -> None:
    texts = {}
    for seed in range(NETWORKS):
        proto = (pruned_network if seed % 5 == 4 else random_network)(seed)
        graph = with_formats(load(str(save(proto, tmp_path))),
                             InputFormat(*FORMATS[seed % len(FORMATS)]),
                             ("float32", "float16")[seed % 2])
        texts[str(seed)] = lowered_text(
            optimise(graph, channels_first=seed % 3 > 0, chooses_by_weights=seed % 3 > 1),
            1 + seed % 4, short=True)
    recorded("lowered_networks", texts)


def nodes() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields models of one node or two, with their names."""
    def made(op: str, shapes: list[tuple], constants: dict[str, np.ndarray] | None = None,
             outputs: int = 1, unread: tuple[int, ...] = (), opset: int = 17,
             order: list[str] | None = None, types: dict[str, int] | None = None,
             **attributes: Any) -> onnx.ModelProto:
        names = [f"x{index}" for index in range(len(shapes))]
        results = [f"y{index}" for index in range(outputs)]
        node = helper.make_node(op, order or [*names, *(constants or {})], results, op.lower(),
                                **attributes)
        return model([node], dict(zip(names, shapes, strict=True)),
                     {name: None for index, name in enumerate(results) if index not in unread},
                     constants, opset, types)

    image, matrix = ("N", 4, 6, 5), ("N", 6)
    for axis in (-3, 1, 2):
        size = image[axis]
        assert isinstance(size, int)
        yield f"split {axis}", made("Split", [image], {"s": np.array([1, size - 1])}, 2, axis=axis)
    yield "split of which one is read", made("Split", [image], {"s": np.array([1, 3])}, 2, (0,),
                                             axis=1)
    for axis in (-1, 1):
        yield f"concat {axis}", made("Concat", [image, image], axis=axis)
        yield f"softmax {axis}", made("Softmax", [image], axis=axis)
        yield f"log softmax {axis}", made("LogSoftmax", [image], axis=axis)
        yield f"gather {axis}", made("Gather", [image], {"i": np.array([1, 0])}, axis=axis)
        yield f"gather of places {axis}", made(
            "Gather", [image, (2,)], axis=axis, types={"x1": TensorProto.INT64})
        for unread in ((), (0,), (1,)):
            yield f"top {axis} {unread}", made("TopK", [image], {"k": np.array([2])}, 2, unread,
                                               types={"y1": TensorProto.INT64}, axis=axis)
    for starts, ends, steps in (([1], [3], [1]), ([3], [-9], [-1]), ([0], [9], [2]),
                                ([-2], [9], [1])):
        yield f"slice {starts} {ends} {steps}", made("Slice", [image], {
            "b": np.array(starts), "e": np.array(ends), "a": np.array([1]), "s": np.array(steps)})
    yield "expand", made("Expand", [("N", 1, 6, 1)], {"s": np.array([1, 4, 6, 5])})
    for mode in ("constant", "reflect", "edge"):
        yield f"pad {mode}", made("Pad", [image], {"p": np.array([0, 1, 1, 0, 0, 2, 0, 1])},
                                  mode=mode)
    yield "pad with a number", made("Pad", [image], {
        "p": np.array([0, 0, 1, 1, 0, 0, 0, 0]), "v": np.float32(1.5)})
    for shape in (("N", 4, 6), image, ("N", 4, 3, 6, 5)):
        scales = np.array([1, 1, *(2,) * (len(shape) - 2)], np.float32)
        yield f"resize rank {len(shape)}", made(
            "Resize", [shape], {"s": scales}, order=["x0", "", "s"], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    for transposed in ((0, 0), (0, 1), (1, 0), (1, 1)):
        attributes = {"transA": transposed[0], "transB": transposed[1]}
        square, weight = (6, 6), weights(6, 6)
        yield f"gemm {transposed}", made("Gemm", [square], {"w": weight}, **attributes)
        yield f"gemm with a bias {transposed}", made(
            "Gemm", [square], {"w": weight, "b": weights(6)}, **attributes)
        yield f"gemm of values {transposed}", made("Gemm", [square, square], **attributes)
        yield f"gemm and a value {transposed}", made("Gemm", [square, square, square],
                                                     **attributes)
    for shapes in ((matrix, (6, 3)), (("N", 2, 6), (6, 3)), (("N", 2, 3, 6), (6, 3)),
                   (("N", 2, 6), ("N", 6, 3)), (("N", 6), (6,)), ((6,), (6, 3)),
                   (("N", 2, 6), (2, 6, 3))):
        yield f"matmul of values {shapes}", made("MatMul", list(shapes))
        second = tuple(size for size in shapes[1] if size != "N")
        yield f"matmul of weights {shapes}", made("MatMul", [shapes[0]], {"w": weights(*second)})
    for groups, bias in ((1, False), (1, True), (2, True)):
        constants = {"w": weights(4, 3, 2, 3), **({"b": weights(3 * groups)} if bias else {})}
        yield f"transposed convolution {groups} {bias}", made(
            "ConvTranspose", [image], constants, group=groups, strides=[2, 1], pads=[1, 0, 0, 1],
            output_padding=[1, 0])
    yield "transposed convolution of values", made("ConvTranspose", [image, (4, 3, 2, 3)])
    yield "convolution of values", made("Conv", [image, (3, 4, 2, 3)])
    yield "convolution, bias of values", made("Conv", [image, (3,)], {"w": weights(3, 4, 2, 3)},
                                              order=["x0", "w", "x1"])
    for pads in ([0, 0, 0, 0], [1, 0, 2, 1], [0, -1, 0, 0]):
        yield f"convolution {pads}", made("Conv", [image], {"w": weights(6, 2, 2, 3)}, group=2,
                                          pads=pads, strides=[1, 2], dilations=[2, 1])
    for density in (0.0, 0.2, 0.9):
        drawn = np.random.default_rng(3).random((8, 4, 3, 3)) < density
        yield f"density {density}", made("Conv", [image], {"w": weights(8, 4, 3, 3) * drawn})
    yield "signs", model(
        [helper.make_node("Sign", ["x"], ["s"], "sign"),
         helper.make_node("Conv", ["s", "w"], ["y"], "conv")],
        {"x": image}, {"y": 4}, {"w": np.sign(weights(8, 4, 3, 3))})
    for kind in ("MaxPool", "AveragePool"):
        extra = {"count_include_pad": 1} if kind == "AveragePool" else {"dilations": [1, 2]}
        yield kind, made(kind, [image], kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 1],
                         ceil_mode=1, **extra)
    for kind in ("ReduceMean", "ReduceMax", "ReduceSum"):
        axes = {"axes": [2, -1]} if kind != "ReduceSum" else {}
        yield kind, made(kind, [image], {"a": np.array([1])} if not axes else None, keepdims=0,
                         **axes)
    yield "cast", made("Cast", [image], to=TensorProto.INT32, types={"y0": TensorProto.INT32})
    yield "layer norm", made("LayerNormalization", [("N", 4, 6)], {"s": weights(6),
                                                                 "b": weights(6)}, axis=-1)
    for unread in ((), (1, 2), (1,), (2,)):
        yield f"batch norm in training {unread}", made(
            "BatchNormalization", [image], {name: np.abs(weights(4)) for name in "gbmv"}, 3, unread,
            training_mode=1)
    yield "transposed for a product", model(
        [helper.make_node("Transpose", ["x"], ["t"], "swap", perm=[0, 2, 1]),
         helper.make_node("MatMul", ["z", "t"], ["y"], "product")],
        {"x": ("N", 2, 6), "z": ("N", 3, 6)}, {"y": 3})
    yield "transposed for a product and a reader", model(
        [helper.make_node("Transpose", ["x"], ["t"], "swap", perm=[0, 2, 1]),
         helper.make_node("MatMul", ["z", "t"], ["y"], "product"),
         helper.make_node("Relu", ["t"], ["u"], "relu")],
        {"x": ("N", 2, 6), "z": ("N", 3, 6)}, {"y": 3, "u": 3})
    yield "output that is a constant", model(
        [helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": matrix}, {"y": 2, "k": 2},
        {"k": weights(2, 3)})
    yield "constant that is reshaped", model(
        [helper.make_node("Add", ["x", "k"], ["y"], "add")], {"x": matrix}, {"y": 2},
        {"k": weights(6)})


def test_layers_of_nodes(recorded: Recorded, tmp_path: Path,
                         without_onnxruntime: pytest.MonkeyPatch) -> None:
    recorded("lowered_nodes", {name: lowered_file_text(proto, tmp_path, 2)
                               for name, proto in nodes()})


def test_known_inputs_of_onnx_parts(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only integers and bools that are not many are stated as known."""
    monkeypatch.setattr("gossamer.plan.lower.rules.nodes_of", lambda model: ())
    texts = {}
    for kind in ("float32", "int64", "uint8", "bool", "float16"):
        for size in (0, 1, 4096, 4097):
            build = GraphBuilder("known")
            build.output(build.apply("relu", build.input("x", (2,))), (2,))
            static = resolve(build.finish(), 1)
            static.constants["k"] = np.ones(size, kind)
            static.shapes["z"], static.dtypes["z"] = (2,), "float32"
            state = LowerState(static, WeightsStore(), {})
            node = Node("onnx_part", "part", ["x", "k"], ["z"], {"model": np.zeros(3, np.uint8)})
            _onnx_part(state, node)
            known = vars(state.layers[-1].problem)["known"]
            texts[f"{size} {kind}"] = str([(index, len(values)) for index, values in known])
    recorded("known_inputs", texts)


def test_inputs_in_callers_formats(recorded: Recorded) -> None:
    texts = {}
    for dtype, layout in (("float32", "NCHW"), ("uint8", "NHWC"), ("float16", "NHWC")):
        for scale, mean, std in ((1.0, 0.0, 1.0), (1 / 64, 0.0, 1.0), (1.0, 2.0, 1.0),
                                 (0.5, (1.0, 2.0, 3.0), 1.25), (1.0, 0.0, (1.0, 2.0, 4.0)),
                                 (0.5, (1.0, 2.0, 3.0), (1.0, 2.0, 4.0))):
            build = GraphBuilder("given")
            build.output(build.apply("relu", build.input("x", (None, 3, 4, 5))), (None, 3, 4, 5))
            given = InputFormat(dtype, layout, scale, mean, std)
            static = resolve(with_formats(build.finish(), given, None), 2)
            found = given_inputs(static, WeightsStore())
            expressions = [getattr(layer.problem, "expression", None) for layer in found.layers]
            texts[f"{dtype} {layout} {scale} {mean} {std}"] = "; ".join([
                *map(layer_text, found.layers), digest([found.specs, found.names]),
                str([asdict(expression) for expression in expressions if expression])])
    recorded("given_inputs", texts)
