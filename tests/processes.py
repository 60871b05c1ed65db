"""Functions for tests that wait for other processes and threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SECONDS = 60.0
"""Seconds after which a test fails that waits for another process."""


def until(condition: Callable[[], Any]) -> Any:
    """Returns the value of a condition once it is true."""
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return value


def in_threads(call: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Calls a function with each argument in a thread of its own, and returns the results."""
    given = list(arguments)
    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(call, given))


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs code in another process, which has to end without an error; its output is captured."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], text=True,
                          capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done


def runs(pid: int) -> bool:
    """Returns whether a process runs; one that ended, with all its threads, may stay in the list of
    processes where nobody waits for it."""
    folder = Path(f"/proc/{pid}")
    try:
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list((folder / "task").iterdir())) > 1
    except OSError:
        return False
