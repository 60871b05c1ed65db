"""Labelled samples in csv files: a line a sample, its label in the first or the last cell."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError
from gossamer.train.data.dataset import Dataset, are_pixels, picture_shape
from gossamer.train.data.gzip_files import opened_text

_LONGEST_LABEL, _GREATEST_LABEL = 63, 2.0**53
_GREATEST = float(np.finfo(np.float32).max)
_HEADINGS = ("label", "class", "target", "y", "digit", "species")
"""Words that stand over labels where the other headings are numbers."""
_NO_LABEL = ("", "nan")
_NUMBERS = (np.int32, np.float32)
"""What cells are read as: whole numbers several times as fast, where there are no others."""


def read(path: Path, label: str, limit: int | None) -> Dataset:
    """A csv file, comma, semicolon or tab between cells; a heading is known by its words where
    numbers should stand. `limit`: the most samples. Labels that are whole numbers become int64.

    Raises InputError with line and column of the first cell that is wrong.
    """
    table, delimiter = _table(path, label, limit)
    x = np.ascontiguousarray(table["x"], np.float32)
    texts = np.strings.strip(table["label"])
    if not np.isfinite(x).all() or np.isin(np.strings.lower(texts), _NO_LABEL).any():
        raise _first_fault(path, label, delimiter, "has cells that are empty or NaN")
    if np.strings.str_len(table["label"]).max() > _LONGEST_LABEL:
        raise InputError(f"{path}: has labels of more than {_LONGEST_LABEL} characters")
    shape = picture_shape(x.shape[1])
    return Dataset(x, _labels(path, label, texts), shape, are_pixels(x, shape), str(path))


def _table(path: Path, label: str, limit: int | None) -> tuple[np.ndarray, str]:
    """A row a sample, its label as text and x its numbers; and what is between cells."""
    for number in _NUMBERS:
        with opened_text(path) as file, warnings.catch_warnings():
            # NumPy before 2.3 warns where it takes 2 for 2.5
            warnings.filterwarnings("error", r"loadtxt\(\): Parsing an integer")
            filled = (line for line in file if not line.isspace())
            lines, delimiter, columns = _first_sample(path, filled, label)
            cell = ("label", f"U{_LONGEST_LABEL + 1}")
            numbers = ("x", number, (columns - 1,))
            fields = [cell, numbers] if label == "first" else [numbers, cell]
            try:
                return np.loadtxt(chain(lines, filled), np.dtype(fields), comments=None,
                                  delimiter=delimiter, quotechar='"', max_rows=limit,
                                  ndmin=1), delimiter
            except UnicodeDecodeError:
                raise
            except ValueError as error:
                fault = str(error)
    raise _first_fault(path, label, delimiter, fault)


def _first_sample(path: Path, filled: Iterator[str], label: str) -> tuple[list[str], str, int]:
    """The lines of the first sample, behind a heading; what is between cells; and how many."""
    first = next(filled, None)
    if first is None:
        raise InputError(f"{path}: is empty, expected a line a sample")
    delimiter = max(",;\t", key=first.count)
    lines, cells = _row(path, chain([first], filled), delimiter)
    if len(cells) < 2:
        raise InputError(f"{path}: line 1 has one cell, expected a label and numbers with commas "
                         "between")
    if not _is_heading(cells, label):
        return lines, delimiter, len(cells)
    lines, under = _row(path, filled, delimiter)
    if not lines:
        raise InputError(f"{path}: has a heading and no samples")
    if len(under) != len(cells):
        raise _first_fault(path, label, delimiter, "its first sample has not the cells of its "
                                                   "heading")
    return lines, delimiter, len(under)


def _is_heading(cells: list[str], label: str) -> bool:
    answer, numbers = _parted(cells, label)
    return not _is_number(answer) and (answer.strip().lower() in _HEADINGS
                                       or not any(map(_is_number, numbers)))


def _labels(path: Path, label: str, texts: np.ndarray) -> np.ndarray:
    """int64 where all are whole numbers, else the texts."""
    distinct, places = np.unique(texts, return_inverse=True)
    if not all(map(_is_number, distinct)):
        return texts
    values = [float(text) for text in distinct]
    for text, value in zip(distinct, values, strict=True):
        if not value.is_integer() or abs(value) > _GREATEST_LABEL:
            other = "last" if label == "first" else "first"
            raise InputError(f"{path}: the {label} column has {text}, expected labels of classes; "
                             f"are they in the {other} column?")
    return np.array(values).astype(np.int64)[places]


def _first_fault(path: Path, label: str, delimiter: str, otherwise: str) -> InputError:
    """What is wrong with a file that cannot be taken, found cell by cell."""
    with opened_text(path) as file:
        try:
            fault = next(_faults(csv.reader(file, delimiter=delimiter), label), otherwise)
        except csv.Error as error:
            fault = str(error)
    return InputError(f"{path}: {fault}")


def _faults(reader: Any, label: str) -> Iterator[str]:
    width = 0
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        if width and len(row) != width:
            yield f"line {reader.line_num} has {len(row)} cells, the lines before it have {width}"
        if not width and _is_heading(row, label):
            width = len(row)
            continue
        width = len(row)
        answer, numbers = _parted(row, label)
        if answer.strip().lower() in _NO_LABEL:
            yield f"line {reader.line_num}: the label is {answer.strip() or 'empty'}"
        for column, cell in enumerate(numbers, 2 if label == "first" else 1):
            if not _is_number(cell) or not abs(float(cell)) <= _GREATEST:
                last = (label == "first" and column == width and cell.strip()
                        and not _is_number(cell) and _is_number(answer))
                yield (f"line {reader.line_num}, column {column} is {cell!r}, expected a finite "
                       "number" + ("; are labels in the last column?" if last else ""))


def _row(path: Path, lines: Iterator[str], delimiter: str) -> tuple[list[str], list[str]]:
    """The lines that the next row takes, several where a quoted cell has line breaks; its cells."""
    taken: list[str] = []

    def noted() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    try:
        return taken, next(csv.reader(noted(), delimiter=delimiter), [])
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None


def _parted(row: list[str], label: str) -> tuple[str, list[str]]:
    """The cell of the label, and those of the numbers."""
    return (row[0], row[1:]) if label == "first" else (row[-1], row[:-1])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
