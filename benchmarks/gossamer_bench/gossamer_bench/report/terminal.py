"""Prints results in the terminal: the peak rates of a device, and the tables of a case."""

from __future__ import annotations

from typing import Any

from gossamer.bench.call_contest import Result
from gossamer.io import terminal
from gossamer.io.text import bytes_text, human, share_text
from gossamer_bench.peaks import Peaks
from gossamer_bench.report.tables import cells, columns, time_text
from gossamer_bench.report.views import views_of


def print_peaks(device_name: str, description: str, peaks: Peaks) -> None:
    """Prints the measured peak rates of a device."""
    print(f"device: {device_name} ({description})")
    rates = ", ".join(f"{human(rate)}FLOP/s in {precision}"
                      for precision, rate in peaks.flops.items())
    print(f"peak rates measured: {rates}, {human(peaks.bandwidth)}B/s copied (read plus "
          "written)")
    for precision, reason in peaks.unknown.items():
        print(f"peak rate in {precision} unknown: {reason}")


def print_result(result: Result, said: set[str] | None = None) -> None:
    """Prints the tables of one case, one for each precision, then the contenders without a row and
    the reasons.

    said: lines on absent contenders that were printed before and are not repeated; new lines are
    added to this set.
    """
    said = set() if said is None else said
    case = result.case
    print(f"\n{case.name}, batch {case.batch}: {human(case.flops)}FLOP, "
          f"{bytes_text(case.least_bytes)} at least, density {share_text(case.density)}, "
          f"took {result.seconds:.1f} s")
    for view in views_of(result.rows):
        light = "" if view.light is None else f", speed of light {time_text(view.light)}"
        print(f"{view.precision}{light}")
        terminal.print_table(columns([view]), cells(view), spare=("config", "layout", "quartiles"))
    for kind, reasons in (("absent", result.absent), ("failed", result.failed)):
        for name, reason in reasons.items():
            line = f"{kind}: {name}: {reason}"
            if line not in said:
                print(line)
            if kind == "absent":
                said.add(line)
    notes = [*case.notes, *([f"notice: {result.notice}"] if result.notice else [])]
    print(*notes, sep="\n", end="\n" if notes else "")


def result_dict(result: Result) -> dict[str, Any]:
    """Returns a result as a dictionary for JSON."""
    case = result.case
    return {"suite": case.suite, "case": case.name, "batch": case.batch, "flops": case.flops,
            "least_bytes": case.least_bytes, "rows": [vars(row) for row in result.rows],
            "absent": result.absent, "failed": result.failed, "notes": list(case.notes),
            "notice": result.notice,
            "seconds": result.seconds}
