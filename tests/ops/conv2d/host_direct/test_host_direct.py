"""Tests host_direct, whose code LLVM makes for the processor of the test."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.host import HostDevice
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.ops.conv2d.host_direct import algorithm as host_direct
from gossamer.ops.conv2d.host_direct.algorithm import HostDirect
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import Weights
from tests.ops.conv2d.sparse.test_direct_sparse import of, problems, sparse_weights
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, EPILOGUES
from tests.ops.harness import check_variants

llvm = pytest.importorskip("llvmlite.binding")
HOST = HostDevice()


@st.composite
def larger(draw: st.DrawFn) -> Conv2dProblem:
    """Planes of several tiles, and blocks of several channels."""
    size = draw(st.sampled_from([(7, 7), (14, 15), (31, 33), (1, 70), (40, 3)]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 2)]))
    pads = (1, 1, 1, 1) if kernel == (3, 3) or size[1] == 3 else (2, 0, 2, 1)
    return Conv2dProblem(draw(st.sampled_from([1, 2])), draw(st.sampled_from([8, 40])), *size,
                         draw(st.sampled_from([5, 33])), kernel,
                         draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])), pads,
                         epilogue=draw(st.sampled_from(EPILOGUES)))


OLDER = {"AVX2": native.Processor("haswell", "", 8, 16),
         "SSE2": native.Processor("x86-64", "", 4, 16)}
"""Targets whose instructions all processors of a kind have."""


@given(problem=st.one_of(problems(), larger()), density=st.sampled_from([0.0, 0.05, 0.4]))
@settings(max_examples=60)
def test_any_problem(problem: Conv2dProblem, density: float) -> None:
    compare(problem, density)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
@pytest.mark.parametrize("name", OLDER)
def test_older_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "AVX2" and native.processor().lanes < 8:
        pytest.skip("this processor has no AVX2")
    monkeypatch.setattr(native, "processor", lambda: OLDER[name])

    @given(problem=st.one_of(problems(), larger()), density=st.sampled_from([0.05, 0.4]))
    @settings(max_examples=25)
    def check(problem: Conv2dProblem, density: float) -> None:
        compare(problem, density)
    check()


def compare(problem: Conv2dProblem, density: float) -> None:
    weights = sparse_weights(problem, density)
    problem = of(weights, problem)
    algorithm = HostDirect()
    if problem.depth == 0 or algorithm.supports(problem, HOST) is not None:
        return
    variants = list(algorithm.variants(problem, HOST))
    blocks = {variant["channels"] for variant in variants}
    # blocks of three channels, of which the last one may have fewer
    variants += [replace(variant, config=tuple(
        (name, 3 if name == "channels" else value) for name, value in variant.config))
        for variant in variants if problem.group_channels > 3 and 3 not in blocks]
    check_variants(algorithm, problem, HOST, variants, weights)


ARM = native.Processor("generic", "+neon", 4, 32)
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
RUN_JOB = Path(__file__).with_name("run_job.c")
ON_ARM = {
    "3x3 with a residual": Conv2dProblem(1, 12, 9, 10, 7, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_RELU),
    "3x3, every second pixel": Conv2dProblem(1, 8, 15, 14, 5, (3, 3), (2, 2), (1, 1, 1, 1),
                                             epilogue=BIAS_CLIP),
    "1x1": Conv2dProblem(1, 40, 7, 7, 9, (1, 1), epilogue=BIAS_RESIDUAL_RELU),
    "1x1, every third column": Conv2dProblem(1, 8, 9, 14, 5, (1, 1), (1, 3)),
    "5x2, every third column, groups": Conv2dProblem(1, 8, 12, 13, 6, (5, 2), (1, 3), (2, 0, 2, 1),
                                                     groups=2),
    "depthwise, spread": Conv2dProblem(1, 6, 11, 9, 6, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 6,
                                       BIAS_CLIP)}


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
                    reason=f"needs {COMPILER} and {EMULATOR}")
@pytest.mark.parametrize("name", ON_ARM)
def test_arm_computes_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code runs in an emulator, whose memory gets what the arguments point to."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        ARM.name, ARM.features, opt=3)
    sizes: dict[int, int] = {}
    program, ran = tmp_path / "run_job", []

    def emitted(name: str, target: native.Processor, write: Callable[..., str],
                *parameters: object) -> Function:
        (tmp_path / "code.o").write_bytes(native._object(llvm, machine, write(*parameters)))
        subprocess.run([COMPILER, "-O1", "-static", RUN_JOB, tmp_path / "code.o", "-o", program],
                       check=True)
        return Function(0)

    def known(address: Callable[[Any], int]) -> Callable[[Any], int]:
        def remembered(memory: Any) -> int:
            sizes[address(memory)] = memory.nbytes
            return address(memory)
        return remembered

    class Emulated:
        def __init__(self, jobs: Sequence[Job], threads: int) -> None:
            self.jobs = jobs

        def run(self) -> None:
            for job in self.jobs:
                parts = [np.array([len(job.arguments), job.count, job.scratch, 1], "<i8").tobytes()]
                for argument in job.arguments:
                    size = sizes.get(argument, -1)
                    parts += [np.array([size] if size >= 0 else [-1, argument], "<i8").tobytes(),
                              ctypes.string_at(argument, max(size, 0))]
                (tmp_path / "job").write_bytes(b"".join(parts))
                subprocess.run([EMULATOR, program, tmp_path / "job", tmp_path / "result"],
                               check=True)
                output = (tmp_path / "result").read_bytes()
                ctypes.memmove(job.arguments[1], output, len(output))
                ran.append(job)

    monkeypatch.setattr(host_direct, "function", emitted)
    monkeypatch.setattr(host_direct, "address_of", known(host_direct.address_of))
    monkeypatch.setattr(native, "address", known(native.address))
    monkeypatch.setattr(host_direct, "Jobs", Emulated)
    monkeypatch.setattr(native, "processor", lambda: ARM)
    compare(ON_ARM[name], 0.4)
    assert ran


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
    monkeypatch.setattr(native, "processor", lambda: native.Processor("generic", "+neon", 4, 32))
    problem = Conv2dProblem(1, 8, 9, 9, 8, (3, 3), pads=(1, 1, 1, 1))
    weights = sparse_weights(problem, 0.4)
    problem = of(weights, problem)
    algorithm = HostDirect()
    algorithm.prepare(Weights(weights, HOST), problem,
                      next(iter(algorithm.variants(problem, HOST))), HOST)
    (text,) = written
    assert "fmla\tv" in text and "multiply:" in text
