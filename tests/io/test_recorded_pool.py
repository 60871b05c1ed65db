"""Records of the parts of process pools, with processes and threads that are not there."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.errors import GossamerError
from gossamer.io import pool_process, process_pool
from gossamer.io.process_pool import NoProcessError, ProcessEndedError, ProcessPool
from tests.io.pool_tasks import OddError
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome

KIND = "process that tests"


class Condition:
    """A condition of one thread, which cannot wait."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify(self) -> None:
        self._notes.append("notify")

    def notify_all(self) -> None:
        self._notes.append("notify all")

    def wait_for(self, ready: Callable[[], object]) -> None:
        if not ready():
            raise NoProcessError("would wait")


def pool_of(notes: list[str], *, serving: int = 1, idle: int = 0) -> Any:
    """Returns a pool without threads."""
    made: Any = ProcessPool(0, KIND)
    made._condition, made._serving, made._idle = Condition(notes), serving, idle
    return made


def state(future: Future[Any]) -> str:
    """The text of a future's result or error."""
    if not future.done():
        return "running" if future.running() else "waits"
    return "cancelled" if future.cancelled() else outcome(future.result)


def tasks_of(states: str) -> list[Any]:
    """Returns a task for each letter: w waits, c is cancelled."""
    made = []
    for letter in states:
        task = process_pool._Task(letter.encode(), f"was {letter}")
        if letter == "c":
            task.future.cancel()
        made.append(task)
    return made


def test_pools(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    notes: list[str] = []
    for path in (["/a", "", "/b"], [""], ["/a"]):
        monkeypatch.setattr(sys, "path", path)
        found[f"environment {path}"] = process_pool.environment()["PYTHONPATH"].replace(
            os.getcwd(), "HERE")
    monkeypatch.undo()
    found["command"] = str(process_pool.command("m")[1:])
    monkeypatch.setattr(process_pool, "threading", SimpleNamespace(
        Condition=lambda: Condition(notes), Thread=lambda target, daemon, name: SimpleNamespace(
            start=lambda: notes.append(f"start {target.__name__} {daemon} {name}"),
            join=lambda: notes.append("join"))))
    for count in range(4):
        with ProcessPool(count, KIND) as pool:
            text = f"{pool._serving} {pool._idle} {pool.has_idle}"
        found[f"pool {count}"] = f"{text} {pool._closed} {notes}"
        notes.clear()
    for idle, waiting in itertools.product(range(4), range(4)):
        pool = pool_of(notes, idle=idle)
        pool._waiting.extend(tasks_of("w" * waiting))
        found[f"idle {idle} {waiting}"] = str(pool.has_idle)
    for serving, closed, function, problem in itertools.product(
            range(3), (False, True), (divmod, lambda: None), ("", "broken")):
        pool = pool_of(notes, serving=serving)
        pool._closed, pool._problem = closed, problem
        future = pool.submit(function, 1, 2, what="was asked", on_demand=3)
        found[f"submitted {serving} {closed} {function is divmod} {problem}"] = (
            f"{state(future).partition(': a task cannot')[0]} {notes} " + " ".join(
                f"{pickle.loads(task.message)[1]} {task.what} {task.on_demand} "
                f"{task.future is future}" for task in pool._waiting))
        notes.clear()
    for processes, waiting in itertools.product(range(3), ("", "w", "wcw")):
        pool = pool_of(notes)
        pool._waiting = deque(tasks := tasks_of(waiting))
        pool._processes = [SimpleNamespace(end=lambda: notes.append("end"))] * processes
        pool.end()
        found[f"ended {processes} {waiting}"] = (
            f"{pool._problem} {len(pool._waiting)} {[state(task.future) for task in tasks]} "
            f"{notes} {state(pool.submit(int, what=''))}")
        notes.clear()
    for serving, waiting, problem in itertools.product(range(1, 4), ("", "w", "wcw"),
                                                       ("", "broken")):
        pool = pool_of(notes, serving=serving)
        pool._problem, pool._waiting = problem, deque(tasks := tasks_of(waiting))
        pool._stop_serving("it stopped")
        found[f"stopped {serving} {waiting} {problem}"] = (
            f"{pool._problem} {pool._serving} {len(pool._waiting)} "
            f"{[state(task.future) for task in tasks]} {notes}")
        notes.clear()
    for letter, answer, closed in itertools.product(
            "wc", (7, ProcessEndedError("ended"), NoProcessError("none"), ValueError("wrong")),
            (False, True)):
        pool = pool_of(notes)
        pool._closed, pool._problem = closed, "it is closed"
        (task,) = tasks_of(letter)
        process = SimpleNamespace(ask=lambda task, answer=answer: answers(answer))
        found[f"done {letter} {answer!r} {closed}"] = (
            outcome(pool._do, process, task) + " " + state(task.future))
    for closed, ended, waiting in itertools.product((False, True), (False, True), ("", "w", "ww")):
        pool = pool_of(notes, idle=1)
        pool._closed, pool._waiting = closed, deque(tasks_of(waiting))
        found[f"next {closed} {ended} {waiting}"] = outcome(
            pool._next, SimpleNamespace(has_ended=ended),
            text=lambda task: "none" if task is None else task.what
        ) + f" {pool._idle} {len(pool._waiting)}"
    recorded("pool_parts", found)


def answers(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_services(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records which tasks a thread has done where processes end after some of them."""
    found = {}
    notes: list[str] = []
    for lives, waiting, closes, starts in itertools.product(
            ((1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 0), (2, 1, 9), (9,), (3, 0, 1, 0, 2)),
            ("", "w", "wcww", "wwwwwwww"), (1, 3, 99), (0, 1, 99)):
        pool = pool_of(notes)
        pool._waiting = deque(tasks := tasks_of(waiting))
        left = list(lives)
        begun = itertools.count()

        class Process:
            """A process that ends after some tasks."""

            def __init__(self, kind: str, variables: Any, descriptors: Any, left: Any = left,
                         begun: Any = begun, starts: int = starts) -> None:
                self.left = left.pop(0) if left else 0
                self.starts = next(begun) < starts
                notes.append(f"new {kind} {variables} {descriptors}")

            @property
            def has_ended(self) -> bool:
                return self.left == 0

            def start(self, first: Any) -> None:
                if not self.starts:
                    raise NoProcessError("it does not start")

            def ask(self, task: Any, pool: Any = pool, closes: int = closes) -> str:
                self.left -= 1
                notes.append(task.what)
                if sum(note.startswith("was") for note in notes) >= closes:
                    pool.end()
                return "done"

            def end(self) -> None:
                notes.append("end")

            def close(self) -> None:
                notes.append("close")

        monkeypatch.setattr(process_pool, "_Process", Process)
        told = outcome(pool._serve)
        found[f"{lives} {waiting} {closes} {starts}"] = (
            f"{[state(task.future) for task in tasks]} {told} {pool._problem} {pool._serving} "
            f"{notes}")
        notes.clear()
    recorded("pool_services", found)


class Started:
    """Stands for what subprocess.Popen returns, without a process."""

    pid = 77

    def __init__(self, status: int | None, replies: bytes) -> None:
        self.status = status
        self.stdin, self.stdout = io.BytesIO(), io.BytesIO(replies)

    def poll(self) -> int | None:
        return self.status

    def wait(self, seconds: float | None = None) -> int:
        if self.status is None:
            if seconds is not None:
                raise subprocess.TimeoutExpired("it", seconds)
            self.status = -9
        return self.status


def test_processes(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    notes: list[str] = []
    monkeypatch.setattr(os, "killpg", lambda *words: notes.append(f"kill {words}"))
    monkeypatch.setattr(process_pool, "threading", SimpleNamespace(
        Timer=lambda seconds, call: SimpleNamespace(
            start=lambda: notes.append(f"in {seconds} {call.__name__}"),
            cancel=lambda: notes.append("no more"))))
    given: dict[str, Any] = {}

    def process(status: int | None = None, replies: tuple[Any, ...] = (),
                said: bytes = b"") -> Any:
        content = b"".join(each if isinstance(each, bytes) else pickle.dumps(each)
                           for each in replies)

        def start(words: list[str], env: dict[str, str], **options: Any) -> Started:
            given.update(options, words=words[1:], env=env)
            return Started(status, content)

        monkeypatch.setattr(process_pool.subprocess, "Popen", start)
        made = process_pool._Process(KIND, {"A": "b"}, (5,))
        made._errors.write(said)
        return made

    made = process()
    found["started"] = (f"{given['words']} {given['env']['A']} {given['process_group']} "
                        f"{given['pass_fds']} {made.has_ended} {process(0).has_ended}")
    for replies, demand in itertools.product(
            ((), (("done", 1),), (("failed", ValueError("wrong")),), (("demands", None),),
             (("demands", None), ("done", 2)), (("demands", None),) * 2 + (("done", 3),),
             (b"text",), (("done",),), (("done", 1), ("done", 2))), (None, "value")):
        made = process(1, replies)
        task = process_pool._Task(b"message", "was asked", demand)
        text = outcome(made.ask, task)
        written = io.BytesIO(made._process.stdin.getvalue())
        sent = []
        while written.tell() < len(written.getvalue()):
            sent.append(pickle.load(written))
        found[f"asked {len(replies)} {replies[:1]} {demand}"] = f"{text} {sent}"
    for status, said, replies in itertools.product(
            (None, -9, -6, -1, 0, 1, 3), (b"", b"a", b" first\nlast \n", b"\xff\n"),
            ((), (("done", 1),), (("failed", ValueError("two\nlines")),))):
        made = process(status, replies, said)
        first = process_pool._Task(b"first")
        found[f"start {status} {said!r} {len(replies)} {replies[:1]}".replace(": ", " ")] = (
            outcome(made.start, first) + f" {notes}")
        notes.clear()
        made.close()
        found[f"closed {status} {said!r} {len(replies)} {replies[:1]}"] = (
            f"{notes} {made._errors.closed} {made._process.stdin.closed} "
            f"{made._process.stdout.closed}")
        notes.clear()
    monkeypatch.setattr(sys, "executable", "")
    found["no Python"] = outcome(process)
    recorded("pool_processes", found)


class Inbox:
    """A queue of messages, with an error after the last one."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    def get(self) -> Any:
        return self._messages.pop(0)


def test_programs(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records what the program of a process does with its messages."""
    found = {}
    notes: list[str] = []

    def left(status: int) -> None:
        notes.append(f"exit {status}")
        raise SystemExit

    # other names for functions of the system, which pytest itself needs
    system = SimpleNamespace(
        _exit=left, killpg=lambda *words: notes.append(f"kill {words}"), getpid=lambda: 7,
        dup=lambda number: number + 10, dup2=lambda *words: notes.append(f"dup2 {words}"))
    monkeypatch.setattr(pool_process, "os", system)
    for group, (word, messages) in itertools.product((7, 8), {
            "none": (), "one": (pickle.dumps(1),), "odd": (b"odd",), "cut": (pickle.dumps(1)[:-1],),
            "two": (pickle.dumps(1), pickle.dumps("b"))}.items()):
        system.getpgrp = lambda group=group: group
        errors = io.StringIO()
        monkeypatch.setattr(pool_process, "sys", SimpleNamespace(
            stdin=SimpleNamespace(buffer=io.BytesIO(b"".join(messages))), stderr=errors))
        inbox = SimpleNamespace(put=lambda message: notes.append(f"put {message}"))
        with pytest.raises(SystemExit):
            pool_process._read(inbox)  # type: ignore[arg-type]
        found[f"read {group} {word}"] = (
            f"{notes} {bool(errors.getvalue())}")
        notes.clear()
    task = pickle.dumps((divmod, (7, 2)))
    for word, message, more in (
            ("done", task, ()), ("done with more", pickle.dumps((divmod, (7,))), (2,)),
            ("wrong", pickle.dumps((int, ("x",))), ()), ("odd", b"odd", ()),
            ("nothing", pickle.dumps((int, ())), ()), ("base", pickle.dumps((int, ("11",))), (3,))):
        found[f"task {word}"] = str(pool_process._done(message, more)).partition(
            "import a task")[0]
    for error in (ValueError("wrong"), OddError("one", "two"), GossamerError("ours"), OSError(2)):
        portable = pool_process._portable(error)
        found[f"portable {type(error).__name__}"] = (
            f"{type(portable).__name__} {portable} {portable is error}")
    monkeypatch.setattr(pool_process, "signal", SimpleNamespace(
        SIGINT="interrupt", SIG_IGN="ignored", SIGKILL=9,
        signal=lambda *words: notes.append(f"{words}")))
    monkeypatch.setattr(pool_process, "threading", SimpleNamespace(
        Thread=lambda target, args, daemon: SimpleNamespace(start=lambda: notes.append(
            f"thread {target.__name__} {len(args)} {daemon}"))))
    for denied, messages in itertools.product((False, True), (
            [], [(task, False)], [(task, False)] * 2, [(pickle.dumps((len, ())), True)],
            [(pickle.dumps((fetch, ())), True), "value", (task, False)])):
        def write_text(text: str, denied: bool = denied) -> None:
            if denied:
                raise PermissionError(text)
            notes.append(text)

        replies = io.BytesIO()
        system.fdopen = lambda number, mode, replies=replies: (
            notes.append(f"{number} {mode}") or replies)
        monkeypatch.setattr(pool_process, "Path", lambda path, write_text=write_text: (
            SimpleNamespace(write_text=write_text)))
        monkeypatch.setattr(pool_process, "queue", SimpleNamespace(
            SimpleQueue=lambda messages=messages: Inbox(list(messages))))
        with pytest.raises(IndexError):
            pool_process.main()
        replies.seek(0)
        told = []
        while replies.tell() < len(replies.getvalue()):
            told.append(pickle.load(replies))
        found[f"program {denied} {len(messages)} {bool(messages) and messages[0][1]}"] = (
            f"{told} {notes}")
        notes.clear()
    recorded("pool_programs", found)


def fetch(demand: Callable[[], Any]) -> str:
    """A task that asks for its value."""
    return f"got {demand()}"
