"""PythonProcess: another Python process that works for this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import Pipe

FORK_LOCK = threading.RLock()
"""Lock that is held while files for another process are made. A fork waits for this lock: the child
would inherit the other process's end of a channel, whose close this process could then not see."""
_ENDS_SECONDS = 5.0
"""Maximum time in seconds to wait for the end of a process."""


class PythonProcess:
    """A Python process that runs the function `work` of a module.

    The process imports modules from the same folders as this process, but not the user's program.
    It is the leader of a process group, so that it receives no keyboard interrupts. It has to end
    when its end of the channel, which is its standard input, is closed: when this process ends, the
    system closes this end, also if a fork of this process still runs.

    channel: connection to the standard input of the process.
    module: the module.
    arguments: command-line arguments.
    variables: environment variables, in addition to those of this process.
    descriptors: file descriptors that the process inherits.
    is_quiet: whether the output of the process is kept, to be quoted by ending(). If False, the
    process writes to the standard error of this process.
    Raises OSError if the process cannot be started.
    """

    def __init__(self, module: str, arguments: Sequence[str] = (), *,
                 variables: Mapping[str, str], descriptors: Sequence[int] = (),
                 is_quiet: bool = True) -> None:
        if not sys.executable:
            raise OSError("the path of the Python executable is unknown (sys.executable is empty)")
        folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with FORK_LOCK, ExitStack() as stack:
            self.channel, other = Pipe()
            stack.enter_context(self.channel)
            self._said = stack.enter_context(tempfile.TemporaryFile())
            output = self._said.fileno() if is_quiet else 2
            with other:
                # with -P, Python does not add the working directory to sys.path
                self._popen = subprocess.Popen(
                    [sys.executable, "-P", "-c", f"from {module} import work; work()", *arguments],
                    env={**os.environ, "PYTHONPATH": folders, **variables}, process_group=0,
                    stdin=other.fileno(), stdout=output, stderr=output, pass_fds=descriptors)
            _PROCESSES.add(self)
            stack.pop_all()

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._popen.poll() is not None

    def ending(self) -> str:
        """Wait for the end of the process, and return text that says how the process ended.

        A process that does not end is killed.
        """
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_ENDS_SECONDS)
        status = self._popen.poll()
        self.kill()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        if status is None:
            return f"does not answer{said}"
        if status < 0:
            return f"was ended by signal {-status}{said or '; is there too little memory?'}"
        return f"ended with status {status}{said}"

    def kill(self) -> None:
        """Kill the process and its children, without waiting for their end."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, wait for its end, and close its files.

        A process that waits for a device in the kernel may not end even though it was killed. It is
        left to the system after some seconds.
        """
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_ENDS_SECONDS)
        self.channel.close()
        self._said.close()

    def forget(self) -> None:
        """Disconnect the channel in a forked child; the process belongs to the parent."""
        with open(os.devnull, "r+b") as nothing, suppress(OSError):
            os.dup2(nothing.fileno(), self.channel.fileno(), inheritable=False)
        # without a return code, subprocess would warn that the process still runs
        self._popen.returncode = self._popen.returncode or 0


_PROCESSES: weakref.WeakSet[PythonProcess] = weakref.WeakSet()
"""The processes that this process has started."""


def _after_fork() -> None:
    FORK_LOCK.release()
    for process in list(_PROCESSES):
        process.forget()
    _PROCESSES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release,
                        after_in_child=_after_fork)
