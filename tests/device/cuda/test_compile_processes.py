"""Processes that compile kernels: their cubins are those of this process, and their ends are told.
"""

from __future__ import annotations

import os
import signal
import sys
import time
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

SELF_CHECK = Path(checks.__file__).with_name("self_check.cl")
KERNELS = [KernelSource.of(SELF_CHECK, "self_check", {"NUMBER": number}) for number in range(12)]
SECONDS = 60.0


@pytest.fixture
def compilers() -> Iterator[CompileProcesses]:
    """One process beside this one, both of which compile three kernels at a time."""
    started = CompileProcesses(6)
    assert not started._processes
    started.compile(KERNELS[0], "sm_90")
    end = time.monotonic() + SECONDS
    while started._free.qsize() < 6 and time.monotonic() < end:
        time.sleep(0.01)
    assert _offered(started).count(None) == 3, f"no process was ready after {SECONDS:.0f} seconds"
    yield started
    started.end()


def _offered(compilers: CompileProcesses) -> list[object]:
    """Returns the processes that are offered, once for each kernel that they may compile."""
    offered = [compilers._free.get() for _ in range(compilers._free.qsize())]
    for process in offered:
        compilers._free.put(process)
    return offered


def test_cubins_are_those_of_this_process(compilers: CompileProcesses) -> None:
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda source: compilers.compile(source, "sm_90"), KERNELS))
    expected = nvrtc.compile_cubin(KERNELS[0], "sm_90")[0]
    assert all(cubin == expected for cubin, _ in built)
    assert any(seconds > 0 for _, seconds in built), "another process has compiled"


def test_a_kernel_that_does_not_compile_fails_with_the_compilers_words(
        compilers: CompileProcesses) -> None:
    wrong = KernelSource.of(SELF_CHECK, "self_check", {"float": "no_such_type"})
    messages = set()
    for _ in range(6):
        with pytest.raises(CompileError, match="self_check of") as error:
            compilers.compile(wrong, "sm_90")
        messages.add(str(error.value))
    assert len(messages) == 1 and _offered(compilers).count(None) == 3


def test_any_error_of_another_process_is_told(compilers: CompileProcesses) -> None:
    (process,) = compilers._processes
    with pytest.raises(CompileError, match="AttributeError"):
        process.compile(KernelSource("no path", "self_check"), "sm_90")  # type: ignore[arg-type]


def test_a_process_that_dies_is_named_and_not_asked_again(compilers: CompileProcesses) -> None:
    (process,) = compilers._processes
    os.kill(process._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(compilers.compile, source, "sm_90") for source in KERNELS]
        while len(process._asked) < 3:
            time.sleep(0.01)
        os.kill(process._process.pid, signal.SIGKILL)
    errors = [future.exception() for future in futures if future.exception() is not None]
    assert len(errors) == 3
    for error in errors:
        assert isinstance(error, CompilerEndedError)
        assert "self_check" in str(error) and "signal 9" in str(error)
    assert _offered(compilers) == [None] * 6


def test_what_a_process_that_died_idle_would_compile_is_compiled_here(
        compilers: CompileProcesses) -> None:
    (process,) = compilers._processes
    os.kill(process._process.pid, signal.SIGKILL)
    end = time.monotonic() + SECONDS
    while process.is_usable and time.monotonic() < end:
        time.sleep(0.01)
    assert all(compilers.compile(source, "sm_90")[0] for source in KERNELS)
    assert _offered(compilers) == [None] * 6


def test_after_the_end_this_process_compiles(compilers: CompileProcesses) -> None:
    compilers.end()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda source: compilers.compile(source, "sm_90"), KERNELS))
    assert all(cubin and seconds == 0 for cubin, seconds in built)


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/true"])
def test_where_no_process_starts_this_process_compiles(
        program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    compilers = CompileProcesses(9)
    for source in KERNELS:
        assert compilers.compile(source, "sm_90")[1] == 0
    compilers.end()
