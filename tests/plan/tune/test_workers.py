"""Tests of processes that build candidates: what comes back, and what is left when one dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import CompileError, GossamerError
from gossamer.io import python_process
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.prepare import BuiltForms, build
from gossamer.plan.tune import build_process, build_worker
from gossamer.plan.tune.build_messages import Built, Request
from gossamer.plan.tune.workers import (
    MOST_DEATHS,
    BuildHereError,
    BuildProcessError,
    BuildWorkers,
)
from tests.ops.conv2d.sparse.sparse_weights import BIAS_RESIDUAL_CLIP, H200, sparse, with_density
from tests.plan.tune.build_algorithms import (
    AbsentDevice,
    BuildableHost,
    Nothing,
    Scripted,
    VendorScripted,
    variant,
)

SECONDS = 60.0
"""Seconds after which a test fails that waits for another process."""

WEIGHT = np.arange(6, dtype=np.float32)
PROBLEM: Any = Nothing()


def weights_of(device: Device, scale: float = 1) -> Weights:
    return Weights({"weight": scale * WEIGHT}, device, "layer1")


@pytest.fixture(scope="module")
def host() -> Device:
    return BuildableHost()


@pytest.fixture(scope="module")
def shared_workers(host: Device) -> Iterator[BuildWorkers]:
    with BuildWorkers(host, 1) as workers:
        yield workers


def submitted(workers: BuildWorkers, host: Device, chosen: Variant,
              **options: Any) -> Future[BuiltForms]:
    return workers.submit(Scripted(), PROBLEM, chosen, weights_of(host), **options)


def until(condition: Callable[[], Any]) -> Any:
    """Returns the value of a condition once it is true."""
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return value


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_forms_come_back_and_are_used(shared_workers: BuildWorkers, host: Device) -> None:
    weights = weights_of(host)
    built = shared_workers.submit(Scripted(), PROBLEM, variant(), weights).result(SECONDS)
    np.testing.assert_array_equal(built.forms["twice"].array, 2 * WEIGHT)
    assert built.forms["environment"].array.tolist() == [1, 1]
    assert built.seconds >= 0 and built.forms["twice"].seconds >= 0
    state, cost = build(Scripted(), weights, PROBLEM, variant(), host, built)
    # in this process the form would hold another number
    assert sorted(buffer.nbytes for buffer in state.packed) == [16, 24]
    assert cost.seconds >= built.seconds


def test_forms_in_use_come_once(shared_workers: BuildWorkers, host: Device) -> None:
    first = submitted(shared_workers, host, variant()).result(SECONDS)
    second = submitted(shared_workers, host, variant(label="other")).result(SECONDS)
    assert second.forms["twice"] is first.forms["twice"]
    del first, second
    third = submitted(shared_workers, host, variant(label="third")).result(SECONDS)
    np.testing.assert_array_equal(third.forms["twice"].array, 2 * WEIGHT)


def test_constants_travel_once(shared_workers: BuildWorkers, host: Device,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    send = build_process.send
    monkeypatch.setattr(build_process, "send", lambda stream, message: (
        sent.append(message), send(stream, message)))
    for scale in (10, 10, 20, 10):
        weights = weights_of(host, scale)
        built = shared_workers.submit(Scripted(), PROBLEM, variant(), weights).result(SECONDS)
        np.testing.assert_array_equal(built.forms["twice"].array, 2 * scale * WEIGHT)
    assert sum(isinstance(message, dict) for message in sent) == 2


def test_constants_that_were_not_used_lately_are_dropped(
        host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_worker, "MOST_BYTES", 150)
    asked: list[str] = []
    worker = build_worker.BuildWorker(host, lambda: asked.append(now) or {"weight": WEIGHT})
    candidate = pickle.dumps((Scripted(), PROBLEM, variant()))
    # the constants and forms of one layer take 56 bytes
    for now in "abacab":
        reply = worker.reply(Request(candidate, now, "layer1", frozenset({"environment"})))
        assert isinstance(reply, Built) and reply.forms["environment"] is None
    assert asked == ["a", "b", "c", "b"]


@pytest.mark.parametrize("do, kind, message", [
    ("needs device", BuildHereError, "it runs a kernel"),
    ("fail", CompileError, "register 7 is missing"),
    ("fail oddly", GossamerError, "OddError: one and two"),
])
def test_errors_come_back(shared_workers: BuildWorkers, host: Device, do: str,
                          kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        submitted(shared_workers, host, variant(do)).result(SECONDS)
    assert not shared_workers.problem


def test_what_libraries_print_does_no_harm(shared_workers: BuildWorkers, host: Device) -> None:
    assert submitted(shared_workers, host, variant("print")).result(SECONDS).forms


def test_candidates_that_only_this_process_builds(shared_workers: BuildWorkers,
                                                  host: Device) -> None:
    class Local(Scripted):
        pass

    weights = weights_of(host)
    for algorithm, reason in ((Local(), "cannot be sent"), (VendorScripted(), "needs cuBLAS")):
        with pytest.raises(BuildHereError, match=reason):
            shared_workers.submit(algorithm, PROBLEM, variant(), weights).result(SECONDS)


def test_an_interrupt_from_the_keyboard_is_not_for_them(
        shared_workers: BuildWorkers, host: Device) -> None:
    submitted(shared_workers, host, variant()).result(SECONDS)
    (process,) = shared_workers._processes
    os.kill(process.pid, signal.SIGINT)
    assert submitted(shared_workers, host, variant()).result(SECONDS).forms
    assert {process} == shared_workers._processes
    assert os.getpgid(process.pid) != os.getpgid(0)


def test_the_first_comes_first_and_what_waits_can_be_cancelled(
        shared_workers: BuildWorkers, host: Device, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    first = submitted(shared_workers, host, variant("wait", gate=gate, log=log, label="first"))
    until(lambda: lines(log))
    futures = [submitted(shared_workers, host, variant(log=log, label=label))
               for label in "dbca"]
    assert not first.cancel() and futures[2].cancel()
    gate.touch()
    for future in (first, *futures[:2], *futures[3:]):
        future.result(SECONDS)
    assert lines(log) == ["first", "d", "b", "a"]
    with pytest.raises(CancelledError):
        futures[2].result(SECONDS)


def test_a_process_that_is_killed_fails_one_candidate(host: Device, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with BuildWorkers(host, 1) as workers:
        doomed = submitted(workers, host, variant("wait", gate=tmp_path / "never", log=log))
        others = [submitted(workers, host, variant(log=log)) for _ in range(2)]
        pid = int(until(lambda: lines(log))[0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BuildProcessError, match=(
                r"that built scripted do=wait .* for layer layer1 was ended by signal 9; "
                "is there too little memory")) as error:
            doomed.result(SECONDS)
        assert "\n" not in str(error.value)
        for other in others:
            assert other.result(SECONDS).forms
        assert len(set(lines(log))) == 2 and not workers.problem
        (process,) = workers._processes
        os.kill(process.pid, signal.SIGKILL)
        # nothing was under way, so nothing fails
        until(lambda: process.has_ended)
        assert submitted(workers, host, variant()).result(SECONDS).forms


def test_processes_that_end_again_and_again_are_not_replaced(host: Device) -> None:
    with BuildWorkers(host, 1) as workers:
        futures = [submitted(workers, host, variant("die")) for _ in range(MOST_DEATHS + 3)]
        errors = [future.exception(SECONDS) for future in futures]
        died = MOST_DEATHS + 1
        assert all(isinstance(error, BuildProcessError) for error in errors[:died])
        assert "signal 9: malloc(): out of luck" in str(errors[0])
        assert [type(error) for error in errors[died:]] == [BuildHereError] * 2
        assert "have ended" in workers.problem
        with pytest.raises(BuildHereError, match="have ended"):
            submitted(workers, host, variant()).result(SECONDS)


@pytest.mark.parametrize("script, message", [
    ("import sys; sys.exit('first\\nlast')", "ended with status 1: last"),
    ("print('an editor')", "ended with status 0"),
    ("import time; print('an editor waits', flush=True); time.sleep(600)", "does not answer"),
    (None, "cannot start a process"),
    ("", "sys.executable is empty"),
])
def test_where_no_process_starts_the_caller_builds(
        host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None,
        message: str) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!{sys.executable}\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(python_process, "_ENDS_SECONDS", 0.2)
    monkeypatch.setattr(sys, "executable", "" if script == "" else str(python))
    with BuildWorkers(host, 2) as workers, pytest.raises(BuildHereError, match=message):
        submitted(workers, host, variant()).result(SECONDS)


def test_a_process_that_starts_for_ever_is_ended(host: Device, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(build_process, "START_SECONDS", 0.5)
    with BuildWorkers(host, 1) as workers, pytest.raises(BuildHereError, match="signal 9"):
        submitted(workers, host, variant()).result(SECONDS)


def test_devices_that_others_cannot_build_for() -> None:
    for device, message in ((find("host"), "can build for host"),
                            (AbsentDevice(), "does not start: no compiler is installed")):
        with BuildWorkers(device, 1) as workers, pytest.raises(BuildHereError, match=message):
            submitted(workers, device, variant()).result(SECONDS)


def test_closing_ends_all(host: Device, tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = BuildWorkers(host, 1)
    running = submitted(workers, host, variant("wait", gate=tmp_path / "never", log=log))
    waiting = submitted(workers, host, variant())
    pid = int(until(lambda: lines(log))[0])
    workers.close()
    assert waiting.cancelled() and isinstance(running.exception(SECONDS), BuildHereError)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(BuildHereError, match="were closed"):
        submitted(workers, host, variant()).result(SECONDS)


def test_processes_that_they_started_end_with_them(host: Device, tmp_path: Path) -> None:
    number = tmp_path / "number"
    workers = BuildWorkers(host, 1)
    submitted(workers, host, variant("start another", gate=number))
    pid = int(until(lambda: lines(number))[0])
    workers.close()
    until(lambda: not _runs(pid))


def test_they_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """It is killed while one builds and another waits."""
    program = """if True:
        import sys, time
        from tests.plan.tune.test_workers import *
        host = BuildableHost()
        workers = BuildWorkers(host, 2)
        submitted(workers, host, variant("wait", gate=sys.argv[1] + "/never", log=sys.argv[1] +
                                         "/log"))
        while len(workers._processes) < 2 or not lines(Path(sys.argv[1], "log")):
            time.sleep(0.01)
        print(*(process.pid for process in workers._processes), flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], text=True,
                          stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        parent.kill()
    assert len(pids) == 2
    until(lambda: not any(map(_runs, pids)))


def _runs(pid: int) -> bool:
    """Returns whether a process runs; one that ended may stay in the list of processes where
    nobody waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CONVOLUTION = with_density(Conv2dProblem(8, 16, 7, 7, 16, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.2)


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_and_forms_are_those_of_this_process(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    build_only = pytest.importorskip("gossamer.device.cuda.build_only", exc_type=ImportError)
    device = build_only.BuildOnlyMaker(0, "H200 (sm_90)", "", H200, "sm_90", "H200")()
    folder = tmp_path / "cache"
    monkeypatch.setenv("GOSSAMER_CACHE", str(folder))
    monkeypatch.setattr(kernel_cache, "_unwritten", OrderedDict())
    monkeypatch.setattr(kernel_cache, "_warned", {folder / "kernels"})
    if not writable:
        folder.write_text("a file where the folder should be")
    weights = Weights(sparse(CONVOLUTION, 0.2), device, "layer1")
    algorithms = [algorithm for algorithm in OPS["conv2d"].algorithms
                  if not algorithm.vendor and algorithm.supports(CONVOLUTION, device) is None]
    pairs = [(algorithm, next(iter(algorithm.variants(CONVOLUTION, device))))
             for algorithm in algorithms]
    with BuildWorkers(device, 1) as workers:
        futures = [workers.submit(algorithm, CONVOLUTION, chosen, weights)
                   for algorithm, chosen in pairs]
        results = [future.result(SECONDS) for future in futures]
    assert len(pairs) >= 4 and all(built.seconds > 0 for built in results)
    assert folder.is_dir() == writable and bool(kernel_cache._unwritten) != writable

    def nothing(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("it was built before")

    monkeypatch.setattr(build_only.nvrtc, "compile_cubin", nothing)
    monkeypatch.setattr(build_only.nvjitlink, "build", nothing)
    here = build_worker.KeptWeights(weights.arrays, device, "layer1", weights.digest)
    for (algorithm, chosen), built in zip(pairs, results, strict=True):
        here.start_candidate()
        algorithm.prepare(here, CONVOLUTION, chosen, device)
        packed = {key: form for key, form in here.used.items() if form is not None}
        assert packed.keys() == built.forms.keys(), algorithm.name
        for key, form in packed.items():
            assert form.array.dtype == built.forms[key].array.dtype
            np.testing.assert_array_equal(form.array, built.forms[key].array)
