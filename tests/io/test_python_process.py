"""The start and the end of other Python processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gossamer.io import python_process
from gossamer.io.python_process import PythonProcess
from tests.processes import SECONDS, runs, until


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> PythonProcess:
    """Returns a process that executes statements."""
    (folder / "some_worker.py").write_text(
        "import os, sys, time\nfrom multiprocessing.connection import Connection\n"
        f"def work():\n    {body}\n")
    monkeypatch.syspath_prepend(str(folder))
    return PythonProcess("some_worker", ["argument"], variables={"SOME": "value"})


def test_a_process_gets_its_arguments_and_a_channel(tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    process = started(tmp_path, monkeypatch, "parent = Connection(0); parent.send("
                      "parent.recv() + sys.argv[1] + os.environ['SOME']); print('the end'); "
                      "sys.exit(3)")
    process.channel.send("sent to ")
    assert process.channel.recv() == "sent to argumentvalue"
    assert process.ending() == "ended with status 3: the end"
    process.close()


def test_a_process_that_says_nothing_is_killed(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_process, "_ENDS_SECONDS", 0.1)
    process = started(tmp_path, monkeypatch, "time.sleep(600)")
    assert process.ending() == "does not answer"
    process.close()
    until(lambda: not runs(process.pid))


def test_a_process_that_cannot_end_is_not_waited_for(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_process, "_ENDS_SECONDS", 0.1)
    process = started(tmp_path, monkeypatch, "time.sleep(600)")

    def ignored(*_: Any) -> None:
        """The system delivers no signal to a process that waits in the kernel."""

    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", ignored)
        start = time.monotonic()
        process.close()
        assert time.monotonic() - start < SECONDS / 2 and runs(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: process.has_ended)


def test_a_forked_child_is_disconnected(tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The process sees the end of the channel, although the child of a fork still runs."""
    process = started(tmp_path, monkeypatch, "os.read(0, 1)")
    child = os.fork()
    if child == 0:
        time.sleep(SECONDS)
        os._exit(0)
    try:
        process.channel.close()
        until(lambda: process.has_ended)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        process.close()
