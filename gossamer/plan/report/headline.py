"""The few numbers of a report that matter most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.io.text import duration_text
from gossamer.model.passes.dead_channels import less_work
from gossamer.ops.registry import OPS
from gossamer.plan.choose.outcomes import DENSE_ONLY, WHEREVER

if TYPE_CHECKING:
    from gossamer.plan.report.report import Report


@dataclass(frozen=True)
class Tile:
    """A number with its unit, and what it means."""

    number: str
    meaning: str


def headline(report: Report) -> list[Tile]:
    """Returns the time of the whole network, how much less work it is without the channels that
    have no effect, and the times of three other plans as multiples of
    this time: the best dense plan, the best plan of one library, and the best plan of one algorithm
    of gossamer's own. Plans without a time are left out; only for the dense plan a tile says that
    it was not timed."""
    time = report.end_to_end_us
    if not time:
        return []
    cached = ", from the cache" if report.end_to_end_cached else ""
    rate = f": {report.batch / time * 1e6:,.0f} a second" if report.batch else ""
    tiles = [Tile(duration_text(time), f"end to end{cached}{rate}")]
    if (less := less_work(report.notes)) is not None:
        tiles.append(Tile(f"{less[1]} x", f"less work, as {less[0]} channels without effect are "
                          "left out"))
    times = {plan["plan"]: plan["median_us"] for plan in report.plans if plan["median_us"]}
    if DENSE_ONLY in times:
        tiles.append(Tile(f"{times[DENSE_ONLY] / time:.2f} x", "as fast as the best dense plan ("
                          f"{duration_text(times[DENSE_ONLY])})"))
    tiles += [Tile("not timed", f"the best dense plan ({plan['outcome']})") for plan in report.plans
              if plan["plan"] == DENSE_ONLY and not plan["median_us"]]
    single = {name.removesuffix(WHEREVER): median for name, median in times.items()
              if name.endswith(WHEREVER)}
    libraries = {algorithm.name: algorithm.vendor for op in OPS.values()
                 for algorithm in op.algorithms if algorithm.vendor}
    for kind, names in (("library", single.keys() & libraries),
                        ("algorithm", single.keys() - libraries)):
        if names:
            best = min(names, key=single.__getitem__)
            tiles.append(Tile(
                f"{single[best] / time:.2f} x", f"as fast as the best plan of one {kind} wherever "
                f"it can ({libraries.get(best, best)}, {duration_text(single[best])})"))
    return tiles
