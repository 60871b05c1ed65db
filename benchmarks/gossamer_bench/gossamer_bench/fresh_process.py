"""Starts a process with empty caches, in which a contender runs a network for the first time."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.bench.work import AbsentError
from gossamer.model.graph import Graph

_CACHES = ("GOSSAMER_CACHE", "POCL_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR",
           "TRITON_CACHE_DIR")
"""Environment variables with the folders in which contenders and their libraries keep compiled code
and measurements."""


@dataclass(frozen=True)
class Job:
    """The work that a contender has to do in its process.

    x: the only input of the network.
    checked: number of images whose results are returned.
    device: the device's name.
    effort: effort of gossamer's search for candidates.
    """

    contender: str
    graph: Graph
    x: np.ndarray
    checked: int
    device: str
    precision: str
    effort: str


@dataclass(frozen=True)
class FirstRun:
    """The result of a contender's work in its process.

    seconds: time from a network in memory to the end of its first run.
    output: results for the first images, of the network's first output.
    config: how the contender was set up, and what it did.
    """

    seconds: float
    output: np.ndarray
    layout: str
    config: str


def run(job: Job) -> FirstRun:
    """Runs a job in a fresh process whose caches are empty folders.

    Raises AbsentError where the process says that the contender cannot take part. Raises
    RuntimeError with the last line of the process's stderr where the process fails. No process is
    left behind, whatever ends the run.
    """
    with tempfile.TemporaryDirectory(prefix="gossamer-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "job").write_bytes(pickle.dumps(job))
        caches = {variable: str(folder / variable) for variable in _CACHES}
        for path in caches.values():
            os.mkdir(path)
        code, printed, errors = _finished(folder, {**os.environ, **caches})
        lines = errors.strip().splitlines()
        if code:
            raise RuntimeError(lines[-1] if lines else f"its process ended with {code}")
        answer = _answer(printed)
        if "absent" in answer:
            raise AbsentError(answer["absent"])
        return FirstRun(answer["seconds"], np.load(folder / "output.npy"), answer["layout"],
                        answer["config"])


def _finished(folder: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Runs the process to its end. Returns its exit status and the texts of its stdout and
    stderr."""
    # compilers that the process starts belong to its session, which _end() kills as a whole
    with subprocess.Popen(
            [sys.executable, "-m", "gossamer_bench.first_run", str(folder)], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True) as process:
        try:
            printed, errors = process.communicate()
        finally:
            _end(process)
    return process.returncode, printed, errors


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process, if it still runs, and the processes that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()


def _answer(printed: str) -> dict[str, Any]:
    """Returns the JSON object in the last line that the process printed. Raises RuntimeError where
    there is no such object."""
    last = printed.strip().splitlines()[-1:]
    try:
        return dict(json.loads(*last))
    except (TypeError, ValueError):
        raise RuntimeError(f"its process printed {' '.join(last)[:80]!r} at its end, expected "
                           "a JSON object") from None
