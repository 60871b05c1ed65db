"""Finds the layout of a csv file: the delimiter, the column of the labels, and the columns'
names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gossamer.errors import InputError, cut, quoted

FIRST, LAST, NONE = "first", "last", "none"
_HEADINGS = ("label", "class", "target", "y", "digit", "species")
"""Usual names of a label's column. A first line with one of these names in the label's column is a
heading, even where the other cells of the line are numbers."""
_LISTED = 20
"""The most names of columns that a message lists."""


@dataclass(frozen=True)
class CsvLayout:
    """The layout of a csv file.

    delimiter: the character between two cells.
    width: number of cells of a sample.
    label: index of the label's cell; None where samples have no label.
    headings: the cells of the heading; empty where the file has none.
    """

    delimiter: str
    width: int
    label: int | None
    headings: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path, cells: Sequence[str], delimiter: str, label: str) -> CsvLayout:
        """Returns the layout of a file, given the cells of its first line.

        label: "first", "last", a number from 1, or a name in the heading; "none" for samples
        without labels.
        Raises InputError where there is no such column.
        """
        names = tuple(cell.strip() for cell in cells)
        if label == NONE:
            return CsvLayout(delimiter, len(cells), None,
                             () if any(map(is_number, names)) else names)
        if label in (FIRST, LAST):
            place = 0 if label == FIRST else len(cells) - 1
        elif label.isascii() and label.isdigit():
            place = int(label) - 1
            if not 0 <= place < len(cells):
                raise InputError(f"{path}: label column {label}: expected a number from 1 to the "
                                 f"{len(cells)} columns, the name of a column, first or last")
        elif names.count(label) == 1:
            return CsvLayout(delimiter, len(cells), names.index(label), names)
        else:
            raise InputError(f"{path}: label column {quoted(label)}: " + (
                "several columns have that name" if label in names else
                f"expected a name in the first line ({_listed(names)}), a number from 1 to "
                f"{len(cells)}, first or last" if not any(map(is_number, names)) else
                f"its first line names no columns; expected a number from 1 to {len(cells)}, first "
                "or last"))
        layout = CsvLayout(delimiter, len(cells), place)
        label_cell, numbers = layout.split(cells)
        is_heading = not is_number(label_cell) and (label_cell.strip().lower() in _HEADINGS
                                                    or not any(map(is_number, numbers)))
        return CsvLayout(delimiter, len(cells), place, names if is_heading else ())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of numbers; empty where there is no heading."""
        if self.label is None:
            return self.headings
        return (*self.headings[:self.label], *self.headings[self.label + 1:])

    @property
    def beside_label(self) -> tuple[int, int]:
        """The numbers of cells before and after the label's cell."""
        return (0, self.width) if self.label is None else (self.label, self.width - self.label - 1)

    @property
    def label_place(self) -> str:
        """The words with which messages name the label's column."""
        assert self.label is not None
        if self.headings:
            return f"the column {quoted(self.headings[self.label])}"
        if self.label in (0, self.width - 1):
            return f"the {FIRST if self.label == 0 else LAST} column"
        return f"column {self.label + 1}"

    def split(self, row: Sequence[str]) -> tuple[str, list[str]]:
        """Returns the cell of the label of a sample, and the cells of its numbers."""
        if self.label is None:
            return "", [*row]
        return row[self.label], [*row[:self.label], *row[self.label + 1:]]

    def place(self, line: int, index: int) -> str:
        """Returns the words with which messages name a cell that should hold a number. index: the
        index of the cell's column among the columns of numbers."""
        if self.headings:
            return f"line {line}, column {quoted(self.names[index])}"
        is_after = self.label is not None and index >= self.label
        return f"line {line}, column {index + 1 + is_after}"


def first_sample(path: Path, filled: Iterator[str], label: str) -> tuple[list[str], CsvLayout]:
    """Returns the lines of the first sample, after any heading, and the layout of the file.

    filled: the lines that are not empty.
    Raises InputError where there is no sample.
    """
    first = next(filled, None)
    if first is None:
        raise InputError(f"{path}: is empty, expected a line a sample")
    delimiter = max(",;\t", key=first.count)
    lines, cells = _row(path, chain([first], filled), delimiter)
    if len(cells) < 2 and label != NONE:
        raise InputError(f"{path}: line 1 has one cell, expected a label and numbers with commas "
                         "between")
    layout = CsvLayout.of(path, cells, delimiter, label)
    if not layout.headings:
        return lines, layout
    lines, sample_cells = _row(path, filled, delimiter)
    if not lines:
        raise InputError(f"{path}: has a heading and no samples")
    if len(sample_cells) != len(cells):
        raise OddSample
    return lines, layout


class OddSample(Exception):
    """Raised where a file's first sample has another number of cells than its heading."""


def is_number(text: str) -> bool:
    """Says whether a cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _row(path: Path, lines: Iterator[str], delimiter: str) -> tuple[list[str], list[str]]:
    """Returns the lines of the next row (several where a quoted cell has line breaks), and the
    cells of the row."""
    row_lines: list[str] = []

    def recorded_lines() -> Iterator[str]:
        for line in lines:
            row_lines.append(line)
            yield line

    try:
        return row_lines, next(csv.reader(recorded_lines(), delimiter=delimiter), [])
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None


def _listed(names: Sequence[str]) -> str:
    return cut(", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else ""), 200)
