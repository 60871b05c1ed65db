"""Ctrl-C while candidates are measured."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gossamer.plan.store.database import Database, read
from gossamer.plan.tune import tuner
from tests.cli.command_line import QUIET_MAIN
from tests.cli.compile.command import Run, compile_
from tests.processes import until


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Make Ctrl-C come when so many candidates have been measured."""
    measure, calls = tuner.measure_row, []

    def interrupted(*arguments: Any) -> None:
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(1)
        measure(*arguments)

    monkeypatch.setattr(tuner, "measure_row", interrupted)


def ctrl_c(*arguments: Any) -> None:
    raise KeyboardInterrupt


def tried(path: str) -> int:
    """Return the number of candidates that a file of measurements has."""
    return sum(not candidate["not_tried"] for section in read(Path(path))["sections"]
               for candidate in section["candidates"].values())


def test_ctrl_c_keeps_what_was_measured(run: Run, network: Path,
                                        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, after=3)
        result = compile_(run, network, "-o", tmp_path / "a.plan", code=130)
    match = re.search(r"^error: interrupted: 3 candidates measured, stored in (.*) for the next",
                     result.stderr)
    assert match
    assert tried(match[1]) == 3
    assert not (tmp_path / "a.plan").exists()
    described = json.loads(compile_(run, network, "--json").stdout)
    assert described["measured"] > 0
    again = json.loads(compile_(run, network, "--json").stdout)
    assert again["measured"] == 0 < again["reused"]


def test_ctrl_c_while_measurements_are_written_keeps_them(
        run: Run, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing that it ends may be the last of a search."""
    write, calls = Database._write, []

    def interrupted(self: Database, sections: list[Any]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        write(self, sections)

    monkeypatch.setattr(Database, "_write", interrupted)
    result = compile_(run, network, code=130)
    match = re.search(r"(\d+) candidates measured, stored in (.*) for the next", result.stderr)
    assert match
    assert int(match[1]) == tried(match[2])


def test_ctrl_c_does_not_claim_what_was_not_kept(
        run: Run, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, after=0)
        result = compile_(run, network, code=130)
    assert result.stderr == "error: interrupted: 0 candidates measured\n"
    with monkeypatch.context() as patch:
        patch.setattr("gossamer.plan.choose.refine.refined", ctrl_c)
        result = compile_(run, network, code=130)
    assert " measured, stored in " in result.stderr
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    interrupt(monkeypatch, after=3)
    result = compile_(run, network, code=130)
    assert re.search(r"^error: interrupted: [1-9]\d* candidates? measured, not stored: .*"
                     r"tuning.*sqlite cannot be written$", result.stderr, re.M)


def begun(network: Path, **options: Any) -> subprocess.Popen[str]:
    """Begins to compile for many batch sizes in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", QUIET_MAIN, "compile", network, "--device", "host", "--effort",
         "max", "--batch", "64,128,256,512"], stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX signals, and /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("own_cache")
def test_a_signal_ends_it_with_128_and_its_number(network: Path, number: signal.Signals) -> None:
    with begun(network, stderr=subprocess.PIPE) as process:
        # ONNX Runtime takes an interrupt of its import for a missing module
        modules = Path(f"/proc/{process.pid}/maps")
        until(lambda: process.poll() or "onnxruntime" in modules.read_text())
        time.sleep(1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert errors.splitlines()[-1].startswith("error: interrupted: ")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals and signals")
def test_ctrl_c_in_a_terminal_ends_with_the_plan_so_far(network: Path, own_cache: Path) -> None:
    terminal, end = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    shown = b""
    with begun(network, env=environment, stderr=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(terminal, 4096):
                if b"so far" not in shown and b"so far" in shown + part:
                    process.send_signal(signal.SIGINT)
                shown += part
        output, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == 0, shown.decode()
    assert b"stopping with the best plan so far; press Ctrl-C again to abort" in shown
    for batch in (64, 128, 256, 512):
        assert re.search(rf"^end to end, batch {batch}: [\d.]+ (us|ms)", output, re.M)
    # the batch sizes after it are planned without measuring all, too, which is said once
    assert output.count("tuning ended before all useful candidates were measured") == 1
