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
    no_device,
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
    compilers.start(on_device=True)
    with pytest.raises(kind, match=message):
        compilers.ask(work, "a plan").result(SECONDS)
    # a process that has ended is replaced
    assert compilers.ask(remember, "a plan").result(SECONDS) is None


def test_processes_do_work_on_the_device(compilers: Compilers, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    compilers.start(on_device=True)
    compilers.ask(remember, "an answer").result(SECONDS)
    assert kernel_cache.stored(AHEAD) == b"host"


def test_nothing_is_asked_where_no_process_has_opened_the_device(compilers: Compilers) -> None:
    compilers.start()
    with pytest.raises(NoProcessError, match="no process has opened the device"):
        compilers.ask(remember, "a plan").result(SECONDS)


def test_pools_that_were_closed_compile_nothing(compilers: Compilers, host: Device) -> None:
    compilers.start()
    compilers.start(on_device=True)
    assert host.compilers is not None
    compilers.close()
    assert host.compilers is None
    with pytest.raises(NoProcessError, match="no process has opened the device"):
        compilers.ask(remember, "a plan").result(SECONDS)


def test_the_compilers_of_another_plan_stay(host: Device, compilers: Compilers) -> None:
    first = Compilers(host)
    first.start()
    compilers.start()
    later = host.compilers
    first.close()
    assert host.compilers is later is not None


@pytest.mark.parametrize(("count", "memory", "sources", "on_device"), [
    (1, 2**40, 0, 0), (2, 2**40, 1, 1), (64, 2**40, 32, 5), (64, 2**34, 32, 2), (64, 0, 32, 0)])
def test_pools_have_as_many_processes_as_are_of_use(
        host: Device, count: int, memory: int, sources: int, on_device: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(tune_workers, "processors", lambda: count)
    monkeypatch.setattr(tune_workers, "ProcessPool",
                        lambda count, *others, **options: started.append(count))
    host.limits = replace(host.limits, memory_bytes=memory)
    compilers = Compilers(host)
    compilers.start()
    compilers.start()
    assert started == [sources] * (sources > 0)
    compilers.start(on_device=True)
    assert started[1:] == [on_device] * (on_device > 0)


def test_processes_stand_back_unless_a_library_is_asked(compilers: Compilers) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for on_device, added in ((False, 5), (True, 0)):
        compilers.start(on_device=on_device)
        pool = compilers._pools[on_device]
        assert pool.submit(os.getenv, "OMP_NUM_THREADS", what="was asked").result(
            SECONDS) == "1"
        pid = pool.submit(os.getpid, what="was asked").result(SECONDS)
        # the scheduler knows no more than 19
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + added, 19)


def test_a_device_that_cannot_be_opened_elsewhere(
        compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_workers, "begin", no_device)
    compilers.start(on_device=True)
    with pytest.raises(NoProcessError, match="does not start: no compiler is installed"):
        compilers.ask(remember, "a plan").result(SECONDS)
