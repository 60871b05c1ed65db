"""Views of the rows of a case: the contenders' speeds where a precision and more precise ones are
allowed."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.ops.algorithm import PRECISIONS
from gossamer_bench.contender import OTHER_PLANS
from gossamer_bench.suites.tuning import SUITE as TUNING

EQUAL = 1.02
"""Ratio up to which two times count as equal, because gossamer may have chosen the peer's
algorithm."""
_ALLOWED_BY_ALL = ("fp64", "int8", "b1")
"""The precisions that every other precision allows: double precision, and integers, whose sums are
exact."""
_APART = (TUNING,)
"""Suites in which the view of a precision has no rows of more precise precisions. Planning in a
more precise precision measures fewer algorithms, so that the times of both precisions are times of
different work."""


@dataclass(frozen=True)
class View:
    """One run of a case at a batch size, where a precision and more precise ones are allowed.

    rows: rows of this precision, and gossamer's fastest row even if that row is more precise; the
    fastest row comes first.
    fastest: the fastest allowed row of each contender. The contenders are gossamer, its plans in
    OTHER_PLANS, and all others that have a row of this precision.
    """

    precision: str
    rows: tuple[ResultRow, ...]
    fastest: Mapping[str, ResultRow]

    @property
    def own(self) -> ResultRow | None:
        """Gossamer's fastest row; None where gossamer has no row."""
        return self.fastest.get(OWN)

    @property
    def first(self) -> ResultRow:
        """The row that has the suite, case, batch, machine and device of the view."""
        return self.own or self.rows[0]

    @property
    def machine(self) -> str:
        """The machine, with the number of threads where gossamer ran on the host."""
        threads = re.search(r"; (\d+) threads", self.first.config)
        return self.first.machine + ("" if threads is None else f", threads: {threads[1]}")

    @property
    def light(self) -> float | None:
        """Microseconds at the speed of light in this precision; None where the speed of light is
        not known."""
        lights = (row.speed_of_light_us for row in self.rows if row.precision == self.precision)
        return next((light for light in lights if light is not None), None)

    def speed(self, row: ResultRow) -> float | None:
        """Returns the row's speed divided by gossamer's speed; None where gossamer has no row."""
        return self.own.median_us / row.median_us if self.own else None

    def contender(self, row: ResultRow) -> str:
        """Returns the contender's name, with "(host)" where the contender ran on the host and
        gossamer did not."""
        elsewhere = row.device == "host" and self.first.device != "host"
        return f"{row.contender} (host)" if elsewhere else row.contender

    def name(self, row: ResultRow) -> str:
        """Returns the contender's name, with the row's precision where it is not the view's
        precision."""
        name = self.contender(row)
        return name if row.precision == self.precision else f"{name} ({row.precision})"


def views(rows: Sequence[ResultRow]) -> list[View]:
    """Returns the view of the newest run of each case, batch and precision on each machine."""
    newest: dict[tuple[object, ...], View] = {}
    for run in runs(rows):
        for view in views_of(run):
            first = view.first
            key = (first.suite, first.case, first.batch, view.machine, first.device,
                   view.precision)
            if key not in newest or newest[key].first.date < first.date:
                newest[key] = view
    return list(newest.values())


def runs(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Returns the rows of each run of each case and batch."""
    by_run: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        by_run.setdefault((row.suite, row.case, row.batch, row.run_id), []).append(row)
    return list(by_run.values())


def views_of(run: Sequence[ResultRow]) -> list[View]:
    """Returns a view for each precision that a run has rows of."""
    return [_view(run, precision)
            for precision in sorted({row.precision for row in run},
                                    key=lambda precision: (rank(precision), precision))]


def _view(run: Sequence[ResultRow], precision: str) -> View:
    same_precision = [row for row in run if row.precision == precision]
    present = {OWN, *(f"{OWN}:{name}" for name in OTHER_PLANS),
               *(row.contender for row in same_precision)}
    fastest: dict[str, ResultRow] = {}
    for row in sorted(run, key=lambda row: row.median_us):
        allowed = row in same_precision or (
            row.suite not in _APART and (row.precision in _ALLOWED_BY_ALL
                                         or rank(row.precision) < rank(precision)))
        if allowed and row.contender in present:
            fastest.setdefault(row.contender, row)
    own = fastest.get(OWN)
    rows = same_precision if own is None or own in same_precision else [*same_precision, own]
    return View(precision, tuple(sorted(rows, key=lambda row: row.median_us)), fastest)


def rank(precision: str) -> int:
    """Returns the position of a precision in the order from the most to the least precise; the
    precisions of _ALLOWED_BY_ALL come first, at -1."""
    return -1 if precision in _ALLOWED_BY_ALL else PRECISIONS.index(precision)


@dataclass(frozen=True)
class Standing:
    """The comparison of a first contender, such as gossamer, with a second one over several cases.

    speed: geometric mean of the first contender's speed divided by the second contender's speed.
    held: number of cases in which the first contender is as fast or faster.
    cases: number of cases.
    """

    speed: float
    held: int
    cases: int


def standings(group: Sequence[View]) -> dict[str, Standing]:
    """Returns the comparison of gossamer with each other contender of these views, by name."""
    ratios: dict[str, list[float]] = {}
    for view in group:
        for row in view.fastest.values():
            if view.own is not None and row is not view.own:
                ratios.setdefault(view.contender(row), []).append(
                    row.median_us / view.own.median_us)
    return {name: _standing(speeds) for name, speeds in ratios.items()}


def against_fastest(group: Sequence[View], name: str, others: Collection[str]) -> Standing | None:
    """Returns the comparison of a contender with the fastest of some other contenders, over the
    views that have both; None where no view has both."""
    speeds = []
    for view in group:
        times = [row.median_us for other, row in view.fastest.items() if other in others]
        if times and name in view.fastest:
            speeds.append(min(times) / view.fastest[name].median_us)
    return _standing(speeds) if speeds else None


def _standing(speeds: Sequence[float]) -> Standing:
    """Returns the comparison that has these speeds, one for each case."""
    return Standing(math.exp(statistics.fmean(map(math.log, speeds))),
                    sum(speed * EQUAL >= 1 for speed in speeds), len(speeds))
