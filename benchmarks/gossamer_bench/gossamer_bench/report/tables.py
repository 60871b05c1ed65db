"""Makes Markdown tables of result rows, complete or summed up, and writes them into files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.errors import InputError
from gossamer.io.text import duration_text
from gossamer_bench.contender import OTHER_PLANS
from gossamer_bench.layer_tables import POINTWISE
from gossamer_bench.peers.inference import vendors
from gossamer_bench.report.views import (
    EQUAL,
    Standing,
    View,
    against_fastest,
    rank,
    standings,
    views,
)
from gossamer_bench.row_files import read_rows, replace_text
from gossamer_bench.suites.tuning import SUITE as TUNING

COLUMNS = {"contender": "contender", "median": "median", "quartiles": "quartiles",
           "p99": "p99", "p99.9": "p99.9", "speed": "speed", "error": "error",
           "share": "of light", "layout": "layout", "config": "config"}
_API = {"cuda": "CUDA", "opencl": "OpenCL", "host": "the host"}
_POINTWISE_MMA = f"{OWN}:pointwise_mma"
_MARK = re.compile(r"(<!-- bench:[\w-]+(?: summary)? -->|<!-- /bench -->)")


def cells(view: View) -> list[dict[str, str]]:
    """Returns the rows of a View (one run of a case at a batch size and precision) as texts by
    column. The speed of gossamer is 1."""
    lines = []
    for row in view.rows:
        speed, share = view.speed(row), row.share_of_light
        lines.append({
            "contender": view.name(row), "median": time_text(row.median_us),
            "quartiles": _range_text(row.p25_us, row.p75_us),
            **{name: time_text(row.tail[f"{name}_us"]) if f"{name}_us" in row.tail else ""
               for name in ("p99", "p99.9")},
            "speed": "" if speed is None else f"{speed:.2f}", "error": f"{row.error:.1e}",
            "share": "" if share is None else f"{share:.1%}",
            "layout": row.layout, "config": row.config})
    return lines


def columns(shown: Sequence[View]) -> dict[str, str]:
    """Returns the headings of a table of views, by column. Percentiles have columns only where
    calls were timed one by one."""
    has_tails = any(row.tail for view in shown for row in view.rows)
    return {key: heading for key, heading in COLUMNS.items()
            if has_tails or key not in ("p99", "p99.9")}


def time_text(microseconds: float) -> str:
    """Returns a time with its unit, in about three digits: 0.34 us, 12.0 us, 1.50 ms."""
    return f"{microseconds:.2f} us" if microseconds < 9.995 else duration_text(microseconds)


def _range_text(low: float, high: float) -> str:
    (start, start_unit), (end, end_unit) = (time_text(each).split() for each in (low, high))
    return f"{start}{'' if start_unit == end_unit else f' {start_unit}'} to {end} {end_unit}"


def markdown(rows: Sequence[ResultRow], suite: str | None = None) -> str:
    """Returns tables of the newest run of each case and batch, then the lines of summary_lines.

    There is a table for each network, precision, machine and API that gossamer ran through.

    suite: name of the suite to show, None for all.
    """
    shown = views([row for row in rows if suite in (None, row.suite)])
    tables = _grouped(shown, lambda view: (_network(view), rank(view.precision), view.precision,
                                           *_where(view)))
    texts = []
    for (network, _, precision, machine, api), group in sorted(tables.items()):
        lines = [f"**{network}, {precision}, {through(machine, api)}**, {_dates(group)}", "",
                 *table_lines(["case", "batch", *columns(group).values()], [
                     [view.first.case, str(view.first.batch),
                      *(line[key] for key in columns(group))]
                     for view in sorted(group, key=_case) for line in cells(view)])]
        texts.append("\n".join(lines))
    return "\n\n".join([*texts, *summary_lines(rows, suite)])


def summary_lines(rows: Sequence[ResultRow], suite: str | None = None) -> list[str]:
    """Returns lines on gossamer's speed against each peer and against gossamer's other plans. There
    is a line for each combination of suite, batch size, precision and machine that has several
    cases. The suite POINTWISE has another line: the speed of the algorithm pointwise_mma against
    the fastest of the vendors' libraries."""
    shown = [view for view in views(rows) if view.own and suite in (None, view.own.suite)]
    groups = _grouped(shown, lambda view: (view.first.suite, view.first.batch,
                                           rank(view.precision), view.precision, *_where(view)))
    lines = []
    for (name, batch, _, precision, machine, api), group in sorted(groups.items()):
        if len(group) < 2:
            continue
        texts = [f"{standing.speed:.2f} against {peer} ({standing.cases} cases, as fast or faster "
                 f"in {standing.held})" for peer, standing in sorted(standings(group).items())
                 if not peer.startswith(f"{OWN}:")
                 or peer.removeprefix(f"{OWN}:") in OTHER_PLANS]
        lines.append(f"{name}, batch {batch}, {precision}, {through(machine, api)}: speed of "
                     f"{OWN}, geometric mean over {len(group)} cases: "
                     f"{'; '.join(texts) or 'no peers'}")
    return [*lines, *_pointwise_lines(shown)]


def _pointwise_lines(shown: Sequence[View]) -> list[str]:
    """Returns the lines on the suite POINTWISE that compare pointwise_mma with the vendors'
    libraries."""
    groups = _grouped([view for view in shown if view.first.suite == POINTWISE], lambda view: (
        view.first.batch, rank(view.precision), view.precision, *_where(view)))
    compared = [(key, against_fastest(group, _POINTWISE_MMA, vendors()))
                for key, group in sorted(groups.items())]
    return [f"{POINTWISE}, batch {batch}, {precision}, {through(machine, api)}: speed of "
            f"{_POINTWISE_MMA} against the fastest of NVIDIA's libraries, geometric mean over "
            f"{standing.cases} cases: {standing.speed:.2f} (as fast or faster in {standing.held})"
            for (batch, _, precision, machine, api), standing in compared if standing is not None]


def summary(rows: Sequence[ResultRow], suite: str) -> str:
    """Returns for each machine a table of gossamer's speed against each contender, with a line for
    each network, batch and precision. The lines of _pointwise_lines() follow the tables of the
    suite POINTWISE."""
    shown = [view for view in views(rows) if view.own and view.own.suite == suite]
    if suite == TUNING:
        return _times_of_planning(shown)
    texts = []
    for (machine, api), group in sorted(_grouped(shown, _where).items()):
        lines = _grouped(group, lambda view: (_network(view), view.first.batch,
                                              rank(view.precision), view.precision))
        compared = {key: standings(line_views) for key, line_views in lines.items()}
        names = sorted({name for by_contender in compared.values() for name in by_contender},
                       key=lambda name: (name.startswith(f"{OWN}:"), name))
        single = all(len(line_views) == 1 for line_views in lines.values())
        body = [[key[0], str(key[1]), key[3],
                 time_text(line_views[0].first.median_us) if single else str(len(line_views)),
                 *(_standing(compared[key].get(name), single) for name in names)]
                for key, line_views in sorted(lines.items())]
        texts.append("\n".join([
            f"**{suite}, {through(machine, api)}**, {_dates(group)}: how many times as fast "
            f"{OWN} is" + ("" if single else ", geometric mean (and in how many cases it is as "
                           f"fast, within {EQUAL - 1:.0%}, or faster)"), "",
            *table_lines(["network", "batch", "precision", OWN if single else "cases",
                          *names], body)]))
    return "\n\n".join([*texts, *_pointwise_lines(shown)])


def _times_of_planning(shown: Sequence[View]) -> str:
    """Returns for each machine a table of the seconds that gossamer and its peers took for
    planning."""
    texts = []
    for (machine, api), group in sorted(_grouped(shown, _where).items()):
        peers = sorted({name for view in group for name in view.fastest} - {OWN})
        body = [[view.first.case, str(view.first.batch), view.precision,
                 *(_seconds(view.fastest.get(name)) for name in (OWN, *peers)), view.first.config]
                for view in sorted(group, key=lambda view: (*_case(view), rank(view.precision)))]
        texts.append("\n".join([
            f"**{TUNING}, {through(machine, api)}**, {_dates(group)}", "",
            *table_lines(["network and effort", "batch", "precision", f"{OWN} s",
                          *(f"{name} s" for name in peers), "outcome"], body)]))
    return "\n\n".join(texts)


def _seconds(row: ResultRow | None) -> str:
    """The cell of a contender's seconds; empty where the contender was not measured."""
    return "" if row is None else f"{row.median_us / 1e6:.1f}"


def _standing(standing: Standing | None, single: bool) -> str:
    """Returns the cell of a contender. single: whether every line of the table has one case."""
    if standing is None:
        return ""
    return f"{standing.speed:.2f}" + (
        "" if single else f" ({standing.held} of {standing.cases})")


def with_tables(text: str, rows: Sequence[ResultRow], name: str = "the text") -> str:
    """Returns the text with new contents between its marks. The tables of a suite come between each
    `<!-- bench:SUITE -->` and `<!-- /bench -->`, and its summary comes between each `<!--
    bench:SUITE summary -->` and `<!-- /bench -->`.

    name: name of the text in messages.
    Raises InputError where the text has no marks, a mark is not closed, or a suite has no rows.
    """
    parts = _MARK.split(text)
    marks = parts[1::2]
    if not marks:
        raise InputError(f"{name}: has no place for tables; mark one with <!-- bench:SUITE --> "
                         "and <!-- /bench --> on lines of their own")
    for opening, closing in zip(marks[::2], [*marks[1::2], ""], strict=False):
        if not opening.startswith("<!-- bench:") or closing != "<!-- /bench -->":
            raise InputError(f"{name}: {opening} has no partner; <!-- bench:SUITE --> and "
                             "<!-- /bench --> come in turn")
    for index in range(1, len(parts), 4):
        suite, is_summary = _suite_of(parts[index])
        tables = summary(rows, suite) if is_summary else markdown(rows, suite)
        if not tables:
            raise InputError(f"{name}: has a place for suite {suite!r}, of which there are no rows")
        parts[index + 1] = f"\n{tables}\n"
    return "".join(parts)


def full_tables(text: str, folder: Path) -> dict[Path, str]:
    """Returns the contents of files by path. The files have all tables of the suites that the text
    only sums up.

    folder: file of rows, or folder of such files. The tables of each file of rows go into a file
    beside it.
    """
    suites = {suite for suite, is_summary in map(_suite_of, _MARK.findall(text)) if is_summary}
    files = {}
    for path in sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder]:
        rows = [row for row in read_rows(path) if row.suite in suites]
        if rows:
            files[path.with_suffix(".md")] = (
                f"<!-- made from {path.name} by gossamer bench --table -->\n\n{markdown(rows)}\n")
    return files


def rewrite(path: Path, folder: Path) -> list[Path]:
    """Writes the tables of a file of rows, or of all files of rows below a folder, between the
    marks of a document. Tables that the document only sums up are written whole into files beside
    the rows. Returns the files written. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
        texts = {path: with_tables(text, read_rows(folder), str(path)),
                 **full_tables(text, folder)}
        for target, content in texts.items():
            replace_text(target, content)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--into {path}: cannot be rewritten: {error}") from None
    return list(texts)


def _suite_of(mark: str) -> tuple[str, bool]:
    """The suite that a mark names, and whether the mark stands for its summary."""
    suite, _, form = mark.removeprefix("<!-- bench:").removesuffix(" -->").partition(" ")
    return suite, form == "summary"


def _grouped(shown: Sequence[View],
             key: Callable[[View], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[View]]:
    groups: dict[tuple[Any, ...], list[View]] = {}
    for view in shown:
        groups.setdefault(key(view), []).append(view)
    return groups


def _network(view: View) -> str:
    return view.first.case.split("/")[0]


def _where(view: View) -> tuple[str, str]:
    return view.machine, view.first.device


def _case(view: View) -> tuple[str, int]:
    return view.first.case, view.first.batch


def through(machine: str, api: str) -> str:
    """Returns the machine and the API as text."""
    return f"{machine} through {_API.get(api, api)}"


def _dates(group: Sequence[View]) -> str:
    """The dates of the views' rows as text."""
    return " and ".join(sorted({row.date[:10] for view in group for row in view.rows}))


def table_lines(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    return [_line(headings), _line(["---"] * len(headings)), *map(_line, lines)]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"
