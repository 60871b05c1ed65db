"""SIGTERM ends every verb as Ctrl-C does: the cursor is shown, and the exit code tells why."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command_line import QUIET_MAIN

HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


def arguments(verb: str, folder: Path) -> list[str]:
    if verb == "bench":
        return ["bench", "gemm", "--device", "host", "--against", "none"]
    table = np.random.default_rng(0).random((2000, 9)).round(3)
    table[:, -1] = np.arange(2000) % 3
    np.savetxt(folder / "samples.csv", table, delimiter=",", fmt="%g")
    return ["train", str(folder / "samples.csv"), "--epochs", "100000", "--device", "host",
            "-o", str(folder / "net.onnx")]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals and signals")
@pytest.mark.parametrize("verb", ["bench", "train"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_cursor_is_shown_again(verb: str, number: signal.Signals, tmp_path: Path) -> None:
    terminal, end = os.openpty()
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path / "cache"), "TERM": "xterm"}
    shown, is_sent = b"", False
    with subprocess.Popen(
            [sys.executable, "-c", QUIET_MAIN, *arguments(verb, tmp_path)], env=environment,
            stderr=end, stdout=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(terminal, 4096):
                shown += part
                if not is_sent and HIDDEN in shown:
                    is_sent = True
                    process.send_signal(number)
        process.wait(60)
    os.close(terminal)
    assert is_sent, shown.decode()
    assert process.returncode == 128 + number, shown.decode()
    assert shown.rfind(SHOWN) > shown.rfind(HIDDEN)
    assert b"Traceback" not in shown
    assert not (tmp_path / "net.onnx").exists()
