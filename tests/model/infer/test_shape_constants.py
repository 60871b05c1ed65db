"""Values that follow from shapes alone: they are constants that differ between batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.onnx_models import model, runtime, save, weights
from tests.tolerances import normalised_error, tolerance

SHAPE = (3, 6, 6)


def make(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CONSTANTS = {
    "w": weights(3, 3, 3, 3), "c": weights(3, 1, 1, seed=8), "m": weights(108, 4, seed=9),
    "row": weights(4, seed=10), "zero": ints(0), "zeros": np.zeros((), np.int64),
    "one": np.ones((), np.int64), "axes": ints(1, 2, 3), "two": np.array(2, np.float32),
    "four": ints(0, 0, 0, 0), "three": ints(0, 0, 0), "image": weights(1, 3, 6, 6, seed=11),
    "unit": np.ones((1, 1), np.float32), "any": ints(-1),
}

CONV = make("Conv", ["x", "w"], "conv", pads=[1, 1, 1, 1])
SIZES = make("Shape", ["x"], "shape")
BATCH = make("Gather", ["shape", "zeros"], "n")
FLAT = make("Flatten", ["x"], "flat")
EXPANDED = make("Expand", ["c", "shape"], "e")
COUNT = [make("Range", ["zeros", "n", "one"], "range"), make("Cast", ["range"], "numbers", to=1),
         make("Unsqueeze", ["numbers", "axes"], "column")]
FILLED = make("ConstantOfShape", ["shape"], "e",
              value=numpy_helper.from_array(np.array([0.5], np.float32)))

NETWORKS: Mapping[str, list[onnx.NodeProto]] = {
    "expand": [CONV, SIZES, EXPANDED, make("Add", ["conv", "e"], "y")],
    "filled": [CONV, SIZES, FILLED, make("Mul", ["conv", "e"], "y")],
    "expand that is none at batch 1": [
        CONV, SIZES, make("Expand", ["image", "shape"], "e"),
        make("Concat", ["conv", "e"], "y", axis=1)],
    "range": [CONV, SIZES, BATCH, *COUNT, make("Add", ["conv", "column"], "y")],
    "range of the image's shape": [
        CONV, SIZES, BATCH, *COUNT, make("Expand", ["column", "shape"], "e"),
        make("Sub", ["conv", "e"], "y")],
    "chain": [CONV, SIZES, EXPANDED, make("Relu", ["e"], "f"), make("Mul", ["f", "two"], "g"),
              make("Relu", ["conv"], "r"), make("Add", ["r", "g"], "y")],
    "weight": [SIZES, BATCH, FLAT, make("Cast", ["n"], "scale", to=1),
               make("Mul", ["m", "scale"], "scaled"),
               make("MatMul", ["flat", "scaled"], "y")],
    "gemm": [SIZES, BATCH, FLAT, make("Cast", ["n"], "scale", to=1),
             make("Mul", ["m", "scale"], "scaled"),
             make("Gemm", ["flat", "scaled", "row"], "product"), make("Relu", ["product"], "y")],
    "bias of a gemm": [
        FLAT, make("Gemm", ["flat", "m"], "product"), make("Shape", ["product"], "shape"),
        make("Expand", ["row", "shape"], "e"), make("Add", ["product", "e"], "y")],
    "pad that is none at batch 1": [
        CONV, SIZES, BATCH, make("Sub", ["n", "one"], "more"),
        make("Reshape", ["more", "any"], "last"),
        make("Concat", ["four", "last", "three"], "pads", axis=0),
        make("Pad", ["image", "pads"], "e"), make("Add", ["conv", "e"], "y")],
    "shape through a product": [
        SIZES, make("Gather", ["shape", "zero"], "n"),
        make("Cast", ["n"], "number", to=1), make("Unsqueeze", ["number", "zero"], "matrix"),
        make("MatMul", ["matrix", "unit"], "product"), make("Reshape", ["product", "any"], "size"),
        make("Cast", ["size"], "whole", to=7), make("Concat", ["whole", "any"], "to", axis=0),
        make("Reshape", ["x", "to"], "y")],
    "output": [CONV, SIZES, EXPANDED, make("Relu", ["e"], "y")],
}


def network(name: str) -> onnx.ModelProto:
    used = {value for node in NETWORKS[name] for value in node.input}
    return model(NETWORKS[name], {"x": ("N", *SHAPE)}, {"y": None},
                 {key: value for key, value in CONSTANTS.items() if key in used})


@pytest.mark.parametrize("name", NETWORKS)
def test_one_optimised_graph_serves_every_batch(name: str, tmp_path: Path) -> None:
    proto = network(name)
    graph = load(save(proto, tmp_path))
    better = optimise(graph)
    for batch in (2, 3, 1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, *SHAPE)).astype(np.float32)
        (expected,) = runtime(proto, {"x": x})
        for version in (graph, better):
            static = resolve(version, batch)
            y = execute(static, {"x": x})["y"]
            assert normalised_error(y, expected) <= tolerance("network")


@pytest.mark.parametrize("name", ["expand that is none at batch 1", "pad that is none at batch 1"])
def test_a_constant_of_one_batch_size_is_never_taken_for_a_weight(name: str,
                                                                  tmp_path: Path) -> None:
    """Weights serve every batch size, so that the name of one must not stand for another."""
    graph = optimise(load(save(network(name), tmp_path)))
    for batch in (1, 2):
        (last,) = [node for node in resolve(graph, batch).nodes if "y" in node.outputs]
        assert "e" in last.inputs
