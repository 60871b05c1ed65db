"""Labelled samples in csv files: each row is a sample, its first or last cell the label."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError, cut, quoted
from gossamer.io.packed import opened_lines
from gossamer.train.data.dataset import Dataset, are_pixels, picture_shape

_LONGEST_LABEL, _GREATEST_LABEL = 63, 2.0**53
_GREATEST = float(np.finfo(np.float32).max)
_HEADINGS = ("label", "class", "target", "y", "digit", "species")
"""Words by which the heading of the label column is known where other headings are numbers."""
_NO_LABEL = ("", "nan")
_NUMBERS = (np.int32, np.float32)
"""Types that cells are read as, in turn: a file of whole numbers is read several times as fast."""


def read(path: Path, label: str, limit: int | None, numbers: bool = False) -> Dataset:
    """Returns the samples of a csv file, whose cells are separated by commas, semicolons or tabs.
    A first line with words where numbers should be is a heading. Labels that are whole numbers
    become int64.

    label: "first" or "last", the column of the labels.
    limit: largest number of samples that are read; None for all.
    numbers: whether that column holds numbers to learn, which become float64.
    Raises InputError with line and column of the first wrong cell.
    """
    table, delimiter = _table(path, label, limit)
    x = np.ascontiguousarray(table["x"], np.float32)
    texts = np.strings.strip(table["label"])
    if not np.isfinite(x).all() or np.isin(np.strings.lower(texts), _NO_LABEL).any():
        raise _first_fault(path, label, delimiter, "has cells that are empty or NaN")
    if np.strings.str_len(table["label"]).max() > _LONGEST_LABEL:
        raise InputError(f"{path}: has labels of more than {_LONGEST_LABEL} characters")
    shape = picture_shape(x.shape[1])
    y = _targets(path, label, texts) if numbers else _labels(path, label, texts)
    return Dataset(x, y, shape, are_pixels(x, shape), str(path))


def read_inputs(path: Path, numbers: int,
                label: str) -> tuple[np.ndarray, list[str] | None]:
    """Returns the inputs of a network from a csv file, float32 of shape (rows, numbers), and the
    text of the label of each; None where the file has as many columns as the network takes numbers.

    label: "first" or "last", the column of the labels in a file that has one column more.
    Raises InputError with line and column of the first wrong cell, and for other numbers of
    columns.
    """
    with opened_lines(path) as file:
        filled = (line for line in file if not line.isspace())
        columns = _first_sample(path, filled, label)[2]
    if columns not in (numbers, numbers + 1):
        raise InputError(f"{path}: has {columns} columns, expected {numbers} numbers a row, or a "
                         "label and these")
    table, delimiter = _table(path, label, None)
    x, labels = np.ascontiguousarray(table["x"], np.float32), np.strings.strip(table["label"])
    if not np.isfinite(x).all():
        raise _first_fault(path, label, delimiter, "has cells that are empty or NaN")
    if columns > numbers:
        return x, labels.tolist()
    for row, text in enumerate(labels.tolist(), 1):
        if not _is_number(text) or not abs(float(text)) <= _GREATEST:
            raise InputError(f"{path}: row {row}, column {1 if label == 'first' else columns} is "
                             f"{quoted(text)}, expected a finite number")
    column = labels.astype(np.float32)[:, None]
    return np.concatenate([column, x] if label == "first" else [x, column], axis=1), None


def _table(path: Path, label: str, limit: int | None) -> tuple[np.ndarray, str]:
    """Returns an array of samples, each with its label as text and its numbers as x; and the
    delimiter of cells."""
    for number in _NUMBERS:
        with opened_lines(path) as file, warnings.catch_warnings():
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
    """Returns the lines of the first sample, after any heading; the delimiter; and the number of
    columns."""
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
    lines, sample_cells = _row(path, filled, delimiter)
    if not lines:
        raise InputError(f"{path}: has a heading and no samples")
    if len(sample_cells) != len(cells):
        raise _first_fault(path, label, delimiter, "its first sample has not the cells of its "
                                                   "heading")
    return lines, delimiter, len(sample_cells)


def _is_heading(cells: list[str], label: str) -> bool:
    """Says whether the first line is a heading."""
    label_cell, numbers = _split_row(cells, label)
    return not _is_number(label_cell) and (label_cell.strip().lower() in _HEADINGS
                                           or not any(map(_is_number, numbers)))


def _labels(path: Path, label: str, texts: np.ndarray) -> np.ndarray:
    """Returns the labels as int64 where all of them are whole numbers, otherwise as texts."""
    distinct, places = np.unique(texts, return_inverse=True)
    if not all(map(_is_number, distinct)):
        return texts
    values = [float(text) for text in distinct]
    for text, value in zip(distinct, values, strict=True):
        if not value.is_integer() or abs(value) > _GREATEST_LABEL:
            other_column = "last" if label == "first" else "first"
            raise InputError(f"{path}: the {label} column has {cut(text)}, expected labels of "
                             f"classes; are they in the {other_column} column? `train --task "
                             "regression` learns numbers")
    return np.array(values).astype(np.int64)[places]


def _targets(path: Path, label: str, texts: np.ndarray) -> np.ndarray:
    """Returns the column of numbers to learn as float64."""
    for text in np.unique(texts):
        if not _is_number(text) or not abs(float(text)) <= _GREATEST:
            raise InputError(f"{path}: the {label} column has {str(text)!r}, expected a number to "
                             "learn; --label says which column they are in")
    return texts.astype(np.float64)


def _first_fault(path: Path, label: str, delimiter: str, otherwise: str) -> InputError:
    """Returns the error for a file that cannot be read, which is searched cell by cell for the
    first wrong one; without any the error says `otherwise`."""
    with opened_lines(path) as file:
        try:
            fault = next(_faults(csv.reader(file, delimiter=delimiter), label), otherwise)
        except csv.Error as error:
            fault = str(error)
    return InputError(f"{path}: {fault}")


def _faults(reader: Any, label: str) -> Iterator[str]:
    """Yields what is wrong with the rows of a csv reader, with line and column."""
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
        label_cell, numbers = _split_row(row, label)
        if label_cell.strip().lower() in _NO_LABEL:
            yield f"line {reader.line_num}: the label is {label_cell.strip() or 'empty'}"
        for column, cell in enumerate(numbers, 2 if label == "first" else 1):
            if not _is_number(cell) or not abs(float(cell)) <= _GREATEST:
                may_be_label = (label == "first" and column == width and cell.strip()
                                and not _is_number(cell) and _is_number(label_cell))
                hint = "; are labels in the last column?" if may_be_label else ""
                yield (f"line {reader.line_num}, column {column} is {quoted(cell)}, expected a "
                       f"finite number{hint}")


def _row(path: Path, lines: Iterator[str], delimiter: str) -> tuple[list[str], list[str]]:
    """Returns the lines of the next row, several where a quoted cell has line breaks, and its
    cells."""
    row_lines: list[str] = []

    def recorded_lines() -> Iterator[str]:
        for line in lines:
            row_lines.append(line)
            yield line

    try:
        return row_lines, next(csv.reader(recorded_lines(), delimiter=delimiter), [])
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None


def _split_row(row: list[str], label: str) -> tuple[str, list[str]]:
    """Returns the cell of the label, and those of the numbers."""
    return (row[0], row[1:]) if label == "first" else (row[-1], row[:-1])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
