"""Sums up the rows of the sparse suites as Markdown tables of gossamer's speed against other
contenders."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller

from gossamer.bench.rows import ResultRow
from gossamer.bench.work import OWN
from gossamer.ops.algorithm import PRECISIONS
from gossamer_bench.report.tables import table_lines, through, time_text
from gossamer_bench.report.views import rank, runs

LAYERS, NETWORKS = "sparse-layers", "sparse-networks"
UNTILED, TILED, TABLE, COMPILED = (f"{OWN}:{name}" for name in (
    "direct_sparse/untiled", "direct_sparse/tiled", "direct_sparse_table",
    "direct_sparse_compiled"))
IM2COL_PEERS = ("cublas-lowering", "cusparse-lowering")
"""The names, in rows, of the contenders that multiply the im2col matrix by a library of a
vendor."""
PEERS = (*IM2COL_PEERS, "cudnn")
_DENSE = f"{OWN}:im2col_gemm"

_SPARSE, _SPARSEST = 0.85, 0.95
"""Two tables compare gossamer with other contenders. These numbers are the least sparsity of a
layer in the first and in the second table."""
_ALL, _SKIMCAFFE = "all", ("caffenet", "googlenet", "resnet50")
_PUBLISHED = tuple(f"{network}/conv{number}" for network in ("alexnet", "caffenet")
                   for number in range(2, 6))
"""The layers on which the publication compares its programs of direct sparse convolution."""

SpeedUp = Callable[["MeasuredCase"], float | None]
"""Function that returns the ratio of two contenders' times in a case; None where one of these times
is missing."""


@dataclass(frozen=True)
class MeasuredCase:
    """The rows of all contenders in the newest run of a case at a batch size on a machine."""

    rows: tuple[ResultRow, ...]

    @property
    def own(self) -> ResultRow:
        return next(row for row in self.rows if row.contender == OWN)

    @property
    def network(self) -> str:
        return self.own.case.split("/")[0]

    @property
    def sparsity(self) -> float:
        return 1 - self.own.density

    @property
    def where(self) -> tuple[str, str]:
        """The machine, and the API through which gossamer ran on it."""
        return self.own.machine, self.own.device

    def time(self, contender: str, precision: str = "fp32") -> float | None:
        """Returns a contender's microseconds in a precision; for gossamer its microseconds in the
        fastest precision that `precision` allows."""
        allowed = PRECISIONS[:rank(precision) + 1] if contender == OWN else (precision,)
        return min((row.median_us for row in self.rows if row.contender == contender
                    and row.precision in allowed), default=None)

    def best(self, contender: str) -> float | None:
        """Returns a contender's microseconds in its fastest precision."""
        return min((row.median_us for row in self.rows if row.contender == contender),
                   default=None)

    def speed_up(self, over: str, precision: str = "fp32", *, of: str = OWN,
                 allowed: str = "fp32") -> float | None:
        """Returns the ratio of two speeds: the speed of the contender `of` in the precision
        `allowed`, over the speed of the contender `over` in `precision`. The speed of gossamer in a
        precision is its speed in the fastest precision that this precision allows."""
        return _ratio(self.time(over, precision), self.time(of, allowed))


def newest(rows: Sequence[ResultRow], suite: str) -> list[MeasuredCase]:
    """Returns the newest run in which gossamer took part, for each case and batch on each
    machine."""
    latest: dict[Hashable, MeasuredCase] = {}
    for run in runs([row for row in rows if row.suite == suite]):
        if any(row.contender == OWN for row in run):
            measured = MeasuredCase(tuple(run))
            own = measured.own
            key = (own.case, own.batch, *measured.where)
            if key not in latest or latest[key].own.date < own.date:
                latest[key] = measured
    return list(latest.values())


def mean(measured: Iterable[MeasuredCase], speed_up: SpeedUp) -> tuple[float, int] | None:
    """Returns the geometric mean of a speed-up over the cases that have the speed-up, and the
    number of these cases."""
    logs = [math.log(ratio) for ratio in map(speed_up, measured) if ratio is not None]
    return (math.exp(statistics.fmean(logs)), len(logs)) if logs else None


def summary(layers: Sequence[MeasuredCase], networks: Sequence[MeasuredCase]) -> str:
    """Returns Markdown tables for the measurements of one machine."""
    cases = [*layers, *networks]
    machine, api = cases[0].where
    dates = sorted({row.date[:10] for case in cases for row in case.rows})
    commits = sorted({row.commit for case in cases for row in case.rows if row.commit})
    parts = [f"# Sparse convolution on {through(machine, api)}", "",
             f"Measured {' and '.join(dates)}" + (f", commit {', '.join(commits)}" if commits
                                                  else "") + ". Numbers say how many times as "
             "fast the first is as the second: geometric means over the layers, with how many of "
             "them have both where not all do."]
    for least in (_SPARSE, _SPARSEST):
        parts += _section(f"Layers of {least:.0%} sparsity and above: gossamer over others",
                          _over_others([layer for layer in layers if layer.sparsity >= least]))
    parts += _section("The forms of direct sparse convolution, fp32", _forms(layers))
    parts += _section("Whole networks: gossamer over others", _whole(networks))
    return "\n".join([*parts, ""])


def _section(title: str, lines: list[str]) -> list[str]:
    """A heading and its lines; empty where there are no lines."""
    return ["", f"## {title}", "", *lines] if lines else []


def _over_others(layers: Sequence[MeasuredCase]) -> list[str]:
    """A table with a line for each combination of a group of layers, a batch size and a precision
    that gossamer may use."""
    columns = _columns(layers)
    lines = []
    for name, batch, group in _groups(layers):
        for allowed in _precisions(group):
            cells = [_mean_cell(group, _over(contender, precision, allowed))
                     for contender, precision in columns]
            if any(cells):
                lines.append([name, str(batch), str(len(group)), allowed, *cells])
    return table_lines(["layers of", "batch", "layers", "gossamer in",
                        *(_heading(*column) for column in columns)], lines) if lines else []


def _columns(measured: Sequence[MeasuredCase]) -> list[tuple[str, str]]:
    """Returns each peer with each precision of its rows. Where cuDNN has rows in several
    precisions, there is also a column with an empty precision, which stands for cuDNN's fastest
    precision."""
    present = {(row.contender, row.precision) for case in measured for row in case.rows}
    columns = [(peer, precision) for peer in PEERS for precision in PRECISIONS
               if (peer, precision) in present]
    of_cudnn = [precision for peer, precision in columns if peer == "cudnn"]
    return [*columns, ("cudnn", "")] if len(of_cudnn) > 1 else columns


def _heading(contender: str, precision: str) -> str:
    return f"{contender} {precision or 'at its best'}"


def _over(contender: str, precision: str, allowed: str) -> SpeedUp:
    """The speed-up of gossamer over a contender. gossamer runs in its fastest precision that
    `allowed` allows; the contender runs in `precision`, or in its fastest precision where
    `precision` is ""."""
    if precision:
        return methodcaller("speed_up", contender, precision, allowed=allowed)
    return lambda case: _ratio(case.best(contender), case.time(OWN, allowed))


def _forms(layers: Sequence[MeasuredCase]) -> list[str]:
    """Returns a table that compares the algorithms of direct sparse convolution."""
    pairs = {"tiled over untiled": (TILED, UNTILED), "tables over tiled": (TABLE, TILED),
             "generated over tiled": (COMPILED, TILED), "gossamer over tiled": (OWN, TILED),
             "gossamer over generated": (OWN, COMPILED)}
    published = [layer for layer in layers if layer.own.case in _PUBLISHED]
    groups = [("alexnet, caffenet: conv2 to conv5", batch, group)
              for name, batch, group in _groups(published) if name == _ALL]
    lines = []
    for name, batch, group in [*groups, *_groups(layers)]:
        cells = [_mean_cell(group, methodcaller("speed_up", over, of=of))
                 for of, over in pairs.values()]
        if any(cells):
            lines.append([name, str(batch), str(len(group)), *cells])
    return table_lines(["layers of", "batch", "layers", *pairs], lines) if lines else []


def _whole(networks: Sequence[MeasuredCase]) -> list[str]:
    """A table of whole networks. There is a column for the plan that forces gossamer's
    dense algorithm im2col_gemm, if this plan was measured."""
    columns = _columns(networks)
    if any(network.time(_DENSE) for network in networks):
        columns.append((_DENSE, "fp32"))
    lines = []
    for network in sorted(networks, key=lambda network: (network.own.case, network.own.batch)):
        own = network.own
        for allowed in _precisions([network]):
            cells = [_mean_cell([network], _over(contender, precision, allowed))
                     for contender, precision in columns]
            time = network.time(OWN, allowed)
            lines.append([own.case, str(own.batch), f"{own.density:.1%}", allowed,
                          "" if time is None else time_text(time), *cells])
    return table_lines(["network", "batch", "density", "gossamer in", "gossamer",
                        *(_heading(*column) for column in columns)], lines) if lines else []


def _groups(layers: Sequence[MeasuredCase]) -> list[tuple[str, int, list[MeasuredCase]]]:
    """Groups of layers as (name, batch, layers): for each batch size all layers, the layers of
    SkimCaffe's networks, and the layers of each network."""
    groups: dict[tuple[str, int], list[MeasuredCase]] = {}
    for layer in layers:
        names = [_ALL, ", ".join(_SKIMCAFFE)] if layer.network in _SKIMCAFFE else [_ALL]
        for name in (*names, layer.network):
            groups.setdefault((name, layer.own.batch), []).append(layer)
    return [(name, batch, group) for (name, batch), group in sorted(
        groups.items(), key=lambda item: (item[0][0] != _ALL, "," not in item[0][0], item[0]))]


def _precisions(measured: Sequence[MeasuredCase]) -> list[str]:
    """The precisions that gossamer has rows in."""
    present = {row.precision for case in measured for row in case.rows if row.contender == OWN}
    return [precision for precision in PRECISIONS if precision in present]


def _mean_cell(group: Sequence[MeasuredCase], speed_up: SpeedUp) -> str:
    """The mean speed-up as text. Where only some cases have a speed-up, the text also has their
    number."""
    result = mean(group, speed_up)
    if result is None:
        return ""
    speed, count = result
    return f"{speed:.2f}" + (f" ({count})" if count < len(group) else "")


def _ratio(other: float | None, own: float | None) -> float | None:
    return None if other is None or own is None else other / own
