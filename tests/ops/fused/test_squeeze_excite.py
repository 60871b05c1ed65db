"""Blocks with squeeze-and-excite as three kernels, and why some are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.inverted_residual.block import block_of
from gossamer.ops.fused.inverted_residual.squeeze_excite import SqueezeExcite
from gossamer.ops.fused.problem import FusionProblem
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_HARD_SIGMOID,
    BIAS_HARD_SWISH,
    BIAS_RELU,
    BIAS_RELU6,
    BIAS_RESIDUAL,
    BIAS_SIGMOID,
    BIAS_SILU,
    QUOTIENT,
    block,
    changed,
    excited,
)
from tests.ops.harness import check, one_layout_a_config

ACTIVATIONS = (BIAS_RELU6, BIAS_RELU, BIAS_HARD_SWISH, BIAS_SILU, BIAS)


@st.composite
def blocks(draw: st.DrawFn) -> FusionProblem:
    pairs = st.tuples(*[st.sampled_from([1, 2])] * 2)
    plain = block(
        draw(st.sampled_from([0, 1, 2, 3])), draw(st.sampled_from([3, 8, 17])),
        draw(st.sampled_from([5, 16, 40])), draw(st.sampled_from([4, 7, 24])),
        draw(st.tuples(*[st.integers(3, 12)] * 2)),
        kernel=draw(st.sampled_from([(3, 3), (5, 5), (3, 1), (7, 7)])), stride=draw(pairs),
        pads=tuple(draw(st.tuples(*[st.integers(2, 3)] * 4))),
        activation=draw(st.sampled_from(ACTIVATIONS)), expands=draw(st.booleans()))
    return excited(
        plain, draw(st.sampled_from([1, 4, 150])),
        inner=draw(st.sampled_from([BIAS_RELU, BIAS_SILU])),
        gate=draw(st.sampled_from([BIAS_HARD_SIGMOID, BIAS_SIGMOID])),
        scale=draw(st.sampled_from([None, apply("mul").then(apply("relu"))])),
        gates_first=draw(st.booleans()), pooled=draw(st.booleans()))


@given(problem=blocks(), choice=st.integers(0, 5))
@settings(max_examples=8)
def test_any_geometry(compiled_device: Device, problem: FusionProblem, choice: int) -> None:
    check(problem, compiled_device, taken=lambda variants: [variants[choice % len(variants)]])


@pytest.mark.sanitize
@pytest.mark.parametrize("expands", [True, False])
def test_every_variant(compiled_device: Device, expands: bool) -> None:
    problem = excited(block(2, 12, 12, 12, (9, 8), expands=expands), 5)
    check(problem, compiled_device, taken=one_layout_a_config)


@pytest.mark.parametrize("expands", [True, False])
def test_channels_that_fill_a_chunk_count_for_nothing(compiled_device: Device,
                                                      expands: bool) -> None:
    """The epilogue, and what scales, divide by 0 for channels that do not exist."""
    problem = block(1, 6, 18, 8, (5, 5), activation=QUOTIENT, expands=expands)
    problem = excited(problem, 4, gate=BIAS_SIGMOID, scale=apply("div"))
    check(problem, compiled_device, taken=lambda variants: variants[:2])


PLAIN = block(1, 8, 16, 8, (6, 6))
DILATED = block(1, 8, 16, 8, (9, 9), dilation=(2, 2), pads=(2, 2, 2, 2))
EXCITED = excited(PLAIN, 4)


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(EXCITED, exits=((1, 0), (6, 0))), "read elsewhere"),
    (replace(EXCITED, exits=((4, 0), (6, 0))), "read elsewhere"),
    (excited(DILATED, 4), "dilation"),
    (excited(block(1, 8, 16, 8, (9, 9), kernel=(9, 9)), 4), "9x9"),
    (excited(block(1, 8, 16, 4096, (9, 9)), 4), "do not fit"),
    (excited(block(1, 8, 2**20, 8, (2, 2)), 4), "do not fit"),
    (changed(EXCITED, 3, stride=(2, 2)), "without stride and padding"),
])
def test_a_block_that_no_kernel_computes_gives_a_reason(problem: FusionProblem,
                                                        reason: str) -> None:
    assert SqueezeExcite().recognises(problem)
    assert reason in (SqueezeExcite().supports(problem, find("opencl:0")) or "")


def test_other_convolutions_are_not_recognised() -> None:
    problem = block(1, 8, 16, 8, (6, 6), last=BIAS_RESIDUAL)
    expand, depthwise, project = problem.parts
    wide = replace(expand, kernel=(3, 3), pads=(1, 1, 1, 1))
    dense = replace(depthwise, groups=1)
    for parts in ((wide, depthwise, project), (expand, dense, project)):
        assert block_of(replace(problem, parts=parts), expands=True) is None
    assert block_of(problem, expands=False) is None


def test_other_layers_are_not_recognised() -> None:
    expand, depthwise, mean, squeeze, excite, scale, project = EXCITED.parts
    # one gate for all channels
    of_all = replace(excite, out_channels=1)
    gated = ElementwiseProblem((depthwise.outputs[0], of_all.outputs[0]), apply("mul"))
    for parts in ((expand, depthwise, mean, squeeze, of_all, gated, project),
                  (expand, replace(depthwise, groups=1), mean, squeeze, excite, scale, project),
                  (expand, depthwise, replace(mean, kind="max"), squeeze, excite, scale, project),
                  (expand, depthwise, mean, squeeze, excite, scale,
                   replace(project, kernel=(3, 3), pads=(1, 1, 1, 1)))):
        assert not SqueezeExcite().recognises(replace(EXCITED, parts=parts))
    assert not SqueezeExcite().recognises(PLAIN)
