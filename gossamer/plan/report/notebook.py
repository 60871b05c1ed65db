"""What notebooks show of a report, and the pieces of HTML of which its page consists too."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gossamer.errors import one_line
from gossamer.plan.report.headline import headline

if TYPE_CHECKING:
    from gossamer.plan.report.report import Report


def fragment(report: Report) -> str:
    """Returns a report as a part of another page, such as a notebook, which has its own style."""
    head, *rows = report.table
    tiles = "; ".join(f"<b>{escape(tile.number)}</b> {escape(tile.meaning)}"
                      for tile in headline(report))
    return "\n".join([
        *([f"<p>{tiles}</p>"] if tiles else []),
        table(head, [list(map(cell, row)) for row in rows]),
        *map(paragraph, report.lines)])


def escape(text: str) -> str:
    """Returns a text as HTML. Names may come from strangers, so that characters which control a
    terminal or the direction of a text are written as their codes."""
    return html.escape(one_line(text))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], taken: int = -1) -> str:
    """Returns a table.

    rows: the cells of each row as HTML. On a narrow screen, without room for the line of headings,
    each cell shows the name of its column.
    taken: number of the row that is highlighted; -1 for none.
    """
    lines = ["<table>", "<thead><tr>" + "".join(f"<th>{heading}</th>" for heading in headings)
             + "</tr></thead>", "<tbody>"]
    for index, cells in enumerate(rows):
        named = [cell.replace("<td", f'<td data-name="{heading}"', 1)
                 for heading, cell in zip(headings, cells, strict=True)]
        lines.append(f'<tr{" class=taken" if index == taken else ""}>{"".join(named)}</tr>')
    return "\n".join([*lines, "</tbody></table>"])


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def cell(value: str) -> str:
    return f"<td>{escape(value)}</td>"
