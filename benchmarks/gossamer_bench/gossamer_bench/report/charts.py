"""The charts of the ladder, and of servers under load: latency over the rate of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.io.charts import as_png, check_available, new_figure
from gossamer_bench.ladder.rungs import SUITE, Rung
from gossamer_bench.report.tables import through
from gossamer_bench.report.views import rank, views
from gossamer_bench.serving import ServingRow

_BARS = {rung.contender: f"{rung.value}. {rung.label}" for rung in Rung} | {OWN: f"{OWN}'s plan"}
"""Labels of the chart's groups of bars, by contender, from the top."""
_COLOURS = {"fp64": "C0", "fp32": "C1", "tf32": "C2", "fp16": "C3"}
_WIDTH, _BAR, _MARGINS, _DOTS = 7.5, 0.17, 1.2, 110
"""Width of the chart, height of a bar and height of the chart's margins in inches; dots per
inch."""
_LABELLED = 3.0
"""Ratio of the axis's right end to the longest time. The ratio leaves room for the numbers to the
right of the bars."""


@dataclass(frozen=True)
class Ladder:
    """The newest run of the ladder on a machine.

    where: the machine and the API.
    times: rows by contender and precision.
    """

    where: tuple[str, str]
    times: dict[tuple[str, str], ResultRow]


def ladders(rows: Sequence[ResultRow]) -> list[Ladder]:
    """Returns the newest run of the ladder on each machine. Rows of other suites are left out."""
    found: dict[tuple[str, str], Ladder] = {}
    for view in views([row for row in rows if row.suite == SUITE]):
        where = (view.first.machine, view.first.device)
        ladder = found.setdefault(where, Ladder(where, {}))
        ladder.times.update({(row.contender, row.precision): row for row in view.rows
                             if row.contender in _BARS})
    return list(found.values())


def ladder_figure(ladder: Ladder) -> Any:
    """Returns the chart of a run: a group of bars for each rung from the first to the last, and
    below them a group for gossamer's plan. Each group has a bar for each precision."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator, NullFormatter

    lines = {contender: [ladder.times[contender, precision] for precision in _COLOURS
                         if (contender, precision) in ladder.times] for contender in _BARS}
    lines = {contender: rows for contender, rows in lines.items() if rows}
    height = _MARGINS + _BAR * sum(len(rows) + 1 for rows in lines.values())
    figure = new_figure(_WIDTH, height, _DOTS)
    axis = figure.subplots()
    ticks = []
    position = 0
    for contender, rows in lines.items():
        ticks.append((position + (len(rows) - 1) / 2, _BARS[contender]))
        for row in rows:
            axis.barh(position, row.median_us / 1000, height=1.0, color=_COLOURS[row.precision])
            axis.annotate(f"{row.median_us / 1000:.3g}", (row.median_us / 1000, position),
                          (3, 0), textcoords="offset points", va="center", fontsize=7)
            position += 1
        position += 1
    times = [row.median_us / 1000 for rows in lines.values() for row in rows]
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlim(min(times) / 2, _LABELLED * max(times))
    axis.set_yticks([middle for middle, _ in ticks], [label for _, label in ticks], fontsize=8)
    axis.set_ylim(position - 1, -1)
    axis.grid(axis="x", which="major", linewidth=0.3)
    axis.set_axisbelow(True)
    axis.set_xlabel("milliseconds an image (median)", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(f"MobileNetV2, one image at a time, {through(*ladder.where)}", fontsize=9)
    precisions = sorted({row.precision for rows in lines.values() for row in rows}, key=rank)
    axis.legend(handles=[Patch(color=_COLOURS[name], label=name) for name in precisions],
                fontsize=7, loc="lower right")
    return figure


def serving_png(rows: Sequence[ServingRow]) -> bytes:
    """Returns a plot of latencies over the number of requests per second. Each server has a line
    for the 99th percentile of its latencies, and a thinner line for their median. Raises InputError
    where matplotlib is missing."""
    check_available("--plot")
    from matplotlib.ticker import LogFormatter, NullFormatter

    figure = new_figure(9, 4.5, 100)
    axes = figure.add_subplot()
    for server in dict.fromkeys(row.server for row in rows):
        points = sorted((row.rate, row.p50_ms, row.p99_ms) for row in rows
                        if row.server == server and row.rate is not None)
        if not points:
            continue
        rates, medians, tails = zip(*points, strict=True)
        (line,) = axes.plot(rates, tails, "o-", label=f"{server}: p99")
        axes.plot(rates, medians, "--", color=line.get_color(), linewidth=1,
                  label=f"{server}: median")
    axes.set(xlabel="requests a second", ylabel="milliseconds", yscale="log", xscale="log",
             title="Time from when a request is due to its answer")
    measured = sorted({row.rate for row in rows if row.rate is not None})
    axes.set_xticks(measured, [f"{rate:,g}" for rate in measured])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    return as_png(figure)
