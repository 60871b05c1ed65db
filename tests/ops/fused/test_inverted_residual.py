"""Inverted residual blocks and separable convolutions as one kernel, and why some are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.fused.inverted_residual.inverted_residual import InvertedResidual, Separable
from gossamer.ops.fused.problem import FusionProblem
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_HARD_SWISH,
    BIAS_RELU,
    BIAS_RELU6,
    BIAS_RESIDUAL,
    BIAS_SILU,
    QUOTIENT,
    block,
)
from tests.ops.harness import check, one_layout_a_config

ACTIVATIONS = (BIAS_RELU6, BIAS_RELU, BIAS_HARD_SWISH, BIAS_SILU, BIAS)
FUSED = {True: InvertedResidual(), False: Separable()}


@st.composite
def blocks(draw: st.DrawFn) -> FusionProblem:
    pairs = st.tuples(*[st.sampled_from([1, 2])] * 2)
    return block(
        draw(st.sampled_from([0, 1, 2, 3])), draw(st.sampled_from([3, 8, 17])),
        draw(st.sampled_from([5, 16, 40])), draw(st.sampled_from([4, 7, 24])),
        draw(st.tuples(*[st.integers(3, 12)] * 2)),
        kernel=draw(st.sampled_from([(3, 3), (5, 5), (3, 1), (7, 7)])), stride=draw(pairs),
        pads=tuple(draw(st.tuples(*[st.integers(2, 3)] * 4))),
        activation=draw(st.sampled_from(ACTIVATIONS)), expands=draw(st.booleans()))


@given(problem=blocks(), choice=st.integers(0, 5))
@settings(max_examples=8)
def test_any_geometry(compiled_device: Device, problem: FusionProblem, choice: int) -> None:
    check(problem, compiled_device, taken=lambda variants: [variants[choice % len(variants)]])


@pytest.mark.sanitize
@pytest.mark.parametrize("expands", [True, False])
def test_every_variant(compiled_device: Device, expands: bool) -> None:
    check(block(1, 12, 12, 12, (9, 8), expands=expands), compiled_device,
          taken=one_layout_a_config)


@pytest.mark.parametrize("expands", [True, False])
def test_channels_that_fill_a_chunk_count_for_nothing(compiled_device: Device,
                                                      expands: bool) -> None:
    """The epilogue divides by 0 for channels that do not exist."""
    check(block(1, 6, 18, 8, (5, 5), activation=QUOTIENT, expands=expands), compiled_device,
          taken=lambda variants: variants[:2])


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(block(1, 8, 16, 8, (6, 6)), exits=((0, 0), (2, 0))), "read elsewhere"),
    (block(1, 8, 16, 8, (9, 9), dilation=(2, 2), pads=(2, 2, 2, 2)), "dilation"),
    (block(1, 8, 16, 8, (9, 9), kernel=(9, 9)), "9x9"),
    (block(1, 8, 16, 4096, (9, 9)), "do not fit"),
])
def test_a_block_that_no_kernel_computes_gives_a_reason(problem: FusionProblem,
                                                        reason: str) -> None:
    device = find("opencl:0")
    assert FUSED[True].recognises(problem)
    assert reason in (FUSED[True].supports(problem, device) or "")


def test_other_convolutions_are_not_recognised() -> None:
    problem = block(1, 8, 16, 8, (6, 6), last=BIAS_RESIDUAL)
    expand, depthwise, project = problem.parts
    wide = replace(expand, kernel=(3, 3), pads=(1, 1, 1, 1))
    dense = replace(depthwise, groups=1)
    for parts in ((wide, depthwise, project), (expand, dense, project)):
        assert not FUSED[True].recognises(replace(problem, parts=parts))
    assert not FUSED[False].recognises(problem)
