"""Records of how CUDA kernels are built and loaded, and of arrays for other libraries, with a
driver that is not there."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.device import kernel_cache
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError
from gossamer.tensor import TensorSpec
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome

pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)

from gossamer.device.cuda import build_only, dlpack, memory, nvjitlink, nvrtc
from gossamer.device.cuda.ptx import PtxProgram
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from tests.device.cuda.fake_driver import FAILURE, LOST, SUCCESS, FakeDriver


def source_of(folder: Path, function: str = "f", **options: Any) -> KernelSource:
    path = folder / "k.cl"
    path.write_text("kernel void f() {}\n")
    return KernelSource.of(path, function, **options)


def test_kernels(recorded: Recorded, fake: FakeDriver, made: Any, tmp_path: Path,
                 monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_unwritten", type(kernel_cache._unwritten)())
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(nvjitlink, "version", lambda: "13.0")
    problems: list[Exception] = []

    def compiled(source: KernelSource, architecture: str) -> tuple[bytes, str]:
        fake.calls.append(f"compile {source.function} {architecture}")
        if problems:
            raise problems.pop()
        return b"cubin", "report"

    monkeypatch.setattr(nvrtc, "compile_cubin", compiled)
    numbers = itertools.count()

    def told(kernel: Any) -> str:
        return (f"{kernel.name} {kernel.code_bytes} {kernel.registers} {kernel.spill_bytes} "
                f"{kernel.shared_bytes} {kernel.work_group_size} {kernel._dynamic_bytes} "
                f"{kernel._parameters} {kernel.from_cache} {kernel.begins_early}")

    for cluster, shared, parameters in itertools.product(
            (0, 7, 8, 9, 16), (0, 48 * 1024 - 1, 48 * 1024, 48 * 1024 + 1),
            ([], [(0, 8)], [(0, 8), (8, 4)])):
        fake.attributes = {"NUM_REGS": 5, "LOCAL_SIZE_BYTES": 6, "SHARED_SIZE_BYTES": shared,
                           "MAX_THREADS_PER_BLOCK": 8, "REQUIRED_CLUSTER_WIDTH": cluster}
        fake.parameters = parameters
        source = source_of(tmp_path, f"f{next(numbers)}")
        found[f"kernel {cluster} {shared} {len(parameters)}"] = outcome(
            made.compile, source, text=told).partition(" ")[2] + " " + fake.taken().split(" ", 3)[3]
    for index, (failing, problem, again) in enumerate(itertools.product(
            ([], [FAILURE], [FAILURE] * 2, [LOST] * 2), (None, CompileError("no")), (1, 2))):
        source = source_of(tmp_path, f"g{index}", architectures=("sm_90a",))
        problems[:] = [problem] if problem else []
        fake.failing = {"cuModuleLoadData": list(failing)}
        texts = [outcome(made.compile, source, text=told) for _ in range(again)]
        made._kernels.clear()
        texts.append(outcome(made.compile, source, text=told))
        found[f"loaded {len(failing)} {failing[:1] == [LOST]} {problem} {again}"] = (
            " ".join(texts) + fake.taken())
    other = build_only.BuildOnlyDevice(made.build_only)
    monkeypatch.setattr(nvjitlink, "build", lambda program, architecture, apart=False: (
        fake.calls.append(f"build {program.name} {apart}") or (program.name.encode() * 3, None)))
    for place, count in itertools.product((made, other), range(4)):
        def assembled(place: Any = place, count: int = count) -> str:
            kernels = place.assemble([f"{place is made} {count}"], lambda: [
                PtxProgram(f"p{index}", "") for index in range(count)])
            return " ".join(f"{kernel.name} {kernel.code_bytes} {kernel.from_cache}"
                            for kernel in kernels)

        for turn in range(2):
            text = outcome(assembled)
            fake.calls.sort()
            found[f"assembled {place is made} {count} {turn}"] = text + fake.taken()
    source = source_of(tmp_path, "h")
    found["built only"] = outcome(lambda: str([
        (kernel.name, kernel.code_bytes, kernel is other.compile(source))
        for kernel in (other.compile(source), other.compile(source))])) + fake.taken()
    kernel = made.compile(source)
    fake.taken()
    for status, dynamic in itertools.product((SUCCESS, FAILURE, LOST), (0, 10**6)):
        for name in ("cuLaunchKernel", "cuFuncSetAttribute"):
            fake.failing = {name: [status]}
            made.limits = SimpleNamespace(shared_bytes_opt_in=10**6)
            kernel._dynamic_bytes, kernel.shared_bytes = 0, 0
            kernel._parameters = []
            found[f"launch {status.name} {dynamic} {name}"] = outcome(
                made.launch, kernel, (2,), (3,), (), shared_bytes=dynamic, stream=7) + fake.taken()
    recorded("cuda_kernels", found)


def test_compilers(recorded: Recorded, fake: FakeDriver, made: Any, tmp_path: Path,
                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Records where kernels are compiled: in another process, or in this one."""
    found = {}
    answers: list[Any] = []

    class Pool:
        """A pool whose processes answer what the test says."""

        has_idle = True

        def submit(self, function: Any, *arguments: Any, what: str) -> Any:
            fake.calls.append(what)
            answer = answers.pop()

            def result() -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return SimpleNamespace(result=result)

    monkeypatch.setattr(nvrtc, "compile_cubin", lambda source, architecture: (
        fake.calls.append(f"here {architecture}") or (b"here", None)))
    source = source_of(tmp_path)
    for pool, idle, here, answer in itertools.product(
            (None, Pool()), (False, True), (0, 1),
            ((b"there", None), ProcessEndedError("ended"), NoProcessError("none"))):
        made.compilers, Pool.has_idle, made._here = pool, idle, threading.Semaphore(here)
        answers[:] = [answer] * 2
        text = outcome(lambda: [made._compiled(source, "sm_90") for _ in range(2)], text=str)
        found[f"{pool is not None} {idle} {here} {type(answer).__name__}"] = (
            f"{text} {made._here._value}" + fake.taken())
    recorded("cuda_compilers", found)


def test_results_in_libraries(recorded: Recorded, fake: FakeDriver, made: Any,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    notes: list[str] = []
    for package in ("torch", "cupy", "jax"):
        module: Any = SimpleNamespace(
            from_dlpack=lambda array, package=package: f"{package}'s",
            dlpack=SimpleNamespace(from_dlpack=lambda array: "jax's"),
            cuda=SimpleNamespace(get_current_stream=lambda index: 40 + index))
        monkeypatch.setitem(sys.modules, package, module)
    for package in ("torch", "cupy", "jax", "numpy", ""):
        monkeypatch.setattr(dlpack, "library", lambda array, package=package: package)
        array = made.empty_array(TensorSpec((2, 3)), "a test", 7)
        found[f"like {package}"] = outcome(made.like, None, array, text=lambda given: (
            given if isinstance(given, str) else type(given).__name__)) + str(
                list(array.buffer.owner._streams))
    monkeypatch.setattr(dlpack, "CoreBuffer", SimpleNamespace(
        from_handle=lambda address, nbytes, owner: notes.append(f"{nbytes}")))
    monkeypatch.setattr(dlpack, "StridedMemoryView", SimpleNamespace(
        from_buffer=lambda memory, shape, dtype: SimpleNamespace(
            __dlpack__=lambda max_version: f"{shape} {dtype} {max_version}")))
    for own, stream, version, copy, place in itertools.product(
            (None, 5, 1), (None, -1, 1, 5), (None, (1, 0)), (None, False, True),
            (None, (2, 0), (2, 1), [2, 0])):
        array = made.empty_array(TensorSpec((2, 3)), "a test", own)
        fake.taken()
        text = outcome(array.__dlpack__, stream=stream, max_version=version, copy=copy,
                       dl_device=place)
        owner = array.buffer.owner
        used = list(owner._streams) if isinstance(owner, memory.StreamAllocation) else []
        found[f"exported {own} {stream} {version} {copy} {place}"] = (
            f"{text} {used} {notes}" + fake.taken())
        notes.clear()
        del array, owner
        fake.taken()
    recorded("cuda_results", found)
