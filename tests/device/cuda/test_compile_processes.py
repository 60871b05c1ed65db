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
    """One process beside this one, each of which compiles three kernels at a time."""
    started = CompileProcesses(6)
    end = time.monotonic() + SECONDS
    while started._free.qsize() < 6 and time.monotonic() < end:
        time.sleep(0.01)
    assert started._free.qsize() == 6, f"no process was ready after {SECONDS:.0f} seconds"
    yield started
    started.end()


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
    assert len(messages) == 1 and compilers._free.qsize() == 6


def test_a_process_that_dies_is_named_and_not_asked_again(compilers: CompileProcesses) -> None:
    (process,) = compilers._processes
    os.kill(process._process.pid, signal.SIGKILL)
    outcomes = []
    for source in KERNELS:
        try:
            outcomes.append(compilers.compile(source, "sm_90")[0])
        except CompilerEndedError as error:
            assert "self_check" in str(error) and "signal 9" in str(error)
            outcomes.append(None)
    assert 1 <= outcomes.count(None) <= 3 and compilers._free.qsize() == 3


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
