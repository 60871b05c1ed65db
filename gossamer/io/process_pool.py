"""ProcessPool: calls functions in a pool of other Python processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gossamer.errors import GossamerError, first_line
from gossamer.io.pool_process import NoProcessError

__all__ = ["NoProcessError", "ProcessEndedError", "ProcessPool", "command", "environment"]

MOST_DEATHS = 3
"""How often each thread of a pool replaces a process that has ended, before the thread gives up."""
START_SECONDS = 30.0
"""Seconds after which a process that has not started is ended."""
_ENDS_SECONDS = 5.0
"""Seconds that a process may take to end after its pipe was closed."""


def command(module: str) -> list[str]:
    """Returns the command line that runs a module. -P keeps modules in the working directory from
    being imported in place of installed ones."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Returns an environment in which Python imports from the same folders as this process."""
    folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, "PYTHONPATH": folders}


class ProcessEndedError(GossamerError):
    """A process has ended before its task was done; the next attempt may succeed."""


@dataclass(eq=False)
class _Task:
    """A function with its arguments, pickled, that waits for a process; see ProcessPool.submit."""

    message: bytes
    what: str = ""
    on_demand: object = None
    future: Future[Any] = field(default_factory=Future)


class ProcessPool:
    """Processes that call functions, each one function at a time.

    The processes start immediately, each served by a thread of this process. They end with `close`,
    with the end of a `with` block, or with this process, even where this process is killed. A
    process that has ended is replaced. The processes import the modules of the functions, never the
    user's program. Their output goes to a file; the error of an ended process quotes the last line
    of this file.

    count: number of processes.
    kind: words for one process, such as "process that builds candidates".
    initializer: function that each process calls first.
    variables: variables that are added to the environment of the processes.
    descriptors: file descriptors of this process that all processes of the pool inherit, under the
    same numbers.
    """

    def __init__(self, count: int, kind: str, initializer: Callable[[], object] = int, *,
                 variables: Mapping[str, str] | None = None,
                 descriptors: Sequence[int] = ()) -> None:
        self._kind = kind
        self._first = _Task(pickle.dumps((initializer, ())))
        self._variables = variables or {}
        self._descriptors = descriptors
        self._condition = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._processes: list[_Process] = []
        self._problem = ""
        self._closed = False
        self._idle, self._serving = 0, count
        self._threads = [threading.Thread(target=self._serve, daemon=True, name=f"for a {kind}")
                         for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def has_idle(self) -> bool:
        """Whether a process is free for another task."""
        with self._condition:
            return self._idle > len(self._waiting)

    def submit(self, function: Callable[..., Any], *arguments: Any, what: str,
               on_demand: object = None) -> Future[Any]:
        """Returns the future of a call in another process, which has to import the function.

        Functions are called in the order in which they are submitted. A future can be cancelled
        while its function waits for a process. The exception of the future is the function's
        exception; NoProcessError where no process calls the function; or ProcessEndedError where
        the process ended during the call.

        what: words for the work, such as "compiled a kernel", for the error of an ended process.
        on_demand: a value that takes long to send. Where it is given, the function gets one more
        argument, the last: a function that fetches the value.
        """
        task = _Task(b"", what, on_demand)
        try:
            task.message = pickle.dumps((function, arguments), protocol=5)
        except Exception as error:
            task.future.set_exception(NoProcessError(
                f"a task cannot be sent to a {self._kind}: {first_line(error)}"))
            return task.future
        with self._condition:
            if self._serving and not self._closed:
                self._waiting.append(task)
                self._condition.notify()
            else:
                task.future.set_exception(NoProcessError(self._problem))
        return task.future

    def end(self) -> None:
        """Cancels the tasks that wait and ends the processes; returns before they have ended. Calls
        that had begun fail with NoProcessError."""
        with self._condition:
            self._problem = f"no {self._kind} is left: they were closed"
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            for process in self._processes:
                process.end()
            self._condition.notify_all()
        for task in waiting:
            task.future.cancel()

    def close(self) -> None:
        """Calls end(), and waits until the processes have ended."""
        self.end()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Gives tasks to a process until the pool is closed; replaces the process where it ends."""
        problem = f"a {self._kind} has ended {1 + MOST_DEATHS} times"
        try:
            for _ in range(1 + MOST_DEATHS):
                with contextlib.closing(_Process(self._kind, self._variables,
                                                 self._descriptors)) as process:
                    with self._condition:
                        self._processes.append(process)
                        if self._closed:
                            return
                    process.start(self._first)
                    while (task := self._next(process)) is not None:
                        self._do(process, task)
                        # a thread that waits must not keep the objects of a task alive
                        del task
                if self._closed:
                    return
        except NoProcessError as error:
            problem = str(error)
        finally:
            self._stop_serving(problem)

    def _next(self, process: _Process) -> _Task | None:
        """Waits for a task and returns it; None if the pool is closed or the process has ended."""
        with self._condition:
            self._idle += 1
            self._condition.wait_for(lambda: self._waiting or self._closed)
            self._idle -= 1
            return None if self._closed or process.has_ended else self._waiting.popleft()

    def _do(self, process: _Process, task: _Task) -> None:
        if not task.future.set_running_or_notify_cancel():
            return
        try:
            task.future.set_result(process.ask(task))
        except ProcessEndedError as ended:
            task.future.set_exception(
                NoProcessError(self._problem) if self._closed else
                ProcessEndedError(f"the process that {task.what} {ended}"))
        except Exception as error:
            task.future.set_exception(error)

    def _stop_serving(self, problem: str) -> None:
        """Notes that a thread ends. When the last thread ends, all tasks that wait fail."""
        with self._condition:
            self._serving -= 1
            self._problem = self._problem or problem
            # this thread may have been woken for a task that another thread has to do now
            self._condition.notify_all()
            if self._serving:
                return
            waiting, self._waiting = self._waiting, deque()
        for task in waiting:
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(NoProcessError(self._problem))


class _Process:
    """A process of a pool. Raises NoProcessError where it cannot be started."""

    def __init__(self, kind: str, variables: Mapping[str, str],
                 descriptors: Sequence[int]) -> None:
        self._kind = kind
        with contextlib.ExitStack() as resources:
            try:
                if not sys.executable:
                    raise OSError("Python does not say where it lies (sys.executable is empty)")
                self._errors = resources.enter_context(tempfile.TemporaryFile())
                # in a group of its own the process gets no interrupt from the keyboard
                self._process = subprocess.Popen(
                    command("gossamer.io.pool_process"), env={**environment(), **variables},
                    process_group=0, pass_fds=descriptors, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=self._errors)
            except OSError as error:
                raise NoProcessError(f"cannot start a {kind}: {error}") from None
            resources.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def start(self, first: _Task) -> None:
        """Waits until the process has done its first task. Raises NoProcessError where the task
        fails or takes too long."""
        impatient = threading.Timer(START_SECONDS, self.end)
        impatient.daemon = True
        impatient.start()
        try:
            self.ask(first)
        except ProcessEndedError as ended:
            raise NoProcessError(f"a {self._kind} {ended}") from None
        except Exception as error:
            raise NoProcessError(f"a {self._kind} does not start: {first_line(error)}") from None
        finally:
            impatient.cancel()

    def ask(self, task: _Task) -> Any:
        """Returns the result of a task's function, called in the process. Raises the exception of
        the function, and ProcessEndedError where the process ends."""
        try:
            kind, value = self._answer((task.message, task.on_demand is not None))
            while kind == "demands":
                kind, value = self._answer(task.on_demand)
        except Exception:
            # the process has ended, or has written something that is no reply
            raise ProcessEndedError(self._ending()) from None
        if kind == "failed":
            raise value
        return value

    def _answer(self, message: object) -> tuple[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        # arrays are written from their own memory, without a copy of all bytes of the message
        pickle.dump(message, self._process.stdin, protocol=5)
        self._process.stdin.flush()
        answer: tuple[str, Any] = pickle.load(self._process.stdout)
        return answer

    def _ending(self) -> str:
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

    def end(self) -> None:
        """Kills the process and the processes that it started, even in the middle of a task for
        which another thread waits."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process, and closes its pipes and its file of errors."""
        self.end()
        self._process.wait()
        for stream in (self._errors, self._process.stdin, self._process.stdout):
            # closing fails where a buffer holds data that the ended process has not read
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
