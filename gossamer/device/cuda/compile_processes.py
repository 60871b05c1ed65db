"""Processes that compile kernels by NVRTC for this one.

NVRTC parses one kernel at a time within a process, for about 20 of the 150 milliseconds that it
compiles a kernel. Sixteen threads that compile spend more than half of their time waiting for one
another; sixteen processes do not.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import threading

from gossamer.device.cuda import nvrtc
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError
from gossamer.io import python_process

READY = "ready"
"""The first message of a process."""
_HERE = 3
"""Kernels that this process compiles at the same time, beside the others."""
_MOST = 24
"""Processes at most: each takes about a hundred megabytes of the host's memory."""


class CompileProcesses:
    """Processes that compile, which start at once and in the background, and end with `end` or with
    this process, however that ends. A kernel for which none is ready is compiled here.

    processors: number of processors that may compile.
    """

    def __init__(self, processors: int) -> None:
        self._free: queue.SimpleQueue[_CompileProcess | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._processes: set[_CompileProcess] = set()
        self._has_ended = False
        here = min(_HERE, processors)
        for _ in range(here):
            self._free.put(None)
        for number in range(min(_MOST, processors - here)):
            threading.Thread(target=self._start, daemon=True,
                             name=f"gossamer compile process {number}").start()

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns the cubin of a kernel as nvrtc.compile_cubin does, and the processor seconds that
        another process took for it. Raises CompileError, and CompilerEndedError where the process
        has ended."""
        process = self._free.get()
        try:
            if process is not None:
                with contextlib.suppress(_EndedError):
                    return process.compile(source, architecture)
                if not self._has_ended:
                    raise CompilerEndedError(
                        f"the process that compiled {source.function} of {source.path.name} "
                        f"{process.ending()}")
            return nvrtc.compile_cubin(source, architecture)[0], 0.0
        finally:
            if process is None or process.is_usable:
                self._free.put(process)

    def end(self) -> None:
        """Ends the processes. What they compile now is compiled here instead."""
        with self._lock:
            self._has_ended = True
            processes, self._processes = self._processes, set()
        for process in processes:
            process.end()

    def _start(self) -> None:
        """Starts a process, and offers it when it is ready; or this process once more, where it
        does not start."""
        try:
            process = _CompileProcess()
        except OSError:
            self._free.put(None)
            return
        with self._lock:
            self._processes.add(process)
            has_ended = self._has_ended
        if has_ended:
            process.end()
        self._free.put(process if process.is_ready() else None)


class _EndedError(Exception):
    """A process has ended."""


class _CompileProcess:
    """A process that compiles one kernel at a time. Raises OSError where it cannot be started."""

    def __init__(self) -> None:
        # in a group of its own the process gets no interrupt from the keyboard
        self._process = subprocess.Popen(
            python_process.command("gossamer.device.cuda.compile_worker"),
            env=python_process.environment(), process_group=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.is_usable = True
        """Whether it can be asked."""

    def is_ready(self) -> bool:
        """Waits until the process can compile, and returns whether it can."""
        try:
            self.is_usable = self._answer() == READY
        except _EndedError:
            self.end()
        return self.is_usable

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns a kernel's cubin and the processor seconds that compiling it took. Raises
        CompileError, and _EndedError where the process has ended."""
        assert self._process.stdin is not None
        try:
            pickle.dump((source, architecture), self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            self.is_usable = False
            raise _EndedError from None
        answer = self._answer()
        if isinstance(answer, str):
            raise CompileError(answer)
        return answer

    def _answer(self) -> tuple[bytes, float] | str:
        assert self._process.stdout is not None
        try:
            answer: tuple[bytes, float] | str = pickle.load(self._process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            self.is_usable = False
            raise _EndedError from None
        return answer

    def end(self) -> None:
        """Ends the process, also in the middle of compiling; another thread may wait for it."""
        self.is_usable = False
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ending(self) -> str:
        """Waits for a process that does not answer, and returns how it ended."""
        try:
            status = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.end()
            return "does not answer"
        return (f"was ended by signal {-status}; is there too little memory?" if status < 0 else
                f"ended with status {status}")
