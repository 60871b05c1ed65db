"""Commands that run a module of this program in another Python process, and how that ended."""

from __future__ import annotations

import os
import sys
from typing import IO


def command(module: str) -> list[str]:
    """Returns the command line that runs a module; -P keeps the modules in its working directory
    from taking the place of others."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Returns the environment in which that process imports from the same folders as this one."""
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": folders}


def ending(status: int, errors: IO[bytes]) -> str:
    """Returns words for how a process has ended, such as "ended with status 1: no such file".

    errors: the file to which it wrote its errors, of which the last line is told.
    """
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    said = f": {lines[-1]}" if lines else ""
    if status < 0:
        return f"was ended by signal {-status}{said or '; is there too little memory?'}"
    return f"ended with status {status}{said}"
