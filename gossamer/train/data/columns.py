"""Encodes columns of tables with cells that are no numbers: gaps are filled, and texts become
columns of zeros and ones. The numbers that fill gaps and the texts of each column are kept, so that
later samples are encoded in the same way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.errors import GossamerWarning, InputError, quoted
from gossamer.model.metadata import Column
from gossamer.train.data.dataset import Dataset

IMPUTES = ("mean", "median", "zero")
GAP_HINT = "; `train --impute mean` fills such cells (or median, zero)"
TEXT_HINT = ("; --label says which column the labels are in, `train --one-hot` makes numbers of "
             "texts")
"""Ends of messages on cells that hold no number."""
_GAPS = ("", "nan", "na", "n/a", "null", "none")
"""Contents, in small letters, of a cell without a value (a gap)."""
_GREATEST = float(np.finfo(np.float32).max)
"""The largest number of float32."""
_MOST_VALUES = 1000
"""A column of texts may have at most this many different texts: each of them becomes a column of
zeros and ones."""


@dataclass(frozen=True)
class CellRules:
    """The rules for cells of a table that are no numbers: gaps and texts.

    impute: one of IMPUTES, by which gaps are filled; None where gaps are not allowed.
    one_hot: whether columns may hold texts.
    known: the columns that a network was trained on, in the order of its inputs; each says whether
    it may have gaps or texts. Empty without a network.
    """

    impute: str | None = None
    one_hot: bool = False
    known: tuple[Column, ...] = ()

    @property
    def takes_others(self) -> bool:
        """Whether the rules allow cells that are no numbers."""
        return (self.impute is not None or self.one_hot
                or any(column.fill is not None or column.values is not None
                       for column in self.known))

    @property
    def needs_texts(self) -> bool:
        """Whether columns are known to hold texts, which may look like numbers."""
        return any(column.values is not None for column in self.known)

    def named(self, names: Sequence[str], count: int) -> tuple[Column, ...]:
        """Returns the `count` columns of a file in the file's order, each with only its name. Where
        names are missing or repeat, returns columns without names if the rules allow cells that are
        no numbers, else an empty tuple."""
        if names and len(set(names)) == count and all(names):
            return tuple(map(Column, names))
        return (Column(""),) * count if self.takes_others else ()

    def order(self, path: Path, columns: Sequence[Column], count: int) -> list[int]:
        """Returns the index of each known column among the `count` columns of a file. Columns
        without names are taken in the file's order. Raises InputError where a known column is
        absent, or the file has a column that is not known."""
        known = [column.name for column in self.known]
        names = [column.name for column in columns]
        if not (known and names and all(known) and all(names)):
            if self.takes_others and known and count != len(known):
                raise InputError(f"{path}: has {count} columns besides the label, the network was "
                                 f"trained on {len(known)}")
            return list(range(count))
        missing, others = ([name for name in first if name not in second]
                           for first, second in ((known, names), (names, known)))
        if missing or others:
            raise InputError(f"{path}: " + "; ".join([
                *(f"has no column {quoted(name)}, which the network was trained on"
                  for name in missing[:1]),
                *(f"has the column {quoted(name)}, which it was not trained on"
                  for name in others[:1])]))
        return [names.index(name) for name in known]


def is_gap(cell: str) -> bool:
    """Says whether a cell has no value."""
    return cell.strip().lower() in _GAPS


def parsed(rows: Sequence[Sequence[str]], columns: Sequence[Column], rules: CellRules,
           fault: Callable[[int, int, str], InputError]) -> tuple[np.ndarray, tuple[Column, ...]]:
    """Returns the cells of a table as (rows, columns) float32, and its columns. A gap is NaN, and a
    text is its index among the sorted texts of its column.

    fault: a function that returns the error for a cell, given the cell's row, its column and words
    that say what is wrong. The error is raised for the first cell that the rules do not allow.
    """
    has_names = all(column.name for column in (*columns, *rules.known))
    known = {column.name: column for column in rules.known} if has_names else {}
    x = np.empty((len(rows), len(columns)), np.float32)
    found = list(columns)
    for index, column in enumerate(columns):
        before = known.get(column.name) if has_names else (
            rules.known[index] if index < len(rules.known) else None)
        cells = [row[index].strip() for row in rows]
        gaps = np.array([is_gap(cell) for cell in cells])
        fills = rules.impute is not None or (before is not None and before.fill is not None)
        takes_texts = rules.one_hot if before is None else before.values is not None
        numbers = _numbers(cells, gaps)
        if before is not None and before.values is not None:
            numbers = None
        if numbers is None and not takes_texts:
            row = next(row for row, cell in enumerate(cells)
                       if not gaps[row] and not _is_finite(cell))
            raise fault(row, index, f"is {quoted(cells[row])}, expected a finite number"
                        + (TEXT_HINT if before is None else ", as in the samples trained on"))
        if gaps.any() and not fills and not (before is not None and before.values is not None):
            raise fault(int(np.argmax(gaps)), index, f"is empty, expected a value{GAP_HINT}")
        if numbers is not None:
            x[:, index] = numbers
            continue
        values, places = np.unique(np.array(cells)[~gaps], return_inverse=True)
        if len(values) > _MOST_VALUES:
            raise fault(0, index, f"holds one of {len(values)} different texts, expected "
                                  f"{_MOST_VALUES} at most; leave that column out of the file")
        x[gaps, index], x[~gaps, index] = np.nan, places
        found[index] = replace(column, values=tuple(values.tolist()))
    return x, tuple(found)


def learnt(data: Dataset, impute: str | None) -> tuple[Column, ...]:
    """Returns the columns of samples with the facts that later samples need: the number that fills
    gaps, and the texts that occur. impute: one of IMPUTES, or None.

    Raises InputError where a column of numbers to be filled has nothing but gaps.
    """
    columns = []
    for index, column in enumerate(data.columns):
        cells = data.x[:, index]
        cells = cells[~np.isnan(cells)]
        if column.values is not None:
            occurring = np.unique(cells).astype(np.intp)
            columns.append(replace(column, values=tuple(column.values[place]
                                                        for place in occurring)))
            continue
        if impute is None:
            columns.append(column)
            continue
        if not len(cells):
            raise InputError(f"{data.source}: column {index + 1} ({quoted(column.name)}) is empty "
                             "in every sample that is trained on; leave it out of the file")
        fill = {"mean": cells.mean(dtype=np.float64), "median": np.median(cells), "zero": 0}[impute]
        columns.append(replace(column, fill=float(fill)))
    return tuple(columns)


def encoded(data: Dataset, columns: Sequence[Column]) -> Dataset:
    """Returns the samples with gaps filled and texts one-hot: each text of a column becomes a
    column, with 1 in the samples that hold it and 0 in others. Where a sample has a gap, or a text
    that did not occur in the training samples, all these columns are 0; a warning names the first
    of these texts. Samples without columns, such as those of a .npz file, are numbers already.

    columns: the columns that learnt() returned for the samples trained on; empty changes nothing.
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
        place_of = {value: place for place, value in enumerate(column.values)}
        places = np.array([place_of.get(value, -1) for value in own.values or ()], np.intp)
        of_rows = np.full(len(cells), -1, np.intp)
        has_text = ~np.isnan(cells)
        of_rows[has_text] = places[cells[has_text].astype(np.intp)]
        parts.append((of_rows[:, None] == np.arange(len(column.values))).astype(np.float32))
        unknown = has_text & (of_rows < 0)
        if unknown.any():
            value = (own.values or ())[int(cells[np.argmax(unknown)])]
            warnings.warn(f"{data.source}: {np.count_nonzero(unknown)} samples have texts like "
                          f"{quoted(value)} in the column {quoted(column.name)}, which no sample "
                          "trained on has; they count as none of its texts", GossamerWarning,
                          stacklevel=2)
    return replace(data, x=np.ascontiguousarray(np.concatenate(parts, axis=1)), columns=(),
                   shape=None, pixels=False)


def _numbers(cells: Sequence[str], gaps: np.ndarray) -> np.ndarray | None:
    """Returns cells as float32, gaps as NaN; None where another cell is no finite number."""
    if not all(gap or _is_finite(cell) for cell, gap in zip(cells, gaps, strict=True)):
        return None
    return np.array([np.nan if gap else float(cell)
                     for cell, gap in zip(cells, gaps, strict=True)], np.float32)


def _is_finite(text: str) -> bool:
    try:
        return "_" not in text and abs(float(text)) <= _GREATEST
    except ValueError:
        return False
