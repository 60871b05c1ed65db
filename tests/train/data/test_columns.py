"""Gaps and texts in tables: what is read, what is learnt of them, and how others are encoded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerWarning, InputError
from gossamer.model.metadata import Column
from gossamer.train.data import csv_files, sources
from gossamer.train.data.columns import CellRules, encoded, learnt
from gossamer.train.data.dataset import Dataset
from tests.golden import Golden

TABLE = "buys,age,city\nyes,30,Oslo\nno,,Rome\nyes,50,NA\nno,70,Oslo\n"
BOTH = CellRules("mean", one_hot=True)


def _read(folder: Path, text: str, cells: CellRules, **options: Any) -> Dataset:
    (folder / "t.csv").write_text(text)
    return csv_files.read(folder / "t.csv", options.pop("label", "first"), None, cells=cells)


@pytest.mark.parametrize(("impute", "fill"), [("mean", 50), ("median", 50), ("zero", 0)])
def test_gaps_and_texts_become_numbers(tmp_path: Path, impute: str, fill: float) -> None:
    data = _read(tmp_path, TABLE, CellRules(impute, one_hot=True))
    columns = learnt(data, impute)
    assert columns == (Column("age", fill), Column("city", None, ("Oslo", "Rome")))
    assert encoded(data, columns).x.tolist() == [
        [30, 1, 0], [fill, 0, 1], [50, 0, 0], [70, 1, 0]]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, None])
@pytest.mark.parametrize("heading", ["", "buys,age,city\n", "\n \nbuys,age,city\n\n"])
@pytest.mark.parametrize(("city", "rules"), [("7", CellRules()), ("Oslo", BOTH), ("", BOTH)])
def test_a_limit_counts_samples_alone(tmp_path: Path, limit: int | None, heading: str, city: str,
                                      rules: CellRules) -> None:
    path = tmp_path / "t.csv"
    path.write_text(heading + f"1,30,{city}\n0,40,8\n\n1,50,9\n0,60,6\n")
    data = csv_files.read(path, "first", limit, cells=rules)
    assert data.y.tolist() == [1, 0, 1, 0][:limit]
    assert data.x[:, 0].tolist() == [30, 40, 50, 60][:limit]


def test_only_samples_trained_on_are_learnt_from(tmp_path: Path) -> None:
    data = _read(tmp_path, TABLE, BOTH)
    columns = learnt(data.rows(slice(2, 4)), "median")
    assert columns == (Column("age", 60), Column("city", None, ("Oslo",)))
    with pytest.warns(GossamerWarning, match=r"t.csv: 1 samples have texts like 'Rome' in the "
                                             r"column 'city', which no sample trained on has"):
        assert encoded(data, columns).x.tolist() == [[30, 1], [60, 0], [50, 0], [70, 1]]


def test_later_samples_are_encoded_as_those_trained_on(tmp_path: Path) -> None:
    columns = (Column("age", 50), Column("city", None, ("7", "Rome")), Column("rate"))
    rules = CellRules(known=columns)
    # the columns are found by their names, and texts that look like numbers stay texts
    data = _read(tmp_path, "rate,city,buys,age\n1,7,no,\n2,7,no,3\n", rules, label="buys")
    assert encoded(data, columns).x.tolist() == [[50, 1, 0, 1], [3, 1, 0, 2]]
    nameless = _read(tmp_path, "1,,Rome,5\n0,2,7,6\n", rules)
    assert encoded(nameless, columns).x.tolist() == [[50, 0, 1, 5], [2, 1, 0, 6]]


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_samples_without_columns_are_numbers_already(numbers: int) -> None:
    """No number is left out or taken as a text, also where there are more or fewer of them."""
    columns = (Column("age", 50), Column("city", None, ("Oslo", "Rome")))
    x = np.arange(2 * numbers, dtype=np.float32).reshape(2, numbers)
    data = Dataset(x, np.array([0, 1]), (1, numbers), True, "x.npz")
    same = encoded(data, columns)
    assert same.x.tolist() == x.tolist()
    assert (same.shape, same.pixels) == (None, False)


@pytest.mark.parametrize(("text", "expected"), [
    ("y,b,a\n1,2,3\n0,4,5\n", [[3, 2], [5, 4]]), ("1,2,3\n0,4,5\n", [[2, 3], [4, 5]])])
def test_columns_of_numbers_alone_are_found_by_their_names(tmp_path: Path, text: str,
                                                           expected: list[list[float]]) -> None:
    columns = (Column("a"), Column("b"))
    assert encoded(_read(tmp_path, text, CellRules(known=columns)), columns).x.tolist() == expected


WRONG = [
    (TABLE, CellRules("mean")), (TABLE, CellRules(one_hot=True)),
    ("1,x,5\n0,,6\n", CellRules(one_hot=True)),
    *[(TABLE, CellRules(known=known)) for known in (
        (Column("age", 1), Column("town", None, ("Oslo",))), (Column("age", 1), Column("city")),
        (Column("age"), Column("x", 1), Column("city")), (Column("age", 1),))],
    ("1,2,3\n", CellRules(known=(Column("", 1),))),
    ("y,a\n" + "".join(f"1,t{index}\n" for index in range(1001)), CellRules(one_hot=True))]


def test_cells_that_are_not_taken(golden: Golden, tmp_path: Path) -> None:
    cases = {f"{text[:20]!r}, {cells}": partial(_read, tmp_path, text, cells)
             for text, cells in WRONG}

    def inputs(row: str, label: str) -> object:
        (tmp_path / "t.csv").write_text(f"{row}\n")
        return csv_files.read_inputs(tmp_path / "t.csv", 2, label)

    cases |= {f"{row}, {label}": partial(inputs, row, label)
              for row, label in (("7", "first"), ("7,8,9,1", "first"), ("7,8", "1"))}
    cases["no number"] = lambda: learnt(_read(
        tmp_path, "y,a,b\n1,,2\n0,,3\n", CellRules("mean")), "mean")
    golden.refusals("samples: cells", cases, tmp_path)


@pytest.mark.parametrize("headed", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(("column", "cell", "expected"), [
    (Column("a"), "7", [7]), (Column("a"), "", None), (Column("a"), "x", None),
    (Column("a"), "1_0", None), (Column("a", 2.5), "7", [7]), (Column("a", 2.5), "", [2.5]),
    (Column("a", 2.5), "x", None), (Column("a", None, ("7", "x")), "7", [1, 0]),
    (Column("a", None, ("7", "x")), "x", [0, 1]), (Column("a", None, ("7", "x")), "", [0, 0])])
def test_what_a_column_takes_in_later_tables(tmp_path: Path, column: Column, cell: str,
                                             expected: list[float] | None, labelled: bool,
                                             headed: bool) -> None:
    """In a table with a heading, the columns have another order."""
    rows = [["y", "a", "b"]] * headed + [["l", "7", "3"], ["m", cell, "4"]]
    rows = [[y, b, a] if headed else [y, a, b] for y, a, b in rows]
    (tmp_path / "t.csv").write_text(
        "".join(",".join(row[not labelled:]) + "\n" for row in rows))
    known = (column, Column("b", 9.0 if labelled else None))
    if expected is None:
        place = f"line {2 + headed}, column {repr('a') if headed else 1 + labelled} is "
        with pytest.raises(InputError, match=place):
            csv_files.read_inputs(tmp_path / "t.csv", 9, "first", known)
        return
    x, labels = csv_files.read_inputs(tmp_path / "t.csv", 9, "first", known)
    assert x[1].tolist() == [*expected, 4] and len(x) == 2
    assert labels == (["l", "m"] if labelled else None)


def test_a_complete_table_has_its_columns_filled_later(tmp_path: Path) -> None:
    data = _read(tmp_path, "1,2,3\n0,4,5\n", CellRules("mean"))
    assert learnt(data, "mean") == (Column("", 3), Column("", 4))
    twice = _read(tmp_path, "y,a,a\n1,,3\n0,4,6\n", CellRules("mean"))
    assert learnt(twice, "mean") == (Column("", 4), Column("", 4.5))


def test_test_files_of_a_folder_have_the_columns_trained_on(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("y,a,b\n1,Oslo,3\n0,Rome,5\n")
    (tmp_path / "test.csv").write_text("y,b,a\n1,2,Rome\n")
    training, test = sources.load(tmp_path, cells=BOTH)
    assert test is not None
    assert encoded(test, learnt(training, "mean")).x.tolist() == [[0, 1, 2]]


def test_other_files_have_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(InputError, match="--impute and --one-hot are for "):
        sources.load(tmp_path / "s.npz", cells=BOTH)
