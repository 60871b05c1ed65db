"""Prints tables and JSON on stdout and notices on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from gossamer.errors import one_line

_PIPE_WIDTH = 500
"""Width of the output, in characters, where it goes to a pipe."""
_GAP = 2
"""Characters between columns."""
_LEAST_WIDTH = 6
"""Least width, in characters, of a column that is cut."""
_LEAST_SPARE = 12
"""Least width, in characters, of a cut column that could be left out instead."""


_said: set[str] = set()
"""The notices and warnings that were printed since forget_notices()."""


def notice(message: object, kind: str = "notice") -> None:
    """Print one line on stderr. A notice or warning is printed once, an error each time."""
    line = one_line(f"{kind}: {' '.join(str(message).split())}")
    if line not in _said:
        # where both go to one file, the line must not come within a table
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        print(line, file=sys.stderr)
    if kind != "error":
        _said.add(line)


def forget_notices() -> None:
    """Lets notices that were printed be printed again, as each verb does when it begins."""
    _said.clear()


def print_line(text: str) -> None:
    """Print one line on stdout. Names in it may come from strangers, so that characters which
    control a terminal or the direction of a text are written as their codes."""
    print(one_line(text))


def print_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON lacks (NaN, infinity) become null."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]],
                spare: Sequence[str] = (), below: str = "") -> None:
    """Print a table. `columns` has the heading of each column by the column's key, and `rows` has
    the cells of each row by the same keys. A column in which every cell is a number is
    right-aligned.

    Where a terminal is too narrow, the column `below` is left out of the table, and its texts are
    printed below the table. A line there has the first cell of a row and the row's text. Where the
    table is still too wide, cells of spare columns are cut. Where cuts are not enough, spare
    columns are left out, in their order, and named below the table. Last, cells of other columns
    are cut."""
    lines = [{key: one_line(_cell(row.get(key))) for key in columns} for row in rows]
    # a pipe has no width: lines must not be cut to the 80 columns that rich would assume
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    cells = {key: [line[key] for line in lines if line[key]] for key in columns}
    full = {key: max(map(cell_len, [heading, *cells[key]])) for key, heading in columns.items()}
    moved = below if sum(full.values()) + _GAP * (len(full) - 1) > console.width else ""
    full.pop(moved, None)
    may_cut = [key for key in columns if not _numeric(cells[key])]
    widths = _widths(full, may_cut, [key for key in spare if key in columns], console.width)
    right = {key for key in widths if _numeric(cells[key])}

    def joined(texts: Mapping[str, str]) -> str:
        return (" " * _GAP).join(_fitted(texts[key], width, key in right)
                         for key, width in widths.items()).rstrip()

    console.print(Text(joined(columns), style="bold"), soft_wrap=True)
    for line in lines:
        # rich would take half a millisecond a row, and there may be thousands of rows
        print(joined(line))
    first = next(iter(columns))
    for line in lines:
        if moved and line[moved]:
            console.print(Text(f"{line[first]}: {line[moved]}"))
    if left_out := [heading for key, heading in columns.items() if key not in {*widths, moved}]:
        print(f"(left out in a narrow terminal: {', '.join(left_out)}; a pipe gets all, "
              "such as | less -S)")


def _fitted(text: str, width: int, right: bool) -> str:
    """Return a text that is padded or cut to this width."""
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1)}\N{HORIZONTAL ELLIPSIS}"
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _widths(full_widths: Mapping[str, int], may_cut: Collection[str], spare: Sequence[str],
            available: int) -> dict[str, int]:
    """Return the widths of the columns that are shown, which have two characters between them.

    The widest column that may be cut is cut first: among the spare columns, or among all columns
    where no spare column is left. (rich would cut all columns by the same number of characters.)
    """
    widths, spare_left = dict(full_widths), [key for key in spare if full_widths.get(key)]
    while (excess := sum(widths.values()) + _GAP * (len(widths) - 1) - available) > 0:
        least = _LEAST_SPARE if spare_left else _LEAST_WIDTH
        cuttable = [key for key in spare_left or widths if key in may_cut and widths[key] > least]
        if excess <= sum(widths[key] - least for key in cuttable):
            for _ in range(excess):
                widths[max(cuttable, key=widths.__getitem__)] -= 1
        elif spare_left:
            del widths[spare_left.pop(0)]
        else:
            widths.update(dict.fromkeys(cuttable, least))
            break
    return widths


def _numeric(cells: Sequence[str]) -> bool:
    return all(cell.lstrip("<>").rstrip("%TGMkB imsu").replace(".", "", 1).isdigit()
               for cell in cells)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, tuple | list):
        return "x".join(map(str, value))
    return str(value)


def plain(value: Any) -> Any:
    """Return the value in types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
