"""What rows of the sparse suites sum up to: how many times as fast gossamer is, as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller

from gossamer.bench.peers.peer import OWN
from gossamer.bench.report.tables import table_lines, through, us
from gossamer.bench.report.views import rank, runs
from gossamer.bench.rows import ResultRow
from gossamer.ops.algorithm import PRECISIONS

LAYERS, NETWORKS = "sparse-layers", "sparse-networks"
UNTILED, TILED, TABLE, COMPILED = (f"{OWN}:{name}" for name in (
    "direct_sparse/untiled", "direct_sparse/tiled", "direct_sparse_table",
    "direct_sparse_compiled"))
LOWERINGS = ("cublas-lowering", "cusparse-lowering")
PEERS = (*LOWERINGS, "cudnn")
_DENSE = f"{OWN}:im2col_gemm"

_SPARSE, _SPARSEST = 0.85, 0.95
_ALL, _SKIMCAFFE = "all", ("caffenet", "googlenet", "resnet50")
_PUBLISHED = tuple(f"{network}/conv{number}" for network in ("alexnet", "caffenet")
                   for number in range(2, 6))
"""The layers on which the published forms were compared."""

SpeedUp = Callable[["MeasuredCase"], float | None]


@dataclass(frozen=True)
class MeasuredCase:
    """The newest run of a case at a batch on a machine: all contenders, side by side."""

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
        """Machine and API."""
        return self.own.machine, self.own.device

    def time(self, contender: str, precision: str = "fp32") -> float | None:
        """Microseconds of a contender in a precision; of gossamer in what the precision allows."""
        allowed = PRECISIONS[:rank(precision) + 1] if contender == OWN else (precision,)
        return min((row.median_us for row in self.rows if row.contender == contender
                    and row.precision in allowed), default=None)

    def best(self, contender: str) -> float | None:
        """Microseconds of a contender in whichever precision is fastest."""
        return min((row.median_us for row in self.rows if row.contender == contender),
                   default=None)

    def speed_up(self, over: str, precision: str = "fp32", *, of: str = OWN,
                 allowed: str = "fp32") -> float | None:
        """How many times as fast `of` is, in the allowed precision, as another in a precision."""
        return _ratio(self.time(over, precision), self.time(of, allowed))


def newest(rows: Sequence[ResultRow], suite: str) -> list[MeasuredCase]:
    """Of each case and batch on each machine the newest run in which gossamer took part."""
    found: dict[Hashable, MeasuredCase] = {}
    for run in runs([row for row in rows if row.suite == suite]):
        if any(row.contender == OWN for row in run):
            measured = MeasuredCase(tuple(run))
            own = measured.own
            key = (own.case, own.batch, *measured.where)
            if key not in found or found[key].own.date < own.date:
                found[key] = measured
    return list(found.values())


def mean(measured: Iterable[MeasuredCase], speed_up: SpeedUp) -> tuple[float, int] | None:
    """The geometric mean of a speed-up over those where it is known, and how many these are."""
    logs = [math.log(each) for each in map(speed_up, measured) if each is not None]
    return (math.exp(statistics.fmean(logs)), len(logs)) if logs else None


def summary(layers: Sequence[MeasuredCase], networks: Sequence[MeasuredCase]) -> str:
    """Tables for the measurements of one machine."""
    every = [*layers, *networks]
    machine, api = every[0].where
    dates = sorted({row.date[:10] for each in every for row in each.rows})
    commits = sorted({row.commit for each in every for row in each.rows if row.commit})
    parts = [f"# Sparse convolution on {through(machine, api)}", "",
             f"MeasuredCase {' and '.join(dates)}" + (f", commit {', '.join(commits)}" if commits
                                                  else "") + ". Numbers say how many times as "
             "fast the first is as the second: geometric means over the layers, with how many of "
             "them have both where not all do."]
    for least in (_SPARSE, _SPARSEST):
        parts += _section(f"Layers of {least:.0%} sparsity and above: gossamer over others",
                          _over_others([each for each in layers if each.sparsity >= least]))
    parts += _section("The forms of direct sparse convolution, fp32", _forms(layers))
    parts += _section("Whole networks: gossamer over others", _whole(networks))
    return "\n".join([*parts, ""])


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _over_others(layers: Sequence[MeasuredCase]) -> list[str]:
    """A line for each group, batch and precision that gossamer may go down to."""
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
    """Peers with the precisions they have rows in; and cuDNN whatever its precision."""
    there = {(row.contender, row.precision) for each in measured for row in each.rows}
    found = [(peer, precision) for peer in PEERS for precision in PRECISIONS
             if (peer, precision) in there]
    several = [precision for peer, precision in found if peer == "cudnn"]
    return [*found, ("cudnn", "")] if len(several) > 1 else found


def _heading(contender: str, precision: str) -> str:
    return f"{contender} {precision or 'at its best'}"


def _over(contender: str, precision: str, allowed: str) -> SpeedUp:
    if precision:
        return methodcaller("speed_up", contender, precision, allowed=allowed)
    return lambda each: _ratio(each.best(contender), each.time(OWN, allowed))


def _forms(layers: Sequence[MeasuredCase]) -> list[str]:
    pairs = {"tiled over untiled": (TILED, UNTILED), "tables over tiled": (TABLE, TILED),
             "generated over tiled": (COMPILED, TILED), "gossamer over tiled": (OWN, TILED),
             "gossamer over generated": (OWN, COMPILED)}
    published = [each for each in layers if each.own.case in _PUBLISHED]
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
    """With the best plan of our own dense algorithm, where that was measured."""
    columns = _columns(networks)
    if any(each.time(_DENSE) for each in networks):
        columns.append((_DENSE, "fp32"))
    lines = []
    for each in sorted(networks, key=lambda each: (each.own.case, each.own.batch)):
        for allowed in _precisions([each]):
            cells = [_mean_cell([each], _over(contender, precision, allowed))
                     for contender, precision in columns]
            own = each.time(OWN, allowed)
            lines.append([each.own.case, str(each.own.batch), f"{each.own.density:.1%}", allowed,
                          "" if own is None else us(own), *cells])
    return table_lines(["network", "batch", "density", "gossamer in", "gossamer us",
                        *(_heading(*column) for column in columns)], lines) if lines else []


def _groups(layers: Sequence[MeasuredCase]) -> list[tuple[str, int, list[MeasuredCase]]]:
    """By batch: all layers, those of SkimCaffe's networks, and those of each network."""
    found: dict[tuple[str, int], list[MeasuredCase]] = {}
    for each in layers:
        names = [_ALL, ", ".join(_SKIMCAFFE)] if each.network in _SKIMCAFFE else [_ALL]
        for name in (*names, each.network):
            found.setdefault((name, each.own.batch), []).append(each)
    return [(name, batch, group) for (name, batch), group in sorted(
        found.items(), key=lambda item: (item[0][0] != _ALL, "," not in item[0][0], item[0]))]


def _precisions(measured: Sequence[MeasuredCase]) -> list[str]:
    """That gossamer took."""
    taken = {row.precision for each in measured for row in each.rows if row.contender == OWN}
    return [precision for precision in PRECISIONS if precision in taken]


def _mean_cell(group: Sequence[MeasuredCase], speed_up: SpeedUp) -> str:
    found = mean(group, speed_up)
    if found is None:
        return ""
    return f"{found[0]:.2f}" + (f" ({found[1]})" if found[1] < len(group) else "")


def _ratio(other: float | None, own: float | None) -> float | None:
    return None if other is None or own is None else other / own
