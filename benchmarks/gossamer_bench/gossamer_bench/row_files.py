"""Files of result rows: JSON lines, which two processes may append to, and CSV."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from gossamer.bench.rows import ResultRow
from gossamer.errors import InputError, quoted
from gossamer.io.output_files import atomically_replacing as replacing
from gossamer.model.metadata import is_number

KEYS = tuple(member.name for member in fields(ResultRow))
_OPTIONAL = {"notice", "tail"}
"""The fields that a line leaves out where they are empty."""
_TEXT, _TEXT_OR_NULL, _TEXTS = "a text", "a text or null", "texts by name"
_NUMBERS = "finite numbers of 0 or more by name"
_WHOLE, _TIME = "a whole number of 0 or more", "a finite number above 0"
_NUMBER, _NUMBER_OR_NULL = "a finite number of 0 or more", "a finite number of 0 or more, or null"
_EXPECTED = {**dict.fromkeys(KEYS, _TEXT), "batch": _WHOLE, "median_us": _TIME, "p25_us": _NUMBER,
             "p75_us": _NUMBER, "error": _NUMBER, "speed_of_light_us": _NUMBER_OR_NULL,
             "density": _NUMBER, "versions": _TEXTS, "commit": _TEXT_OR_NULL, "tail": _NUMBERS}
"""The type of each field of a row."""


def read_rows(path: Path) -> list[ResultRow]:
    """Reads the rows of a file, or of every .jsonl file below a folder. Raises InputError that
    names file and line where a line is no row."""
    if path.is_dir():
        return [row for file in sorted(path.rglob("*.jsonl")) for row in read_rows(file)]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as result rows: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(values, dict) or {*values, *_OPTIONAL} != set(KEYS):
            raise InputError(f"{path}: line {number} is no result row; expected the keys "
                             f"{', '.join(KEYS)}")
        for key, value in values.items():
            if not _is_valid(key, value):
                raise InputError(f"{path}: line {number}: {key} is {quoted(value)}, expected "
                                 f"{_EXPECTED[key]}")
        rows.append(ResultRow(**values))
    return rows


def _is_valid(key: str, value: Any) -> bool:
    """Says whether a field of a row has a value that gossamer writes."""
    expected = _EXPECTED[key]
    if expected == _TEXT:
        return isinstance(value, str)
    if expected == _TEXTS:
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    if expected == _NUMBERS:
        return isinstance(value, dict) and all(
            is_number(number) and number >= 0 for number in value.values())
    if expected == _TEXT_OR_NULL:
        return value is None or isinstance(value, str)
    if expected == _WHOLE:
        return type(value) is int and 0 <= value < 2**63
    if value is None:
        return expected == _NUMBER_OR_NULL
    return is_number(value) and (value > 0 if expected == _TIME else value >= 0)


def check_appendable(path: Path) -> None:
    """Raises InputError when append_rows could not write to the file; called before measurements
    begin."""
    check_writable("-o", path, ".jsonl")
    if path.exists():
        read_rows(path)


def check_writable(option: str, path: Path, suffix: str) -> None:
    """Raises InputError, which names the option, when no file can be made at this path."""
    if path.suffix != suffix:
        raise InputError(f"{option} {path}: expected a name that ends in {suffix}")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder")
    folder = next(p for p in (path.parent, *path.parent.parents) if p.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: {folder} cannot be written to")


def write_output(option: str, path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all, and makes its folder where the folder is absent. Raises
    InputError, which names the option, when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None


def csv_bytes(rows: Sequence[ResultRow]) -> bytes:
    """Returns the rows as CSV under a line of headings. The columns are the keys of a row, and the
    share of the speed of light. The values of `versions` and `tail` are JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, "share_of_light"])
    for row in rows:
        values = {**_plain(row), "versions": json.dumps(row.versions),
                  "tail": json.dumps(row.tail) if row.tail else ""}
        share = row.share_of_light
        writer.writerow([*(values[key] for key in KEYS), "" if share is None else f"{share:.6g}"])
    return text.getvalue().encode()


def append_rows(path: Path, rows: Sequence[ResultRow]) -> None:
    """Adds the rows to a file, either all rows or none. Makes the file and its folder where they
    are absent.
    Two processes may append to one file. Raises InputError when the file cannot be written."""
    lines = "".join(json.dumps(_without_empty(row), allow_nan=False) + "\n"
                    for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            if before and not before.endswith("\n"):
                before += "\n"
            replace_text(path, before + lines)
    except OSError as error:
        raise InputError(f"-o {path}: cannot be written: {error.strerror}") from None


def replace_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all. Raises OSError."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


def _plain(row: ResultRow) -> dict[str, Any]:
    """Returns the row's fields, with floats rounded to six digits."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value
            for key, value in asdict(replace(row, tail={
                name: float(f"{number:.6g}") for name, number in row.tail.items()})).items()}


def _without_empty(row: ResultRow) -> dict[str, Any]:
    """Returns the row's fields as a line of a file has them: without the optional fields that are
    empty."""
    return {key: value for key, value in _plain(row).items() if key not in _OPTIONAL or value}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on the folder."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one process at a time may append
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
