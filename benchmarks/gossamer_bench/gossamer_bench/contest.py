"""Runs one case: every contender is prepared, checked against the reference and timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from gossamer.accuracy import normalised_error
from gossamer.bench.call_contest import Result, scattered_notice
from gossamer.bench.processors import far_notice, transfer_ns
from gossamer.bench.rows import ResultRow, Stamp, now
from gossamer.bench.work import OWN, AbsentError
from gossamer.errors import DeviceLostError, GossamerError
from gossamer.measure import Task, Timing, interleave
from gossamer_bench.contender import Alternative, ReadyContender, TimedContender
from gossamer_bench.peaks import Peaks
from gossamer_bench.work import Case

_WARM_UP = 3
"""Executions before a contender is timed. During them libraries load and clock rates rise."""
_BUDGET_US = 2e7
"""No further round begins once the samples of all contenders together have taken this many
microseconds."""
_Made = TypeVar("_Made")


class _GuardedWork:
    """Work that is skipped after its first error, so that the other contenders go on."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self.work = work
        self.error: Exception | None = None

    def __call__(self, stream: Any) -> None:
        if self.error is None:
            try:
                self.work(stream)
            except Exception as error:
                self.error = error


@dataclass
class _ContestEntry:
    """A contender that passed its check. It is timed next, unless it was timed in its own process.

    case: the case whose work the contender does.
    error: normalised error against the reference.
    work: work of a ReadyContender; does nothing for a TimedContender.
    name: name of the contender.
    label: name in lists of failures: the contender's name, followed by the alternative's name where
    the contender has several alternatives.
    """

    case: Case
    ready: ReadyContender | TimedContender
    error: float
    work: _GuardedWork
    name: str
    label: str


def run(case: Case, peaks: Peaks, stamp: Stamp,
        note: Callable[[str], None] = lambda text: None) -> Result:
    """Measures a case. A contender that is absent or fails is listed with the reason. Raises
    GossamerError when gossamer itself has no alternative that can do the work.

    note: function that is called with a line of text on the progress.
    """
    result = Result(case)
    entries = []
    own_failure: Exception | None = None

    def fail(name: str, label: str, error: Exception) -> None:
        nonlocal own_failure
        if name == OWN:
            own_failure = own_failure or error
        result.add_failure(label, error)

    def made(name: str, label: str, make: Callable[[], _Made]) -> _Made | None:
        try:
            return make()
        except AbsentError as reason:
            result.absent[label] = str(reason)
        except DeviceLostError:
            raise
        except Exception as error:
            fail(name, label, error)
        return None

    contenders = [(case, name, make) for name, make in case.contenders.items()]
    for name, make_case in case.beside.items():
        note(f"{case.name}, batch {case.batch}: {name}")
        if (other := made(name, name, make_case)) is not None:
            contenders += [(other, own_name, make) for own_name, make in other.contenders.items()]
    # torch.compile goes first: with torch 2.11 the replay of a CUDA graph faulted where
    # torch.compile had compiled a module after the capture of the graph
    for work, name, make in sorted(contenders,
                                   key=lambda each: not each[1].startswith("torch-compile")):
        alternatives = made(name, name, make) or []
        for alternative in alternatives:
            label = name if len(alternatives) == 1 else f"{name} ({alternative.label})"
            note(f"{case.name}, batch {case.batch}: {label}")
            entry = made(name, label, partial(_checked, work, alternative, name, label))
            if entry is not None:
                entries.append(entry)
    note(f"{case.name}, batch {case.batch}: timing")
    timed, far = _timed(case, entries)
    fastest: dict[tuple[str, str], tuple[Timing, _ContestEntry]] = {}
    for timing, entry in sorted(timed, key=lambda pair: pair[0].median_us):
        if entry.work.error is not None:
            fail(entry.name, entry.label, entry.work.error)
        else:
            key = (entry.ready.contender, entry.ready.precision)
            fastest.setdefault(key, (timing, entry))
    result.notice = "; ".join(filter(None, (far, scattered_notice(
        (entry.ready.contender, timing) for timing, entry in fastest.values()))))
    result.rows = [_row(stamp, peaks, *pair, result.notice) for pair in fastest.values()]
    if own_failure is not None and OWN not in {row.contender for row in result.rows}:
        if isinstance(own_failure, GossamerError):
            raise own_failure
        raise RuntimeError(f"{OWN} failed at {case.name}: {own_failure}") from own_failure
    return result


def _checked(case: Case, alternative: Alternative, name: str, label: str) -> _ContestEntry:
    """Warms a contender up, unless it was timed already, and checks its output. Raises ValueError
    where the output is wrong."""
    ready = alternative.make()
    work = _GuardedWork(ready.work if isinstance(ready, ReadyContender) else lambda stream: None)
    if isinstance(ready, ReadyContender):
        for _ in range(_WARM_UP):
            ready.device.time(ready.work)
        ready.device.synchronize()
    error = normalised_error(ready.output(len(case.expected)), case.expected)
    tolerance = case.most_error[ready.precision]
    if not error <= tolerance:
        raise ValueError(f"its error is {error:.2g}, more than {tolerance:.0e}: the result is "
                         f"wrong or not computed in {ready.precision}")
    return _ContestEntry(case, ready, error, work, name, label)


def _timed(case: Case, entries: Sequence[_ContestEntry]
           ) -> tuple[list[tuple[Timing, _ContestEntry]], str]:
    """Times the entries that have no times yet, in turn. Returns all entries with their times, and
    a notice on slow transfers between processors, which is empty where transfers were not slow."""
    timed = [(entry.ready.timing, entry) for entry in entries
             if isinstance(entry.ready, TimedContender)]
    waiting = [(entry, entry.ready) for entry in entries if isinstance(entry.ready, ReadyContender)]
    tasks = [Task(ready.device, entry.work, ready.captured, around=ready.around)
             for entry, ready in waiting]
    transfers: list[float] = []
    if tasks and all(task.device.on_processors for task in tasks):
        tasks[0] = replace(tasks[0], around=partial(_after_transfer, transfers, tasks[0].around))
    timings = interleave(tasks, sample_us=case.sample_us, budget_us=_BUDGET_US, isolated=True)
    return timed + [(_per_execution(timing, ready.runs), entry)
                    for timing, (entry, ready) in zip(timings, waiting, strict=True)
                    ], far_notice(transfers)


@contextmanager
def _after_transfer(transfers: list[float],
                    around: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Measures the time of a transfer between processors, appends it to `transfers`, and then
    enters the context that `around` makes. The first contender is timed in this context, so that
    the transfer is measured once in each round."""
    transfers.append(transfer_ns())
    with around():
        yield


def _per_execution(timing: Timing, runs: int) -> Timing:
    """Returns the timing of one of the `runs` executions that a call queues."""
    return Timing(timing.median_us / runs, timing.p25_us / runs, timing.p75_us / runs,
                  timing.repeats)


def _row(stamp: Stamp, peaks: Peaks, timing: Timing, entry: _ContestEntry,
         notice: str) -> ResultRow:
    case, ready = entry.case, entry.ready
    # the time of a TimedContender is the time of planning, which the peak rates do not bound
    has_peaks = ready.device.name == peaks.device and isinstance(ready, ReadyContender)
    light = peaks.speed_of_light_us(case.flops, case.bytes_at(ready.precision),
                                    ready.precision) if has_peaks else None
    return ResultRow(case.suite, case.name, ready.contender, ready.device.api, ready.precision,
                     ready.layout, ready.config, case.batch, timing.median_us, timing.p25_us,
                     timing.p75_us, entry.error, light, case.density, ready.device.chip,
                     stamp.versions, stamp.command, stamp.commit, stamp.run_id, now(), notice)
