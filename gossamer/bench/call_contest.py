"""Preparation, checks and interleaved timing of contenders that are called from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gossamer.accuracy import normalised_error
from gossamer.bench.call_times import CallTimes, Load, in_turn
from gossamer.bench.processors import far_notice, transfer_ns
from gossamer.bench.rows import ResultRow, Stamp, now
from gossamer.bench.work import OWN, AbsentError, CalledContender, Case
from gossamer.errors import DeviceLostError, GossamerError
from gossamer.measure import Timing

_WARM_UP = 5
"""Number of calls before a contender's output is checked.

A contender that loops over many batches is called once.
"""
_SCATTERED = 1.1
"""The ratio of third to first quartile above which a notice names the contender.

The ratio was chosen on a machine with two processors, where the time of a loop varies by 6% from
one second to the next.
"""


@dataclass
class Result:
    """The outcome of running a case.

    rows: one row per contender and precision, fastest first. If a contender has several alternative
    implementations, the row is for the fastest one.
    absent, failed: reasons why contenders or alternatives have no row, by label.
    notice: text about a disturbance of the times, or "". The rows contain this text, too.
    seconds: duration of the case, including preparation; the caller sets this field.
    """

    case: Case
    rows: list[ResultRow] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notice: str = ""
    seconds: float = 0.0

    def add_failure(self, label: str, error: Exception) -> None:
        """Record a failed contender or alternative, with the first line of its error."""
        text = next(iter(str(error).strip().splitlines()), "")
        self.failed[label] = f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class CallCase(Case):
    """A case in which contenders are timed through calls from Python.

    called: functions that prepare a contender or raise AbsentError, by the name of the contender.
    load: number of threads, rate and duration of the calls.
    """

    called: Mapping[str, Callable[[], CalledContender]] = field(default_factory=dict)
    load: Load = field(default_factory=Load)


def run(case: CallCase, stamp: Stamp, note: Callable[[str], None] = lambda text: None) -> Result:
    """Measure all contenders of a case.

    Contenders that are absent or fail are listed with the reason. Raises GossamerError if gossamer
    itself fails.

    note: function that is called with lines of text about the progress.
    """
    result = Result(case)
    ready: list[tuple[CalledContender, float]] = []
    # torch.compile must run first: with torch 2.11, replaying a CUDA graph crashes if
    # torch.compile compiles a module after the graph is captured
    for name in sorted(case.called, key=lambda name: not name.startswith("torch-compile")):
        note(f"{case.name}, batch {case.batch}: {name}")
        try:
            contender = case.called[name]()
            ready.append((contender, _checked(case, contender)))
        except AbsentError as reason:
            result.absent[name] = str(reason)
        except DeviceLostError:
            raise
        except Exception as failure:
            _failed(result, name, failure)
    note(f"{case.name}, batch {case.batch}: timing")
    transfers: list[float] = []

    def before_round() -> None:
        if all(contender.device.on_processors for contender, _ in ready):
            transfers.append(transfer_ns())

    timed = in_turn([contender.new_call for contender, _ in ready], case.load, before_round)
    rounds: list[tuple[str, Timing]] = []
    for (contender, error), times in zip(ready, timed, strict=True):
        if isinstance(times, Exception):
            _failed(result, contender.contender, times)
            continue
        rounds.append((contender.contender, Timing.of(times.rounds)))
        result.rows.append(_row(case, contender, error, times, case.load, stamp))
    if ready:
        result.notice = "; ".join(filter(None, (
            far_notice(transfers), scattered_notice(rounds))))
    result.rows.sort(key=lambda row: row.median_us)
    return result


def _checked(case: Case, contender: CalledContender) -> float:
    """Warm up a contender, and return the normalised error of its output.

    Raises ValueError if the output is wrong.
    """
    call = contender.new_call()
    for _ in range(_WARM_UP if contender.runs is None else 1):
        value = call()
    output = contender.output(value)[:len(case.expected)]
    error = normalised_error(output, case.expected)
    if not error <= case.most_error[contender.precision]:
        raise ValueError(f"its error is {error:.2g}: the result is wrong or was not computed in "
                         f"{contender.precision}")
    return error


def _failed(result: Result, name: str, error: Exception) -> None:
    """Record the error of a peer, or raise an error of gossamer itself."""
    if name.split()[0].partition(":")[0] == OWN:
        raise error if isinstance(error, GossamerError) else RuntimeError(
            f"{name} failed at {result.case.name}: {error}") from error
    result.add_failure(name, error)


def _row(case: Case, contender: CalledContender, error: float, times: CallTimes, load: Load,
         stamp: Stamp) -> ResultRow:
    timing, runs = times.timing, contender.runs or 1
    us, is_single = timing.median_us / runs, contender.runs is None
    config = "; ".join(filter(None, (
        contender.described(us), contender.config, str(load) if is_single else "")))
    return ResultRow(case.suite, case.name, contender.contender, contender.device.api,
                     contender.precision, contender.layout, config, case.batch, us,
                     timing.p25_us / runs, timing.p75_us / runs, error, None, case.density,
                     contender.device.chip, stamp.versions, stamp.command, stamp.commit,
                     stamp.run_id, now(), tail=times.tail if is_single else {})


def scattered_notice(timed: Iterable[tuple[str, Timing]]) -> str:
    """Return a notice that names contenders with scattered times, or "".

    timed: names of contenders with their times.
    """
    spreads = [f"{contender} by {spread - 1:.0%}" for contender, timing in timed
               if (spread := timing.p75_us / max(timing.p25_us, 1e-3)) > _SCATTERED]
    if not spreads:
        return ""
    return (f"the quartiles of the times differ for {', for '.join(spreads)}: other programs may "
            "have been running, and another run may measure a different ratio; measure again on "
            "an idle machine")
