"""A measured plan as one HTML page without other files: tables with bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gossamer.plan.report.report import Report, seconds_text

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 2em auto; max-width: 80em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; margin: 1em 0; }
th, td { text-align: left; padding: .2em .6em; border-bottom: 1px solid #8884; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 22%; }
.bar div { height: .6em; min-width: 1px; background: #2a7; margin: .15em 0; }
.bar div.other { background: #8888; }
details table { margin: .5em 0 1.5em; font-size: 92%; }
summary { cursor: pointer; }
tr.taken { font-weight: 600; }
"""


def page(facts: Mapping[str, Any], reports: Sequence[Report]) -> str:
    """Returns the page for the reports of a measured plan, one for each batch size. facts: a
    mapping with the keys model, device, description, effort, precision, measured and reused."""
    title = f"{facts['model']} on {facts['description']}"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        _paragraph(f"{facts['device']}, {facts['precision']}, effort {facts['effort']}: "
                   f"{facts['measured']} candidates measured, {facts['reused']} from the cache"),
        *(_section(report) for report in reports), "</html>", ""])


def by_time(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a row's candidates, the fastest first and those without a time last."""
    return sorted(row.get("candidates", []),
                  key=lambda candidate: (candidate["median_us"] is None,
                                         candidate["median_us"] or 0.0))


def with_precision(row: Mapping[str, Any]) -> str:
    """Returns the algorithm's name, with its precision where that is not float32."""
    return row["algorithm"] + ("" if row["precision"] == "fp32" else f" {row['precision']}")


def time_text(value: float | None) -> str:
    """Returns a time in microseconds as text; "" for None."""
    return "" if value is None else f"{value:.1f}"


def quartiles_text(times: Mapping[str, Any]) -> str:
    """Returns the quartiles of a row or a candidate as text; "" where there are none."""
    low, high = times.get("p25_us"), times.get("p75_us")
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"


def error_text(value: float | None) -> str:
    """Returns a normalised error as text; "" for None."""
    return "" if value is None else f"{value:.0e}"


def build_text(built: Mapping[str, Any]) -> str:
    """Returns the time that preparing a row or a candidate took, with "(cached)" where a kernel was
    in the disk cache."""
    if built["build_s"] is None:
        return ""
    return seconds_text(built["build_s"]) + (" (cached)" if built["build_cached"] else "")


def _section(report: Report) -> str:
    longest = max((_longest(row) for row in report.rows), default=0.0)
    time = "" if report.end_to_end_us is None else f": {report.end_to_end_us:.1f} us end to end"
    if report.end_to_end_cached:
        time += " (from the cache)"
    return "\n".join([
        f"<h2>batch {report.batch}{time}</h2>", *map(_paragraph, report.notes),
        *([_plans(report.plans)] if report.plans else []),
        *([_paragraph(report.shares_line)] if report.shares else []),
        *(_paragraph(line) for line in (report.zeros_line, report.build_line) if line),
        _paragraph("Green: the algorithm taken. Grey: the best dense one."),
        _table(["layer", "problem", "density", "algorithm", "config", "us", "quartiles",
                "dense us", "speed-up", "error", "build", "MiB", ""],
               [_layer(row, longest) for row in report.rows]),
        *(_candidates(row) for row in report.rows if row.get("candidates") or row["rejected"])])


def _plans(plans: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of the measured choice and the baseline plans."""
    longest = max(plan["median_us"] or 0.0 for plan in plans)
    lines = []
    for plan in plans:
        taken = plan["is_taken"]
        lines.append(f'<tr{" class=taken" if taken else ""}>' + "".join([
            _text(plan["plan"]), _number(time_text(plan["median_us"])),
            _number(quartiles_text(plan)), _text(plan["outcome"]), '<td class="bar">',
            _bar(plan["median_us"], longest, "" if taken else "other"), "</td></tr>"]))
    return _table(["plan", "us end to end", "quartiles", "outcome", ""], lines)


def _layer(row: Mapping[str, Any], longest: float) -> str:
    median, dense = row.get("median_us"), row.get("best_dense_us")
    density = "" if row["density"] is None else f"{row['density']:.0%}"
    speedup = row.get("speedup")
    return "<tr>" + "".join([
        _text(row["layer"]), _text(row["problem"]), _number(density), _text(with_precision(row)),
        _text(row["config"]), _number(time_text(median)), _number(quartiles_text(row)),
        _number(time_text(dense)), _number("" if speedup is None else f"{speedup:.2f}"),
        _number(error_text(row.get("error"))), _number(build_text(row)),
        _number(_mebibytes(row["device_bytes"])),
        '<td class="bar">', _bar(median, longest), _bar(dense, longest, "other"), "</td></tr>"])


def _candidates(row: Mapping[str, Any]) -> str:
    """Returns the table of a layer's candidates, with why each was or was not taken."""
    candidates = by_time(row)
    longest = max((candidate["median_us"] or 0.0 for candidate in candidates), default=0.0)
    lines = []
    for candidate in candidates:
        taken = candidate["reason"] == "taken"
        lines.append(f'<tr{" class=taken" if taken else ""}>' + "".join([
            _text(candidate["algorithm"]), _text(candidate["config"]),
            _text(" ".join(candidate["layouts"])), _text(candidate["precision"]),
            _number(time_text(candidate["median_us"])), _number(quartiles_text(candidate)),
            _number(time_text(candidate["cold_us"])), _number(error_text(candidate["error"])),
            _number(build_text(candidate)), _number(_mebibytes(candidate["device_bytes"])),
            _text(candidate["reason"]), '<td class="bar">',
            _bar(candidate["median_us"], longest, "" if taken else "other"), "</td></tr>"]))
    named = {candidate["algorithm"] for candidate in candidates}
    lines += ["<tr>" + _text(name) + '<td colspan="9"></td>' + _text(reason) + "<td></td></tr>"
              for name, reason in row["rejected"].items() if name not in named]
    return "\n".join([
        f"<details><summary>{escape(row['layer'])}: why {escape(row['algorithm'])}</summary>",
        _table(["algorithm", "config", "layouts", "precision", "us", "quartiles", "cold us",
                "error", "build", "MiB", "outcome", ""], lines), "</details>"])


def _mebibytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**20:.2f}"


def _longest(row: Mapping[str, Any]) -> float:
    return max(row.get("median_us") or 0.0, row.get("best_dense_us") or 0.0)


def _table(headings: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join(["<table>", "<tr>" + "".join(f"<th>{heading}</th>" for heading in headings)
                      + "</tr>", *rows, "</table>"])


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _text(value: str) -> str:
    return f"<td>{escape(value)}</td>"


def _number(value: str) -> str:
    return f'<td class="number">{escape(value)}</td>'


def _bar(value: float | None, longest: float, kind: str = "") -> str:
    if value is None or not longest:
        return ""
    style = f"width:{100 * value / longest:.1f}%"
    return f'<div{f" class={kind}" if kind else ""} style="{style}"></div>'
