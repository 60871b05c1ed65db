"""Tests host_direct_popcount, whose code LLVM makes for the processor of the test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from gossamer.device.host import HostDevice
from gossamer.device.native import processor as native
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, integers
from gossamer.ops.conv2d.binary import host_direct
from gossamer.ops.conv2d.binary.host_direct import HostDirectPopcount
from gossamer.ops.conv2d.problem import Conv2dProblem
from tests.ops.arm import OnArm
from tests.ops.conv2d.binary.signs import (
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    SCALED,
    check_exact,
    problems,
)
from tests.ops.processors import code_for, targets

pytest.importorskip("llvmlite")
HOST = HostDevice()


@given(problem=problems(largest=150), target=targets)
@settings(max_examples=80)
def test_every_bit_of_any_layer(problem: Conv2dProblem, target: native.Processor) -> None:
    with code_for(target):
        check(ungrouped(problem))


ON_ARM = {
    "signs": Conv2dProblem(1, 70, 6, 7, 75, (3, 3), pads=(1, 1, 1, 1), epilogue=BATCH_NORM_BITS,
                           weights_info=SCALED, facts=(PLUS_MINUS_ONE,)),
    "signs and zeros": Conv2dProblem(1, 150, 5, 5, 20, (3, 3), (2, 2), epilogue=BATCH_NORM_SIGN,
                                     weights_info=SCALED, facts=(TERNARY,)),
    "a residual": Conv2dProblem(1, 64, 5, 6, 12, (1, 1), epilogue=RESIDUAL, weights_info=SCALED,
                                facts=(PLUS_MINUS_ONE, integers(-4, 4)))}


@pytest.mark.parametrize("name", ON_ARM)
def test_arm_computes_the_same(name: str, on_arm: OnArm) -> None:
    on_arm(host_direct)
    check(ON_ARM[name])


def ungrouped(problem: Conv2dProblem) -> Conv2dProblem:
    return replace(problem, channels=problem.group_channels,
                   out_channels=problem.group_out_channels, groups=1)


def check(problem: Conv2dProblem) -> None:
    algorithm = HostDirectPopcount()
    assert algorithm.supports(problem, HOST) is None
    for seed, variant in enumerate(algorithm.variants(problem, HOST)):
        check_exact(algorithm, problem, variant, HOST, seed)


@pytest.mark.parametrize(("change", "reason"), [
    ({"facts": (REAL,)}, "any floats"), ({"groups": 2}, "groups"),
    ({"weights_info": replace(SCALED, scaled_signs=False)}, "different magnitudes")])
def test_what_is_not_supported(change: dict[str, object], reason: str) -> None:
    problem = Conv2dProblem(1, 64, 5, 5, 32, (3, 3), weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    assert reason in (HostDirectPopcount().supports(replace(problem, **change), HOST) or "")
