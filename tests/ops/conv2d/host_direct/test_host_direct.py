"""Tests host_direct, whose code LLVM makes for the processor of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.device.jobs import Function
from gossamer.device.native import processor as native
from gossamer.ops.conv2d.host_direct import algorithm as host_direct
from gossamer.ops.conv2d.host_direct import depthwise, indirect
from gossamer.ops.conv2d.host_direct.algorithm import HostDirect, HostDirectDense
from gossamer.ops.conv2d.host_direct.depthwise import HostDirectDepthwise
from gossamer.ops.conv2d.host_direct.indirect import HostIndirect, HostIndirectDepthwise
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.arm import ARM, OnArm
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.sparse.test_direct_sparse import of, problems
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, EPILOGUES
from tests.ops.harness import check_variants
from tests.ops.processors import code_for, targets

llvm = pytest.importorskip("llvmlite.binding")
HOST = HostDevice()


@st.composite
def larger(draw: st.DrawFn) -> Conv2dProblem:
    """Planes of several tiles, and blocks of several channels."""
    size = draw(st.sampled_from([(7, 7), (14, 15), (31, 33), (1, 70), (40, 3)]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 2)]))
    pads = (1, 1, 1, 1) if kernel == (3, 3) or size[1] == 3 else (2, 0, 2, 1)
    return Conv2dProblem(draw(st.sampled_from([1, 2])), draw(st.sampled_from([8, 40])), *size,
                         draw(st.sampled_from([5, 12, 33])), kernel,
                         draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])), pads,
                         epilogue=draw(st.sampled_from(EPILOGUES)))


@st.composite
def of_planes(draw: st.DrawFn) -> Conv2dProblem:
    """Depthwise convolutions, also of windows that lie wholly in the padding."""
    kernel = draw(st.sampled_from([(3, 3), (5, 5), (1, 7), (4, 2)]))
    dilation = draw(st.sampled_from([(1, 1), (2, 3)]))
    size = draw(st.sampled_from([(7, 7), (14, 16), (5, 70), (9, 131), (33, 1)]))
    pads = [draw(st.integers(0, 5)) for _ in range(4)]
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        pads[axis] += max(0, reach - size[axis] - pads[axis] - pads[axis + 2])
    channels = draw(st.sampled_from([2, 5]))
    return Conv2dProblem(draw(st.sampled_from([1, 2])), channels, *size,
                         channels * draw(st.sampled_from([1, 2])), kernel,
                         draw(st.sampled_from([(1, 1), (2, 2), (3, 1), (1, 3)])), tuple(pads),
                         dilation, channels, draw(st.sampled_from(EPILOGUES)))


@given(problem=st.one_of(problems(), larger(), of_planes()),
       density=st.sampled_from([0.0, 0.05, 0.4, 1.0]), target=targets)
@settings(max_examples=80)
def test_any_problem(problem: Conv2dProblem, density: float, target: native.Processor) -> None:
    with code_for(target):
        compare(problem, density)


def compare(problem: Conv2dProblem, density: float) -> None:
    weights = sparse(problem, density)
    problem = of(weights, problem)
    for algorithm in (HostDirect(), HostDirectDense(), HostDirectDepthwise(), HostIndirect(),
                      HostIndirectDepthwise()):
        if algorithm.supports(problem, HOST) is not None:
            continue
        variants = list(algorithm.variants(problem, HOST))
        if problem.group_channels > 3 and all(
                dict(variant.config).get("channels", 3) != 3 for variant in variants):
            # blocks of three channels, of which the last one may have fewer
            variants += [replace(variant, config=tuple(
                (name, 3 if name == "channels" else value) for name, value in variant.config))
                for variant in variants]
        check_variants(algorithm, problem, HOST, variants, weights)


@pytest.mark.parametrize("kernel", [(1, 1), (1, 3)])
def test_planes_larger_than_any_memory_are_refused(kernel: tuple[int, int]) -> None:
    problem = Conv2dProblem(1, 2, 1, 10**13, 2, kernel)
    problem = of(sparse(replace(problem, width=8), 0.4), problem)
    assert "pixels" in (HostDirect().supports(problem, HOST) or "")


ON_ARM = {
    "3x3 with a residual": Conv2dProblem(1, 12, 9, 10, 9, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_RELU),
    "3x3, every second pixel": Conv2dProblem(1, 8, 15, 14, 5, (3, 3), (2, 2), (1, 1, 1, 1),
                                             epilogue=BIAS_CLIP),
    "1x1": Conv2dProblem(1, 40, 7, 7, 10, (1, 1), epilogue=BIAS_RESIDUAL_RELU),
    "1x1, every third column": Conv2dProblem(1, 8, 9, 14, 5, (1, 1), (1, 3)),
    "5x2, every third column, groups": Conv2dProblem(1, 8, 12, 13, 6, (5, 2), (1, 3), (2, 0, 2, 1),
                                                     groups=2),
    "depthwise, every second pixel": Conv2dProblem(1, 3, 11, 19, 6, (3, 3), (2, 2), (1, 1, 1, 1),
                                                   groups=3, epilogue=BIAS_RESIDUAL_RELU),
    "depthwise, spread": Conv2dProblem(1, 6, 11, 9, 6, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 6,
                                       BIAS_CLIP),
    "depthwise, of a vector and a half": Conv2dProblem(1, 6, 8, 9, 6, (3, 3), (2, 2), (0, 0, 1, 1),
                                                       groups=6, epilogue=BIAS_RESIDUAL_RELU)}


@pytest.mark.parametrize(("name", "density"), [*((name, 0.4) for name in ON_ARM),
                                              ("3x3 with a residual", 1.0), ("1x1", 1.0),
                                              ("3x3, every second pixel", 1.0),
                                              ("depthwise, every second pixel", 1.0),
                                              ("depthwise, of a vector and a half", 1.0)])
def test_arm_computes_the_same(name: str, density: float, on_arm: OnArm) -> None:
    on_arm(host_direct, depthwise, indirect)
    compare(ON_ARM[name], density)


def test_code_for_arm_uses_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=3)
    written = []

    def emitted(name: str, target: native.Processor, write: Callable[..., str],
                *parameters: object) -> Function:
        module = llvm.parse_assembly(write(*parameters))
        module.verify()
        written.append(machine.emit_assembly(module))
        return Function(0)

    monkeypatch.setattr(host_direct, "function", emitted)
    monkeypatch.setattr(native, "processor", lambda: ARM)
    problem = Conv2dProblem(1, 8, 9, 9, 8, (3, 3), pads=(1, 1, 1, 1))
    weights = sparse(problem, 0.4)
    problem = of(weights, problem)
    algorithm = HostDirect()
    algorithm.prepare(Weights(weights, HOST), problem,
                      next(iter(algorithm.variants(problem, HOST))), HOST)
    (text,) = written
    assert "fmla\tv" in text and "multiply:" in text
