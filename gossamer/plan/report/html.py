"""A report as HTML: a self-contained page, or a fragment for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.errors import one_line
from gossamer.io.text import bytes_text, duration_text, human, share_text
from gossamer.model.passes.dead_channels import less_work
from gossamer.plan.candidate import counted
from gossamer.plan.choose.outcomes import DENSE_ONLY
from gossamer.plan.report import cells
from gossamer.plan.report.report import Report

_NUMBERS = {"time", "spread", "error"}
"""Keys of numeric columns."""
_STYLE = Path(__file__).with_name("page.css")
"""The style sheet that is embedded in the page."""


def page(facts: Mapping[str, Any], reports: Sequence[Report]) -> str:
    """Return the HTML page of a measured plan.

    reports: one report for each batch size.
    facts: a mapping with the keys model, device, description, effort, precision, measured and
    reused (how many candidates were measured, and how many came from the cache), version (of
    gossamer), date, parameters (how many values the network's constants have) and model_bytes (size
    of the model's file in bytes; None without a file).
    """
    title = Path(facts["model"]).name
    size = "" if facts["model_bytes"] is None else f", file of {bytes_text(facts['model_bytes'])}"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>", f"<style>\n{_STYLE.read_text()}</style>",
        f"<h1>{escape(title)}</h1>",
        paragraph(f"{human(facts['parameters'])} parameters{size}; on {facts['device']} "
                  f"({facts['description']}), {facts['precision']}"),
        paragraph(f"gossamer {facts['version']}, {facts['date']}, effort {facts['effort']}: "
                  f"{counted(facts['measured'], 'candidate')} measured, {facts['reused']} from "
                  "the cache"),
        *(_section(report) for report in reports), "</html>", ""])


def _section(report: Report) -> str:
    longest = max((_longest(row) for row in report.rows), default=0.0)
    lines = [*report.facts, *(note for note in report.notes if note not in report.warnings)]
    return "\n".join([
        f"<h2>batch {report.batch}</h2>", *_headline(report),
        *(f'<p class="warning"><strong>Notice:</strong> {escape(warning)}</p>'
          for warning in report.warnings),
        *(["<h3>Plans, end to end</h3>", table(*cells.plan_table(report.plans))]
          if report.plans else []),
        *map(paragraph, lines),
        "<h3>Layers</h3>",
        '<p class="legend"><span class="taken"></span>the chosen algorithm '
        '<span class="other"></span>the best dense algorithm, if it is a different one</p>',
        paragraph("Each bar is a layer's time. Open a layer to see why its algorithm was chosen."),
        *(_layer(row, longest) for row in report.rows)])


def _headline(report: Report) -> list[str]:
    """Return the most important numbers in boxes."""
    tiles = headline(report)
    if not tiles:
        return []
    return ['<div class="headline">',
            *(f'<div><div class="large">{escape(number)}</div>{escape(meaning)}</div>'
              for number, meaning in tiles), "</div>"]


def _layer(row: Mapping[str, Any], longest: float) -> str:
    """Return a layer's bars, in an element that opens to show its candidates."""
    median, dense = row.get("median_us"), row.get("best_dense_us")
    density = "" if row["density"] is None else f", density {share_text(row['density'])}"
    if row.get("break_even") is not None:
        density += f", zeros win below {share_text(row['break_even'])}"
    bars = _bar(cells.with_precision(row), median, longest, True, density)
    if dense is not None and dense != median:
        speedup = row.get("speedup")
        bars += _bar("best dense", dense, longest, False,
                     "" if speedup is None else f", speed-up {speedup:.2f}")
    if row.get("speedup_reason"):
        bars += f"<div>{escape(row['speedup_reason'])}</div>"
    name = f'<span class="name">{escape(row["layer"])}</span> {escape(row["problem"])}'
    if not (row.get("candidates") or row["rejected"]):
        return f'<div class="row">{name}{bars}</div>'
    return "\n".join([f'<details class="row"><summary>{name}{bars}</summary>', _candidates(row),
                      "</details>"])


def _candidates(row: Mapping[str, Any]) -> str:
    """Return the table of a layer's candidates and other algorithms.

    The last column says why each of them was or was not taken.
    """
    headings, rows = cells.candidate_table(row)
    return table(headings, [*rows, *({"algorithm": name, "reason": reason}
                                     for name, reason in cells.rejected(row).items())])


def _longest(row: Mapping[str, Any]) -> float:
    return max(row.get("median_us") or 0.0, row.get("best_dense_us") or 0.0)


def _bar(name: str, value: float | None, longest: float, taken: bool, more: str = "") -> str:
    """Return a name, a time and its bar; "" if the time is not known.

    The bar's length is proportional to the time; the longest time has the full width.
    """
    if value is None:
        return ""
    width = 100 * value / longest if longest else 0.0
    return (f'<div class="bar{"" if taken else " other"}"><div class="value">'
            f'<span>{escape(name)}</span>: {duration_text(value)}{escape(more)}</div>'
            f'<div><div class="fill" style="width:{width:.1f}%"></div></div></div>')


def fragment(report: Report) -> str:
    """Return a report as part of another page, such as a notebook.

    The fragment has no style of its own.
    """
    tiles = "; ".join(f"<b>{escape(number)}</b> {escape(meaning)}"
                      for number, meaning in headline(report))
    return "\n".join([
        *([f"<p>{tiles}</p>"] if tiles else []),
        table(*report.table),
        *map(paragraph, report.lines)])


def escape(text: str) -> str:
    """Return text as HTML.

    Names may come from untrusted sources, so characters that control a terminal or the direction of
    text are written as their codes.
    """
    return html.escape(one_line(text))


def table(headings: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> str:
    """Return an HTML table.

    The row of the candidate or plan that was taken is highlighted.

    On a narrow screen, which has no room for the headings, each cell shows its column's name.

    headings: the headings by the keys of the columns.
    """
    styles = {key: ' class="number"' if key in _NUMBERS else
              ' class="whole"' if key == "algorithm" else "" for key in headings}
    lines = ["<table>", "<thead><tr>" + "".join(map("<th>{}</th>".format, headings.values()))
             + "</tr></thead>", "<tbody>"]
    lines += [f'<tr{" class=taken" if row.get("is_taken") else ""}>' + "".join(
        f'<td data-name="{heading}"{styles[key]}>{escape(row.get(key, ""))}</td>'
        for key, heading in headings.items()) + "</tr>" for row in rows]
    return "\n".join([*lines, "</tbody></table>"])


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def headline(report: Report) -> list[tuple[str, str]]:
    """Return the most important numbers with their meanings.

    The numbers are the time of the whole network, the factor by which the work shrinks if channels
    that have no effect are removed, and the speed-up over the best dense plan. Unknown numbers are
    left out.
    """
    tiles = []
    if report.end_to_end_us:
        cached = ", from the cache" if report.end_to_end_cached else ""
        rate = (f": {report.batch / report.end_to_end_us * 1e6:,.0f} a second" if report.batch
                else "")
        tiles = [(duration_text(report.end_to_end_us), f"end to end{cached}{rate}")]
    if (less := less_work(report.notes)) is not None:
        tiles.append((f"{less[1]} x", f"less work without {less[0]} channels that have no effect"))
    for plan in report.plans if report.end_to_end_us else ():
        us = plan["median_us"]
        if plan["plan"] != DENSE_ONLY:
            continue
        if not us or not report.compared_us:
            tiles.append(("not timed", f"the best dense plan ({plan['outcome']})"))
        elif plan["is_equal"]:
            tiles.append(("equal within noise", f"to the best dense plan ({duration_text(us)})"))
        else:
            tiles.append((f"{us / report.compared_us:.2f} x",
                          f"as fast as the best dense plan ({duration_text(us)})"))
    return tiles
