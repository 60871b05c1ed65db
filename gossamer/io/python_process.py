"""Modules of this program that run in another Python process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO

_ENDS_SECONDS = 5.0
"""Seconds that a process may take to end after its pipe was closed."""


def command(module: str) -> list[str]:
    """Returns the command line that runs a module; -P keeps the modules in its working directory
    from taking the place of others."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Returns the environment in which that process imports from the same folders as this one."""
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": folders}


class PipedProcess:
    """A running module that is asked on its standard input and answers on its standard output.

    variables: what is added to its environment. Raises OSError where it cannot be started.
    """

    def __init__(self, module: str, variables: Mapping[str, str] | None = None) -> None:
        with contextlib.ExitStack() as resources:
            self._errors = resources.enter_context(tempfile.TemporaryFile())
            # in a group of its own the process gets no interrupt from the keyboard
            self._process = subprocess.Popen(
                command(module), env={**environment(), **(variables or {})}, process_group=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
            resources.pop_all()

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Ends the process and those that it started, also in the middle of its work; another
        thread may wait for it."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process and frees what belongs to it."""
        self.end()
        self._process.wait()
        for stream in (self._errors, self.stdin, self.stdout):
            # what is left in a buffer cannot be written to a process that has ended
            with contextlib.suppress(OSError):
                stream.close()

    def ending(self) -> str:
        """Waits for a process whose pipe does not work any more, and returns how it ended."""
        try:
            status = self._process.wait(_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            self._process.wait()
            return "does not answer"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        if status < 0:
            return f"was ended by signal {-status}{said or '; is there too little memory?'}"
        return f"ended with status {status}{said}"
