"""A plan's report as text and JSON, and the progress bar of a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gossamer.io import terminal
from gossamer.io.text import duration_text, share_text


def input_bar() -> Progress:
    """Return a progress bar that is shown during a `with` block if stderr is a terminal."""
    console = Console(stderr=True)
    return Progress(TextColumn("{task.description}", markup=False), BarColumn(),
                    MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True,
                    disable=not console.is_terminal)


def print_report(report: Any) -> None:
    """Print the layers and the end-to-end time of a profiled plan."""
    from gossamer.plan.report.cells import row_time_text

    rows = [{**row, "density": None if row["density"] is None else share_text(row["density"]),
             "median_us": row_time_text(row), "share": f"{row['share']:.1%}"}
            for row in report.rows]
    terminal.print_table(
        {"layer": "layer", "op": "op", "problem": "problem", "density": "density",
         "algorithm": "algorithm", "config": "config", "device": "device", "median_us": "time",
         "share": "share"}, rows, spare=("config", "op", "device", "problem", "density"))
    print(f"end to end, batch {report.batch}: {duration_text(report.end_to_end_us)}")
    if report.shares:
        terminal.print_line(report.shares_line)
    if report.call_line:
        terminal.print_line(report.call_line)


def print_notes(report: Any, said: Collection[str] = ()) -> None:
    """Print the notes of a report, and its warnings on stderr.

    said: lines that were already printed; they are not printed again.
    """
    for note in report.notes:
        if note not in said:
            (terminal.notice if note in report.warnings else terminal.print_line)(note)


def evaluate_hint(model: object) -> str:
    """Return a message that advises measuring the accuracy of a changed network."""
    return f"measure the accuracy on labelled samples with `gossamer evaluate {model} DATA`"


def report_dict(report: Any) -> dict[str, Any]:
    """Return a plan's report as plain data."""
    return {"device": report.device, "batch": report.batch, "end_to_end_us": report.end_to_end_us,
            "end_to_end_cached": report.end_to_end_cached, "call_us": report.call_us,
            "shares": dict(report.shares),
            "accuracy": None if report.accuracy is None else asdict(report.accuracy),
            "notes": list(report.notes),
            "warnings": list(report.warnings), "plans": list(report.plans),
            "rows": list(report.rows)}
