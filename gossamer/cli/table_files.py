"""Tables of rows with the same columns, as files: .csv, .jsonl or .parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.io import output_files

SUFFIXES = (".csv", ".jsonl", ".parquet")


def check(option_text: str, path: Path, read: Iterable[str | Path]) -> None:
    """Raise InputError if no table can be written to a file of this name.

    option_text: the option and its value, for messages.
    read: files that the command reads and must not replace.
    """
    output_files.check_named(option_text, path, SUFFIXES)
    output_files.check_place(option_text, path, read)


def write(path: Path, option_text: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows.

    A value that is neither a number nor text is written as text. In a .parquet file, each column
    has one type, so all values of a column are written as text if any of them is.

    Raises InputError if the file cannot be written.
    """
    plain = [{name: _cell(value) for name, value in row.items()} for row in rows]
    with output_files.replacing(path, option_text) as file:
        if path.suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            texts = {name for row in plain for name, cell in row.items() if isinstance(cell, str)}
            parquet.write_table(pyarrow.Table.from_pylist([
                {name: str(cell) if name in texts and cell is not None else cell
                 for name, cell in row.items()} for row in plain]), file)
        elif path.suffix == ".jsonl":
            file.write("".join(f"{json.dumps(row)}\n" for row in plain).encode())
        else:
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, [*plain[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(plain)
            file.write(text.getvalue().encode())


def _cell(value: Any) -> Any:
    """Return a value as a number, text or None; NaN and infinity become None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return repr(value)
