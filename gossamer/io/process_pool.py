"""ProcessPool: calls of functions in other Python processes.

Each thread of a ThreadPoolExecutor owns one process. If a process ends, only its task fails, and a
new process replaces it.

A ProcessPoolExecutor is not used for two reasons. If one of its processes ended, all tasks would
fail, or would wait forever for the rest of a result. Its processes would also import modules in the
working directory and the user's program, which may lack the guard `if __name__ == "__main__"`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError, first_line
from gossamer.io.python_process import PythonProcess

MOST_DEATHS = 3
"""Maximum number of replaced processes of a pool, as a multiple of its size."""
START_SECONDS = 30.0
"""Seconds after which a process that has not started is killed."""
_OOM_SCORE = "500"
"""The oom_score_adj of the processes (at most 1000): Linux kills them early if memory runs out."""


class NoProcessError(GossamerError):
    """No process can run a task; the caller may run the task itself."""


class ProcessEndedError(GossamerError):
    """A process ended before its task was complete; retrying may succeed."""


class ProcessPool:
    """A pool of processes that each call one function at a time.

    The processes start immediately. They end when `close` is called, when a `with` block ends, or
    when this process ends, even if it is killed. They import the modules of the functions, but not
    the user's program. If a process ends during a task, the error quotes the last line of the
    process's output.

    count: number of processes.
    kind: description of one process for messages, such as "process that builds candidates".
    initializer: function that each process calls first.
    variables: environment variables of the processes, in addition to those of this process.
    """

    def __init__(self, count: int, kind: str, initializer: Callable[[], object] = int, *,
                 variables: Mapping[str, str] | None = None) -> None:
        self._count = count
        self._kind = kind
        self._initializer = initializer
        self._variables = dict(variables or {})
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._of_thread = threading.local()
        self._problem = ""
        self._is_closed = False
        self._deaths = self._unfinished = 0
        self._threads = ThreadPoolExecutor(count, f"for a {kind}")
        for _ in range(count):
            self._submit(self._process)

    @property
    def has_idle(self) -> bool:
        """Whether a process is idle."""
        with self._lock:
            return self._unfinished < self._count

    def submit(self, function: Callable[..., Any], *arguments: Any, what: str) -> Future[Any]:
        """Call a function in another process, and return a future.

        The other process imports the function. Calls begin in the order of submission, and can be
        cancelled before they begin. The future holds the function's result or exception,
        NoProcessError if no process can call the function, or ProcessEndedError if the process
        ended during the call.

        what: description of the work for the error, in the past tense, such as "compiled a kernel".
        """
        return self._submit(self._do, what, function, *arguments)

    def end(self) -> None:
        """Cancel waiting tasks, and kill the processes without waiting.

        Calls that have begun fail with NoProcessError.
        """
        with self._lock:
            self._is_closed = True
            self._problem = f"no {self._kind} is available: the pool was closed"
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        """Call end(), and wait until the processes have ended."""
        self.end()
        self._threads.shutdown()
        for process in self._processes:
            process.close()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with self._lock:
            self._unfinished += 1
        future: Future[Any] = Future()
        try:
            future = self._threads.submit(function, *arguments)
        except RuntimeError:  # the executor was shut down
            future.set_exception(NoProcessError(self._problem))
        future.add_done_callback(self._count_finished)
        return future

    def _count_finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1

    def _do(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        process = self._process()
        try:
            task = pickle.dumps((function, arguments), protocol=5)
        except Exception as error:
            raise NoProcessError(
                f"a task cannot be sent to a {self._kind}: {first_line(error)}") from None
        try:
            return process.call(task)
        except ProcessEndedError as ended:
            if self._is_closed:
                raise NoProcessError(self._problem) from None
            with self._lock:
                self._deaths += 1
                if self._deaths > MOST_DEATHS * self._count and not self._problem:
                    self._problem = f"a {self._kind} has ended {self._deaths} times"
            raise ProcessEndedError(f"the process that {what} {ended}") from None

    def _process(self) -> _Process:
        """Return the process of this thread, and start it if necessary."""
        process: _Process | None = getattr(self._of_thread, "process", None)
        if process is not None and not process.has_ended and not self._problem:
            return process
        with self._lock:
            if self._problem:
                raise NoProcessError(self._problem)
            if process is not None:
                self._processes.remove(process)
                process.close()
            try:
                process = _Process(__name__, variables=self._variables)
            except OSError as error:
                self._problem = f"cannot start a {self._kind}: {error}"
                raise NoProcessError(self._problem) from None
            self._processes.append(process)
        self._of_thread.process = process
        try:
            process.initialize(self._initializer)
        except Exception as error:
            said = "" if isinstance(error, ProcessEndedError) else "does not start: "
            with self._lock:
                self._problem = self._problem or f"a {self._kind} {said}{first_line(error)}"
            raise NoProcessError(self._problem) from None
        return process


class _Process(PythonProcess):
    """A process that calls one function after another.

    The constructor raises OSError if the process cannot start.
    """

    def initialize(self, initializer: Callable[[], object]) -> None:
        """Call the initializer in the process.

        Raises ProcessEndedError after START_SECONDS.
        """
        timer = threading.Timer(START_SECONDS, self.kill)
        timer.daemon = True
        timer.start()
        try:
            self.call(pickle.dumps((initializer, ())))
        finally:
            timer.cancel()

    def call(self, task: bytes) -> Any:
        """Return the result of a function in the process, or raise its exception.

        Raises ProcessEndedError if the process ends.

        task: the pickled function and arguments.
        """
        try:
            self.channel.send_bytes(task)
            is_done, value = self.channel.recv()
        except Exception:
            # the process has ended, or its answer is not a pickled result
            raise ProcessEndedError(self.ending()) from None
        if not is_done:
            raise value
        return value


def work() -> None:
    """Run tasks until the parent process ends or closes the channel."""
    # keyboard interrupts are handled by the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    parent = Connection(0)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(parent, tasks), daemon=True).start()
    while True:
        parent.send(_result(tasks.get()))


def _receive(parent: Connection, tasks: queue.SimpleQueue[bytes]) -> None:
    """Receive tasks until the channel is closed, then end this process.

    This function runs in a separate thread, so that the process ends even during a task.
    """
    try:
        while True:
            tasks.put(parent.recv_bytes())
    except EOFError:
        if os.getpgrp() == os.getpid():
            # kill the children of this process as well
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _result(task: bytes) -> tuple[bool, Any]:
    """Run a task, and return (True, result) or (False, exception)."""
    try:
        function, arguments = pickle.loads(task)
    except Exception as error:
        return False, NoProcessError(f"another process cannot import a task: {error}")
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, portable(error)


def portable(error: Exception) -> Exception:
    """Return the error, or a GossamerError if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GossamerError(f"{type(error).__name__}: {error}")
    return error
