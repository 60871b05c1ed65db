"""Encoding of table cells that are not numbers: missing values and texts.

Missing values, called gaps, are imputed, and texts become one-hot columns. The fill values and the
texts of each column are kept, so that later samples can be encoded in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.errors import GossamerWarning, InputError, installing, quoted
from gossamer.model.metadata import Column
from gossamer.train.data.dataset import Dataset

IMPUTES = ("mean", "median", "zero")
GREATEST = float(np.finfo(np.float32).max)
"""The largest number of float32."""
_GAPS = ("", "nan", "na", "n/a", "null", "none")
"""Cells without a value, in lower case."""
_MOST_VALUES = 1000
"""Maximum number of distinct texts in a column; each text becomes a one-hot column."""


@dataclass(frozen=True)
class CellRules:
    """Rules for the cells of a table that are not numbers.

    impute: one of IMPUTES, the method that fills gaps; None allows no gaps.
    one_hot: whether columns may have texts.
    known: the columns that a network was trained on, in the order of its inputs, with their fill
    values and texts, if any. Empty if there is no trained network.
    """

    impute: str | None = None
    one_hot: bool = False
    known: tuple[Column, ...] = ()

    @property
    def takes_others(self) -> bool:
        """Whether the rules allow any cells that are not numbers."""
        return (self.impute is not None or self.one_hot
                or any(column.fill is not None or column.values is not None
                       for column in self.known))

    @property
    def needs_texts(self) -> bool:
        """Whether a known column has texts; if so, cells must be read as texts."""
        return any(column.values is not None for column in self.known)

    def arranged(self, path: Path, names: Sequence[str],
                 count: int) -> tuple[tuple[Column, ...], list[int]]:
        """Return a file's columns in the known order, and their indices.

        If the file's columns or the known columns have no names, the file's order is kept. If the
        file has no names and the rules allow only numbers, no columns are returned.

        names: the headings of the columns; empty if the file has none.
        count: number of columns.
        Raises InputError if the file lacks a known column, or has an unknown one.
        """
        known = [column.name for column in self.known]
        order = list(range(count))
        if not names or len(set(names)) < count or not all(names):
            names = [""] * count if self.takes_others else []
        if known and names and all(known) and all(names):
            missing, others = ([name for name in first if name not in second]
                               for first, second in ((known, names), (names, known)))
            if missing or others:
                raise InputError(f"{path}: " + "; ".join([
                    *(f"has no column {quoted(name)}, which the network was trained on"
                      for name in missing[:1]),
                    *(f"has the column {quoted(name)}, which the network was not trained on"
                      for name in others[:1])]))
            order = [names.index(name) for name in known]
        elif self.takes_others and known and count != len(known):
            raise InputError(f"{path}: has {count} columns besides the label, but the network was "
                             f"trained on {len(known)}")
        return tuple(Column(names[index]) for index in order if names), order

    def takes(self, index: int) -> tuple[bool, bool]:
        """Return whether a column may have gaps, and whether it may have texts."""
        if index >= len(self.known):
            return self.impute is not None, self.one_hot
        column = self.known[index]
        has_texts = column.values is not None
        return has_texts or column.fill is not None or self.impute is not None, has_texts

    def fault(self, cell: str, index: int) -> str:
        """Return the error text for a cell of a column; "" if it is valid."""
        gaps, texts = self.takes(index)
        if is_gap(cell):
            return "" if gaps else (
                f"{quoted(cell) if cell.strip() else 'empty'}, expected a "
                f"{'value' if texts else 'finite number'}; `train --impute mean` fills such cells "
                "(or median, zero)")
        if texts or (is_number(cell) and abs(float(cell)) <= GREATEST):
            return ""
        return f"{quoted(cell)}, expected a finite number" + (
            "" if is_number(cell) else
            ", as in the training samples" if index < len(self.known) else
            "; --label names the label column, `train --one-hot` encodes strings")


def is_gap(cell: str) -> bool:
    """Return whether a cell has no value."""
    return cell.strip().lower() in _GAPS


def is_number(text: str) -> bool:
    """Return whether a cell holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def parsed(path: Path, rows: Sequence[Sequence[str]], columns: Sequence[Column],
           rules: CellRules) -> tuple[np.ndarray, tuple[Column, ...]] | None:
    """Return a table's cells as numbers, and the columns with their texts.

    The cells are (rows, columns) float32: a gap is NaN, and a text is its index in the column's
    sorted texts. Returns None if the rules do not allow a cell.

    columns: the columns, whose texts are not known yet.
    Raises InputError if a column has too many texts, or pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(f"{path}: empty cells and strings need pandas: {installing('tables')}"
                         ) from None
    x, found = np.empty((len(rows), len(columns)), np.float32), list(columns)
    for index, name in enumerate(frame := pandas.DataFrame(rows)):
        gaps_allowed, texts_allowed = rules.takes(index)
        cells = frame[name].str.strip()
        gaps = cells.str.lower().isin(_GAPS)
        numbers = pandas.to_numeric(cells.mask(gaps), errors="coerce").to_numpy(np.float64)
        if gaps.any() and not gaps_allowed:
            return None
        is_known = index < len(rules.known)
        if (np.abs(numbers) <= GREATEST)[~gaps].all() and not (texts_allowed and is_known):
            x[:, index] = numbers
            continue
        if not texts_allowed:
            return None
        codes, values = pandas.factorize(cells.mask(gaps), sort=True)
        if len(values) > _MOST_VALUES:
            raise InputError(f"{path}: column {quoted(columns[index].name or index + 1)} holds "
                             f"{len(values)} different strings, expected at most {_MOST_VALUES}; "
                             "remove the column from the file")
        x[:, index] = np.where(codes < 0, np.nan, codes)
        found[index] = replace(columns[index], values=tuple(values))
    return x, tuple(found)


def learnt(data: Dataset, impute: str | None) -> tuple[Column, ...]:
    """Return the columns with fill values, and with the texts that occur in the samples.

    impute: one of IMPUTES, or None if gaps are not filled.
    Raises InputError if gaps are to be filled and a column has no values.
    """
    columns = []
    for index, column in enumerate(data.columns):
        cells = data.x[:, index]
        cells = cells[~np.isnan(cells)]
        if column.values is not None:
            occurring = np.unique(cells).astype(np.intp)
            columns.append(replace(column, values=tuple(column.values[index]
                                                        for index in occurring)))
            continue
        if impute is None:
            columns.append(column)
            continue
        if not len(cells):
            raise InputError(f"{data.source}: column {index + 1} ({quoted(column.name)}) is empty "
                             "in every training sample; remove it from the file")
        fill = {"mean": cells.mean(dtype=np.float64), "median": np.median(cells), "zero": 0}[impute]
        columns.append(replace(column, fill=float(fill)))
    return tuple(columns)


def encoded(data: Dataset, columns: Sequence[Column]) -> Dataset:
    """Return the samples with gaps filled and texts encoded as one-hot columns.

    Each text of a column becomes a separate column, with 1 in the samples that have the text and 0
    in the others. In a sample with a gap, or with a text that no training sample has, all these
    columns are 0; a warning names the first unknown text. Samples without columns, such as those of
    a .npz file, are returned unchanged.

    columns: the columns that learnt() returned for the training samples.
    """
    if not any(column.fill is not None or column.values is not None for column in columns):
        return data
    if not data.columns:
        return replace(data, shape=None, pixels=False)
    parts = []
    for index, (column, own) in enumerate(zip(columns, data.columns, strict=True)):
        cells = data.x[:, index]
        if column.values is None:
            fill = 0 if column.fill is None else column.fill
            parts.append(np.where(np.isnan(cells), np.float32(fill), cells)[:, None])
            continue
        index_of = {value: index for index, value in enumerate(column.values)}
        indices = np.array([index_of.get(value, -1) for value in own.values or ()], np.intp)
        of_rows = np.full(len(cells), -1, np.intp)
        has_text = ~np.isnan(cells)
        of_rows[has_text] = indices[cells[has_text].astype(np.intp)]
        parts.append((of_rows[:, None] == np.arange(len(column.values))).astype(np.float32))
        unknown = has_text & (of_rows < 0)
        if unknown.any():
            value = (own.values or ())[int(cells[np.argmax(unknown)])]
            warnings.warn(f"{data.source}: {np.count_nonzero(unknown)} samples have unknown "
                          f"categories like {quoted(value)} in the column {quoted(column.name)}, "
                          "which occur in no training sample; they are encoded as all zeros",
                          GossamerWarning, stacklevel=2)
    return replace(data, x=np.ascontiguousarray(np.concatenate(parts, axis=1)), columns=(),
                   shape=None, pixels=False)
