"""Tables and JSON on stdout, and notices on stderr."""

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
"""Width of output to a pipe. All widths here are in characters."""
_GAP = 2
"""Width between columns."""
_LEAST_WIDTH = 6
"""Minimum width of a column that is cut."""
_LEAST_SPARE = 12
"""Minimum width of an optional column that is cut; a narrower one is hidden."""


_printed: set[str] = set()
"""The notices and warnings printed since the last call of forget_notices()."""


def notice(message: object, kind: str = "notice") -> None:
    """Print one line on stderr.

    A notice or warning that is repeated is printed only once. An error is printed every time.

    kind: the word before the message: "notice", "warning" or "error".
    """
    line = one_line(f"{kind}: {' '.join(str(message).split())}")
    if line not in _printed:
        # flush stdout: if stdout and stderr go to one file, the line must not appear within a table
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        print(line, file=sys.stderr)
    if kind != "error":
        _printed.add(line)


def forget_notices() -> None:
    """Allow printed notices to be printed again. Every verb calls this first."""
    _printed.clear()


def print_line(text: str) -> None:
    """Print one line on stdout, with control characters escaped.

    Names in the line may come from untrusted files, and must not control the terminal or the
    direction of text.
    """
    print(one_line(text))


def print_json(value: Any) -> None:
    """Print one JSON document, with null for NaN and infinity."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]],
                spare: Sequence[str] = (), below: str = "") -> None:
    """Print a table with right-aligned columns of numbers.

    If the table is wider than the terminal, these steps are taken in order until it fits:
    1. the column `below` is printed below the table;
    2. cells of optional columns are cut;
    3. optional columns are hidden, and named below the table;
    4. cells of other columns are cut.

    columns: the heading of each column, by its key.
    rows: the cells of each row, by the keys of the columns.
    spare: keys of the optional columns, in the order in which they are hidden.
    below: key of the column that may be printed below the table. Each of its cells is then printed
    on a line of its own, after the first cell of its row.
    """
    lines = [{key: one_line(_cell(row.get(key))) for key in columns} for row in rows]
    # a pipe has no width, and rich would cut lines to 80 characters
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    cells = {key: [line[key] for line in lines if line[key]] for key in columns}
    full = {key: max(map(cell_len, [heading, *cells[key]])) for key, heading in columns.items()}
    moved = below if sum(full.values()) + _GAP * (len(full) - 1) > console.width else ""
    full.pop(moved, None)
    may_cut = [key for key in columns if not _are_numbers(cells[key])]
    widths = _widths(full, may_cut, [key for key in spare if key in columns], console.width)
    right = {key for key in widths if _are_numbers(cells[key])}

    def joined(texts: Mapping[str, str]) -> str:
        return (" " * _GAP).join(_fitted(texts[key], width, key in right)
                         for key, width in widths.items()).rstrip()

    console.print(Text(joined(columns), style="bold"), soft_wrap=True)
    for line in lines:
        # tables may have thousands of rows, and rich needs 0.5 ms per row
        print(joined(line))
    first = next(iter(columns))
    for line in lines:
        if moved and line[moved]:
            console.print(Text(f"{line[first]}: {line[moved]}"))
    if left_out := [heading for key, heading in columns.items() if key not in {*widths, moved}]:
        print(f"(columns hidden because the terminal is narrow: {', '.join(left_out)}; pipe the "
              "output to less -S to see all columns)")


def _fitted(text: str, width: int, right: bool) -> str:
    """Return a text padded or cut to a width."""
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1)}\N{HORIZONTAL ELLIPSIS}"
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _widths(full_widths: Mapping[str, int], may_cut: Collection[str], spare: Sequence[str],
            available: int) -> dict[str, int]:
    """Return the widths of the visible columns, by their keys.

    Optional columns are cut first. If that is not enough, they are hidden one by one, and only then
    are other columns cut. The widest of the columns in question is always cut first. (rich would
    cut all columns by the same width.)

    full_widths: the uncut widths of the columns.
    may_cut: keys of the columns that may be cut.
    available: the width of the terminal.
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


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether all cells are numbers, such as <0.1%, 3.5 M and 8.3 us."""
    return all(cell.lstrip("<> ").rstrip("%TGMkB imsu").replace(".", "", 1).isdigit()
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
    """Convert a value to JSON types; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
