"""Products of values of any rank with constant matrices are one step, as those of matrices are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper

import gossamer
from gossamer.device.base import Device
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.model.infer.resolve import mixing_node, resolve
from gossamer.model.passes.optimise import optimise
from gossamer.model.prune import prune
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.lower.rules import lower
from gossamer.plan.plan import Plan
from gossamer.plan.report.summary import forms_of_layers, summarise
from tests.model.onnx_models import model, runtime, save, weights
from tests.plan.small import assert_as_runtime, compiled, reloaded

DEPTH = 48
LEADING = [(5,), (2, 3), (2, 2, 3)]
"""Dimensions between the batch and the last one: products of rank 3, 4 and 5."""


def linear(x: str, y: str, activation: Sequence[NodeProto] = (), residual: str = "") -> (
        list[NodeProto]):
    """Returns the nodes of a linear layer, whose product has the layer's name. activation: nodes
    that make "<y>.active" of "<y>.biased"."""
    node = helper.make_node
    active = f"{y}.active" if activation else f"{y}.biased"
    return [node("MatMul", [x, f"{y}.w"], [f"{y}.m"], y), node("Add", [f"{y}.m", f"{y}.b"],
                                                               [f"{y}.biased"]),
            *activation, node("Add", [active, residual], [y]) if residual
            else node("Identity", [active], [y])]


def gelu(y: str) -> list[NodeProto]:
    """Returns the nodes of a GELU as exporters write it for opsets without one."""
    node = helper.make_node
    return [node("Div", [f"{y}.biased", "root"], [f"{y}.scaled"]),
            node("Erf", [f"{y}.scaled"], [f"{y}.erf"]),
            node("Add", [f"{y}.erf", "one"], [f"{y}.more"]),
            node("Mul", [f"{y}.biased", f"{y}.more"], [f"{y}.twice"]),
            node("Mul", [f"{y}.twice", "half"], [f"{y}.active"])]


def relu(y: str) -> list[NodeProto]:
    return [helper.make_node("Relu", [f"{y}.biased"], [f"{y}.active"])]


def network(nodes: Sequence[NodeProto], leading: Sequence[int], widths: dict[str, int],
            depths: dict[str, int] | None = None) -> onnx.ModelProto:
    """Returns a network that reads x and writes y. widths, depths: sizes of each layer's results
    and inputs, where the latter are not DEPTH."""
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5),
                 "minus": np.float32(-1)}
    for index, (name, width) in enumerate(widths.items()):
        depth = (depths or {}).get(name, DEPTH)
        constants[f"{name}.w"] = weights(depth, width, seed=index) / np.float32(depth**0.5)
        constants[f"{name}.b"] = weights(width, seed=index + 50)
    read = {name for each in nodes for name in each.input}
    return model(nodes, {"x": ["N", *leading, DEPTH]}, {"y": 2 + len(leading)},
                 {name: array for name, array in constants.items() if name in read})


def block(leading: Sequence[int]) -> onnx.ModelProto:
    """Returns the layers of a transformer behind its attention, with the sum at their end."""
    return network([*linear("x", "wide", gelu("wide")), *linear("wide", "y", residual="x")],
                   leading, {"wide": 40, "y": DEPTH}, {"y": 40})


def drawn(batch: int, leading: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, *leading, DEPTH)).astype(np.float32)


def assert_right(plan: Plan, proto: onnx.ModelProto, leading: Sequence[int],
                 batches: Sequence[int] = (0, 1, 3)) -> None:
    for batch in batches:
        assert_as_runtime(plan, proto, drawn(batch, leading))


@pytest.mark.parametrize("leading", LEADING, ids=lambda leading: f"rank {len(leading) + 2}")
def test_product_bias_activation_and_sum_are_one_step(leading: tuple[int, ...], device: Device,
                                                      tmp_path: Path) -> None:
    for name, proto in {
        "gelu and sum": block(leading),
        "relu": network(linear("x", "y", relu("y")), leading, {"y": 7}),
        "alone": network([helper.make_node("MatMul", ["x", "y.w"], ["y"], "y")], leading, {"y": 7}),
    }.items():
        plan = compiled(proto, device, tmp_path, strict=True)
        steps = plan.program(3).steps
        layers = ["wide", "y"] if name == "gelu and sum" else ["y"]
        assert [(step.layer.name, step.layer.op) for step in steps] == [
            (layer, "gemm") for layer in layers]
        assert steps[0].problem.inputs[0].shape == (3 * np.prod(leading), DEPTH)
        assert_right(plan, proto, leading)


def test_a_measured_plan_in_float16_agrees(quick_device: Device, tmp_path: Path) -> None:
    proto = block((5,))
    plan = gossamer.compile(str(save(proto, tmp_path)), quick_device, effort="quick",
                            precision="fp16")
    x = drawn(3, (5,))
    (expected,) = runtime(proto, {"x": x})
    np.testing.assert_allclose(plan(x), expected, atol=0.02)


def test_a_saved_plan_gives_the_same_bits(quick_device: Device, tmp_path: Path) -> None:
    plan = compiled(block((2, 3)), quick_device, tmp_path)
    for batch in (1, 3):
        plan.program(batch)
    loaded = reloaded(plan, tmp_path, quick_device)
    for batch in (0, 1, 3):
        x = drawn(batch, (2, 3))
        np.testing.assert_array_equal(loaded(x), plan(x))


@pytest.mark.parametrize("on_host", ["sparse_gemm", "host_direct"])
def test_pruned_weights_are_computed_as_sparse_ones(quick_device: Device, tmp_path: Path,
                                                    on_host: str) -> None:
    proto = network(linear("x", "y", relu("y")), (2,), {"y": 40})
    (layer,) = prune(proto, 0.9)
    assert (layer.op, layer.after) == ("MatMul", 192)
    sparse = "sparse_rows" if quick_device.compiles else on_host
    if sparse == "host_direct":
        pytest.importorskip("llvmlite")
    plan = gossamer.compile(str(save(proto, tmp_path)), quick_device, force={"y": sparse})
    (step,) = plan.program(3).steps
    assert step.algorithm.name == sparse
    assert step.layer.density == pytest.approx(0.1)
    assert_right(plan, proto, (2,))


def test_signs_are_computed_on_bits(quick_device: Device, tmp_path: Path) -> None:
    """The sums of signs, and those of sums that are signs again, are integers without rounding."""
    node = helper.make_node
    nodes = [node("Sign", ["x"], ["s"], "signs"), node("MatMul", ["s", "a.w"], ["a"], "a"),
             node("Add", ["a", "half"], ["b"]), node("Sign", ["b"], ["c"]),
             node("MatMul", ["c", "y.w"], ["y"], "y")]
    proto = network(nodes, (5,), {"a": 64, "y": 7}, {"y": 64})
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(".w"):
            array = np.sign(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    graph = gossamer.load(str(save(proto, tmp_path)))
    forms = forms_of_layers(graph, 2)
    assert {name: form.form for name, form in forms.items()} == {"a": "trits", "y": "bits"}
    name = "popcount" if quick_device.compiles else "host_direct_popcount"
    plan = gossamer.compile(graph, quick_device, only=name)
    steps = {step.layer.name: step for step in plan.program(3).steps}
    assert steps["a"].algorithm.name == steps["y"].algorithm.name == name
    # words go from one product to the other, since nobody reads the signs in the shape of the file
    assert steps["a"].variant.outputs[0] == steps["y"].variant.inputs[0]
    assert steps["y"].variant.inputs[0].format.is_packed
    for batch in (0, 1, 3):
        x = drawn(batch, (5,))
        np.testing.assert_array_equal(plan(x), runtime(proto, {"x": x})[0])


def test_products_share_reshapes_and_keep_the_facts_of_what_they_read(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [node("Greater", ["x", "half"], ["g"]), node("Where", ["g", "one", "minus"], ["t"]),
             node("MatMul", ["t", "q.w"], ["q"], "q"), node("MatMul", ["t", "k.w"], ["k"], "k"),
             node("Softmax", ["q"], ["p"]), node("Add", ["p", "k"], ["y"])]
    proto = network(nodes, (5,), {"q": 6, "k": 6})
    graph = gossamer.load(str(save(proto, tmp_path)))
    for version in (graph, optimise(graph)):
        layers, _ = lower(resolve(version, 2))
        problems = [layer.problem for layer in layers if isinstance(layer.problem, GemmProblem)]
        assert [problem.facts[0] for problem in problems] == [PLUS_MINUS_ONE] * 2
        reshapes = [layer for layer in layers if layer.is_reshape]
        into = [layer for layer in reshapes if layer.inputs == ["t"]]
        assert len(into) == 1 and into[0].problem.outputs[0].shape == (10, DEPTH)
        assert into[0].facts == {into[0].outputs[0]: PLUS_MINUS_ONE}
        names = [layer.name for layer in layers]
        assert len(set(names)) == len(names)


def test_a_product_that_a_product_reads_is_not_reshaped(tmp_path: Path) -> None:
    layers, _ = lower(resolve(optimise(gossamer.load(str(save(block((5,)), tmp_path)))), 2))
    assert [layer.op for layer in layers] == ["reshape", "gemm", "gemm", "reshape"]


def test_images_of_a_batch_stay_apart(tmp_path: Path) -> None:
    assert mixing_node(optimise(gossamer.load(str(save(block((5,)), tmp_path)))), 4) is None


def test_products_in_a_concatenation(device: Device, tmp_path: Path) -> None:
    """A concatenation joins the products without a copy, in the shape that the file gives them."""
    node = helper.make_node
    proto = network([*linear("x", "a"), *linear("x", "b", relu("b")),
                     node("Concat", ["a", "b"], ["y"], axis=1)], (4,), {"a": 16, "b": 16})
    assert_right(compiled(proto, device, tmp_path), proto, (4,))


def test_the_work_of_a_product_is_stated(tmp_path: Path) -> None:
    graph = gossamer.load(str(save(block((5,)), tmp_path)))
    rows = {row.name: row for row in summarise(resolve(graph, 3))}
    assert rows["wide"].output_shape == (3, 5, 40) and rows["wide"].density == 1.0
    assert rows["wide"].flops == 2 * 15 * DEPTH * 40


@pytest.mark.parametrize("end, copied", [
    ([helper.make_node("MatMul", ["p", "scores"], ["y"])], []),
    ([helper.make_node("Add", ["p", "t"], ["y"])], ["t"]),
    ([helper.make_node("Transpose", ["p"], ["q"], perm=[0, 2, 1, 3]),
      helper.make_node("MatMul", ["q", "q"], ["y"])], ["q"])], ids=("products", "a sum", "heads"))
def test_a_product_transposes_matrices_itself(end: list[NodeProto], copied: list[str],
                                              device: Device, tmp_path: Path) -> None:
    """The attention between channels multiplies by a transposed matrix. A transposition that
    another layer reads, too, stays a layer, and so does one of other dimensions."""
    node = helper.make_node
    proto = model([node("Abs", ["x"], ["k"]), node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
                   node("MatMul", ["x", "t"], ["scores"]),
                   node("Transpose", ["x"], ["u"], perm=[0, 1, 3, 2]),
                   node("MatMul", ["u", "scores"], ["p"]), *end],
                  {"x": ["N", 5, 5, DEPTH]}, {"y": 4}, {})
    layers, _ = lower(resolve(optimise(gossamer.load(str(save(proto, tmp_path)))), 2))
    problems = [layer.problem for layer in layers if layer.op == "matmul"]
    assert [getattr(problem, "transposed", None) for problem in problems[:2]] == [(1,), (0,)]
    assert [layer.outputs[0] for layer in layers if layer.op == "copy"] == copied
    assert_right(compiled(proto, device, tmp_path), proto, (5, 5))


@pytest.mark.parametrize("transposed", [(), (0,), (1,), (0, 1)], ids=str)
def test_a_product_of_two_values_transposes_them(transposed: tuple[int, ...],
                                                 tmp_path: Path) -> None:
    proto = model([helper.make_node("Gemm", ["x", "z"], ["y"], transA=int(0 in transposed),
                                    transB=int(1 in transposed))],
                  {"x": [6, 6], "z": [6, 6]}, {"y": 2}, {})
    layers, _ = lower(resolve(optimise(gossamer.load(str(save(proto, tmp_path)))), 6))
    assert [layer.op for layer in layers] == ["matmul"]
    assert getattr(layers[0].problem, "transposed", None) == transposed
