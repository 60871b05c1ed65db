"""Problems state what is known of values where these are few, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gossamer
from gossamer.device.registry import find
from gossamer.expression import apply, identity
from gossamer.facts import PLUS_MINUS_ONE, REAL, ValueFacts, integers
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from gossamer.plan.tune.memory import Examples
from tests.model.graph_builder import Builder
from tests.plan.small import assert_close


def layers(graph: Graph, *ops: str) -> list[Layer]:
    return [layer for layer in lower(resolve(graph, 2))[0] if layer.op in ops]


def binary_network() -> Graph:
    """A convolution of bits with weights of 1 and -1 that adds bits, then a product."""
    build = Builder()
    bits = build.binarise("x")
    weight = build.constant(4, 4, 3, 3)
    build.graph.constants[weight] = np.where(
        build.graph.constants[weight] > 0, 1, -1).astype(np.float32)
    build.add("conv2d", [bits, weight, bits], "sum", strides=(1, 1), pads=(1,) * 4,
              dilations=(1, 1), groups=1, epilogue=apply("add"))
    build.add("flatten", [build.apply("sign", build.norm("sum"))], "flat", axis=1)
    build.add("gemm", ["flat", build.constant(100, 3)], "y", trans_a=False, trans_b=False,
              epilogue=identity())
    return build.graph


@pytest.mark.parametrize(("change", "result"), [
    (lambda graph: graph, integers(-255, 255)), (optimise, integers(-1, 1))],
    ids=["as read", "optimised"])
def test_layers_of_a_binary_network(change: Callable[[Graph], Graph], result: ValueFacts) -> None:
    """An optimised convolution computes the signs of its sums, too."""
    conv, gemm = (layer.problem for layer in layers(change(binary_network()), "conv2d", "gemm"))
    assert conv.facts == (PLUS_MINUS_ONE, PLUS_MINUS_ONE)
    assert conv.weights_info.facts == PLUS_MINUS_ONE and conv.result == result
    assert gemm.facts == (integers(-1, 1),) and gemm.weights_info.facts == gemm.result == REAL


def test_nothing_is_stated_of_many_or_real_values() -> None:
    build = Builder()
    scaled = build.apply("clip", "x", constants=(0.0, 2.0**17))
    build.conv(build.apply("round", scaled), "a")
    build.conv(build.apply("clip", "a", constants=(0.0, 6.0)), "y")
    for layer in layers(build.graph, "conv2d"):
        assert layer.problem.facts == () and layer.problem.weights_info.facts == REAL


@pytest.mark.parametrize(("bound", "known", "precision"), [
    (100.0, integers(-255, 255), "fp16"), (2000.0, integers(-2048, 2048), "fp16"),
    (3000.0, integers(-3000, 3000), "fp32"), (2.0**17, REAL, "fp32")])
def test_results_of_expressions_are_stated_where_they_are_few(bound: float, known: ValueFacts,
                                                              precision: str) -> None:
    build = Builder()
    rounded = build.apply("round", build.apply("clip", "x", constants=(-bound, bound)))
    build.apply("neg", rounded, output="y")
    clip, *others = (layer.problem for layer in layers(build.graph, "elementwise"))
    assert (clip.result, clip.exact_precision) == (REAL, "fp32")
    for problem in others:
        assert problem.result == known
    assert others[-1].exact_precision == precision


def test_a_transposed_operand_keeps_its_facts() -> None:
    build = Builder()
    build.graph.inputs[0] = ValueInfo("x", (3, 5))
    build.add("gemm", [build.binarise("x"), build.constant(3, 4)], "y", trans_a=True,
              trans_b=False, epilogue=identity())
    (layer,) = layers(build.graph, "gemm")
    assert layer.problem.facts == (PLUS_MINUS_ONE,)


@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, integers(0, 15), ValueFacts(-0.5, 0.5, 0.25)],
                         ids=str)
def test_example_inputs_are_as_the_facts_say(known: ValueFacts) -> None:
    problem = Conv2dProblem(2, 8, 9, 9, 4, (3, 3), facts=(known,))
    for arrays in (problem.example_inputs(np.random.default_rng(0)),
                   Examples(find("host")).of(problem)):
        (x,) = arrays
        assert x.shape == problem.inputs[0].shape and x.dtype == np.float32 and known.holds(x)
        assert len(np.unique(x)) == known.count


def test_a_binary_network_is_checked_and_measured() -> None:
    graph = binary_network()
    x = np.random.default_rng(1).standard_normal((2, 4, 5, 5), dtype=np.float32)
    measured = gossamer.compile(graph, "host", effort="quick")
    # the sums of the last product are rounded in another order
    assert_close(measured(x), gossamer.compile(graph, "host")(x))
