"""Result rows as a picture: bars for each case, and where the speed of light lies."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from gossamer.bench.peers import OWN
from gossamer.bench.report import display_name, newest
from gossamer.bench.rows import Row
from gossamer.errors import InputError

_BAR, _GAP, _MARGINS, _WIDTH = 0.13, 0.12, 1.1, 9.0
"""Inches: of a bar, between cases, round a panel, of the whole."""
_DOTS, _MOST_DOTS = 110.0, 60_000
"""An inch, and high: matplotlib draws at most 2^16."""


def check_available() -> None:
    """Raises InputError where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def png(rows: Sequence[Row]) -> bytes:
    """A panel for each suite, batch, precision and machine with the newest run of each case: a
    bar a contender, its length the median time on a logarithmic axis, a whisker from quartile to
    quartile, and across each case's bars a mark at its speed of light.

    Raises InputError where matplotlib is missing or there are no rows.
    """
    check_available()
    if not rows:
        raise InputError("--plot: there are no rows to show")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(rows)
    heights = [_MARGINS + sum(_BAR * len(run) + _GAP for run in runs)
               for runs in panels.values()]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained",
                    dpi=min(_DOTS, _MOST_DOTS / sum(heights)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    names = sorted({display_name(row, run) for runs in panels.values() for run in runs
                    for row in run}, key=lambda name: (name != OWN, name))
    colours = {name: f"C{index % 10}" for index, name in enumerate(names)}
    for axis, (title, runs) in zip(axes, panels.items(), strict=True):
        _draw(axis, title, runs, colours)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _panels(rows: Sequence[Row]) -> dict[str, list[list[Row]]]:
    panels: dict[str, list[list[Row]]] = {}
    for run in newest(rows):
        own = next((row for row in run if row.contender == OWN), run[0])
        title = f"{own.suite}, batch {own.batch}, {own.precision}, {own.machine} ({own.device})"
        panels.setdefault(title, []).append(sorted(run, key=lambda row: row.median_us))
    return panels


def _draw(axis: Any, title: str, runs: Sequence[Sequence[Row]], colours: dict[str, str]) -> None:
    place = 0.0
    ticks: list[tuple[float, str]] = []
    seen: set[str] = set()
    for run in runs:
        top = place
        for row in run:
            name = display_name(row, run)
            axis.barh(place, row.median_us, height=_BAR, align="edge", color=colours[name],
                      label=None if name in seen else name,
                      xerr=[[row.median_us - row.p25_us], [row.p75_us - row.median_us]],
                      error_kw={"elinewidth": 0.6})
            seen.add(name)
            place += _BAR
        axis.vlines(run[0].speed_of_light_us, top, place, colors="black", linewidth=1.5,
                    label=None if ticks else "speed of light")
        ticks.append(((top + place) / 2, run[0].case))
        place += _GAP
    axis.set_xscale("log")
    axis.set_xlim(left=0.5 * min(min(row.speed_of_light_us, row.p25_us)
                                 for run in runs for row in run))
    axis.set_yticks([middle for middle, _ in ticks], [case for _, case in ticks], fontsize=7)
    axis.set_ylim(place, -_GAP)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("microseconds of one execution (median, quartiles)", fontsize=8)
    axis.legend(fontsize=7, loc="best")
