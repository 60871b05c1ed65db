"""Discontinuous results: where they may differ, and random layers as binary networks have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.accuracy import LARGEST_ERROR, normalised_error
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.algorithm import Epilogue, Problem, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import ENTRY, FusionProblem
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.registry import OPS
from gossamer.plan.fusion import part_of
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidate_checks import CandidateChecks, WrongNumbersError
from gossamer.plan.tune.discontinuity import (
    Bounds,
    bounds,
    continuous_parts,
    has_discontinuities,
)
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.model.onnx_models import model, save
from tests.plan.tune.paced import why_wrong
from tests.simulated.binary import binary_network


def jumping_layer(seed: int, folder: Path, largest: int = 56) -> Path:
    """Writes a network of a convolution or a product with weights of one magnitude or normal ones,
    a scale and shift or a batch norm, and a sign, comparison or rounding behind it."""
    rng = np.random.default_rng(seed)
    is_conv = rng.random() < 0.8
    channels, outputs = (int(rng.choice([3, 8, 16, 33, 64])) for _ in range(2))
    kernel, size = int(rng.choice([1, 3, 5])), int(rng.integers(5, largest + 1))
    shape = (outputs, channels, kernel, kernel) if is_conv else (channels * size, outputs)
    magnitude = np.float32(rng.choice([1.0, 0.05, 3.0]))
    weight = (rng.choice([-1, 1], shape) * magnitude if rng.random() < 0.7
              else rng.standard_normal(shape) * magnitude).astype(np.float32)
    constants, nodes = {"weight": weight}, []
    if is_conv:
        pad = int(rng.choice([0, kernel // 2]))
        nodes.append(helper.make_node("Conv", ["x", "weight"], ["sums"], pads=[pad] * 4,
                                      strides=[int(rng.choice([1, 2]))] * 2))
        source = ["N", channels, size, size]
    else:
        nodes.append(helper.make_node("MatMul", ["x", "weight"], ["sums"]))
        source = ["N", channels * size]
    value = "sums"

    def add(op: str, *inputs: str, **attributes: object) -> None:
        nonlocal value
        name = f"{op.lower()}{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        value = name

    def constant(number: object, dtype: type = np.float32) -> str:
        name = f"c{len(constants)}"
        constants[name] = np.asarray(number, dtype)
        return name

    broadcast = (1, outputs, 1, 1) if is_conv else (1, outputs)
    depth = weight[0].size if is_conv else len(weight)
    if rng.random() < 0.4:
        add("Add", value, constant(float(depth)))
        add("Mul", value, constant(0.5))
    if is_conv and rng.random() < 0.6:
        near = rng.standard_normal(outputs) * depth**0.5 * float(magnitude) + (
            depth / 2 if len(nodes) > 1 else 0)
        gamma = rng.standard_normal(outputs) * (rng.random(outputs) > 0.05)
        add("BatchNormalization", value, constant(gamma), constant(rng.standard_normal(outputs)),
            constant(near), constant(rng.random(outputs) * depth + 0.1))
    elif rng.random() < 0.7:
        add("Mul", value, constant(rng.standard_normal(broadcast)))
        add("Add", value, constant(rng.standard_normal(broadcast) * depth**0.5))
    kind = rng.integers(6)
    if kind == 0:
        add("Sign", value)
    elif kind == 1:
        add("GreaterOrEqual", value, constant(0.0))
        add("Where", value, constant(1.0), constant(-1.0))
    elif kind == 2:
        add("Greater", value, constant(0.0))
        add("Cast", value, to=TensorProto.FLOAT)
        add("Mul", value, constant(2.0))
        add("Sub", value, constant(1.0))
    elif kind == 3:
        add(str(rng.choice(["Floor", "Ceil", "Round"])), value)
    elif kind == 4:
        compared = value
        add("Less", compared, constant(rng.standard_normal(broadcast)))
        add("Where", value, compared, constant(rng.standard_normal(broadcast)))
    else:
        add("Sign", value)
        add("Mul", value, constant(rng.random(broadcast) + 0.1))
        add("Add", value, constant(rng.standard_normal(broadcast)))
    return save(model(nodes, {"x": source}, {value: 4 if is_conv else 2}, constants), folder)


CHECK = Expression(1, (ExpressionStep("constant", (), (0.0,)),
                       ExpressionStep("greater_equal", (0, 1))))
RANDOM_LAYERS = int(os.environ.get("GOSSAMER_RANDOM_LAYERS", "30"))


def elementwise(expression: Expression) -> ElementwiseProblem:
    return ElementwiseProblem((default_spec((2, 3)),) * expression.inputs, expression)


@pytest.mark.parametrize(("expression", "expected"), [
    (apply("sign"), True), (apply("floor"), True), (apply("round"), True), (CHECK, True),
    (apply("where"), True), (apply("relu"), False), (apply("clip", 0.0, 6.0), False),
    (apply("leaky_relu", 0.1), False),
])
def test_what_jumps(expression: Expression, expected: bool) -> None:
    assert has_discontinuities(elementwise(expression)) is expected


def test_what_is_cut_to_an_integer_jumps() -> None:
    assert has_discontinuities(replace(elementwise(apply("neg")), dtypes=("int32",)))
    assert not has_discontinuities(ElementwiseProblem((default_spec((3,), "int32"),), apply("neg"),
                                            ("int32",)))


def bounds_of(problem: Problem, arrays: Sequence[np.ndarray], weights: dict[str, np.ndarray],
              precision: str = "fp32") -> Bounds:
    expected = OPS[problem.op].reference(problem, arrays, weights)
    (found,) = bounds(problem, arrays, weights, expected, precision)
    return found


def test_values_near_a_jump_are_doubtful() -> None:
    expression = Expression(2, (ExpressionStep("mul", (0, 1)), ExpressionStep("floor", (2,))))
    x = np.float32([[0.5, 1 / 3, 7.0], [1 / 3, 0.1, 2.5]])
    y = np.float32([[4.0, 3.0, 1 / 7], [3.1, 0.5, 2.0]])
    found = bounds_of(elementwise(expression), [x, y], {})
    # 0.5 * 4 and 2.5 * 2 are exact on every device; 1/3 * 3 and 7 * 1/7 are rounded at 1
    assert found.uncertain.tolist() == [[False, True, True], [False, False, False]]
    # what is certain has to be right, what is uncertain may be off by a few jumps of height 1
    assert (found.largest[~found.uncertain] <= 1e-4).all()
    assert (found.largest[found.uncertain] == 4).all()


def test_what_a_selection_passes_on_keeps_its_error() -> None:
    expression = Expression(2, (ExpressionStep("exp", (0,)), ExpressionStep("less", (0, 1)),
                                ExpressionStep("where", (3, 2, 1))))
    x, y = np.float32([[1.0, 2.1, 3.0]] * 2), np.float32([[2.0, 2.0, 2.0]] * 2)
    found = bounds_of(elementwise(expression), [x, y], {})
    assert not found.uncertain.any()
    assert np.isinf(found.largest).tolist() == [[True] * 3] * 2
    passed = Expression(2, (ExpressionStep("less", (0, 1)), ExpressionStep("where", (2, 0, 1))))
    assert (bounds_of(elementwise(passed), [np.rint(x), y], {}).largest <= 1e-4).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_that_are_not_finite_leave_the_other_bounds() -> None:
    x = np.float32([[np.nan, np.inf, -np.inf], [1.5, 2.0, -3.0]])
    kept = Expression(1, (ExpressionStep("sign", (0,)), ExpressionStep("where", (1, 0, 0))))
    for expression in (apply("sign"), kept):
        found = bounds_of(elementwise(expression), [x], {})
        assert not found.uncertain.any()
        assert (found.largest[1] <= 1e-4).all()


@pytest.mark.parametrize("function", ["div", "sqrt"])
def test_a_device_may_round_quotients_and_roots_of_integers(function: str) -> None:
    expression = apply(function).then(apply("floor"))
    arrays = [np.float32([[6, 9, 5]] * 2), np.float32([[3, 3, 3]] * 2)][:expression.inputs]
    found = bounds_of(elementwise(expression), arrays, {})
    right = np.divide(*arrays) if function == "div" else np.sqrt(arrays[0])
    assert (found.uncertain == (right == np.rint(right))).all()


def test_sums_of_zero_weights_are_certain() -> None:
    problem = Conv2dProblem(1, 2, 4, 4, 2, (3, 3), pads=(1, 1, 1, 1),
                            epilogue=Epilogue(apply("sign")))
    weight = np.ones((2, 2, 3, 3), np.float32)
    weight[1] = 0
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4), np.float32)
    found = bounds_of(problem, [x], {"weight": weight})
    assert not found.uncertain[:, 1].any() and found.uncertain.mean() < 0.01


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sums_of_integers_at_a_threshold_are_certain_where_none_is_rounded(precision: str) -> None:
    problem = Conv2dProblem(1, 2, 8, 8, 2, (3, 3), epilogue=Epilogue(apply("sign")))
    rng = np.random.default_rng(0)
    x, weight = (rng.choice(np.float32([-1, 1]), shape) for shape in ((1, 2, 8, 8), (2, 2, 3, 3)))
    found = bounds_of(problem, [x], {"weight": weight}, precision)
    (sums,) = OPS["conv2d"].reference(replace(problem, epilogue=Epilogue()), [x],
                                      {"weight": weight})
    assert (sums == 0).any()
    assert (found.uncertain == ((sums == 0) & (precision == "fp16"))).all()


def test_the_jumps_are_left_out_of_a_problem() -> None:
    steps = (ExpressionStep("mul", (0, 1)), ExpressionStep("constant", (), (0.0,)),
             ExpressionStep("greater", (2, 3)), ExpressionStep("neg", (0,)),
             ExpressionStep("where", (4, 5, 1)))
    problem = Conv2dProblem(1, 2, 4, 4, 2, (3, 3),
                            epilogue=Epilogue(Expression(2, steps), ("channel",)))
    (part,) = continuous_parts(problem)
    assert part == replace(problem, epilogue=Epilogue(apply("mul"), ("channel",)))


@pytest.mark.parametrize("seed", range(RANDOM_LAYERS))
def test_random_layers_are_planned(tmp_path: Path, seed: int) -> None:
    plan = gossamer.compile(str(jumping_layer(seed, tmp_path, 12)), device="host", effort="quick")
    for step in plan.program(1).steps:
        assert not any(candidate.measured.wrong_numbers for candidate in step.candidates)


def _layers(seed: int, folder: Path) -> list[Layer]:
    graph = optimise(load(str(jumping_layer(seed, folder, 9))))
    return [layer for layer in lower(resolve(graph, 1))[0] if not layer.is_reshape]


@pytest.mark.parametrize("seed", range(60))
def test_random_layers_on_a_device(tmp_path: Path, device: Device, seed: int) -> None:
    if seed >= 4 and is_slow(device):
        pytest.skip("a few layers are enough for a simulator")
    for layer in _layers(seed, tmp_path):
        algorithm = next(algorithm for algorithm in OPS[layer.op].algorithms
                         if algorithm.supports(layer.problem, device) is None)
        candidates = CandidateChecks(layer, device)
        variant = next(iter(algorithm.variants(layer.problem, device)))
        assert why_wrong(candidates, algorithm, variant) is None


def _without_a_tap(prepare: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """The algorithm with one weight of each output channel dropped."""
    def faulty(self: HostIm2col, weights: Any, *rest: Any) -> Any:
        return prepare(self, _Dropped(weights, seed), *rest)
    return faulty


class _Dropped:
    """A layer's weights, of which each output channel's row lacks one."""

    def __init__(self, weights: Any, seed: int) -> None:
        self.arrays = {**weights.arrays, "weight": dropped(weights.arrays["weight"], seed)}


def dropped(weight: np.ndarray, seed: int) -> np.ndarray:
    rows = weight.copy().reshape(len(weight), -1)
    rows[:, seed % rows.shape[1]] = 0
    return rows.reshape(weight.shape)


@pytest.mark.parametrize("seed", range(40))
def test_a_dropped_tap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  seed: int) -> None:
    host = find("host")
    layers = [layer for layer in _layers(seed, tmp_path) if layer.op == "conv2d"]
    if not layers:
        pytest.skip("a matrix product")
    monkeypatch.setattr(HostIm2col, "prepare", _without_a_tap(HostIm2col.prepare, seed))
    for layer in layers:
        problem = layer.problem
        assert isinstance(problem, Conv2dProblem)
        candidates = CandidateChecks(layer, host)
        weights = {**layer.weights, "weight": dropped(layer.weights["weight"], seed)}
        reference = OPS["conv2d"].reference
        arrays = _inputs(candidates)
        error = max(normalised_error(reference(part, arrays, weights)[0],
                                     reference(part, arrays, layer.weights)[0])
                    for part in (problem, *continuous_parts(problem)))
        variant = next(iter(HostIm2col().variants(problem, host)))
        refused = why_wrong(candidates, HostIm2col(), variant)
        assert (refused is not None) == (error > LARGEST_ERROR["fp32"]), (refused, error)


def _inputs(candidates: CandidateChecks) -> list[np.ndarray]:
    """Returns the inputs of the compared images."""
    return candidates.memory.examples.of(candidates._few, candidates._seed)


class _Written:
    """An algorithm that writes given outputs."""

    vendor = ""

    def __init__(self, results: Sequence[np.ndarray]) -> None:
        self.results = results

    def jobs(self, *_: Any) -> None:
        return None

    def launch(self, state: object, inputs: object, outputs: Sequence[Any], *rest: object) -> None:
        for output, result in zip(outputs, self.results, strict=True):
            output.bytes[:] = np.ascontiguousarray(result, np.float32).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("seed", range(16))
def test_faults_within_a_network_of_steps_are_refused(tmp_path: Path, seed: int) -> None:
    onnx.save(binary_network(seed), tmp_path / "signs.onnx")
    graph = optimise(load(str(tmp_path / "signs.onnx")))
    layers = lower(resolve(graph, 2))[0]
    whole = part_of(layers, layers, [output.name for output in graph.outputs])
    assert whole is not None and has_discontinuities(whole.problem)
    candidates = CandidateChecks(whole, find("host"))
    rng, few_bits = np.random.default_rng(seed), 2.0**8

    def refused(weights: Mapping[str, np.ndarray]) -> bool:
        """Whether the results with these weights are, which are rounded as float32 rounds."""
        arrays, *rounded = ([array if (array * few_bits == np.rint(array * few_bits)).all() else
                             array * (1 + 1e-7 * rng.standard_normal(array.shape))
                             for array in given] for given in (
            _inputs(candidates), *([array] for array in weights.values())))
        results = OPS["part"].reference(whole.problem, arrays, dict(
            zip(weights, (array for (array,) in rounded), strict=True)))
        variant = Variant((), whole.problem.inputs, whole.problem.outputs)
        try:
            candidates.checked(_Written(results), variant, None, [])  # type: ignore[arg-type]
        except WrongNumbersError:
            return True
        return False

    assert not any(refused(whole.weights) for _ in range(5))
    for name, weight in whole.weights.items():
        if name.endswith("weight"):
            faulty = {**whole.weights, name: dropped(weight, seed)}
            right, wrong = (OPS["part"].reference(
                whole.problem, _inputs(candidates), weights)[0]
                for weights in (whole.weights, faulty))
            assert refused(faulty) == (normalised_error(wrong, right) > 1e-4)


def test_what_may_flip_inside_a_fusion_is_doubtful_behind_it() -> None:
    sign = Epilogue(apply("sign"))
    inner = Conv2dProblem(1, 2, 1, 3, 1, (1, 1), epilogue=sign)
    x = np.float32([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]]).reshape(1, 2, 1, 3)
    weights = {"0.weight": np.float32([1.1, 1.1]).reshape(1, 2, 1, 1),
               "1.weight": np.float32([0.7, 0.1]).reshape(1, 1, 1, 2)}
    outer = Conv2dProblem(1, 1, 1, 3, 1, (1, 2))
    fusion = FusionProblem((inner, outer), ((ENTRY,), ((0, 0),)), ((1, 0),))
    assert has_discontinuities(fusion)
    # the sum at the first position is 0, where the sign jumps
    found = bounds_of(fusion, [x], weights)
    assert found.uncertain.reshape(-1).tolist() == [True, False]
    # one flip changes 0.7 of the sum, which is out of reach of another sign's jump
    far = replace(outer, epilogue=Epilogue(apply("add").then(apply("sign")), ("channel",)))
    fusion = replace(fusion, parts=(inner, far))
    found = bounds_of(fusion, [x], {**weights, "1.operand0": np.float32([2.0])})
    assert found.uncertain.reshape(-1).tolist() == [False, False]
    found = bounds_of(fusion, [x], {**weights, "1.operand0": np.float32([0.2])})
    assert found.uncertain.reshape(-1).tolist() == [True, False]


def test_elements_at_indices_that_may_flip_are_doubtful() -> None:
    """One index is the product of 1/3 and 3, which lies at a jump; the table lies in the weights,
    or is an input."""
    steps = Expression(2, (ExpressionStep("mul", (0, 1)),))
    index = ElementwiseProblem((default_spec((2, 1)),) * 2, steps, dtypes=("int64",))
    x, y = np.float32([[2.0], [1 / 3]]), np.float32([[1.0], [3.0]])
    table = np.float32([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    element = GatherProblem(default_spec((3, 3)), default_spec((2, 1), "int64"), 0)
    for problem, arrays, weights in (
            (FusionProblem((index, replace(element, constants=(0,))),
                           ((ENTRY, (ENTRY[0], 1)), ((0, 0),)), ((1, 0),)), [x, y],
             {"1.operand0": table}),
            (FusionProblem((index, element), ((ENTRY, (ENTRY[0], 1)), ((ENTRY[0], 2), (0, 0))),
                           ((1, 0),)), [x, y, table], {})):
        assert has_discontinuities(problem)
        found = bounds_of(problem, arrays, weights)
        assert found.uncertain.tolist() == [[[False] * 3], [[True] * 3]]
        assert (found.largest[0] <= 1e-4).all()
