"""Draws figures from result rows. The figures of the sparse suites are like the figures of the
publication on direct sparse convolution: the time of each layer, and the speed-up over the peers by
layer, by network and by batch size. Another figure shows the published ladder of MobileNetV2."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.errors import InputError
from gossamer.io.charts import as_png, check_available, new_figure
from gossamer_bench.ladder.rungs import SUITE as LADDER
from gossamer_bench.report import charts
from gossamer_bench.report.sparse_summary import (
    COMPILED,
    IM2COL_PEERS,
    LAYERS,
    NETWORKS,
    PEERS,
    TABLE,
    TILED,
    UNTILED,
    MeasuredCase,
    SpeedUp,
    mean,
    newest,
    summary,
)
from gossamer_bench.report.tables import through
from gossamer_bench.row_files import write_output

_FORMS = {"untiled": UNTILED, "tiled": TILED, "tables": TABLE, "generated": COMPILED, OWN: OWN}
_SPEED = f"speed of {OWN}"
_HEIGHT, _LEAST_WIDTH, _GROUP, _DOTS = 3.2, 6.0, 0.32, 110
"""Height and least width of a panel and width of a group of bars in inches; dots per inch."""


def write(rows: Sequence[ResultRow], folder: Path) -> list[Path]:
    """Writes files for each machine into a subfolder: the figures of the sparse suites, all in
    strict float32, a summary.md of these suites, and the figure of the ladder. Returns the files
    written.

    Raises InputError where matplotlib is missing, there are no rows of these suites, or the folder
    cannot be written to.
    """
    check_available("--figures")
    layers, networks = newest(rows, LAYERS), newest(rows, NETWORKS)
    ladders = {ladder.where: ladder for ladder in charts.ladders(rows)}
    machines = sorted({*(measured.where for measured in (*layers, *networks)), *ladders})
    if not machines:
        raise InputError(f"--figures: there are no rows of the suites {LAYERS}, {NETWORKS} and "
                         f"{LADDER}")
    written = []
    for machine in machines:
        its_layers = [measured for measured in layers if measured.where == machine]
        its_networks = [measured for measured in networks if measured.where == machine]
        target = folder / re.sub(r"[^a-z0-9]+", "-", " ".join(machine).lower()).strip("-")
        files = {f"{name}.png": as_png(figure)
                 for name, figure in _figures(its_layers, its_networks).items()}
        if its_layers or its_networks:
            files["summary.md"] = summary(its_layers, its_networks).encode()
        if machine in ladders:
            files["ladder.png"] = as_png(charts.ladder_figure(ladders[machine]))
        for name, content in files.items():
            write_output("--figures", target / name, content)
            written.append(target / name)
    return written


def _figures(layers: Sequence[MeasuredCase], networks: Sequence[MeasuredCase]) -> dict[str, Any]:
    """Returns the figures by file name; a figure without rows is left out."""
    figures: dict[str, Any] = {}
    for network in dict.fromkeys(layer.network for layer in layers):
        network_layers = [layer for layer in layers if layer.network == network]
        figures[f"time-per-layer-{network}"] = _by_batch(
            network, network_layers,
            {name: methodcaller("time", form) for name, form in _FORMS.items()},
            "microseconds", log=True)
        figures[f"speed-up-per-layer-{network}"] = _by_batch(
            network, network_layers, _over(IM2COL_PEERS), _SPEED)
    figures["speed-up-by-batch"] = _against_batch(layers)
    figures["speed-up-per-network"] = _by_batch("networks", networks, _over(PEERS), _SPEED)
    return {name: figure for name, figure in figures.items() if figure is not None}


def _over(peers: Sequence[str]) -> dict[str, SpeedUp]:
    """Returns for each peer the function that computes the speed-up over the peer. The key is the
    name of this speed-up in a legend."""
    return {f"over {peer}": methodcaller("speed_up", peer) for peer in peers}


def _by_batch(title: str, measured: Sequence[MeasuredCase], values: Mapping[str, SpeedUp],
              unit: str, log: bool = False) -> Any:
    """Returns a figure with a panel for each batch size and a group of bars for each case; None
    where no value is known."""
    panels: dict[int, tuple[list[str], dict[str, list[float | None]]]] = {}
    for batch in sorted({case.own.batch for case in measured}):
        cases = [case for case in measured if case.own.batch == batch]
        series = {name: [value(case) for case in cases] for name, value in values.items()}
        series = {name: line for name, line in series.items() if any(line)}
        if len(series) > log:  # times of one contender alone are no comparison
            panels[batch] = [case.own.case.split("/", 1)[-1] for case in cases], series
    if not panels:
        return None
    colours = {name: f"C{index}" for index, name in enumerate(values)}
    width = max(_LEAST_WIDTH, 1.5 + _GROUP * max(len(names) for names, _ in panels.values()))
    figure, axes = _panels(len(panels), width, title, measured[0])
    for axis, (batch, (names, series)) in zip(axes, panels.items(), strict=True):
        _bars(axis, names, series, colours)
        if log:
            _logarithmic(axis)
        else:
            axis.axhline(1, color="black", linewidth=0.8)
        _label(axis, f"batch {batch}", unit)
    return figure


def _against_batch(layers: Sequence[MeasuredCase]) -> Any:
    """Returns a figure with a panel for each network. A panel shows the geometric mean speed-up of
    the network's layers at each batch size. Returns None where no speed-up is known."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for network in dict.fromkeys(layer.network for layer in layers):
        network_layers = [layer for layer in layers if layer.network == network]
        for name, speed_up in _over(PEERS).items():
            for batch in sorted({layer.own.batch for layer in network_layers}):
                speed = mean([layer for layer in network_layers if layer.own.batch == batch],
                             speed_up)
                if speed is not None:
                    panels.setdefault(network, {}).setdefault(name, []).append((batch, speed[0]))
    if not panels:
        return None
    figure, axes = _panels(len(panels), _LEAST_WIDTH, "geometric means over layers", layers[0])
    for axis, (network, lines) in zip(axes, panels.items(), strict=True):
        batches = sorted({batch for line in lines.values() for batch, _ in line})
        for index, name in enumerate(_over(PEERS)):
            line = lines.get(name, [])
            axis.plot([batches.index(batch) for batch, _ in line], [speed for _, speed in line],
                      marker="o", color=f"C{index}", label=name if line else None)
        axis.set_xticks(range(len(batches)), [str(batch) for batch in batches], fontsize=7)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("batch", fontsize=8)
        _label(axis, network, _SPEED)
    return figure


def _panels(count: int, width: float, title: str,
            measured: MeasuredCase) -> tuple[Any, Sequence[Any]]:
    """Returns a figure with panels below one another, and the panels. The title of the figure names
    the machine of `measured`."""
    figure = new_figure(width, _HEIGHT * count, _DOTS)
    figure.suptitle(f"{title}, {through(*measured.where)}, fp32", fontsize=9)
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def _bars(axis: Any, cases: Sequence[str], series: Mapping[str, Sequence[float | None]],
          colours: Mapping[str, str]) -> None:
    """Draws a group of bars for each case: a bar for each series with a value for the case."""
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        positions = [number + (index + 0.5) * width - 0.4 for number in range(len(cases))]
        axis.bar(positions, [value or 0 for value in values], width, label=name,
                 color=colours[name])
    axis.set_xticks(range(len(cases)), cases, rotation=90, fontsize=6)
    axis.set_xlim(-0.6, len(cases) - 0.4)
    axis.grid(axis="y", linewidth=0.3)
    axis.set_axisbelow(True)


def _logarithmic(axis: Any) -> None:
    from matplotlib.ticker import LogFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(LogFormatter())
    axis.yaxis.set_minor_formatter(LogFormatter())


def _label(axis: Any, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(axis="y", which="both", labelsize=7)
    axis.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False)
