"""Tests of kernels that are built without a GPU, against the kernel cache."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.device import base, kernel_cache
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError, GossamerWarning
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights, WeightsInfo
from tests.device.helpers import SELF_CHECK
from tests.ops.conv2d.sparse.sparse_weights import BIAS_SIGMOID, H200, sparse, with_density
from tests.ops.harness import random_weights
from tests.ops.problems import BUILT

pytest.importorskip("cuda.core")
build_only = pytest.importorskip("tests.device.cuda.without_gpu", exc_type=ImportError)
cuda_device = pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)
nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)
nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
ptx = pytest.importorskip("gossamer.device.cuda.ptx", exc_type=ImportError)

LIMITS = replace(H200, mma=True)
MAKER = build_only.BuildOnlyMaker(3, "H200 (sm_90)", "CUDA 13.0", LIMITS, "sm_90", "H200")
PROGRAM = ptx.PtxProgram("a", ".visible .entry a() { exit; }")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_unwritten", OrderedDict())
    return tmp_path / "cache"


class LoadedKernel(base.Kernel):
    """An object that stands for a kernel that a GPU has loaded."""

    def __init__(self, source: KernelSource, cubin: bytes, device: object) -> None:
        self.name, self.source, self.code_bytes = source.function, source, len(cubin)
        self.cubin = cubin


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CUDA device that finds its kernels and loads them on no GPU."""
    device = object.__new__(cuda_device.CudaDevice)
    device.index, device.description, device.driver = 3, "H200 (sm_90)", "CUDA 13.0"
    device.architecture, device.limits, device._chip = "sm_90", LIMITS, "H200"
    device._kernels = {}
    monkeypatch.setattr(cuda_device, "CudaKernel", LoadedKernel)
    return device


def nothing(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("nothing is left to build")


def test_what_it_compiles_is_found(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = MAKER().compile(SELF_CHECK)
    monkeypatch.setattr(nvrtc, "compile_cubin", nothing)
    kernel = real.compile(SELF_CHECK)
    assert kernel.cubin[:4] == b"\x7fELF"
    assert built.code_bytes == kernel.code_bytes and built.name == kernel.name
    assert kernel.from_cache


def test_kernels_that_differ_have_different_keys() -> None:
    keys = {nvrtc.key(KernelSource.of(SELF_CHECK.path, function, defines), architecture)
            for function in "ab" for defines in ({}, {"A": 1}, {"A": 2}, {"B": 1}, {"A": "1\n"})
            for architecture in ("sm_80", "sm_90")}
    assert len(set(map(kernel_cache._name, keys))) == 20


def test_what_it_assembles_is_found(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = MAKER().assemble("a", ("a program",), program)
    monkeypatch.setattr(nvjitlink, "build", nothing)
    kernel = real.assemble("a", ("a program",), nothing)
    assert kernel.name == built.name == "a"
    assert kernel.cubin[:4] == b"\x7fELF"
    assert kernel.code_bytes == built.code_bytes


def test_the_device_assembles_what_is_missing(real: Any) -> None:
    assert not real.assemble("a", ("a program",), program).from_cache
    assert MAKER().assemble("a", ("a program",), nothing).name == "a"
    assert real.assemble("a", ("a program",), nothing).from_cache
    with pytest.raises(AssertionError, match="nothing is left"):
        real.assemble("a", ("another program",), nothing)


def test_it_tells_what_was_in_the_cache() -> None:
    for is_there in (False, True):
        device = MAKER()
        kernels = device.compile(SELF_CHECK), device.assemble("a", ("a program",), program)
        assert [kernel.from_cache for kernel in kernels] == [is_there] * 2


def test_it_compiles_where_the_folder_cannot_be_written(
        real: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setattr(kernel_cache, "_warned", set())
    with pytest.warns(GossamerWarning, match="cannot be written"):
        MAKER().compile(SELF_CHECK)
    # as in another process, which has not the memory of the one above
    kernel_cache._unwritten.clear()
    kernel = real.compile(SELF_CHECK)
    assert kernel.cubin[:4] == b"\x7fELF" and not kernel.from_cache


def test_an_error_of_the_compiler_is_told() -> None:
    with pytest.raises(CompileError, match="contains no kernel absent"):
        MAKER().compile(KernelSource.of(SELF_CHECK.path, "absent"))


class Processes:
    """In place of a ProcessPool: calls functions as another process does, if it can.

    failure: what each call raises. asked: words for the calls.
    """

    has_idle = True

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.asked = failure, list[str]()

    def submit(self, function: Any, *arguments: Any, what: str) -> Future[Any]:
        self.asked.append(what)
        future: Future[Any] = Future()
        try:
            if self.failure is not None:
                raise self.failure
            function, arguments = pickle.loads(pickle.dumps((function, arguments)))
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def program() -> Any:
    return PROGRAM


def test_processes_generate_and_assemble(real: Any) -> None:
    real.compilers = Processes()
    assert real.assemble("a", ("a program",), program).name == "a"
    assert real.compilers.asked == ["assembled generated code"]
    assert real.compile(SELF_CHECK).cubin[:4] == b"\x7fELF"
    assert real.compilers.asked[1:] == ["compiled self_check of self_check.cl"]


def test_this_process_compiles_where_no_process_can(real: Any) -> None:
    real.compilers = Processes(NoProcessError("they were closed"))
    assert real.assemble("a", ("a program",), lambda: PROGRAM).name == "a"
    assert real.compile(SELF_CHECK).cubin[:4] == b"\x7fELF"


def test_a_process_that_ends_is_told(real: Any) -> None:
    real.compilers = Processes(ProcessEndedError("the process was ended by signal 9"))
    with pytest.raises(CompilerEndedError, match="signal 9"):
        real.assemble("a", ("a program",), program)


CONVOLUTIONS = [
    (Conv2dProblem(8, 32, 7, 7, 32, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_SIGMOID), 0.2),
    (Conv2dProblem(1, 32, 7, 7, 32, (1, 1)), 0.2),
    (Conv2dProblem(2, 32, 7, 7, 32, (3, 3), groups=32), 1.0),
]
PREPARED = [*[(problem, 1.0) for problems in BUILT.values() for problem in problems],
            *[(with_density(problem, density), density) for problem, density in CONVOLUTIONS],
            (GemmProblem(4, 32, 32), 1.0),
            (GemmProblem(4, 32, 32, weights_info=WeightsInfo(0.1, "mask")), 1.0)]


@pytest.mark.parametrize("problem, density", PREPARED,
                         ids=lambda value: getattr(value, "op", str(value)))
def test_every_algorithm_prepares(problem: Problem, density: float,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """No algorithm of gossamer's own needs the GPU while it is prepared."""
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, architecture: (b"cubin", None))
    monkeypatch.setattr(nvjitlink, "build", lambda program, architecture: (b"cubin", None))
    device = MAKER()
    arrays = random_weights(problem)
    if density < 1:
        arrays = sparse(problem, density)
    weights = Weights(arrays, device, "a layer")
    algorithms = [algorithm for algorithm in OPS[problem.op].algorithms
                  if not algorithm.vendor and algorithm.supports(problem, device) is None]
    assert algorithms
    for algorithm in algorithms:
        for variant in list(algorithm.variants(problem, device))[:4]:
            algorithm.prepare(weights, problem, variant, device)
