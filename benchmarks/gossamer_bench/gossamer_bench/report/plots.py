"""Plots result rows as a picture, with bars for few cases and marks for many, and with each case's
speed of light."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.errors import InputError
from gossamer.io.charts import as_png, check_available, new_figure
from gossamer_bench.report.views import View, rank, views

_BAR, _LINE, _GAP, _MARGINS, _WIDTH = 0.13, 0.1, 0.12, 1.1, 9.0
"""Sizes in inches: heights of a bar, of a line of marks, of the gap between cases and of a panel's
margins, and width of a panel."""
_DOTS, _MOST_DOTS = 110.0, 60_000
"""Dots per inch, and the greatest height of a picture in dots; matplotlib draws at most 2^16."""
_MOST_BARS = 6
"""The most cases of a panel for which bars are drawn; for more cases, marks are drawn."""
_SHAPES = {"fp32": "o", "tf32": "^", "fp16": "s", "int8": "v", "b1": "D"}
"""Matplotlib's marker for each precision."""


def png(rows: Sequence[ResultRow]) -> bytes:
    """Returns a plot of the newest run of each case, with median times on a logarithmic axis and a
    colour for each contender.

    With few cases there is a panel for each suite, batch, precision and machine. Each contender
    has a bar with a whisker from quartile to quartile, and a line across the bars of a case marks
    the speed of light of the case. With many cases there is a panel for each suite, network, batch
    and machine, with the batch sizes side by side. Each case and precision has a line, on which
    each contender has a mark. The shape of the mark depends on the precision.

    Raises InputError where matplotlib is missing or there are no rows.
    """
    check_available("--plot")
    if not rows:
        raise InputError("--plot: there are no rows to show")
    shown = views(rows)
    bars = _grouped(shown, lambda view: (_suite_and_machine(view), view.first.batch,
                                         view.precision))
    many = max(map(len, bars.values())) > _MOST_BARS
    panels = _grouped(shown, lambda view: (f"{_suite_and_machine(view)}, {_network(view)}",
                                           view.first.batch)) if many else bars
    grid = _grid(panels, many)
    height = sum(inches for _, inches in grid)
    columns = max(len(line) for line, _ in grid)
    figure = new_figure(_WIDTH * columns, height, min(_DOTS, _MOST_DOTS / height))
    axes = figure.subplots(len(grid), columns, squeeze=False,
                           height_ratios=[inches for _, inches in grid])
    names = sorted({view.contender(row) for view in shown for row in view.rows},
                   key=lambda name: (name != OWN, name))
    colours = {name: f"C{index % 10}" for index, name in enumerate(names)}
    for (line, _), row in zip(grid, axes, strict=True):
        for axis in row[len(line):]:
            axis.set_visible(False)
        for key, axis in zip(line, row, strict=False):
            title = ", ".join([str(key[0]), f"batch {key[1]}", *map(str, key[2:])])
            _draw(axis, title, panels[key], colours, _marks if many else _bars)
    figure.legend(handles=_legend(colours, shown, many), fontsize=7, loc="outside upper center",
                  ncols=5 * columns)
    return as_png(figure)


Panels = dict[tuple[Any, ...], list[View]]
"""The views of each panel. The key of a panel holds the parts of its title."""


def _grouped(shown: Sequence[View], key: Callable[[View], tuple[Any, ...]]) -> Panels:
    panels: Panels = {}
    for view in shown:
        panels.setdefault(key(view), []).append(view)
    return panels


def _suite_and_machine(view: View) -> str:
    return f"{view.first.suite}, {view.first.machine} ({view.first.device})"


def _network(view: View) -> str:
    return view.first.case.split("/")[0]


def _grid(panels: Panels, many: bool) -> list[tuple[list[tuple[Any, ...]], float]]:
    """Returns the rows of the grid of panels: for each row the keys of its panels, and its height
    in inches. Where there are many cases, a row has all batch sizes of a network; otherwise a row
    has a single panel."""
    lines: dict[Hashable, list[tuple[Any, ...]]] = {}
    for key in panels:
        lines.setdefault(key[0] if many else key, []).append(key)

    def inches(panel: Sequence[View]) -> float:
        if many:
            return _LINE * len(panel) + _GAP * len({view.first.case for view in panel})
        return sum(_BAR * len(view.rows) + _GAP for view in panel)

    return [(sorted(line), _MARGINS + max(inches(panels[key]) for key in line))
            for line in lines.values()]


def _draw(axis: Any, title: str, panel: Sequence[View], colours: dict[str, str],
          draw: Callable[[Any, View, float, dict[str, str]], float]) -> None:
    """Draws the panel's cases from top to bottom.

    draw: function that draws a view at a position on the vertical axis, and returns the position
    below the view.
    """
    cases: dict[str, list[View]] = {}
    for view in panel:
        cases.setdefault(view.first.case, []).append(view)
    position = 0.0
    ticks = []
    for case, case_views in cases.items():
        top = position
        for view in sorted(case_views, key=lambda view: rank(view.precision)):
            bottom = draw(axis, view, position, colours)
            if view.light is not None:
                axis.vlines(view.light, position, bottom, colors="black", linewidth=1.5)
            position = bottom
        ticks.append(((top + position) / 2, case))
        position += _GAP
    axis.set_xscale("log")
    times = [row.p25_us for view in panel for row in view.rows]
    lights = [view.light for view in panel if view.light is not None]
    axis.set_xlim(left=0.5 * min([*times, *lights]))
    axis.set_yticks([middle for middle, _ in ticks], [case for _, case in ticks], fontsize=7)
    axis.set_ylim(position, -_GAP)
    axis.grid(axis="x", which="both", linewidth=0.3)
    axis.set_axisbelow(True)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("microseconds of one execution (median)", fontsize=8)


def _bars(axis: Any, view: View, position: float, colours: dict[str, str]) -> float:
    """Draws a bar for each row; returns the position below the last bar."""
    for row in view.rows:
        axis.barh(position, row.median_us, height=_BAR, align="edge",
                  color=colours[view.contender(row)],
                  xerr=[[row.median_us - row.p25_us], [row.p75_us - row.median_us]],
                  error_kw={"elinewidth": 0.6})
        position += _BAR
    return position


def _marks(axis: Any, view: View, position: float, colours: dict[str, str]) -> float:
    """Draws the marks of all rows on one line; returns the position below the line."""
    # gossamer is drawn last, on top of the others
    for row in sorted(view.rows, key=lambda row: row.contender == OWN):
        axis.plot(row.median_us, position + _LINE / 2, linestyle="none",
                  **_mark(colours[view.contender(row)], row.precision, row.contender == OWN))
    return position + _LINE


def _mark(colour: str, precision: str, is_own: bool) -> dict[str, Any]:
    """Matplotlib's arguments for a mark. is_own: whether the mark is gossamer's."""
    return {"marker": _SHAPES.get(precision, "D"), "color": colour,
            "markersize": 6 if is_own else 4, "markeredgewidth": 0.8,
            "markeredgecolor": "black" if is_own else colour}


def _legend(colours: dict[str, str], shown: Sequence[View], many: bool) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    light = Line2D([], [], color="black", linewidth=1.5, label="speed of light")
    contenders = [Patch(color=colour, label=name) for name, colour in colours.items()]
    precisions = sorted({row.precision for view in shown for row in view.rows}, key=rank)
    shapes = [Line2D([], [], linestyle="none", label=precision, **_mark("grey", precision, False))
              for precision in precisions] if many else []
    return [*contenders, *shapes, light]
