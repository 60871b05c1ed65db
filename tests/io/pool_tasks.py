"""Functions that processes of a pool call in tests."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


class OddError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def note(log: Path, label: object = None) -> int:
    """Adds a label, or the process's number, to the lines of a file, and returns the number."""
    with log.open("a") as file:
        file.write(f"{os.getpid() if label is None else label}\n")
    return os.getpid()


def wait(log: Path, gate: Path, label: object = None) -> int:
    """Does what note() does, and waits until another file exists."""
    note(log, label)
    while not gate.exists():
        time.sleep(0.01)
    return os.getpid()


def start_another(log: Path) -> None:
    """Starts another process, notes its number and waits for it."""
    with subprocess.Popen(["sleep", "600"]) as other:
        note(log, other.pid)


def chatter() -> str:
    """Prints, as Python and as a library in C."""
    print("a library says something", flush=True)
    os.write(1, b"and so does code in C\n")
    return "done"


def die() -> None:
    """Ends the process by a signal."""
    os.write(2, b"malloc(): out of luck\n")
    os.kill(os.getpid(), 9)


def fail(oddly: bool = False) -> None:
    """Raises an error."""
    raise OddError("one", "two") if oddly else ValueError("no such kernel")


def variable(name: str) -> str | None:
    """Returns a variable of the process's environment."""
    return os.environ.get(name)
