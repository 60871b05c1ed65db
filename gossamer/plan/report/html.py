"""A measured plan as one HTML page without other files: bars, and tables of all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.io.text import bytes_text, duration_text, human, share_text
from gossamer.plan.measurement import counted
from gossamer.plan.report.headline import headline
from gossamer.plan.report.notebook import cell, escape, paragraph, table
from gossamer.plan.report.page_style import STYLE
from gossamer.plan.report.report import Report, seconds_text
from gossamer.plan.report.zeros import break_even_text

WHY_SLOWER = "why below 1"
"""Heading of the column that says why a layer is slower than with the best dense algorithm."""
BREAK_EVEN = "zeros win below"
"""Heading of the column of densities below which skipping zeros is expected to be faster."""
def page(facts: Mapping[str, Any], reports: Sequence[Report]) -> str:
    """Returns the page for a measured plan. reports: one report for each batch size.

    facts: a mapping with the keys model, device, description, effort, precision, measured and
    reused (numbers of candidates), version (of gossamer), date, parameters (numbers in the
    network's constants) and model_bytes (of the model's file; None without a file).
    """
    title = Path(facts["model"]).name
    size = "" if facts["model_bytes"] is None else f", file of {bytes_text(facts['model_bytes'])}"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        paragraph(f"{human(facts['parameters'])} parameters{size}; on {facts['device']} "
                  f"({facts['description']}), {facts['precision']}"),
        paragraph(f"gossamer {facts['version']}, {facts['date']}, effort {facts['effort']}: "
                  f"{counted(facts['measured'], 'candidate')} measured, {facts['reused']} from "
                  "the cache"),
        *(_section(report) for report in reports), "</html>", ""])


def by_time(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a row's candidates, the fastest first and candidates without a time last."""
    return sorted(row.get("candidates", []),
                  key=lambda candidate: (candidate["median_us"] is None,
                                         candidate["median_us"] or 0.0))


def with_precision(row: Mapping[str, Any]) -> str:
    """Returns the algorithm's name, with its precision where the precision is not float32."""
    return row["algorithm"] + ("" if row["precision"] == "fp32" else f" {row['precision']}")


def time_text(value: float | None) -> str:
    """Returns a time in microseconds as text; "" for None."""
    return "" if value is None else f"{value:.1f}"


def quartiles_text(times: Mapping[str, Any]) -> str:
    """Returns the quartiles of a row or a candidate as text; "" where they are not known."""
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
    facts = [note for note in report.notes if note not in report.warnings]
    lines = [report.shares_line, report.call_line, *report.zeros_lines, report.forms_line,
             report.build_line, *facts]
    return "\n".join([
        f"<h2>batch {report.batch}</h2>", *_headline(report),
        *(f'<p class="warning"><strong>Notice:</strong> {escape(warning)}</p>'
          for warning in report.warnings),
        *([_plans(report.plans)] if report.plans else []),
        *(paragraph(line) for line in lines if line),
        "<h3>Layers</h3>",
        _legend("the algorithm taken", "the best dense one, where that is another"),
        paragraph("A bar is the time alone. A layer opens to why its algorithm was taken."),
        *(_layer(row, longest, _anchor(report, index)) for index, row in enumerate(report.rows)),
        "<h3>All numbers</h3>", _all_numbers(report)])


def _headline(report: Report) -> list[str]:
    """Returns the few numbers that matter most, each in a box of the page."""
    tiles = headline(report)
    if not tiles:
        return []
    return ['<div class="headline">',
            *(f'<div><div class="large">{escape(tile.number)}</div>{escape(tile.meaning)}</div>'
              for tile in tiles), "</div>"]


def _all_numbers(report: Report) -> str:
    """Returns the table with a row for each layer."""
    slower = any(row.get("speedup_reason") for row in report.rows)
    with_zeros = any(break_even_text(row) for row in report.rows)
    headings = ["layer", "problem", "density", "algorithm", "config", "us", "quartiles",
                "dense us", "speed-up", *([WHY_SLOWER] if slower else []),
                *([BREAK_EVEN] if with_zeros else []), "error", "build", "MiB"]
    return table(headings, [_numbers(row, _anchor(report, index), slower, with_zeros)
                             for index, row in enumerate(report.rows)])


def _anchor(report: Report, index: int) -> str:
    """Returns the HTML id of the element that says why a layer has its algorithm."""
    return f"batch-{report.batch}-layer-{index}"


def _legend(taken: str, other: str) -> str:
    return (f'<p class="legend"><span class="taken"></span>{escape(taken)} '
            f'<span class="other"></span>{escape(other)}</p>')


def _plans(plans: Sequence[Mapping[str, Any]]) -> str:
    """Returns the bars of the plans that were compared, with the outcome of each."""
    longest = max(plan["median_us"] or 0.0 for plan in plans)
    lines = ["<h3>Plans, end to end</h3>", _legend("the plan taken", "another plan")]
    for plan in plans:
        spread = quartiles_text(plan)
        bar = _bar(plan["plan"], plan["median_us"], longest, plan["is_taken"],
                   f" ({spread})" if spread else "")
        lines.append(f'<div class="row">{bar or _value(plan["plan"])}'
                     f"<div>{escape(plan['outcome'])}</div></div>")
    return "\n".join(lines)


def _layer(row: Mapping[str, Any], longest: float, anchor: str) -> str:
    """Returns a layer's bars, which can be opened to show why its algorithm was taken."""
    median, dense = row.get("median_us"), row.get("best_dense_us")
    density = f", density {_density(row)}" if _density(row) else ""
    bars = _bar(with_precision(row), median, longest, True, density)
    if dense is not None and dense != median:
        speedup = row.get("speedup")
        bars += _bar("best dense", dense, longest, False,
                     "" if speedup is None else f", speed-up {speedup:.2f}")
    if row.get("speedup_reason"):
        bars += f"<div>{escape(row['speedup_reason'])}</div>"
    name = f'<span class="name">{escape(row["layer"])}</span> {escape(row["problem"])}'
    if not (row.get("candidates") or row["rejected"]):
        return f'<div class="row" id="{anchor}">{name}{bars}</div>'
    return "\n".join([f'<details class="row"><summary>{name}{bars}</summary>',
                      f'<div id="{anchor}">', _candidates(row), "</div></details>"])


def _numbers(row: Mapping[str, Any], anchor: str, with_reason: bool,
             with_zeros: bool) -> list[str]:
    """Returns the cells of a layer's row in the table of all numbers. The layer's name is a link to
    the reasons for its algorithm."""
    median, dense = row.get("median_us"), row.get("best_dense_us")
    speedup = row.get("speedup")
    return [
        f'<td><a href="#{anchor}">{escape(row["layer"])}</a></td>', cell(row["problem"]),
        _number(_density(row)), _whole(with_precision(row)),
        cell(row["config"]), _number(time_text(median)), _number(quartiles_text(row)),
        _number(time_text(dense)), _number("" if speedup is None else f"{speedup:.2f}"),
        *([cell(row.get("speedup_reason") or "")] if with_reason else []),
        *([_number(break_even_text(row))] if with_zeros else []),
        _number(error_text(row.get("error"))), _number(build_text(row)),
        _number(_mebibytes(row["device_bytes"]))]


def _density(row: Mapping[str, Any]) -> str:
    """Returns the share of a layer's nonzero weights as text; "" where the layer has no weights."""
    return "" if row["density"] is None else share_text(row["density"])


def _candidates(row: Mapping[str, Any]) -> str:
    """Returns the bars and the table of a layer's candidates, with the reason why each candidate
    was taken or was not taken."""
    candidates = by_time(row)
    longest = max((candidate["median_us"] or 0.0 for candidate in candidates), default=0.0)
    bars, lines = [], []
    for candidate in candidates:
        taken = candidate["reason"] == "taken"
        name = f"{candidate['algorithm']} {candidate['config']}".strip()
        bars.append(_bar(name, candidate["median_us"], longest, taken) or _value(name))
        bars.append(f'<div class="why">{escape(candidate["reason"])}</div>')
        lines.append([
            _whole(candidate["algorithm"]), cell(candidate["config"]),
            _number(time_text(candidate["median_us"])), _number(quartiles_text(candidate)),
            _number(time_text(candidate["cold_us"])), _number(error_text(candidate["error"])),
            cell(" ".join(candidate["layouts"])), cell(candidate["precision"]),
            _number(build_text(candidate)), _number(_mebibytes(candidate["device_bytes"]))])
    named = {candidate["algorithm"] for candidate in candidates}
    bars += [f'<div>{escape(name)}</div><div class="why">{escape(reason)}</div>'
             for name, reason in row["rejected"].items() if name not in named]
    return "\n".join([*bars, table(
        ["algorithm", "config", "us", "quartiles", "cold us", "error", "layouts",
         "precision", "build", "MiB"], lines,
        next((index for index, candidate in enumerate(candidates)
              if candidate["reason"] == "taken"), -1))])


def _mebibytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**20:.2f}"


def _longest(row: Mapping[str, Any]) -> float:
    return max(row.get("median_us") or 0.0, row.get("best_dense_us") or 0.0)


def _whole(value: str) -> str:
    """Returns a cell whose words are not broken."""
    return f'<td class="whole">{escape(value)}</td>'


def _number(value: str) -> str:
    return f'<td class="number">{escape(value)}</td>'


def _value(name: str) -> str:
    """Returns the name of a plan or candidate that has no time."""
    return f'<div class="value">{escape(name)}</div>'


def _bar(name: str, value: float | None, longest: float, taken: bool, more: str = "") -> str:
    """Returns a name, a time and its bar, whose length is the time's share of the longest time; ""
    where the time is not known."""
    if value is None:
        return ""
    width = 100 * value / longest if longest else 0.0
    return (f'<div class="bar{"" if taken else " other"}"><div class="value">'
            f'<span>{escape(name)}</span>: {duration_text(value)}{escape(more)}</div>'
            f'<div><div class="fill" style="width:{width:.1f}%"></div></div></div>')
