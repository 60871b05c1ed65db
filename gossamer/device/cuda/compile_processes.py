"""Processes that compile kernels by NVRTC for this one.

NVRTC parses one kernel at a time within a process, for about 20 of the 150 milliseconds that it
compiles a kernel. Sixteen threads of one process that compile spend more than half of their time
waiting for one another; three in each of five processes do not.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import queue
import sys
import threading
from concurrent.futures import Future

from gossamer.device.cuda import nvrtc
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, CompilerEndedError
from gossamer.io.python_process import PipedProcess

AT_ONCE = 3
"""Kernels that another process compiles at the same time."""
_MOST, _MOST_HERE = 16, 6
"""Other processes at most, each of which takes about two hundred megabytes of the host's memory,
and kernels that this process compiles at the same time beside them."""


def process_count(processors: int) -> int:
    """Returns the number of other processes that are of use where so many processors compile."""
    return max(0, min(_MOST, processors // AT_ONCE - 1))


class CompileProcesses:
    """Processes that compile, which start in the background when the first kernel is compiled, and
    end with `end` or with this process, however that ends. This process compiles some kernels
    itself, and those of processes that do not start or have ended.

    processors: number of processors that may compile; process_count of them is not 0.
    """

    def __init__(self, processors: int) -> None:
        self._count = process_count(processors)
        self._free: queue.SimpleQueue[_CompileProcess | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._processes: list[_CompileProcess] = []
        self._has_begun = self._has_ended = False
        for _ in range(min(_MOST_HERE, processors - AT_ONCE * self._count)):
            self._free.put(None)

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float]:
        """Returns the cubin of a kernel as nvrtc.compile_cubin does, and the processor seconds that
        another process took for it, 0 where this process compiled it. Raises CompileError, and
        CompilerEndedError where the process ended meanwhile."""
        self._begin()
        process = self._free.get()
        try:
            try:
                built = None if process is None else process.compile(source, architecture)
            except _EndedError as ended:
                if not self._has_ended:
                    raise CompilerEndedError(
                        f"the process that compiled {source.function} of {source.path.name} "
                        f"{ended}") from None
                built = None
            return built or (nvrtc.compile_cubin(source, architecture)[0], 0.0)
        finally:
            self._free.put(process if process is not None and process.is_usable else None)

    def end(self) -> None:
        """Ends the processes. What they compile now is compiled here instead."""
        with self._lock:
            self._has_ended = True
            processes, self._processes = self._processes, []
        for process in processes:
            process.end()

    def _begin(self) -> None:
        with self._lock:
            has_begun, self._has_begun = self._has_begun, True
        if not has_begun:
            threading.Thread(target=self._start, daemon=True,
                             name="gossamer compile processes").start()

    def _start(self) -> None:
        """Starts the processes, each of which is offered when it is ready. None starts where Python
        does not say where its program lies."""
        for _ in range(self._count):
            process = None
            with contextlib.suppress(OSError), self._lock:
                if sys.executable and not self._has_ended:
                    process = _CompileProcess()
                    self._processes.append(process)
            threading.Thread(target=self._listen, args=(process,), daemon=True,
                             name="gossamer compile process").start()

    def _listen(self, process: _CompileProcess | None) -> None:
        """Offers a process, or this one where there is none, and hands on its answers until it
        ends."""
        is_ready = process is not None and process.waits_until_ready()
        for _ in range(AT_ONCE):
            self._free.put(process if is_ready else None)
        if process is not None:
            process.hand_on()


class _EndedError(Exception):
    """A process has ended; the words say how."""


class _CompileProcess:
    """A process that compiles several kernels at a time. Raises OSError where it cannot be started.
    """

    def __init__(self) -> None:
        self._process = PipedProcess("gossamer.device.cuda.compile_worker")
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
            self.is_usable = False
        return self.is_usable

    def hand_on(self) -> None:
        """Gives the answers to those who have asked, until the process ends, and frees what belongs
        to it."""
        with contextlib.suppress(_EndedError):
            while self.is_usable:
                number, answer = self._answer()
                self._asked.pop(number).set_result(answer)
        with self._lock:
            self.is_usable = False
        ending = self._process.ending()
        for future in self._asked.values():
            future.set_exception(_EndedError(ending))
        self._process.close()

    def _answer(self) -> tuple[int, tuple[bytes, float] | str]:
        try:
            answer: tuple[int, tuple[bytes, float] | str] = pickle.load(self._process.stdout)
        except Exception:
            # it has ended, or what answers is no program of gossamer's
            raise _EndedError from None
        return answer

    def compile(self, source: KernelSource, architecture: str) -> tuple[bytes, float] | None:
        """Returns a kernel's cubin and the processor seconds that compiling it took; None where the
        process had ended before. Raises CompileError, and _EndedError where it ended meanwhile."""
        future: Future[tuple[bytes, float] | str] = Future()
        with self._lock:
            if not self.is_usable:
                return None
            number = next(self._numbers)
            asked = pickle.dumps((number, source, architecture))
            self._asked[number] = future
            # the thread that hands on answers sees that the process has ended, too
            with contextlib.suppress(OSError):
                self._process.stdin.write(asked)
                self._process.stdin.flush()
        answer = future.result()
        if isinstance(answer, str):
            raise CompileError(answer)
        return answer

    def end(self) -> None:
        """Ends the process, also in the middle of compiling; other threads may wait for it."""
        self._process.end()
