"""Constants of ONNX files are numbers: those of bfloat16 and of float64, and sparse ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gossamer
from gossamer.errors import InputError, ModelError
from gossamer.model.readers.onnx.constants import to_array
from gossamer.model.readers.onnx.reader import load_onnx
from tests.model.onnx_models import compare, model, weights

BITS = [0x3F80, 0xC000, 0x0000]


@pytest.mark.parametrize("gives_bits", [False, True])
def test_bits_become_numbers(gives_bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[3], int32_data=BITS)
    if gives_bits:  # as onnx before 1.19 does
        bits = np.array(BITS, np.dtype((np.uint16, {"bfloat16": (np.uint16, 0)})))
        monkeypatch.setattr(numpy_helper, "to_array", lambda tensor: bits)
    assert to_array(tensor).astype(np.float32).tolist() == [1.0, -2.0, 0.0]


@pytest.mark.parametrize(("kind", "name"), [
    (TensorProto.DOUBLE, "float64"), (TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT, "")])
def test_what_becomes_float32_is_told(kind: int, name: str) -> None:
    graph = load_onnx(model([helper.make_node("Relu", ["x"], ["y"], "n")], {"x": ["N", 3]},
                            {"y": 2}, types={"x": kind, "y": kind}), narrows=True)
    told = [warning.partition(": ")[2] for warning in graph.warnings]
    assert told == ([] if not name else [f"{what} is {name}; gossamer accepts and returns float32"
                                         for what in ("input 'x'", "output 'y'")])


SHAPE = (4, 5)
FLAT = np.array([1, 7], np.int64)


def sparse(indices: np.ndarray, shape: tuple[int, ...] = SHAPE) -> onnx.SparseTensorProto:
    """Returns a sparse tensor named w with the values 3 and -4."""
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([3, -4], np.float32), "w"),
        numpy_helper.from_array(indices, "i"), shape)


def product(weight: onnx.SparseTensorProto, *, in_node: bool) -> onnx.ModelProto:
    """Returns a model that multiplies its input by sparse weights, which are an initializer or the
    value of a Constant node."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if in_node:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=weight))
    proto = model(nodes, {"x": ("N", 4)}, {"y": 2})
    if not in_node:
        proto.graph.sparse_initializer.append(weight)
    return proto


@pytest.mark.parametrize("in_node", [True, False])
@pytest.mark.parametrize("indices", [FLAT, np.array([[0, 1], [1, 2]])])
def test_sparse_weights(indices: np.ndarray, in_node: bool, tmp_path: Path) -> None:
    graph = compare(product(sparse(indices), in_node=in_node), {"x": weights(3, 4)}, tmp_path)
    assert [node.op for node in graph.nodes] == ["matmul"]


def test_sparse_constant_in_a_branch(tmp_path: Path) -> None:
    """The branch is left to ONNX Runtime, which must see dense tensors, too."""
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)])

    proto = model([helper.make_node(
        "If", ["chosen"], ["y"],
        then_branch=branch("a", helper.make_node("Constant", [], ["k"], sparse_value=sparse(FLAT)),
                           helper.make_node("MatMul", ["x", "k"], ["a"])),
        else_branch=branch("b", helper.make_node("Neg", ["x"], ["b"])))],
        {"x": ("N", 4), "chosen": ()}, {"y": 2}, types={"chosen": onnx.TensorProto.BOOL})
    x = weights(3, 4)
    dense = np.zeros(SHAPE, np.float32)
    dense.flat[FLAT] = 3, -4
    y = gossamer.compile(proto, "host")(x, np.array(True))
    np.testing.assert_allclose(y, x @ dense, rtol=1e-6)


@pytest.mark.parametrize("indices", [
    np.array([1, 20]), np.array([-1, 3]), np.array([1]), np.array([[0, 1], [4, 0]]),
    np.array([[0, 1, 2], [0, 0, 0]]), np.array([0.0, 1.0])])
def test_damaged_indices(indices: np.ndarray) -> None:
    with pytest.raises(ModelError, match="sparse tensor 'w' is damaged"):
        gossamer.load(product(sparse(indices), in_node=False))


def test_a_small_file_asks_for_no_large_tensor() -> None:
    with pytest.raises(InputError, match="unpacks to more than"):
        gossamer.load(product(sparse(FLAT, (4, 2**40)), in_node=True))
