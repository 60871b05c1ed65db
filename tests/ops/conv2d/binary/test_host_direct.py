"""Tests host_direct_popcount, whose code LLVM makes for the processor of the test."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

pytest.importorskip("llvmlite")
HOST = HostDevice()
TARGETS = {
    "AVX-512": native.Processor("icelake-server", "+avx512vpopcntdq", 16, 32),
    "AVX-512 without VPOPCNTDQ": native.Processor("skylake-avx512", "", 16, 32),
    "AVX2": native.Processor("haswell", "", 8, 16),
    "SSE2": native.Processor("x86-64", "", 4, 16)}


@given(problem=problems(largest=150), groups=st.booleans())
@settings(max_examples=80)
def test_every_bit_of_any_layer(problem: Conv2dProblem, groups: bool) -> None:
    check(problem if groups else ungrouped(problem))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
@pytest.mark.parametrize("name", TARGETS)
def test_other_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, target = native.processor(), TARGETS[name]
    if target.lanes > own.lanes or (
            target.features and target.features not in own.features.split(",")):
        pytest.skip(f"this processor has no {name}")
    monkeypatch.setattr(native, "processor", lambda: target)

    @given(problem=problems())
    @settings(max_examples=25)
    def examine(problem: Conv2dProblem) -> None:
        check(ungrouped(problem))
    examine()


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
    if reason := algorithm.supports(problem, HOST):
        assert problem.groups > 1 and "groups" in reason
        return
    for seed, variant in enumerate(algorithm.variants(problem, HOST)):
        check_exact(algorithm, problem, variant, HOST, seed)


@pytest.mark.parametrize(("change", "reason"), [
    ({"facts": (REAL,)}, "any floats"), ({"groups": 2}, "groups"),
    ({"weights_info": replace(SCALED, scaled_signs=False)}, "different magnitudes")])
def test_what_is_not_supported(change: dict[str, object], reason: str) -> None:
    problem = Conv2dProblem(1, 64, 5, 5, 32, (3, 3), weights_info=SCALED, facts=(PLUS_MINUS_ONE,))
    assert reason in (HostDirectPopcount().supports(replace(problem, **change), HOST) or "")
