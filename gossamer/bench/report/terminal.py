"""Results in the terminal: the peak rates of a device, and the tables of a case."""

from __future__ import annotations

from typing import Any

from gossamer.bench.contest import Result
from gossamer.bench.peaks import Peaks
from gossamer.bench.report.tables import COLUMNS, cells, us
from gossamer.bench.report.views import views_of
from gossamer.cli import show


def print_peaks(device_name: str, description: str, peaks: Peaks) -> None:
    print(f"device: {device_name} ({description})")
    rates = ", ".join(f"{show.human(rate)}FLOP/s in {precision}"
                      for precision, rate in peaks.flops.items())
    print(f"peak rates measured: {rates}, {show.human(peaks.bandwidth)}B/s copied (read plus "
          "written)")
    for precision, reason in peaks.unknown.items():
        print(f"peak rate in {precision} unknown: {reason}")


def print_result(result: Result, said: set[str] | None = None) -> None:
    """The tables of one case, one for each precision; then who is not in them, and why, without
    the absent ones that were `said` before."""
    said = set() if said is None else said
    case = result.case
    print(f"\n{case.name}, batch {case.batch}: {show.human(case.flops)}FLOP, "
          f"{show.bytes_text(case.least_bytes)} at least, density {case.density:.0%}, "
          f"took {result.seconds:.1f} s")
    for view in views_of(result.rows):
        light = "" if view.light is None else f", speed of light {us(view.light)} us"
        print(f"{view.precision}{light}")
        show.print_table(COLUMNS, cells(view), spare=("config", "layout", "quartiles"))
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
            "absent": result.absent, "failed": result.failed, "notes": list(case.notes),
            "seconds": result.seconds}
