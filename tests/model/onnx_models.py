"""Makes small ONNX models for the tests, and compares them with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.networks.compared import session_of
from tests.tolerances import normalised_error, tolerance


@dataclass(frozen=True)
class Input:
    """A run-time input: its shape, whose first dimension is a free batch, and its values."""

    shape: tuple[int, ...]
    low: float = -3.0
    high: float = 3.0
    dtype: str = "float32"
    free: bool = True

    def draw(self, seed: int) -> np.ndarray:
        values = np.random.default_rng(seed).uniform(self.low, self.high, self.shape)
        return values.astype(self.dtype)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def make(op: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def weights(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def part(nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str],
         constants: Mapping[str, np.ndarray] | None = None,
         kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """Returns a graph of values of unknown shapes, such as a branch."""
    return helper.make_graph(
        list(nodes), "part",
        *([helper.make_tensor_value_info(name, kind, None) for name in names]
          for names in (inputs, outputs)),
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()])


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, int | Sequence[int | str] | None],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    types: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Returns a model. outputs: rank or shape of each output by name; None declares no shape."""
    types = types or {}
    graph = helper.make_graph(
        list(nodes), "test",
        [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), list(shape))
         for name, shape in inputs.items()],
        [helper.make_tensor_value_info(
            name, types.get(name, TensorProto.FLOAT),
            [f"{name}{i}" for i in range(shape)] if isinstance(shape, int) else shape)
         for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name)
         for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def runtime(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *,
            optimised: bool = False) -> list[np.ndarray]:
    """Returns ONNX Runtime's outputs, with or without its graph optimisations."""
    return session_of(proto, threads=1, is_optimised=optimised).run(None, dict(feeds))


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def outputs_of(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    first = next(iter(feeds.values()))
    static = resolve(graph, first.shape[0] if first.ndim else 1)
    values = execute(static, feeds)
    return [values[info.name] for info in graph.outputs]


def compare(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path,
            op: str = "", change: Callable[[Graph], Graph] = optimise,
            expected: Sequence[np.ndarray] | None = None) -> Graph:
    """Asserts that the model, as loaded and as optimised, agrees with what is expected, which is
    what ONNX Runtime computes unless it is given."""
    if expected is None:
        expected = runtime(proto, feeds)
    graph = load(save(proto, folder))
    for version in (graph, change(graph)):
        results = outputs_of(version, feeds)
        for y, reference in zip(results, expected, strict=True):
            if reference.dtype.kind == "f":
                assert normalised_error(y, reference) <= tolerance(op)
            else:
                np.testing.assert_array_equal(y, reference)
    return graph


def single(op: str, arguments: Sequence[Input | np.ndarray | None], opset: int,
           outputs: int = 1, types: Mapping[str, int] | None = None,
           **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a model of one node with a free batch dimension, and its inputs."""
    names, inputs, feeds, constants = [], {}, {}, {}
    kinds = dict(types or {})
    for index, argument in enumerate(arguments):
        name = "" if argument is None else f"x{index}"
        names.append(name)
        if isinstance(argument, Input):
            feeds[name] = argument.draw(index)
            free = argument.free and argument.shape
            inputs[name] = ("N", *argument.shape[1:]) if free else argument.shape
            kinds[name] = helper.np_dtype_to_tensor_dtype(np.dtype(argument.dtype))
        elif argument is not None:
            constants[name] = argument
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, "node", **attributes)
    proto = model([node], inputs, dict.fromkeys(results), constants, opset, kinds)
    return proto, feeds
