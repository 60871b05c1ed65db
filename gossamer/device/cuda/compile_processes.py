"""Processes that compile kernels by NVRTC for this one.

NVRTC parses one kernel at a time within a process, for about 20 of the 150 milliseconds that it
compiles a kernel. Sixteen threads of one process that compile spend more than half of their time
waiting for one another; three in each of five processes do not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import signal
import subprocess
import threading
from concurrent.futures import Future

from gossamer.device.cuda import nvrtc
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError
from gossamer.io import python_process

AT_ONCE = 3
"""Kernels that one process compiles at the same time."""
_MOST = 8
"""Processes at most, beside this one: each takes about two hundred megabytes of the host's memory.
"""
_ENDS_SECONDS = 5.0
"""Seconds that a process may take to end after its pipe was closed."""


class CompileProcesses:
    """Processes that compile, which start at once and in the background, and end with `end` or with
    this process, however that ends. This process compiles some of the kernels itself.

    processors: number of processors that may compile.
    """

    def __init__(self, processors: int) -> None:
        self._free: queue.SimpleQueue[_CompileProcess | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._processes: list[_CompileProcess] = []
        self._has_ended = False
        for _ in range(min(AT_ONCE, processors)):
            self._free.put(None)
        count = min(_MOST, processors // AT_ONCE - 1)
        threading.Thread(target=self._start, args=(count,), daemon=True,
                         name="gossamer compile processes").start()

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
            processes, self._processes = self._processes, []
        for process in processes:
            process.end()

    def _start(self, count: int) -> None:
        """Starts processes, each of which is offered when it is ready."""
        for _ in range(count):
            try:
                process = _CompileProcess()
            except OSError:
                # this process compiles what the others would have
                for _ in range(AT_ONCE):
                    self._free.put(None)
                continue
            with self._lock:
                self._processes.append(process)
                has_ended = self._has_ended
            if has_ended:
                process.end()
            threading.Thread(target=self._listen, args=(process,), daemon=True,
                             name="gossamer compile process").start()

    def _listen(self, process: _CompileProcess) -> None:
        """Hands on the answers of a process until it ends."""
        is_ready = process.waits_until_ready()
        for _ in range(AT_ONCE):
            self._free.put(process if is_ready else None)
        if is_ready:
            process.hand_on()


class _EndedError(Exception):
    """A process has ended."""


class _CompileProcess:
    """A process that compiles several kernels at a time. Raises OSError where it cannot be started.
    """

    def __init__(self) -> None:
        # in a group of its own the process gets no interrupt from the keyboard
        self._process = subprocess.Popen(
            python_process.command("gossamer.device.cuda.compile_worker"),
            env=python_process.environment(), process_group=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, Future[tuple[bytes, float] | str]] = {}
        self.is_usable = True
        """Whether it can be asked."""

    def waits_until_ready(self) -> bool:
        """Waits until the process can compile, and returns whether it can."""
        try:
            self._answer()
        except _EndedError:
            self.end()
            return False
        return True

    def hand_on(self) -> None:
        """Gives the answers to those who have asked, until the process ends."""
        with contextlib.suppress(_EndedError):
            while True:
                number, answer = self._answer()
                self._asked.pop(number).set_result(answer)
        with self._lock:
            self.is_usable = False
            asked = list(self._asked.values())
        for future in asked:
            future.set_exception(_EndedError())

    def _answer(self) -> tuple[int, tuple[bytes, float] | str]:
        assert self._process.stdout is not None
        try:
            answer: tuple[int, tuple[bytes, float] | str] = pickle.load(self._process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise _EndedError from None
        return answer

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns a kernel's cubin and the processor seconds that compiling it took. Raises
        CompileError, and _EndedError where the process has ended."""
        assert self._process.stdin is not None
        future: Future[tuple[bytes, float] | str] = Future()
        with self._lock:
            if not self.is_usable:
                raise _EndedError
            number = next(self._numbers)
            self._asked[number] = future
            with contextlib.suppress(OSError):
                # the thread that hands on answers sees that the process has ended, too
                pickle.dump((number, source, architecture), self._process.stdin)
                self._process.stdin.flush()
        answer = future.result()
        if isinstance(answer, str):
            raise CompileError(answer)
        return answer

    def end(self) -> None:
        """Ends the process, also in the middle of compiling; other threads may wait for it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ending(self) -> str:
        """Waits for a process that does not answer, and returns how it ended."""
        try:
            status = self._process.wait(_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            self.end()
            return "does not answer"
        return (f"was ended by signal {-status}; is there too little memory?" if status < 0 else
                f"ended with status {status}")
