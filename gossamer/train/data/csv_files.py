"""Reads labelled samples from csv files: each row is a sample, and one cell of the row is the
label."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError, cut, quoted
from gossamer.io.packed import opened_lines
from gossamer.model.metadata import Column
from gossamer.plan.candidate import counted
from gossamer.train.data.columns import (
    GAP_HINT,
    TEXT_HINT,
    CellRules,
    encoded,
    is_gap,
    parsed,
)
from gossamer.train.data.csv_layout import (
    FIRST,
    LAST,
    NONE,
    CsvLayout,
    OddSample,
    first_sample,
    is_number,
)
from gossamer.train.data.dataset import Dataset, are_pixels, picture_shape

_LONGEST_LABEL, _GREATEST_LABEL = 63, 2.0**53
"""The most characters of a label, and the number above which float64 cannot represent every whole
number."""
_GREATEST = float(np.finfo(np.float32).max)
"""The largest number of float32."""
_NO_LABEL = ("", "nan")
"""Contents, in small letters, of a label's cell in which the label is missing."""
_NUMBERS = (np.int32, np.float32)
"""Dtypes that are tried for cells, in this order: whole numbers are read several times as fast as
floats."""


def read(path: Path, label: str, limit: int | None, numbers: bool = False,
         cells: CellRules | None = None) -> Dataset:
    """Returns the samples of a csv file, whose cells are separated by commas, semicolons or tabs.
    A first line with words where numbers should be is a heading. Labels that are whole numbers
    become int64.

    label: the column of the labels, "first", "last", a number from 1, or a name in the heading.
    limit: largest number of samples that are read; None for all.
    numbers: whether the labels are numbers to learn, which become float64.
    cells: which cells besides numbers are allowed; None allows numbers alone.
    Raises InputError with line and column of the first wrong cell.
    """
    x, texts, layout, columns = _table(path, label, limit, cells or CellRules())
    if np.isin(np.strings.lower(texts), _NO_LABEL).any():
        raise _first_fault(path, label, "has labels that are empty or NaN")
    if np.strings.str_len(texts).max() > _LONGEST_LABEL:
        raise InputError(f"{path}: has labels of more than {_LONGEST_LABEL} characters")
    are_numbers = all(column.values is None for column in columns) and not np.isnan(x).any()
    shape = picture_shape(x.shape[1]) if are_numbers else None
    pixels = are_pixels(x, shape)
    y = _targets(path, layout, texts) if numbers else _labels(path, layout, texts)
    return Dataset(x, y, shape, pixels, str(path), () if pixels else columns)


def read_inputs(path: Path, numbers: int, label: str,
                known: tuple[Column, ...] = ()) -> tuple[np.ndarray, list[str] | None]:
    """Returns the inputs of a network from a csv file, float32 of shape (rows, numbers), and the
    text of each row's label. The labels are None where the file has only the columns that the
    network takes.

    label: the column of the labels, as for read(), in a file that has one column more than the
    network takes.
    known: the columns that the network was trained on; empty where the network's file does not
    state them.
    Raises InputError with line and column of the first wrong cell, and for other numbers of
    columns.
    """
    expected = len(known) or numbers
    with opened_lines(path) as file:
        filled = (line for line in file if not line.isspace())
        width = _first_sample(path, filled, NONE)[1].width
    if width not in (expected, expected + 1):
        cells = "columns" if known else "numbers"
        raise InputError(f"{path}: has {counted(width, 'column')}, expected {expected} {cells} a "
                         "row, or a label and these")
    has_labels = width > expected
    if not has_labels and label not in (FIRST, LAST):
        raise InputError(f"{path}: label column {quoted(label)}: the file has no column more than "
                         "the network takes, so no labels")
    x, texts, _, columns = _table(path, label if has_labels else NONE, None,
                                  CellRules(known=known))
    data = Dataset(x, np.zeros(len(x), np.int64), None, False, str(path), columns)
    return encoded(data, known).x, texts.tolist() if has_labels else None


def _table(path: Path, label: str, limit: int | None, cells: CellRules) -> tuple[
        np.ndarray, np.ndarray, CsvLayout, tuple[Column, ...]]:
    """Returns the numbers of all samples in the order of the known columns, their labels as texts,
    the layout, and the columns."""
    table = None if cells.needs_texts else _numbers(path, label, limit, cells)
    if table is None:
        x, texts, layout, columns = _cells(path, label, limit, cells)
    else:
        x, texts, layout = table
        columns = cells.named(layout.names, x.shape[1])
    order = cells.order(path, columns, x.shape[1])
    if order != list(range(x.shape[1])):
        x, columns = x[:, order], tuple(columns[place] for place in order)
    return x, texts, layout, columns


def _numbers(path: Path, label: str, limit: int | None,
             cells: CellRules) -> tuple[np.ndarray, np.ndarray, CsvLayout] | None:
    """Returns the numbers of all samples, their labels as texts, and the layout. Where a cell is no
    finite number, returns None if the rules allow other cells, else raises InputError."""
    for number in _NUMBERS:
        with opened_lines(path) as file, warnings.catch_warnings():
            # NumPy before 2.3 reads 2.5 as the integer 2, with a warning
            warnings.filterwarnings("error", r"loadtxt\(\): Parsing an integer")
            filled = (line for line in file if not line.isspace())
            lines, layout = _first_sample(path, filled, label)
            before, after = layout.beside_label
            fields = [("before", number, (before,)), ("label", f"U{_LONGEST_LABEL + 1}", ()),
                      ("after", number, (after,))]
            if layout.label is None:
                del fields[1]
            fields = [field for field in fields if field[2] != (0,)]
            try:
                table = np.loadtxt(chain(lines, filled), np.dtype(fields), comments=None,
                                   delimiter=layout.delimiter, quotechar='"', max_rows=limit,
                                   ndmin=1)
            except UnicodeDecodeError:
                raise
            except ValueError as error:
                fault = str(error)
                continue
        parts = [table[name] for name, _, shape in fields if shape]
        x = np.ascontiguousarray(
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), np.float32)
        if np.isfinite(x).all():
            texts = (np.zeros(len(x), "U1") if layout.label is None
                     else np.strings.strip(table["label"]))
            return x, texts, layout
        fault = "has cells that are empty or NaN"
        break
    if cells.takes_others:
        return None
    raise _first_fault(path, label, fault)


def _cells(path: Path, label: str, limit: int | None, cells: CellRules) -> tuple[
        np.ndarray, np.ndarray, CsvLayout, tuple[Column, ...]]:
    """Returns the numbers of all samples, as parsed() gives them, their labels as texts, the
    layout, and the columns."""
    with opened_lines(path) as file:
        _, layout = _first_sample(path, (line for line in file if not line.isspace()), label)
    rows, texts, lines = [], [], []
    with opened_lines(path) as file:
        reader = csv.reader(file, delimiter=layout.delimiter)
        try:
            samples = (row for row in reader if any(cell.strip() for cell in row))
            for row in islice(samples, 1 if layout.headings else 0,
                              None if limit is None else limit + bool(layout.headings)):
                if len(row) != layout.width:
                    raise _first_fault(path, label, "has lines of unlike lengths")
                text, numbers = layout.split(row)
                rows.append(numbers)
                texts.append(text.strip()[:_LONGEST_LABEL + 1])
                lines.append(reader.line_num)
        except csv.Error as error:
            raise InputError(f"{path}: {error}") from None
    count = sum(layout.beside_label)
    columns = cells.named(layout.names, count) or (Column(""),) * count
    cells.order(path, columns, len(columns))  # reports an absent column before a wrong cell
    x, columns = parsed(rows, columns, cells, lambda row, column, fault: InputError(
        f"{path}: {layout.place(lines[row], column)} {fault}"))
    return x, np.array(texts), layout, columns


def _first_sample(path: Path, filled: Iterator[str], label: str) -> tuple[list[str], CsvLayout]:
    try:
        return first_sample(path, filled, label)
    except OddSample:
        raise _first_fault(path, label, "its first sample has not the cells of its heading"
                           ) from None


def _labels(path: Path, layout: CsvLayout, texts: np.ndarray) -> np.ndarray:
    """Returns the labels as int64 where all of them are whole numbers, otherwise as texts."""
    distinct, places = np.unique(texts, return_inverse=True)
    if not all(map(is_number, distinct)):
        return texts
    values = [float(text) for text in distinct]
    for text, value in zip(distinct, values, strict=True):
        if not value.is_integer() or abs(value) > _GREATEST_LABEL:
            other = ("are they in another column, which --label names?"
                     if all(layout.beside_label) else
                     f"are they in the {'last' if layout.label == 0 else FIRST} column?")
            raise InputError(f"{path}: {layout.label_place} has {cut(text)}, expected labels of "
                             f"classes; {other} `train --task regression` learns numbers")
    return np.array(values).astype(np.int64)[places]


def _targets(path: Path, layout: CsvLayout, texts: np.ndarray) -> np.ndarray:
    """Returns the column of numbers to learn as float64."""
    for text in np.unique(texts):
        if not is_number(text) or not abs(float(text)) <= _GREATEST:
            raise InputError(f"{path}: {layout.label_place} has {str(text)!r}, expected a number "
                             "to learn; --label says which column they are in")
    return texts.astype(np.float64)


def _first_fault(path: Path, label: str, otherwise: str) -> InputError:
    """Returns the error for a file that cannot be read. The file is searched for its first wrong
    cell; where no cell is wrong, the error says `otherwise`."""
    with opened_lines(path) as file:
        lines = (line for line in file)
        first = next((line for line in lines if not line.isspace()), "")
        delimiter = max(",;\t", key=first.count)
    with opened_lines(path) as file:
        try:
            fault = next(_faults(path, csv.reader(file, delimiter=delimiter), label, delimiter),
                         otherwise)
        except csv.Error as error:
            fault = str(error)
    return InputError(f"{path}: {fault}")


def _faults(path: Path, reader: Any, label: str, delimiter: str) -> Iterator[str]:
    """Yields the faults in the rows of a csv reader, each with its line and column."""
    layout: CsvLayout | None = None
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        line = reader.line_num
        if layout is None:
            layout = CsvLayout.of(path, row, delimiter, label)
            if layout.headings:
                continue
        if len(row) != layout.width:
            yield f"line {line} has {len(row)} cells, the lines before it have {layout.width}"
            return
        label_cell, numbers = layout.split(row)
        if layout.label is not None and label_cell.strip().lower() in _NO_LABEL:
            yield f"line {line}: the label is {label_cell.strip() or 'empty'}"
        for index, cell in enumerate(numbers):
            if is_gap(cell):
                yield (f"{layout.place(line, index)} is {quoted(cell) if cell.strip() else 'empty'}"
                       f", expected a finite number{GAP_HINT}")
            elif not is_number(cell):
                may_be_label = (layout.label == 0 and index == len(numbers) - 1
                                and is_number(label_cell))
                hint = "; are labels in the last column?" if may_be_label else TEXT_HINT
                yield (f"{layout.place(line, index)} is {quoted(cell)}, expected a finite number"
                       f"{hint}")
            elif not abs(float(cell)) <= _GREATEST:
                yield f"{layout.place(line, index)} is {quoted(cell)}, expected a finite number"
