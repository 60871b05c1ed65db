"""Squeeze-and-excite layers as one kernel of NVIDIA GPUs, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.channel_attention import ChannelAttention
from gossamer.ops.fused.problem import ENTRY, FusionProblem, entry
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.plan.fusion import find_fusions
from gossamer.plan.plan import Plan
from gossamer.tensor import default_spec
from gossamer_bench.suites.mobile_networks import MOBILE_NETWORKS
from tests.ops.fused.blocks import (
    BIAS_HARD_SIGMOID,
    BIAS_RELU,
    BIAS_RESIDUAL,
    BIAS_SIGMOID,
    BIAS_SILU,
    QUOTIENT,
)
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = ChannelAttention()
check = partial(check_variants, ALGORITHM)
SUM = Expression(3, (ExpressionStep("mul", (1, 0)), ExpressionStep("add", (3, 2)),
                     ExpressionStep("relu", (4,))))
"""A residual sum of what is scaled, as SE-ResNet has it; the gate is its first input."""

SUM_OF_FOUR = SUM.then(apply("add"))
"""The same with a second sum."""


def attention(batch: int, channels: int, squeezed: int, size: tuple[int, int], *,
              inner: Epilogue = BIAS_RELU, gate: Epilogue = BIAS_SIGMOID,
              scale: Expression | None = None, gate_first: bool = False,
              pooled: bool = False) -> FusionProblem:
    """Return a squeeze-and-excite layer.

    inner, gate: epilogues of the two products. scale: what is made of an element and its gate, and
    of a third tensor where there are three inputs. gate_first: whether the gate is the first input
    of that. pooled: whether the mean is a pooling.
    """
    x = default_spec((batch, channels, *size))
    squeeze = Conv2dProblem(batch, channels, 1, 1, squeezed, (1, 1), epilogue=inner)
    excite = Conv2dProblem(batch, squeezed, 1, 1, channels, (1, 1), epilogue=gate)
    mean = PoolProblem(x, "average", size, size) if pooled else ReduceProblem(x, "mean", (2, 3))
    operands, reads = [x, excite.outputs[0]], [ENTRY, (2, 0)]
    if gate_first:
        operands.reverse()
        reads.reverse()
    scale = scale or apply("mul")
    if scale.inputs == 3:
        operands.append(x)
        reads.append(entry(1))
    return FusionProblem((mean, squeeze, excite, ElementwiseProblem(tuple(operands), scale)),
                         ((ENTRY,), ((0, 0),), ((1, 0),), tuple(reads)), ((3, 0),))


USUAL = attention(2, 72, 6, (7, 5), inner=BIAS_SILU)
RESIDUAL = attention(1, 40, 10, (9, 9), scale=SUM, gate_first=True, gate=BIAS_HARD_SIGMOID)
UNUSED = attention(3, 24, 1, (1, 1), gate=QUOTIENT, pooled=True, scale=apply("div"))
"""Words of channels that do not exist, for which the gate would be no number."""
LARGE = attention(1, 16, 5, (95, 90))
"""An image that does not fit the shared memory of a work-group in float32."""
WIDE = attention(1, 8, 1100, (17, 31))
"""A first product with more results than work-items, and three words of the image per work-item."""
PROBLEMS = {"usual": USUAL, "residual": RESIDUAL, "unused": UNUSED, "large": LARGE, "wide": WIDE}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_layer_on_cuda(cuda: Device, name: str) -> None:
    check(PROBLEMS[name], cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, [
        attention(1, channels, squeezed, (size, size), inner=BIAS_SILU)
        for channels, squeezed, size in ((32, 8, 112), (144, 6, 56), (672, 28, 14), (1152, 48, 7),
                                         (2048, 128, 7))], every=3)


def test_the_first_configs_have_every_precision(recorder: RecordingDevice) -> None:
    """A small effort tries the first few configs only."""
    for problem in (LARGE, USUAL):
        variants = list(ALGORITHM.variants(problem, recorder))
        first = list(dict.fromkeys(variant.config for variant in variants))[:2]
        precisions = {variant.precision for variant in variants if variant.config in first}
        assert precisions == {"fp32", "fp16"}


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(USUAL, exits=((2, 0), (3, 0))), "read elsewhere"),
    (attention(1, 12, 3, (4, 4)), "needs a multiple of 8 channels, not 12"),
    (attention(1, 16, 2**14, (4, 4)), "do not fit"),
    (attention(1, 0, 1, (4, 4)), "empty images")])
def test_other_layers_give_a_reason(problem: FusionProblem, reason: str) -> None:
    assert ALGORITHM.recognises(problem)
    assert reason in (ALGORITHM.supports(problem, RecordingDevice()) or "")


def test_other_layers_are_not_recognised() -> None:
    mean, squeeze, excite, scale = USUAL.parts
    gate, sources = excite.outputs[0], USUAL.sources
    added = replace(squeeze, epilogue=BIAS_RESIDUAL)
    of_all = replace(excite, out_channels=1)
    square = attention(1, 8, 8, (4, 4))
    for problem in (
            # one gate for all channels
            FusionProblem((mean, squeeze, of_all, ElementwiseProblem(
                (USUAL.inputs[0], of_all.outputs[0]), apply("mul"))), sources, ((3, 0),)),
            # both products read the means
            replace(square, sources=(*square.sources[:2], ((0, 0),), square.sources[3])),
            FusionProblem((replace(mean, kind="max"), squeeze, excite, scale), sources, ((3, 0),)),
            FusionProblem((mean, squeeze, excite, ElementwiseProblem((gate, gate), apply("mul"))),
                          (*sources[:3], ((2, 0), (2, 0))), ((3, 0),)),
            FusionProblem((mean, squeeze, excite, replace(scale, dtypes=("int32",))), sources,
                          ((3, 0),)),
            FusionProblem((mean, squeeze, excite, ElementwiseProblem(
                (USUAL.inputs[0], gate, default_spec((72, 1, 1))), SUM, constants=(2,))), sources,
                ((3, 0),)),
            *(FusionProblem((mean, *products, scale), sources, ((3, 0),)) for products in (
                (replace(squeeze, groups=2), excite), (squeeze, replace(excite, groups=2)))),
            # another image than that of the means, and other numbers than its gates
            *(replace(USUAL, sources=(*sources[:3], read))
              for read in ((entry(1), (2, 0)), (ENTRY, entry(1)))),
            # the third tensor has a number for each channel
            replace(RESIDUAL, parts=(*RESIDUAL.parts[:3], replace(RESIDUAL.parts[3], operands=(
                *RESIDUAL.parts[3].inputs[:2], RESIDUAL.parts[2].outputs[0])))),
            FusionProblem((mean, added, excite, scale),
                          (sources[0], ((0, 0), entry(1)), *sources[2:]), ((3, 0),)),
            FusionProblem((mean, squeeze, excite), sources[:3], ((2, 0),)),
            replace(RESIDUAL, parts=(*RESIDUAL.parts[:3], ElementwiseProblem(
                (*RESIDUAL.parts[3].inputs, RESIDUAL.inputs[0]), SUM_OF_FOUR)),
                sources=(*RESIDUAL.sources[:3], (*RESIDUAL.sources[3], entry(1))))):
        assert not ALGORITHM.recognises(problem)


@pytest.mark.parametrize(("name", "count"), [("efficientnet-b0", 16), ("mobilenetv3-small", 9)])
def test_the_layers_of_networks_are_recognised(name: str, count: int) -> None:
    assert _recognised(MOBILE_NETWORKS[name](), (3, 224, 224)) == count


def test_a_layer_before_a_residual_sum_is_recognised() -> None:
    """As SE-ResNet has it, by two fully connected layers."""
    build, rng = GraphBuilder("block"), np.random.default_rng(0)
    x = build.input("x", (None, 16, 6, 6))
    y = build.conv2d(x, build.constant("w", rng.standard_normal((16, 16, 3, 3), np.float32)),
                     pads=(1, 1, 1, 1))
    gate = build.reduce(y, "mean", "spatial", keepdims=True)
    for name, shape, function in (("squeeze", (4, 16, 1, 1), "relu"),
                                  ("excite", (16, 4, 1, 1), "sigmoid")):
        gate = build.apply(function, build.conv2d(gate, build.constant(
            name, rng.standard_normal(shape, np.float32))))
    build.output(build.apply("relu", build.apply("add", build.apply("mul", y, gate), x)),
                 (None, 16, 6, 6))
    assert _recognised(build.finish(), (16, 6, 6)) == 1


def _recognised(graph: Graph, shape: tuple[int, ...]) -> int:
    """Return the number of squeeze-and-excite layers of a network that the algorithm supports."""
    plan = Plan(graph, find("host"))
    assert plan.inputs[0].shape[1:] == shape
    fusions = find_fusions(plan.layers(1), [info.name for info in plan.outputs])
    return sum(isinstance(fusion.problem, FusionProblem) and ALGORITHM.recognises(fusion.problem)
               and ALGORITHM.supports(fusion.problem, RecordingDevice()) is None
               for fusion in fusions)
