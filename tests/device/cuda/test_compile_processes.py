"""Processes that compile kernels: their cubins are those of this process, and their ends are told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")

from gossamer.device import checks
from gossamer.device.cuda import nvrtc
from gossamer.device.cuda.compile_processes import CompileProcesses
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError
from tests.processes import runs, until

SELF_CHECK = Path(checks.__file__).with_name("self_check.cl")
KERNELS = [KernelSource.of(SELF_CHECK, "self_check", {"NUMBER": number}) for number in range(12)]


@pytest.fixture
def compilers() -> Iterator[CompileProcesses]:
    """Three processes beside this one, which compiles three kernels at a time."""
    started = CompileProcesses(6)
    assert not _processes()
    started.compile(KERNELS[0], "sm_90")
    until(lambda: started._begun(0)._idle == 3)
    assert _compiles_elsewhere(started)
    yield started
    started.end()
    until(lambda: not _processes())


def _compiles_elsewhere(compilers: CompileProcesses) -> bool:
    return all(compilers.compile(source, "sm_90")[1] > 0 for source in KERNELS[:3])


def _processes() -> list[int]:
    """Returns the numbers of the processes that compile for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "pool_process" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def test_cubins_are_those_of_this_process(compilers: CompileProcesses) -> None:
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda source: compilers.compile(source, "sm_90"), KERNELS))
    expected = nvrtc.compile_cubin(KERNELS[0], "sm_90")[0]
    assert all(cubin == expected for cubin, _ in built)
    assert any(seconds > 0 for _, seconds in built), "another process has compiled"


def test_the_processes_stand_back(compilers: CompileProcesses) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    # the scheduler knows no more than 19
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in _processes()} <= {min(own + 5, 19)}


def test_a_kernel_that_does_not_compile_fails_with_the_compilers_words(
        compilers: CompileProcesses) -> None:
    wrong = KernelSource.of(SELF_CHECK, "self_check", {"float": "no_such_type"})
    with pytest.raises(CompileError, match="self_check of") as here:
        nvrtc.compile_cubin(wrong, "sm_90")
    for _ in range(4):
        with pytest.raises(CompileError) as error:
            compilers.compile(wrong, "sm_90")
        assert str(error.value) == str(here.value)
    assert _compiles_elsewhere(compilers)


def test_any_error_of_another_process_is_told(compilers: CompileProcesses) -> None:
    with pytest.raises(AttributeError, match="no attribute"):
        compilers.compile(KernelSource("no path", "self_check"), "sm_90")  # type: ignore[arg-type]


def test_a_process_that_dies_is_named_and_replaced(compilers: CompileProcesses) -> None:
    stopped = _processes()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(compilers.compile, source, "sm_90") for source in KERNELS]
        until(lambda: not compilers._begun(0).has_idle)
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
    errors = [future.exception() for future in futures if future.exception() is not None]
    assert len(errors) == len(stopped) == 3
    for error in errors:
        assert isinstance(error, CompilerEndedError)
        assert "compiled self_check of self_check.cl was ended by signal 9" in str(error)
    assert _compiles_elsewhere(compilers)
    assert _processes() and not set(_processes()) & set(stopped)


def test_no_kernel_fails_where_processes_died_idle(compilers: CompileProcesses) -> None:
    killed = _processes()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(runs, killed)))
    assert all(compilers.compile(source, "sm_90")[0] for source in KERNELS)


def test_after_the_end_this_process_compiles(compilers: CompileProcesses) -> None:
    compilers.end()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda source: compilers.compile(source, "sm_90"), KERNELS))
    assert all(cubin and seconds == 0 for cubin, seconds in built)
    unused = CompileProcesses(6)
    unused.end()
    assert unused.compile(KERNELS[0], "sm_90")[1] == 0


def test_what_waits_at_the_end_is_compiled_here(compilers: CompileProcesses) -> None:
    for pid in _processes():
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(compilers.compile, source, "sm_90") for source in KERNELS]
        until(lambda: not compilers._begun(0).has_idle)
        compilers.end()
        assert all(future.result() for future in futures)


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/true"])
def test_where_no_process_starts_this_process_compiles(
        program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    compilers = CompileProcesses(9)
    for source in KERNELS:
        assert compilers.compile(source, "sm_90")[1] == 0
    compilers.end()
