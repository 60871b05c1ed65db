"""Rules make layers with names of their own, which compute each dtype as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.onnx_writer import to_onnx
from gossamer.model.passes.optimise import optimise
from gossamer.plan.lower.rules import lower
from tests.model.onnx_models import Input, ints, model, save, single, weights
from tests.model.readers.operator_cases import TABLES, cases, needs_onnx
from tests.plan.small import assert_as_runtime, compiled
from tests.tolerances import normalised_error, tolerance

MATRIX = Input((3, 5))


def case(op: str, *arguments: Any, dtype: str = "float32", outputs: int = 1,
         **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns a model of one node, whose outputs have a dtype, and its inputs."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return single(op, arguments, 17, outputs, {f"y{i}": kind for i in range(outputs)},
                  **attributes)


TYPES = ("float32", "int64", "int32", "uint8", "bool")
CASTS = [case("Cast", Input((3, 5), 0, 5, source), dtype=target,
              to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
         for source in TYPES for target in TYPES]
LARGE = Input((3, 5), 2**40, 2**50, "int64")


def _integers(dtype: str) -> list[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    x, y = Input((3, 5), -9, 9, dtype), np.array([1, -2, 3, 4, -5], dtype)
    near, same = Input((3, 5), -3, 3, dtype), partial(case, dtype=dtype)
    return [
        *[same(op, x, y) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")],
        *[same(op, x) for op in ("Neg", "Abs", "Sign", "Transpose")],
        same("Where", Input((3, 5), 0, 2, "bool"), x, y),
        same("Concat", x, Input((3, 2), -9, 9, dtype), axis=1), same("Concat", x, x, axis=0),
        same("Concat", x, np.arange(6).reshape(3, 2).astype(dtype), axis=1),
        same("Slice", x, ints(1), ints(4), ints(1)),
        same("Expand", Input((3, 1), -9, 9, dtype), ints(3, 4)),
        same("Pad", x, ints(0, 1, 0, 2), np.array(3, dtype)),
        same("Split", x, ints(1, 4), axis=1, outputs=2),
        same("Clip", x, np.array(-2, dtype), np.array(3, dtype)),
        *[case(op, near, near, dtype="bool") for op in ("Less", "Equal", "GreaterOrEqual")]]


TRUTHS = [
    *[case(op, Input((3, 5), 0, 2, "bool"), Input((3, 5), 0, 2, "bool"), dtype="bool")
      for op in ("And", "Or", "Xor", "Equal")],
    case("Not", Input((3, 5), 0, 2, "bool"), dtype="bool"),
    *[case(op, MATRIX, np.float32([0.5]), dtype="bool") for op in (
        "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")],
    case("Where", Input((3, 5), 0, 2, "bool"), MATRIX, np.float32([1])),
    case("Transpose", Input((3, 5), 0, 2, "bool"), dtype="bool"),
    case("Reshape", Input((3, 4), 0, 200, "uint8"), ints(-1, 2), dtype="uint8"),
]
EXACT = [
    case("Where", Input((3, 5), 0, 2, "bool"), LARGE, ints(2**53 + 1), dtype="int64"),
    case("Add", LARGE, ints(1), dtype="int64"), case("Gather", LARGE, ints(1), axis=1,
                                                     dtype="int64"),
]
CASES = [*CASTS, *_integers("int64"), *_integers("int32"), *TRUTHS, *EXACT]


@pytest.mark.parametrize("tried", CASES, ids=lambda tried: tried[0].graph.node[0].op_type)
def test_dtypes(tried: tuple[onnx.ModelProto, dict[str, np.ndarray]], quick_device: Device,
                tmp_path: Path) -> None:
    proto, feeds = tried
    plan = gossamer.compile(str(save(proto, tmp_path)), quick_device, strict=True)
    assert_as_runtime(plan, proto, *[feeds[info.name] for info in plan.inputs])


def test_split_with_parts_that_nobody_reads(device: Device, tmp_path: Path) -> None:
    node = helper.make_node("Split", ["x", "sizes"], ["first", "y", "last"], axis=1)
    proto = model([node], {"x": ["N", 6]}, {"y": 2}, {"sizes": ints(1, 2, 3)})
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    plan = gossamer.compile(str(save(proto, tmp_path)), device)
    np.testing.assert_array_equal(plan(x), x[:, 1:3])
    assert len(plan.report().rows) == 1


def test_a_constant_is_read_by_several_kinds_of_layer(device: Device, tmp_path: Path) -> None:
    """One layer reads the constant as packed weights, the others read it as a run-time value."""
    nodes = [helper.make_node("MatMul", ["x", "c"], ["p"]),
             helper.make_node("Concat", ["p", "c"], ["q"], axis=0),
             helper.make_node("MatMul", ["c", "q2"], ["r"]),
             helper.make_node("Transpose", ["q"], ["q2"])]
    nodes = [nodes[0], nodes[1], nodes[3], nodes[2]]
    proto = model(nodes, {"x": [4, 4]}, {"r": 2, "q": 2}, {"c": weights(4, 4)},
                  types={"x": TensorProto.FLOAT})
    onnx.checker.check_model(proto)
    assert_as_runtime(compiled(proto, device, tmp_path), proto, weights(4, 4, seed=3))


@needs_onnx
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("table", TABLES)
def test_layers_have_their_own_names_and_the_values_of_their_problems(
        table: str, without_onnxruntime: None) -> None:
    """A constant among a problem's weights is no value that the layer reads."""
    for name, operator in TABLES[table].items():
        for told, proto in islice(cases(name, operator), 0, None, 4):
            try:
                layers, _ = lower(resolve(optimise(load(proto)), 2))
            except GossamerError:
                continue
            names = [layer.name for layer in layers]
            assert len(set(names)) == len(names), f"{told}: {names}"
            for layer in layers:
                if not layer.is_reshape:
                    assert len(layer.inputs) == len(layer.problem.inputs), told
                    assert len(layer.outputs) == len(layer.problem.outputs), told
                    assert set(layer.weights) == set(layer.problem.weight_shapes), told


def _ranged() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Gather", ["s", "zero"], ["n"], "batch", axis=0),
         node("Range", ["zero", "n", "one"], ["r"], "range"),
         node("Cast", ["r"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
         node("Unsqueeze", ["f", "axes"], ["u"], "column"),
         node("Add", ["x", "u"], ["y"], "add")],
        {"x": ["N", 4]}, {"y": 2},
        {"zero": np.array(0), "one": np.array(1), "axes": np.array([1])})


def _expanded() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [node("Shape", ["x"], ["s"], "shape"),
         node("Expand", ["k", "s"], ["e"], "expand"),
         node("Mul", ["x", "e"], ["y"], "mul")],
        {"x": ["N", 4]}, {"y": 2}, {"k": weights(4)})


@pytest.mark.parametrize("make", [_ranged, _expanded])
def test_every_batch_has_its_own(device: Device, tmp_path: Path,
                                 make: Callable[[], onnx.ModelProto]) -> None:
    proto = make()
    plan = compiled(proto, device, tmp_path)
    for batch in (2, 3, 1, 5, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        assert_as_runtime(plan, proto, x)


def test_a_context_refuses_what_it_was_not_made_for(device: Device, tmp_path: Path) -> None:
    context = compiled(_expanded(), device, tmp_path).context(2)
    for wrong in (np.ones((1, 4), np.float32), np.ones((2, 4), np.int32)):
        with pytest.raises(InputError, match="context of batch 2 takes"):
            context.run({"x": wrong})
    with pytest.raises(InputError, match=r"takes 1 input \('x'\), got 0"):
        context.run({})


CONSTANTS = {"weight": weights(4, 3, 3, 3), "gamma": weights(4), "beta": weights(4, seed=1),
             "mean": weights(4, seed=2), "variance": np.abs(weights(4, seed=3))}


def network(*norm_outputs: str) -> onnx.ModelProto:
    """A convolution, batch norm by the statistics of the batch, and a leaky rectifier."""
    statistics = [name for name in norm_outputs[1:] if name]
    nodes = [helper.make_node("Conv", ["x", "weight"], ["product"]),
             helper.make_node("BatchNormalization",
                              ["product", "gamma", "beta", "mean", "variance"],
                              list(norm_outputs), "norm", training_mode=1, epsilon=1e-3,
                              momentum=0.7),
             helper.make_node("LeakyRelu", ["norm"], ["y"], alpha=0.1)]
    return model(nodes, {"x": ["N", 3, 9, 8]}, {"y": 4, **dict.fromkeys(statistics, 1)}, CONSTANTS)


@pytest.mark.parametrize("outputs", [("norm",), ("norm", "new_mean", "new_variance"),
                                     ("norm", "", "new_variance"), ("norm", "new_mean", "")],
                         ids=" ".join)
@pytest.mark.parametrize("only", [None, "published"])
def test_outputs_are_those_of_the_onnx_standard(device: Device, outputs: tuple[str, ...],
                                                only: str | None, tmp_path: Path) -> None:
    proto = network(*outputs)
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    plan = gossamer.compile(str(save(proto, tmp_path)), device, only=only)
    results = plan(x)
    for y, r in zip([results] if len(expected) == 1 else results, expected, strict=True):
        assert normalised_error(y, r) <= tolerance("network")
    if only and device.compiles:
        names = [step.algorithm.name for step in plan.program(3).steps if not step.layer.inserted]
        assert names == ["published"] * 3


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    proto = network("norm", "new_mean", "new_variance")
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    written = to_onnx(load(save(proto, tmp_path)))
    for y, r in zip(ReferenceEvaluator(written).run(None, {"x": x}),
                    ReferenceEvaluator(proto).run(None, {"x": x}), strict=True):
        assert normalised_error(y, r) <= 1e-7
