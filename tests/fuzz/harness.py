"""Reads mutated files in worker processes, under limits of time and memory.

Whatever a file holds, its reader either returns or raises a GossamerError of one line. Everything
else is a failure: another exception, more than SECONDS, more than BYTES, a program that is started,
a process that ends.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gossamer.errors import MOST_CHARACTERS, GossamerError, cut
from tests.fuzz.targets import TARGETS, Files, Target, read

SECONDS = 5.0
"""Seconds of the processor's time, so that other programs do not count."""
_STUCK_SECONDS = 60.0
"""Seconds without an answer after which a worker is ended: its timer cannot interrupt C."""
BYTES = 2**31
KEPT = Path(__file__).with_name("kept")
"""Files that once failed, one folder each; the tests read them again."""
_MOST_CHANGES = 4
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")


@dataclass
class Counts:
    """The outcomes of the mutations of one target.

    failures: what failed, by kind, with the number of a mutation that shows it.
    """

    mutations: int = 0
    passed: int = 0
    refused: int = 0
    failures: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    peak: int = 0

    @property
    def failed(self) -> int:
        return sum(map(len, self.failures.values()))


class _TooLong(BaseException):
    """Raised by a timer in the midst of reading."""


def mutation(name: str, seed: int, index: int) -> tuple[Files, list[int]]:
    """Returns the seed file of a mutation and the changes that are made to it, each the seed of a
    generator of random numbers."""
    rng = random.Random(f"{name} {seed} {index}")
    corpus = TARGETS[name].corpus
    changes = [rng.randrange(2**32) for _ in range(min(rng.choice((1, 1, 1, 2, 3)), _MOST_CHANGES))]
    return corpus[rng.randrange(len(corpus))], changes


def applied(target: Target, files: Files, changes: list[int]) -> Files:
    """Returns the files after the changes."""
    for change in changes:
        files = target.mutated(files, random.Random(change))
    return files


@dataclass(frozen=True)
class Outcome:
    """The outcome of reading one mutated file.

    failure: what failed; "" where nothing did. refused: whether the reader said in one line why it
    does not read the file. passed: whether its first check was passed.
    """

    failure: str = ""
    refused: bool = False
    passed: bool = True


def outcome(target: Target, files: Files, folder: Path) -> Outcome:
    """Reads files, and returns what became of that."""
    started: list[str] = []
    _watch(started)
    try:
        with warnings.catch_warnings(action="ignore"):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                read(target, files, folder)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    except GossamerError as error:
        message = str(error)
        if not message.isprintable() or len(message) > MOST_CHARACTERS or not message:
            return Outcome(f"message of {len(message)} characters: {message[:60]!r}")
        if not started:
            return Outcome(refused=True, passed=target.passes(message))
    except _TooLong as error:
        return Outcome(f"longer than {SECONDS:g} s at {_place(error)}")
    except BaseException as error:
        return Outcome(f"{type(error).__name__} at {_place(error)}: {cut(str(error))!r}")
    finally:
        _watch(None)
    return Outcome(f"starts {started[0]}") if started else Outcome()


_started: list[str] | None = None


def _watch(started: list[str] | None) -> None:
    """Has the programs that are started from now on added to a list."""
    global _started
    _started = started


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _started is not None and event.startswith(_PROGRAMS):
        _started.append(event)


def _place(error: BaseException) -> str:
    """Returns the last line of the project's own code that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/gossamer/" in frame.filename] or frames
    frame = own[-1]
    return f"{frame.filename.rpartition('/gossamer/')[2]}:{frame.name}"


def kind_of(failure: str) -> str:
    """Returns the part of a failure that mutations of one cause share."""
    return failure.split(": ")[0]


def minimised(name: str, seed: int, index: int, failure: str, folder: Path) -> Files:
    """Returns the files of a failing mutation after as few of its changes as fail alike."""
    target = TARGETS[name]
    files, changes = mutation(name, seed, index)
    for count in range(1, len(changes)):
        for part in itertools.combinations(changes, count):
            fewer = applied(target, files, list(part))
            if kind_of(outcome(target, fewer, folder).failure) == kind_of(failure):
                return fewer
    return applied(target, files, changes)


def keep(name: str, files: Files, failure: str) -> Path:
    """Stores files that failed, for the tests to read again."""
    place = f"{name} {kind_of(failure)}".replace("/", ".")
    folder = KEPT / "".join(c if c.isalnum() or c in ".-" else "-" for c in place)[:100]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "about.json").write_text(json.dumps({"target": name, "failure": cut(failure, 200),
                                                   "files": list(files)}, indent=1) + "\n")
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def prepare() -> None:
    """Sets the limits of this process, which reads mutated files from then on."""
    def too_long(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, too_long)
    sys.addaudithook(_audit)
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + BYTES,) * 2)


def _work(name: str, seed: int, start: int, stop: int, results: Connection, keeps: bool,
          folder: Path) -> None:
    """Reads mutations and sends one result for each. folder: one for their files."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    target = TARGETS[name]
    read(target, target.corpus[0], folder)
    prepare()
    seen: set[str] = set()
    for index in range(start, stop):
        results.send(("reads", index))
        files, changes = mutation(name, seed, index)
        result = outcome(target, applied(target, files, changes), folder)
        if keeps and result.failure and kind_of(result.failure) not in seen:
            seen.add(kind_of(result.failure))
            keep(name, minimised(name, seed, index, result.failure, folder), result.failure)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        results.send(("done", index, result, peak))


def fuzz(name: str, count: int, seed: int = 0, start: int = 0, keeps: bool = False,
         seconds: float = float("inf")) -> Counts:
    """Reads so many mutations of one target, and returns what became of them. keeps: whether
    failures are minimised and stored. seconds: after which no more are begun."""
    # workers are forked from a process that has no threads, which a fork would lose
    one_thread = patch.dict(os.environ, OPENBLAS_NUM_THREADS="1")
    with one_thread, tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return _fuzz(name, count, seed, start, keeps, seconds, Path(folder))


def _fuzz(name: str, count: int, seed: int, start: int, keeps: bool, seconds: float,
          folder: Path) -> Counts:
    """Does what `fuzz` does with files in a folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fuzz.targets"])
    counts = Counts()
    begin, index, stop = time.monotonic(), start, start + count
    again: set[int] = set()
    while index < stop and time.monotonic() - begin < seconds:
        ours, theirs = context.Pipe(False)
        worker = context.Process(target=_work, args=(
            name, seed, index, stop, theirs, keeps, folder))
        worker.start()
        theirs.close()
        while index < stop and time.monotonic() - begin < seconds:
            try:
                if not ours.poll(_STUCK_SECONDS):
                    if index not in again:
                        # the machine itself may have stood still
                        again.add(index)
                        index -= 1
                        break
                    _add(counts, Outcome(f"no answer in {_STUCK_SECONDS:g} s"), index)
                    break
                message = ours.recv()
            except EOFError:
                worker.join()
                _add(counts, Outcome(f"the process ended with {worker.exitcode}"), index)
                break
            if message[0] == "done":
                _, index, result, peak = message
                _add(counts, result, index)
                counts.peak = max(counts.peak, peak)
                index += 1
        else:
            worker.terminate()
            worker.join()
            continue
        worker.kill()
        worker.join()
        index += 1
    counts.seconds = time.monotonic() - begin
    return counts


def _add(counts: Counts, result: Outcome, index: int) -> None:
    counts.mutations += 1
    counts.passed += result.passed
    counts.refused += result.refused
    if result.failure:
        counts.failures.setdefault(result.failure, []).append(index)


def table(results: dict[str, Counts]) -> str:
    """Returns a line for each target: mutations, share that passed the first check, how many were
    refused in one line, failures, most memory of a worker, and seconds."""
    lines = [f"{'reader':<26}{'mutations':>10}{'past the first check':>22}{'refused':>9}"
             f"{'failures':>10}{'peak MB':>9}{'s':>7}"]
    for name, counts in results.items():
        lines.append(f"{name:<26}{counts.mutations:>10}"
                     f"{counts.passed / max(counts.mutations, 1):>22.1%}{counts.refused:>9}"
                     f"{counts.failed:>10}"
                     f"{counts.peak / 1e6:>9.0f}{counts.seconds:>7.0f}")
    return "\n".join(lines)


def distinct(counts: Counts) -> Counter[str]:
    """Returns the kinds of failures with their numbers."""
    kinds: Counter[str] = Counter()
    for failure, indices in counts.failures.items():
        kinds[kind_of(failure)] += len(indices)
    return kinds
