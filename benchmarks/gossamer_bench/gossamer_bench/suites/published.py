"""The suite of the published convolution in OpenCL: each step alone, and all steps together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gossamer.bench.work import PeerNetwork, Setting
from gossamer.expression import Expression, ExpressionStep
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import Problem
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer
from gossamer.tensor import default_spec
from gossamer_bench.layer_tables import ConvLayer, yolo
from gossamer_bench.published_steps import register
from gossamer_bench.published_steps.batch_statistics import BatchStatisticsProblem
from gossamer_bench.published_steps.im2col import Im2colProblem
from gossamer_bench.published_steps.normalise import NormaliseProblem
from gossamer_bench.suites.layers import problem_case
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Case, Files, Item

SUITE = "published"
SLOPE = 0.1
"""Slope of Darknet's leaky rectifier below 0."""
_EPSILON = 1e-5
_LEAKY = Expression(1, (ExpressionStep("leaky_relu", (0,), (SLOPE,)),), (1,))


def published(batch: int, files: Files) -> list[Item]:
    """Returns cases for each convolution of YOLOv4-tiny and YOLOv2-tiny that a batch norm follows:
    the five published steps, each alone, and the whole layer. Batch norm takes the mean and the
    variance of its own batch."""
    register()
    items = []
    for layer in yolo():
        if layer.out_channels in (255, 425):
            # the convolutions before Darknet's [yolo] and [region] have no batch norm
            continue
        makers: dict[str, Callable[[Setting], Case]] = {
            step: partial(_step, layer, step, batch) for step in STEPS}
        makers["whole"] = partial(_whole, layer, batch)
        items += [Item(SUITE, f"{layer.name}/{step}", batch, make, is_layer=True)
                  for step, make in makers.items()]
    return items


def _convolution(layer: ConvLayer, batch: int) -> Conv2dProblem:
    return Conv2dProblem(batch, layer.channels, layer.size, layer.size, layer.out_channels,
                         (layer.kernel, layer.kernel), (layer.stride, layer.stride),
                         (layer.pad,) * 4)


def _norm(layer: ConvLayer, batch: int) -> BatchNormProblem:
    return BatchNormProblem(default_spec((batch, layer.out_channels, layer.out_size,
                                          layer.out_size)), _EPSILON)


def _product(layer: ConvLayer, batch: int) -> Problem:
    return GemmProblem(batch * layer.out_size**2, layer.out_channels,
                       layer.channels * layer.kernel**2)


STEPS: dict[str, Callable[[ConvLayer, int], Problem]] = {
    "im2col": lambda layer, batch: Im2colProblem(_convolution(layer, batch)),
    "product": _product,
    "statistics": lambda layer, batch: BatchStatisticsProblem(_norm(layer, batch)),
    "normalise": lambda layer, batch: NormaliseProblem(_norm(layer, batch)),
    "leaky": lambda layer, batch: ElementwiseProblem(_norm(layer, batch).inputs, _LEAKY),
}
"""For each step, the function from a layer and a batch size to the step's problem."""


def _step(layer: ConvLayer, step: str, batch: int, setting: Setting) -> Case:
    """Makes the case of one step, on inputs from a normal distribution."""
    problem = STEPS[step](layer, batch)
    random = np.random.default_rng(0)
    inputs, weights = problem.example_inputs(random), {
        name: random.standard_normal(shape, np.float32)
        for name, shape in problem.weight_shapes.items()}
    (expected,) = OPS[problem.op].reference(problem, inputs, weights)
    work = Layer(step, ["x"], ["y"], problem, weights)
    return problem_case(SUITE, f"{layer.name}/{step}", batch, setting, work, inputs, expected)


def _whole(layer: ConvLayer, batch: int, setting: Setting) -> Case:
    """Makes the case of a whole layer, which is planned as a network: once with gossamer's measured
    choice, and once with the published steps."""
    return network_case(SUITE, PeerNetwork(f"{layer.name}/whole", whole_layer(layer)), batch,
                        setting, forced_too=("published",))


def whole_layer(layer: ConvLayer) -> Graph:
    """Returns a network with random weights: a convolution, batch norm with the mean and the
    variance of its own batch, and a leaky rectifier."""
    random = np.random.default_rng(0)
    build = GraphBuilder(layer.name, file=layer.name)
    x = build.input("x", (None, layer.channels, layer.size, layer.size))
    weight = build.constant("weight", random.standard_normal(layer.weight_shape, np.float32))
    product = build.conv2d(x, weight, strides=(layer.stride, layer.stride), pads=(layer.pad,) * 4)
    numbers = [build.constant(name, random.random(layer.out_channels, np.float32) + 1)
               for name in ("gamma", "beta", "mean", "variance")]
    normalised = build.add("batch_norm_training", [product, *numbers],
                           ["normalised", "new_mean", "new_variance"], epsilon=_EPSILON,
                           momentum=0.9)
    build.output(build.apply("leaky_relu", normalised, constants=(SLOPE,)),
                 (None, layer.out_channels, layer.out_size, layer.out_size))
    return build.finish()
