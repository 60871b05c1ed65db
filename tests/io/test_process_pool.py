"""Tests of processes that call functions: what comes back, and what is left when one dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import GossamerError
from gossamer.io import process_pool
from gossamer.io.process_pool import (
    MOST_DEATHS,
    NoProcessError,
    ProcessEndedError,
    ProcessPool,
)
from tests.io import pool_tasks
from tests.processes import SECONDS, runs, until

KIND = "process that tests"


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[ProcessPool]:
    with ProcessPool(1, KIND) as pool:
        yield pool


def asked(pool: ProcessPool, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    return pool.submit(function, *arguments, what="was asked")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_results_come_back_from_another_process(shared_pool: ProcessPool) -> None:
    pid = asked(shared_pool, os.getpid).result(SECONDS)
    assert pid != os.getpid()
    assert asked(shared_pool, divmod, 7, 2).result(SECONDS) == (3, 1)
    score = Path(f"/proc/{pid}/oom_score_adj")
    assert not score.exists() or score.read_text() == "500\n"


def test_processes_begin_with_the_initializer_and_variables() -> None:
    with ProcessPool(1, KIND, os.getcwd, variables={"GOSSAMER_TEST": "seven"}) as pool:
        assert asked(pool, pool_tasks.variable, "GOSSAMER_TEST").result(SECONDS) == "seven"
    with (ProcessPool(2, KIND, pool_tasks.fail) as pool,
          pytest.raises(NoProcessError, match=f"a {KIND} does not start: no such kernel")):
        asked(pool, os.getpid).result(SECONDS)


def test_errors_come_back(shared_pool: ProcessPool) -> None:
    pid = asked(shared_pool, os.getpid).result(SECONDS)
    with pytest.raises(ValueError, match="no such kernel"):
        asked(shared_pool, pool_tasks.fail).result(SECONDS)
    with pytest.raises(GossamerError, match="OddError: one and two"):
        asked(shared_pool, pool_tasks.fail, True).result(SECONDS)
    with pytest.raises(NoProcessError, match=f"cannot be sent to a {KIND}"):
        asked(shared_pool, lambda: None).result(SECONDS)
    assert asked(shared_pool, os.getpid).result(SECONDS) == pid


def test_what_is_printed_does_no_harm(shared_pool: ProcessPool) -> None:
    assert asked(shared_pool, pool_tasks.chatter).result(SECONDS) == "done"


def test_the_first_comes_first_and_what_waits_can_be_cancelled(
        shared_pool: ProcessPool, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    first = asked(shared_pool, pool_tasks.wait, log, gate, "first")
    until(lambda: lines(log))
    assert not shared_pool.has_idle
    futures = [asked(shared_pool, pool_tasks.note, log, label) for label in "dbca"]
    assert not first.cancel() and futures[2].cancel()
    gate.touch()
    for future in (first, *futures[:2], *futures[3:]):
        future.result(SECONDS)
    assert lines(log) == ["first", "d", "b", "a"]
    with pytest.raises(CancelledError):
        futures[2].result(SECONDS)
    assert until(lambda: shared_pool.has_idle)


def test_a_process_that_is_killed_fails_one_task(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ProcessPool(1, KIND) as pool:
        doomed = asked(pool, pool_tasks.wait, log, tmp_path / "never")
        others = [asked(pool, os.getpid) for _ in range(2)]
        pid = int(until(lambda: lines(log))[0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProcessEndedError, match=(
                "the process that was asked was ended by signal 9; is there too little memory")):
            doomed.result(SECONDS)
        (other,) = {future.result(SECONDS) for future in others}
        assert other != pid
        os.kill(other, signal.SIGKILL)
        # nothing was under way, so nothing fails
        until(lambda: not runs(other))
        assert asked(pool, os.getpid).result(SECONDS) not in (pid, other)


def test_processes_that_end_again_and_again_are_not_replaced() -> None:
    with ProcessPool(1, KIND) as pool:
        futures = [asked(pool, pool_tasks.die) for _ in range(MOST_DEATHS + 3)]
        errors = [future.exception(SECONDS) for future in futures]
        died = MOST_DEATHS + 1
        assert [type(error) for error in errors[:died]] == [ProcessEndedError] * died
        assert [type(error) for error in errors[died:]] == [NoProcessError] * 2
        assert "signal 9: malloc(): out of luck" in str(errors[0])
        with pytest.raises(NoProcessError, match=f"a {KIND} has ended {died} times"):
            asked(pool, os.getpid).result(SECONDS)


@pytest.mark.parametrize("script, message", [
    ("import sys; sys.exit('first\\nlast')", "ended with status 1: last"),
    ("print('an editor')", "ended with status 0"),
    (None, "cannot start a process"),
    ("", "sys.executable is empty"),
])
def test_where_no_process_starts_the_caller_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str) -> None:
    monkeypatch.setattr(sys, "executable", "" if script == "" else _python(tmp_path, script))
    with ProcessPool(2, KIND) as pool, pytest.raises(NoProcessError, match=message):
        asked(pool, os.getpid).result(SECONDS)


def test_a_process_that_starts_for_ever_is_ended(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _python(
        tmp_path, "import time; print('an editor waits', flush=True); time.sleep(600)"))
    monkeypatch.setattr(process_pool, "START_SECONDS", 0.5)
    with (ProcessPool(1, KIND) as pool,
          pytest.raises(NoProcessError, match="signal 9: an editor waits")):
        asked(pool, os.getpid).result(SECONDS)


def _python(folder: Path, script: str | None) -> str:
    """Returns the path of a program in place of Python, which is absent where there is no script.
    """
    python = folder / "python"
    if script is not None:
        python.write_text(f"#!{sys.executable}\n{script}\n")
        python.chmod(0o755)
    return str(python)


def test_closing_ends_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = ProcessPool(1, KIND)
    running = asked(pool, pool_tasks.wait, log, tmp_path / "never")
    waiting = asked(pool, os.getpid)
    pid = int(until(lambda: lines(log))[0])
    pool.close()
    assert waiting.cancelled() and isinstance(running.exception(SECONDS), NoProcessError)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(NoProcessError, match="was closed"):
        asked(pool, os.getpid).result(SECONDS)


def test_closing_does_not_wait_for_a_process_that_starts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _python(tmp_path, "import time; time.sleep(600)"))
    start = time.monotonic()
    with ProcessPool(1, KIND):
        time.sleep(0.1)
    assert time.monotonic() - start < 10


def test_processes_that_they_started_end_with_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ProcessPool(1, KIND) as pool:
        asked(pool, pool_tasks.start_another, log)
        pid = int(until(lambda: lines(log))[0])
    until(lambda: not runs(pid))


@contextlib.contextmanager
def running(folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program that waits with two processes, in a group of its own."""
    script = folder / "program.py"
    script.write_text(f"""if True:
        print("begun", flush=True)
        from pathlib import Path
        from tests.io.test_process_pool import *
        folder = Path({str(folder)!r})
        pool = ProcessPool(2, KIND)
        futures = [asked(pool, pool_tasks.wait, folder / "log", folder / "gate") for _ in "ab"]
        {program}
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script)], text=True, stdout=subprocess.PIPE,
                          process_group=0, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_they_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """It is killed while both do something."""
    with running(tmp_path, "time.sleep(600)"):
        until(lambda: len(lines(tmp_path / "log")) == 2)
    until(lambda: not any(runs(int(pid)) for pid in lines(tmp_path / "log")))


def test_an_interrupt_from_the_keyboard_is_not_for_them(tmp_path: Path) -> None:
    program = """try:
            time.sleep(600)
        except KeyboardInterrupt:
            (folder / "gate").touch()
            print(sorted(future.result(SECONDS) for future in futures), flush=True)
            pool.close()
    """
    with running(tmp_path, program) as process:
        until(lambda: len(lines(tmp_path / "log")) == 2)
        pids = sorted(map(int, lines(tmp_path / "log")))
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=SECONDS)[0] == f"begun\n{pids}\n"


def test_the_users_program_is_not_imported(tmp_path: Path) -> None:
    """It prints "begun" once, without a guard, and its functions cannot be called elsewhere."""
    program = """(folder / "gate").touch()
        def own():
            pass
        print(type(asked(pool, own).exception(SECONDS)).__name__)
        pool.close()
    """
    with running(tmp_path, program) as process:
        assert process.communicate(timeout=SECONDS)[0] == "begun\nNoProcessError\n"
