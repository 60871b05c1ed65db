"""Kernels that other processes compile: their cubins are those of this process, and the ends of the
processes are told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")

from gossamer.device import checks, kernel_cache
from gossamer.device.cuda import nvrtc
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError
from gossamer.io.process_pool import ProcessPool
from tests.device.cuda.test_nvjitlink import program
from tests.processes import in_threads, runs, until

SELF_CHECK = Path(checks.__file__).with_name("self_check.cl")
KERNELS = [KernelSource.of(SELF_CHECK, "self_check", {"NUMBER": number}) for number in range(12)]
COUNT = 3


class Compilers(ProcessPool):
    """Processes that compile. futures: those of all kernels that they were given."""

    def __init__(self, count: int = COUNT) -> None:
        self.futures: list[Future[Any]] = []
        super().__init__(count, "process that tests")

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        self.futures.append(super().submit(*arguments, **options))
        return self.futures[-1]

    @property
    def compiled(self) -> int:
        """Number of kernels that the processes have compiled."""
        return sum(future.done() and not future.cancelled() and future.exception() is None
                   for future in self.futures)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes that have not ended."""
        return [process.pid for process in self._processes if not process.has_ended]


@pytest.fixture
def gpu(made: Any) -> Iterator[Any]:
    """A device for which three processes compile beside this one."""
    with Compilers() as made.compilers:
        until(lambda: made.compilers._unfinished == 0)
        yield made


def cubins(gpu: Any, kernels: list[KernelSource] = KERNELS) -> list[bytes]:
    """Returns the cubins of kernels that are compiled at the same time."""
    return in_threads(lambda source: gpu._compiled(source, "sm_90"), kernels)


def compiles_elsewhere(gpu: Any) -> bool:
    """Returns whether each of three kernels is compiled by another process."""
    before = gpu.compilers.compiled
    for source in KERNELS[:3]:
        gpu._compiled(source, "sm_90")
    return gpu.compilers.compiled == before + 3


def test_cubins_are_those_of_this_process(gpu: Any) -> None:
    assert compiles_elsewhere(gpu)
    expected = nvrtc.compile_cubin(KERNELS[0], "sm_90")[0]
    assert cubins(gpu) == [expected] * len(KERNELS)


@contextmanager
def stopped(gpu: Any) -> Iterator[tuple[list[int], list[Future[bytes]]]]:
    """Stops the processes, and has them begin to compile. Gives the numbers of the processes and
    the futures of all kernels."""
    pids, asked = gpu.compilers.pids, []
    for process in gpu.compilers._processes:
        vars(process)["call"] = lambda task, call=process.call: asked.append(task) or call(task)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(gpu._compiled, source, "sm_90") for source in KERNELS]
        until(lambda: len(asked) == COUNT)
        yield pids, futures


def test_this_process_compiles_while_all_others_are_busy(gpu: Any) -> None:
    with stopped(gpu) as (pids, futures):
        until(lambda: any(future.done() for future in futures))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert all(future.result() for future in futures)


def test_processes_generate_and_assemble(gpu: Any, own_cache: Path) -> None:
    assert gpu.assemble("a", ("a program",), program).name == "a" and gpu.compilers.compiled == 1
    gpu.compilers.end()
    # no other process can have this function
    assert not gpu.assemble("a", ("another program",), lambda: program()).from_cache


def test_kernels_are_compiled_once(made: Any, own_cache: Path) -> None:
    for is_there in (False, True):
        made._kernels.clear()
        assert made.compile(KERNELS[0]).from_cache == is_there


def test_kernels_that_differ_have_different_keys() -> None:
    keys = {nvrtc.key(KernelSource.of(SELF_CHECK, function, defines), architecture)
            for function in "ab" for defines in ({}, {"A": 1}, {"A": 2}, {"B": 1}, {"A": "1\n"})
            for architecture in ("sm_80", "sm_90")}
    assert len(set(map(kernel_cache._name, keys))) == 20


def test_an_absent_kernel_is_named() -> None:
    with pytest.raises(CompileError, match="contains no kernel absent"):
        nvrtc.compile_cubin(KernelSource.of(SELF_CHECK, "absent"), "sm_90")


def test_a_kernel_that_does_not_compile_fails_with_the_compilers_words(gpu: Any) -> None:
    wrong = KernelSource.of(SELF_CHECK, "self_check", {"float": "no_such_type"})
    with pytest.raises(CompileError, match="self_check of") as here:
        nvrtc.compile_cubin(wrong, "sm_90")
    for _ in range(4):
        with pytest.raises(CompileError) as error:
            gpu._compiled(wrong, "sm_90")
        assert str(error.value) == str(here.value)
    assert compiles_elsewhere(gpu)


def test_a_process_that_dies_is_named_and_replaced(gpu: Any) -> None:
    with stopped(gpu) as (pids, futures):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    errors = [future.exception() for future in futures if future.exception() is not None]
    assert len(errors) == len(pids) == COUNT
    for error in errors:
        assert isinstance(error, CompilerEndedError)
        assert "compiled self_check of self_check.cl was ended by signal 9" in str(error)
    assert compiles_elsewhere(gpu)
    assert gpu.compilers.pids and not set(gpu.compilers.pids) & set(pids)


def test_no_kernel_fails_where_processes_died_idle(gpu: Any) -> None:
    killed = gpu.compilers.pids
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(runs, killed)))
    assert all(cubins(gpu))


def test_after_the_end_this_process_compiles(gpu: Any) -> None:
    gpu.compilers.end()
    assert all(cubins(gpu)) and not gpu.compilers.compiled


def test_what_waits_at_the_end_is_compiled_here(gpu: Any) -> None:
    with stopped(gpu) as (_, futures):
        gpu.compilers.end()
        assert all(future.result() for future in futures)


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/true"])
def test_where_no_process_starts_this_process_compiles(
        program: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with Compilers() as made.compilers:
        assert all(cubins(made)) and not made.compilers.compiled
