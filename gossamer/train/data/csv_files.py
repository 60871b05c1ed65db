"""Labelled samples from csv files.

Each row is a sample, with its label in one cell. NumPy reads tables of numbers. Tables with empty
cells or texts need pandas, which the extra `tables` installs.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from gossamer.errors import InputError, cut, quoted
from gossamer.io.limits import opened_lines
from gossamer.model.metadata import Column
from gossamer.plan.candidate import counted
from gossamer.train.data.columns import (
    GREATEST,
    CellRules,
    encoded,
    is_gap,
    is_number,
    parsed,
)
from gossamer.train.data.dataset import Dataset, are_pixels, picture_shape

FIRST, LAST, NONE = "first", "last", "none"
"""Values of the option for the column of the labels; NONE means that there is no such column."""
_HEADINGS = ("label", "class", "target", "y", "digit", "species")
"""Usual headings of the label column. If the label cell of the first line is one of these words,
the line is a heading, even if its other cells are numbers."""
_LISTED = 20
"""Maximum number of column names in a message."""
_LONGEST_LABEL, _GREATEST_LABEL = 63, 2.0**53
"""Maximum number of characters in a label, and the largest integer label: float64 represents all
integers up to this one."""
_NO_LABEL = ("", "nan")
"""Texts of label cells, in lower case, that stand for a missing label."""
_NUMBERS = (np.int32, np.float32)
"""Dtypes that are tried for the cells, in this order: NumPy reads integers several times as fast as
floats."""


def read(path: Path, label: str, limit: int | None, numbers: bool = False,
         rules: CellRules | None = None) -> Dataset:
    """Return the samples of a csv file.

    Cells are separated by commas, semicolons or tabs. The first line is a heading if it has words
    instead of numbers. Labels that are whole numbers become int64.

    label: the column of the labels: "first", "last", a number from 1, or a name in the heading.
    limit: maximum number of samples to read; None for all.
    numbers: whether the labels are regression targets, which become float64.
    rules: rules for cells that are not numbers; None allows no such cells.
    Raises InputError with line and column of the first wrong cell.
    """
    x, texts, layout, columns = _table(path, label, limit, rules or CellRules())
    if np.strings.str_len(texts).max() > _LONGEST_LABEL:
        raise InputError(f"{path}: has labels of more than {_LONGEST_LABEL} characters")
    are_numbers = all(column.values is None for column in columns) and not np.isnan(x).any()
    shape = picture_shape(x.shape[1]) if are_numbers else None
    pixels = are_pixels(x, shape)
    y = _targets(path, layout, texts) if numbers else _labels(path, layout, texts)
    return Dataset(x, y, shape, pixels, str(path), () if pixels else columns)


def read_inputs(path: Path, numbers: int, label: str,
                known: tuple[Column, ...] = ()) -> tuple[np.ndarray, list[str] | None]:
    """Return a network's inputs from a file, and the rows' labels.

    The inputs are (rows, numbers) float32. If the file has one column more than the network needs,
    one column has the labels, which are returned as texts. If not, the labels are None.

    numbers: number of inputs of the network.
    label: the column of the labels if there is one, as for read().
    known: the columns that the network was trained on; empty if the columns are unknown.
    Raises InputError with line and column of the first wrong cell, or if the number of columns is
    wrong.
    """
    expected = len(known) or numbers
    width = _layout(path, NONE).width
    if width not in (expected, expected + 1):
        cells = "columns" if known else "numbers"
        raise InputError(f"{path}: has {counted(width, 'column')}, expected {expected} {cells} per "
                         "row, with or without a label")
    has_labels = width > expected
    if not has_labels and label not in (FIRST, LAST):
        raise InputError(f"{path}: label column {quoted(label)}: the file has only the columns "
                         "that the network needs, and no labels")
    x, texts, _, columns = _table(path, label if has_labels else NONE, None,
                                  CellRules(known=known))
    data = Dataset(x, np.zeros(len(x), np.int64), None, False, str(path), columns)
    return encoded(data, known).x, texts.tolist() if has_labels else None


@dataclass(frozen=True)
class CsvLayout:
    """The layout of a csv file.

    delimiter: the character between two cells.
    width: number of cells in a row.
    label: index of the label's cell; None if samples have no label.
    headings: the cells of the heading; empty if there is no heading.
    start: number of lines before the first sample.
    """

    delimiter: str
    width: int
    label: int | None
    headings: tuple[str, ...] = ()
    start: int = 0

    @staticmethod
    def of(path: Path, line: int, cells: Sequence[str], delimiter: str, label: str) -> CsvLayout:
        """Return the layout of a file.

        line: number of the last line of the file's first row; a quoted cell may span lines.
        cells: the cells of the first row.
        label: the column of the labels, as for read(); NONE for samples without labels.
        Raises InputError if there is no such column.
        """
        names, width = tuple(cell.strip() for cell in cells), len(cells)
        are_names = not any(map(is_number, names))
        index: int | None
        if label == NONE:
            index = None
        elif label in (FIRST, LAST):
            index = 0 if label == FIRST else width - 1
        elif label.isascii() and label.isdigit():
            index = int(label) - 1
            if not 0 <= index < width:
                raise InputError(f"{path}: label column {label}: expected a number from 1 to the "
                                 f"{width} columns, the name of a column, first or last")
        elif names.count(label) == 1:
            return CsvLayout(delimiter, width, names.index(label), names, line)
        else:
            raise InputError(f"{path}: label column {quoted(label)}: " + (
                "several columns have that name" if label in names else
                f"expected a name in the first line ({_listed(names)}), a number from 1 to "
                f"{width}, first or last" if are_names else
                f"the first line is no heading; expected a number from 1 to {width}, first "
                "or last"))
        others = [name for other, name in enumerate(names) if other != index]
        is_heading = are_names if index is None else not is_number(names[index]) and (
            names[index].lower() in _HEADINGS or not any(map(is_number, others)))
        return CsvLayout(delimiter, width, index, *((names, line) if is_heading else ()))

    @property
    def inputs(self) -> list[int]:
        """Indices of all cells except the label's."""
        return [index for index in range(self.width) if index != self.label]

    @property
    def names(self) -> tuple[str, ...]:
        """The headings of `inputs`; empty if there is no heading."""
        return tuple(self.headings[index] for index in self.inputs) if self.headings else ()

    @property
    def label_text(self) -> str:
        """Name of the label's column in messages."""
        assert self.label is not None
        if self.headings:
            return f"the column {quoted(self.headings[self.label])}"
        if self.label in (0, self.width - 1):
            return f"the {FIRST if self.label == 0 else LAST} column"
        return f"column {self.label + 1}"


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield, for each nonempty row, the number of its last line and its cells."""
    with opened_lines(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield reader.line_num, row
        except csv.Error as error:
            raise InputError(f"{path}: {error}") from None


def _layout(path: Path, label: str) -> CsvLayout:
    """Return the layout of a file. Raises InputError if the file has no sample."""
    with opened_lines(path) as file:
        first = next((line for line in file if not line.isspace()), None)
    if first is None:
        raise InputError(f"{path}: is empty, expected one sample per line")
    delimiter = max(",;\t", key=first.count)
    rows = _rows(path, delimiter)
    line, cells = next(rows, (1, [""]))
    if len(cells) < 2 and label != NONE:
        raise InputError(f"{path}: line 1 has one cell, expected a label and numbers separated by "
                         "commas")
    layout = CsvLayout.of(path, line, cells, delimiter, label)
    if layout.headings and (line := next(rows, (0, [""]))[0]) == 0:
        raise InputError(f"{path}: has a heading and no samples")
    return layout


def _table(path: Path, label: str, limit: int | None, rules: CellRules) -> tuple[
        np.ndarray, np.ndarray, CsvLayout, tuple[Column, ...]]:
    """Return the samples' numbers and labels, the layout, and the columns.

    The columns have the order of `rules.known`. In the array of numbers, an empty cell is NaN, and
    a text is given by its index in the texts of its column.
    """
    layout = _layout(path, label)
    columns, order = rules.arranged(path, layout.names, len(layout.inputs))
    inputs = [layout.inputs[index] for index in order]
    table = None if rules.needs_texts else _numbers(path, layout, limit)
    if table is not None:
        x, texts = table
        x = x if order == list(range(len(order))) else x[:, order]
    elif rules.takes_others:
        rows = []
        for _, row in islice(_rows(path, layout.delimiter), bool(layout.headings),
                             None if limit is None else limit + bool(layout.headings)):
            if len(row) != layout.width:
                raise _fault(path, layout, inputs, rules)
            rows.append(row)
        texts = np.array(["" if layout.label is None else row[layout.label].strip()
                          [:_LONGEST_LABEL + 1] for row in rows])
        cells = parsed(path, [[row[index] for index in inputs] for row in rows], columns, rules)
        if cells is None:
            raise _fault(path, layout, inputs, rules)
        x, columns = cells
    else:
        raise _fault(path, layout, inputs, rules)
    if layout.label is not None and np.isin(np.strings.lower(texts), _NO_LABEL).any():
        raise _fault(path, layout, inputs, rules)
    return x, texts, layout, columns


def _numbers(path: Path, layout: CsvLayout,
             limit: int | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of all samples, and their labels as texts.

    The numbers are in the order of the file's columns. Returns None if a cell is not a finite
    number.
    """
    before = layout.width if layout.label is None else layout.label
    after = layout.width - before - 1
    for number in _NUMBERS:
        fields = [("before", number, (before,)), ("label", f"U{_LONGEST_LABEL + 1}", ()),
                  ("after", number, (after,))]
        fields = [field for field, size in zip(fields, (before, after >= 0, after), strict=True)
                  if size > 0]
        with opened_lines(path) as file, warnings.catch_warnings():
            # NumPy before 2.3 reads 2.5 as the integer 2, with a warning
            warnings.filterwarnings("error", r"loadtxt\(\): Parsing an integer")
            lines = (line for line in islice(file, layout.start, None) if not line.isspace())
            try:
                table = np.loadtxt(lines, np.dtype(fields), comments=None,
                                   delimiter=layout.delimiter, quotechar='"', max_rows=limit,
                                   ndmin=1)
            except UnicodeDecodeError:
                raise
            except ValueError:
                continue
        x = np.concatenate([table[name] for name, _, shape in fields if shape], axis=1,
                           dtype=np.float32, casting="unsafe")
        if not np.isfinite(x).all():
            return None
        return x, (np.zeros(len(x), "U1") if layout.label is None
                   else np.strings.strip(table["label"]))
    return None


def _labels(path: Path, layout: CsvLayout, texts: np.ndarray) -> np.ndarray:
    """Return labels as int64 if all are whole numbers, else as texts."""
    distinct, indices = np.unique(texts, return_inverse=True)
    if not all(map(is_number, distinct)):
        return texts
    values = [float(text) for text in distinct]
    for text, value in zip(distinct, values, strict=True):
        if not value.is_integer() or abs(value) > _GREATEST_LABEL:
            other = ("if they are in another column, select it with --label"
                     if 0 != layout.label != layout.width - 1 else
                     f"are they in the {LAST if layout.label == 0 else FIRST} column?")
            raise InputError(f"{path}: {layout.label_text} has {cut(text)}, expected class labels; "
                             f"{other} (`train --task regression` predicts numbers)")
    return np.array(values).astype(np.int64)[indices]


def _targets(path: Path, layout: CsvLayout, texts: np.ndarray) -> np.ndarray:
    """Return the column of regression targets as float64."""
    for text in np.unique(texts):
        if not is_number(text) or not abs(float(text)) <= GREATEST:
            raise InputError(f"{path}: {layout.label_text} has {str(text)!r}, expected a "
                             "number as the regression target; select the column of the targets "
                             "with --label")
    return texts.astype(np.float64)


def _fault(path: Path, layout: CsvLayout, inputs: Sequence[int], rules: CellRules) -> InputError:
    """Return the error for the first wrong cell of a file.

    inputs: index of each input's cell in a row.
    """
    return InputError(f"{path}: " + next(_faults(path, layout, inputs, rules),
                                         "cannot be read as a table"))


def _faults(path: Path, layout: CsvLayout, inputs: Sequence[int],
            rules: CellRules) -> Iterator[str]:
    """Yield the faults in a file, with line and column."""
    for line, row in islice(_rows(path, layout.delimiter), bool(layout.headings), None):
        if len(row) != layout.width:
            yield f"line {line} has {len(row)} cells, but the lines before it have {layout.width}"
            return
        if layout.label is not None and (text := row[layout.label].strip()).lower() in _NO_LABEL:
            yield f"line {line}: the label is {text or 'empty'}"
        for number, index in enumerate(inputs):
            if fault := rules.fault(row[index], number):
                column = quoted(layout.headings[index]) if layout.headings else index + 1
                may_be_label = (layout.label == 0 and index == layout.width - 1
                                and is_number(row[0]) and not is_number(row[index])
                                and not is_gap(row[index]))
                yield f"line {line}, column {column} is " + (
                    f"{quoted(row[index])}, expected a finite number; are labels in the last "
                    "column?" if may_be_label else fault)


def _listed(names: Sequence[str]) -> str:
    return cut(", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else ""), 200)
