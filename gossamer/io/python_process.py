"""Commands that run a module of this program in another Python process."""

from __future__ import annotations

import os
import sys


def command(module: str) -> list[str]:
    """Returns the command line that runs a module; -P keeps the modules in its working directory
    from taking the place of others."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Returns the environment in which that process imports from the same folders as this one."""
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": folders}
