"""Results as tables: for the terminal, and in Markdown from committed rows."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer import show
from gossamer.bench.contest import Result
from gossamer.bench.peaks import Peaks
from gossamer.bench.peers import OWN
from gossamer.bench.rows import Row, replace_text
from gossamer.errors import InputError

_COLUMNS = {"contender": "contender", "median": "median us", "quartiles": "quartiles us",
            "speed": "speed", "error": "error", "share": "of light", "layout": "layout",
            "config": "config"}
_API = {"cuda": "CUDA", "opencl": "OpenCL", "host": "the host"}


def print_peaks(device_name: str, description: str, peaks: Peaks) -> None:
    print(f"device: {device_name} ({description})")
    print(f"peak rates measured: {show.human(peaks.flops)}FLOP/s, "
          f"{show.human(peaks.bandwidth)}B/s copied (read plus written)")


def print_result(result: Result, said: set[str] | None = None) -> None:
    """The table of one case; then who is not in it, and why, without the absent ones that were
    `said` before."""
    said = set() if said is None else said
    case = result.case
    print(f"\n{case.name}, batch {case.batch}: {show.human(case.flops)}FLOP, "
          f"{show.bytes_text(case.least_bytes)} at least, density {case.density:.0%}"
          + (f", speed of light {_us(result.rows[0].speed_of_light_us)} us" if result.rows else ""))
    show.print_table(_COLUMNS, _cells(result.rows))
    for kind, reasons in (("absent", result.absent), ("failed", result.failed)):
        for name, reason in reasons.items():
            line = f"{kind}: {name}: {reason}"
            if line not in said:
                print(line)
            if kind == "absent":
                said.add(line)
    print(*case.notes, sep="\n", end="\n" if case.notes else "")


def result_dict(result: Result) -> dict[str, Any]:
    case = result.case
    return {"suite": case.suite, "case": case.name, "batch": case.batch, "flops": case.flops,
            "least_bytes": case.least_bytes, "rows": [vars(row) for row in result.rows],
            "absent": result.absent, "failed": result.failed, "notes": list(case.notes)}


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each suite, batch and machine of several cases: gossamer's speed against each
    peer."""
    groups: dict[tuple[Any, ...], list[tuple[Row, list[Row]]]] = {}
    for run in newest(rows):
        own = next((row for row in run if row.contender == OWN), None)
        if own is not None:
            key = (own.suite, own.batch, own.precision, own.machine, own.device)
            groups.setdefault(key, []).append((own, run))
    lines = []
    for (suite, batch, precision, machine, api), runs in sorted(groups.items()):
        if len(runs) < 2:
            continue
        ratios: dict[str, list[float]] = {}
        for own, run in runs:
            for row in run:
                if not row.contender.startswith(OWN):
                    ratios.setdefault(display_name(row, run), []).append(
                        row.median_us / own.median_us)
        texts = [f"{math.exp(statistics.fmean(map(math.log, speeds))):.2f} against {name} "
                 f"({len(speeds)} cases, faster in {sum(speed > 1 for speed in speeds)})"
                 for name, speeds in sorted(ratios.items())]
        lines.append(f"{suite}, batch {batch}, {precision}, {machine} through "
                     f"{_API.get(api, api)}: speed of {OWN}, geometric mean over {len(runs)} "
                     f"cases: {'; '.join(texts) or 'no peers'}")
    return lines


def markdown(rows: Sequence[Row], suite: str | None = None) -> str:
    """Tables of the newest run of each case and batch, one for each machine, API and precision
    that gossamer ran on; all suites where none is named."""
    runs = newest([row for row in rows if suite in (None, row.suite)])
    tables: dict[tuple[str, str, str, str], list[list[Row]]] = {}
    for run in runs:
        own = next((row for row in run if row.contender == OWN), run[0])
        key = (own.case.split("/")[0], own.precision, own.machine, own.device)
        tables.setdefault(key, []).append(run)
    texts = []
    for (case, precision, machine, api), parts in sorted(tables.items()):
        dates = sorted({row.date[:10] for run in parts for row in run})
        lines = [f"**{case}, {precision}, {machine} through {_API.get(api, api)}**, "
                 f"{' and '.join(dates)}", ""]
        headings = ["case", "batch", *list(_COLUMNS.values())]
        lines += [_line(headings), _line(["---"] * len(headings))]
        for run in sorted(parts, key=lambda run: (run[0].case, run[0].batch)):
            ordered = sorted(run, key=lambda row: row.median_us)
            lines += [_line([row.case, str(row.batch), *[cells[key] for key in _COLUMNS]])
                      for row, cells in zip(ordered, _cells(ordered), strict=True)]
        texts.append("\n".join(lines))
    return "\n\n".join([*texts, *summary([row for run in runs for row in run])])


def with_tables(text: str, rows: Sequence[Row], name: str = "the text") -> str:
    """The text with what stands between each `<!-- bench:SUITE -->` and `<!-- /bench -->`
    replaced by that suite's tables. Raises InputError where there are no such marks, one is not
    closed, or a suite has no rows."""
    parts = re.split(r"(<!-- bench:[\w-]+ -->|<!-- /bench -->)", text)
    marks = parts[1::2]
    if not marks:
        raise InputError(f"{name}: has no place for tables; mark one with <!-- bench:SUITE --> "
                         "and <!-- /bench --> on lines of their own")
    for opening, closing in zip(marks[::2], [*marks[1::2], ""], strict=False):
        if not opening.startswith("<!-- bench:") or closing != "<!-- /bench -->":
            raise InputError(f"{name}: {opening} has no partner; <!-- bench:SUITE --> and "
                             "<!-- /bench --> come in turn")
    for index in range(1, len(parts), 4):
        suite = parts[index].removeprefix("<!-- bench:").removesuffix(" -->")
        tables = markdown(rows, suite)
        if not tables:
            raise InputError(f"{name}: has a place for suite {suite!r}, of which there are no rows")
        parts[index + 1] = f"\n{tables}\n"
    return "".join(parts)


def rewrite(path: Path, rows: Sequence[Row]) -> None:
    """Puts the tables into a file between its marks. Raises InputError."""
    try:
        replace_text(path, with_tables(path.read_text(encoding="utf-8"), rows, str(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--into {path}: cannot be rewritten: {error}") from None


def newest(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of the latest run for each work on each machine."""
    runs: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.suite, row.case, row.batch, row.run_id), []).append(row)
    newest: dict[tuple[Any, ...], list[Row]] = {}
    for run in runs.values():
        own = next((row for row in run if row.contender == OWN), run[0])
        key = (own.suite, own.case, own.batch, own.machine, own.device, own.precision)
        if key not in newest or newest[key][0].date < run[0].date:
            newest[key] = run
    return list(newest.values())


def _cells(rows: Sequence[Row]) -> list[Mapping[str, str]]:
    """speed: that of gossamer is 1."""
    own = next((row.median_us for row in rows if row.contender == OWN), None)
    return [{"contender": display_name(row, rows),
             "median": _us(row.median_us), "quartiles": f"{_us(row.p25_us)} to {_us(row.p75_us)}",
             "speed": f"{own / row.median_us:.2f}" if own else "",
             "error": f"{row.error:.1e}", "share": f"{row.speed_of_light_us / row.median_us:.1%}",
             "layout": row.layout, "config": row.config} for row in rows]


def display_name(row: Row, run: Sequence[Row]) -> str:
    """The contender, with what sets it apart from gossamer's row of the same run."""
    own = next((other for other in run if other.contender == OWN), run[0])
    apart = [text for text, differs in (
        (row.precision, row.precision != own.precision),
        ("host", row.device == "host" and own.device != "host")) if differs]
    return f"{row.contender} ({', '.join(apart)})" if apart else row.contender


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
