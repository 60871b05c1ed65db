"""What rows say of a case: who is how fast where a precision is allowed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gossamer.bench.peers.peer import OWN
from gossamer.bench.rows import ResultRow
from gossamer.ops.algorithm import PRECISIONS

EQUAL = 1.02
"""Times that differ by less count as equal: gossamer may have chosen that very algorithm."""


@dataclass(frozen=True)
class View:
    """One run of one case at a batch, where a precision and what is more precise are allowed.

    rows: those of that precision, and gossamer's where that is of another; in the order of speed.
    fastest: by contender, of those that have a row of that precision, the fastest allowed.
    """

    precision: str
    rows: tuple[ResultRow, ...]
    fastest: Mapping[str, ResultRow]

    @property
    def own(self) -> ResultRow | None:
        return self.fastest.get(OWN)

    @property
    def first(self) -> ResultRow:
        """The row that says what all of them share."""
        return self.own or self.rows[0]

    @property
    def light(self) -> float | None:
        """Microseconds at the speed of light in this precision, where that is known."""
        lights = (row.speed_of_light_us for row in self.rows if row.precision == self.precision)
        return next((light for light in lights if light is not None), None)

    def speed(self, row: ResultRow) -> float | None:
        """Of a contender where gossamer's is 1."""
        return self.own.median_us / row.median_us if self.own else None

    def contender(self, row: ResultRow) -> str:
        """Its name, and whether it ran elsewhere than gossamer."""
        elsewhere = row.device == "host" and self.first.device != "host"
        return f"{row.contender} (host)" if elsewhere else row.contender

    def name(self, row: ResultRow) -> str:
        """The contender, with its precision where that is not the view's."""
        name = self.contender(row)
        return name if row.precision == self.precision else f"{name} ({row.precision})"


def views(rows: Sequence[ResultRow]) -> list[View]:
    """Of each case, batch and precision on each machine that of the newest run."""
    newest: dict[tuple[object, ...], View] = {}
    for run in runs(rows):
        for view in views_of(run):
            first = view.first
            key = (first.suite, first.case, first.batch, first.machine, first.device,
                   view.precision)
            if key not in newest or newest[key].first.date < first.date:
                newest[key] = view
    return list(newest.values())


def runs(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """The rows of each run of each case and batch."""
    found: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        found.setdefault((row.suite, row.case, row.batch, row.run_id), []).append(row)
    return list(found.values())


def views_of(run: Sequence[ResultRow]) -> list[View]:
    """One for each precision that a run has rows of."""
    return [_view(run, precision)
            for precision in sorted({row.precision for row in run}, key=rank)]


def _view(run: Sequence[ResultRow], precision: str) -> View:
    of_it = [row for row in run if row.precision == precision]
    present = {OWN, *(row.contender for row in of_it)}
    fastest: dict[str, ResultRow] = {}
    for row in sorted(run, key=lambda row: row.median_us):
        allowed = row in of_it or rank(row.precision) < rank(precision)
        if allowed and row.contender in present:
            fastest.setdefault(row.contender, row)
    own = fastest.get(OWN)
    rows = of_it if own is None or own in of_it else [*of_it, own]
    return View(precision, tuple(sorted(rows, key=lambda row: row.median_us)), fastest)


def rank(precision: str) -> int:
    """Its place among the precisions, each of which allows those before it."""
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)


@dataclass(frozen=True)
class Standing:
    """gossamer beside one contender over several cases: the geometric mean of how many times as
    fast it is, in how many cases it is as fast or faster, and how many there are."""

    speed: float
    held: int
    cases: int


def standings(group: Sequence[View]) -> dict[str, Standing]:
    """gossamer beside each other contender of these views, by name."""
    ratios: dict[str, list[float]] = {}
    for view in group:
        for row in view.fastest.values():
            if view.own is not None and row is not view.own:
                ratios.setdefault(view.contender(row), []).append(
                    row.median_us / view.own.median_us)
    return {name: Standing(math.exp(statistics.fmean(map(math.log, speeds))),
                           sum(speed * EQUAL >= 1 for speed in speeds), len(speeds))
            for name, speeds in ratios.items()}
