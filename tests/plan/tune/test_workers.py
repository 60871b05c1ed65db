"""Tests of the processes that compile for candidates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from gossamer.plan.tune import workers as tune_workers
from gossamer.plan.tune.workers import Compilers
from tests.plan.tune.build_algorithms import (
    AHEAD,
    CompilingHost,
    die,
    fail,
    no_compiler,
    remember,
)
from tests.processes import SECONDS


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(tune_workers, "processors", lambda: 2)
    device = CompilingHost()
    device.limits = replace(device.limits, memory_bytes=2**40)
    return device


@pytest.fixture
def compilers(host: Device) -> Iterator[Compilers]:
    compilers = Compilers(host)
    yield compilers
    compilers.close()


@pytest.mark.parametrize(("work", "kind", "message"), [
    (fail, NoProcessError, "a process that compiles failed: register 7 is missing"),
    (die, ProcessEndedError, "that was asked for a plan was ended by signal 9: malloc"),
    (lambda device: None, NoProcessError, "cannot be sent"),
])
def test_failures_are_told(compilers: Compilers, work: Callable[[Device], object],
                           kind: type[Exception], message: str) -> None:
    compilers.start()
    with pytest.raises(kind, match=message):
        compilers.do(work, "a plan")
    # a process that has ended is replaced
    compilers.do(remember, "a plan")


def test_processes_do_work_on_the_device(compilers: Compilers, own_cache: Path) -> None:
    compilers.start()
    compilers.do(remember, "an answer")
    assert kernel_cache.stored(AHEAD) == b"host"


def test_processes_that_were_closed_compile_nothing(compilers: Compilers, host: Device) -> None:
    compilers.start()
    assert host.compilers is not None
    compilers.close()
    assert host.compilers is None
    with pytest.raises(NoProcessError, match="no process compiles"):
        compilers.do(remember, "a plan")


def test_the_compilers_of_another_plan_stay(host: Device, compilers: Compilers) -> None:
    first = Compilers(host)
    first.start()
    compilers.start()
    later = host.compilers
    first.close()
    assert host.compilers is later is not None


@pytest.mark.parametrize(("count", "memory", "processes"), [
    (1, 2**40, 0), (2, 2**40, 1), (64, 2**40, 32), (64, 2**34, 8), (64, 0, 0)])
def test_there_are_as_many_processes_as_are_of_use(
        host: Device, count: int, memory: int, processes: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def pool(count: int, *others: object, **options: object) -> object:
        started.append(count)
        return object()

    monkeypatch.setattr(tune_workers, "processors", lambda: count)
    monkeypatch.setattr(tune_workers, "ProcessPool", pool)
    host.limits = replace(host.limits, memory_bytes=memory)
    compilers = Compilers(host)
    compilers.start()
    compilers.start()
    assert started == [processes] * (processes > 0)


def test_processes_stand_back(compilers: Compilers, host: Device) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    compilers.start()
    pool = host.compilers
    assert pool is not None
    assert pool.submit(os.getenv, "OMP_NUM_THREADS", what="was asked").result(SECONDS) == "1"
    pid = pool.submit(os.getpid, what="was asked").result(SECONDS)
    # the scheduler knows no more than 19
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 5, 19)


def test_processes_that_do_not_start(
        compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_workers, "begin", no_compiler)
    compilers.start()
    with pytest.raises(NoProcessError, match="does not start: no compiler is installed"):
        compilers.do(remember, "a plan")
