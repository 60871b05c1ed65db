"""Samples in csv files: numbers, gaps and texts, and the errors for wrong files."""

from __future__ import annotations

import gzip
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from gossamer.errors import GossamerWarning, InputError
from gossamer.model.metadata import Column
from gossamer.train.data import csv_files, sources
from gossamer.train.data.columns import CellRules, encoded, learnt
from gossamer.train.data.dataset import Dataset
from tests.golden import Golden
from tests.train.data_files import csv, fault, read

WHOLE = st.sampled_from(["0", "255", "-3", "+7", " 5 ", '"9"', "007", "-0", "2147483647",
                         "16777217"])
OTHER = st.sampled_from(["2.5", "1e2", "5.", "nan", "inf", "1e99", "", " ", "x", "1_0", "0x1",
                         "2147483648", "-99999999999999999999", "\u0663", "5\xa0", '"', '"1',
                         "a b"])
LINES = st.integers(2, 3).flatmap(lambda width: st.lists(
    st.lists(WHOLE, min_size=width, max_size=width) | st.lists(WHOLE | OTHER, max_size=4),
    min_size=1, max_size=5))


@pytest.mark.parametrize("name, content, options", [
    ("x.csv", "label,1x1,1x2\n5,1,2\n0,3,4.5\n", {}),
    ("x.csv", "5,1,2\r\n0,3,4.5", {}),
    ("x.csv", "\ufeff\nlabel,0,1\n\n5,1,2\n  \n0, 3, 4.5 \n", {}),
    ("x.csv", 'a;b;"class"\n1;2;5\n"3";4.5;0\n', {"label": "last"}),
    ("x.tsv", "5.0\t1\t2\n0\t3\t4.5\n9\t9\t9\n", {"limit": 2}),
    ("x.csv.gz", gzip.compress(b"5,1,2\n0,3,4.5\n", mtime=0), {}),
])
def test_csv(tmp_path, name, content, options):
    data = read(csv(tmp_path, content, name), **options)
    assert data.x.tolist() == [[1, 2], [3, 4.5]]
    assert data.y.dtype == np.int64 and data.y.tolist() == [5, 0]
    assert data.names == ("0", "5") and data.shape is None and not data.pixels


def test_csv_with_words_for_labels(tmp_path):
    data = read(csv(tmp_path, "length,width,species\n1,2, setosa\n3,4,7\n"), label="last")
    assert data.y.tolist() == ["setosa", "7"] and data.names == ("7", "setosa")


@pytest.mark.parametrize("values, shape, pixels", [
    ([0, 255], (8, 8), True), ([0, 1], (8, 8), False), ([-1, 255], (8, 8), False),
    ([0, 300], (8, 8), False), ([0, 16], (8, 8), False)])
def test_grey_levels_are_recognised(tmp_path, values, shape, pixels):
    line = ",".join(map(str, [7, *values * 32]))
    data = read(csv(tmp_path, f"{line}\n{line}\n"))
    assert (data.shape, data.pixels) == (shape, pixels)


WRONG = {
    "first": [
        "", "\n \n", "label,1x1\n", "5\n6\n", "5,1,2\n0,3\n", "label,a,b\n5,1,2\n\n0,3,4,5\n",
        "label,a,b,c\n5,1,2\n", "5,1,2\n0,x,3\n", "label,age,city\n5,1,2\n0,2,Oslo\n",
        "5,1,2\n0,3,x\n", "a,1,two\nb,3,4\n", "5,1,2\n0,3,\n", "label,age,b\n5,1,2\n0,nan,4\n",
        "5,1,2\n0,3,-inf\n", "5,1,2\n0,3,1e99\n", "5,1,2\n,3,4\n", "5,1,2\nNaN,3,4\n",
        "5,1,2\n5.5,3,4\n", "5,1,2\ninf,3,4\n", "5,1,a\n0,3,b\n", f"{'a' * 64},1\nb,2\n",
        "5,a\n6,b\n", "5,1\n1e300,2\n", b"5,1,2\n0,\xff,4\n", "1,2,3\n1.5,2.5,3.5\n",
        "label,a,b\nb,3\n", 'label,a,b\n"b,3,4\nc,1,2\n', 'label,a\n"' + 140_000 * "b"],
    "last": ["1,2,5\n3,x,0\n", "1,2,3\n1.5,2.5,3.5\n"], "2": ["1,2,3\n1.5,2.5,3.5\n"],
    "3": ["1,2,3\n1.5,2.5,3.5\n"], "d": ["a,b,c\n1,2,3\n"], "a": ["a,a,c\n1,2,3\n"],
    "4": ["a,b,c\n1,2,3\n"], "b": ["a,b,c\n1,,3\n", "a,b,c\n1,2.5,3\n"]}
"""Tables that are refused, by the column of their labels."""


def test_wrong_csv(golden, tmp_path):
    def load(content, **options):
        return sources.load(csv(tmp_path, content), **options)

    cases = {f"{content[:40]!r}, {label}": partial(load, content, label=label)
             for label, contents in WRONG.items() for content in contents}
    cases |= {f"learning {number}": partial(load, f"5,1\n{number},2\n", numbers=True)
              for number in ("x", "1e39", "inf")}
    golden.refusals("samples: tables", cases, tmp_path)


@pytest.mark.parametrize("label", ["species", "2"])
def test_labels_in_any_column(tmp_path, label):
    data = read(csv(tmp_path, "length,species,width\n1,setosa,2\n3,virginica,4.5\n"), label=label)
    assert data.x.tolist() == [[1, 2], [3, 4.5]] and data.y.tolist() == ["setosa", "virginica"]
    assert [column.name for column in data.columns] == ["length", "width"]


def test_packed_files_that_are_cut(tmp_path):
    packed = gzip.compress(b"5,1,2\n0,3,4.5\n" * 5000)
    assert fault(csv(tmp_path, packed[:-20], "x.csv.gz")).startswith(
        "is cut short or damaged (Compressed file ended")
    changed = bytearray(packed)
    changed[-8] ^= 1
    assert fault(csv(tmp_path, bytes(changed), "y.csv.gz")).startswith(
        "is cut short or damaged (CRC check failed")


def outcome(path, numbers, **options):
    """Return what a file is read as, or its error message, where cells are read as `numbers`."""
    with patch.object(csv_files, "_NUMBERS", numbers):
        try:
            samples = csv_files.read(path, **options)
        except InputError as error:
            return str(error)
    return samples.x.tolist(), samples.y.tolist(), samples.y.dtype, samples.pixels


@pytest.mark.slow
@settings(max_examples=200)
@given(LINES, st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n", "\n \n"]),
       st.sampled_from(["first", "last"]), st.none() | st.integers(1, 3), st.booleans())
@example([["1", "2"], ["3", "2.5"]], ",", "\n", "first", None, False)
def test_whole_numbers_are_read_as_any_others_are(tmp_path_factory, lines, delimiter, end, label,
                                                  limit, headed):
    heading = ["label", *"ab"[:len(lines[0]) - 1]] if headed else None
    text = end.join(map(delimiter.join, [heading, *lines] if heading else lines))
    path = csv(tmp_path_factory.getbasetemp(), text)
    assert (outcome(path, csv_files._NUMBERS, label=label, limit=limit)
            == outcome(path, (np.float32,), label=label, limit=limit))


def test_all_whole_numbers_are_read_as_such(tmp_path):
    """This is what makes them fast."""
    path = csv(tmp_path, 'label,a,b\n5,255,-3\n\n6, +7,"9" \n')
    assert outcome(path, (np.int32,), label="first", limit=None)[:2] == (
        [[255, -3], [7, 9]], [5, 6])


@pytest.mark.parametrize("text", [
    'label,a,b\n"multi\nline",1,2\nb,3,4\n', '"multi\nline",1,2\nb,3,4\n',
    '"la\nbel",a,b\n"multi\nline",1,2\nb,3,4\n'])
def test_line_breaks_in_quoted_cells(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    data = csv_files.read(tmp_path / "x.csv", "first", None)
    assert data.y.tolist() == ["multi\nline", "b"] and data.x.tolist() == [[1, 2], [3, 4]]


TABLE = "buys,age,city\nyes,30,Oslo\nno,,Rome\nyes,50,NA\nno,70,Oslo\n"
BOTH = CellRules("mean", one_hot=True)


def _read(folder: Path, text: str, cells: CellRules, **options: Any) -> Dataset:
    (folder / "t.csv").write_text(text)
    return csv_files.read(folder / "t.csv", options.pop("label", "first"), None, rules=cells)


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
    data = csv_files.read(path, "first", limit, rules=rules)
    assert data.y.tolist() == [1, 0, 1, 0][:limit]
    assert data.x[:, 0].tolist() == [30, 40, 50, 60][:limit]


def test_only_samples_trained_on_are_learnt_from(tmp_path: Path) -> None:
    data = _read(tmp_path, TABLE, BOTH)
    columns = learnt(data.rows(slice(2, 4)), "median")
    assert columns == (Column("age", 60), Column("city", None, ("Oslo",)))
    with pytest.warns(GossamerWarning, match=r"t.csv: 1 samples have unknown categories like "
                                             r"'Rome' in the column 'city', which occur in no "
                                             r"training sample; they are encoded as all zeros"):
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


WRONG_CELLS = [
    (TABLE, CellRules("mean")), (TABLE, CellRules(one_hot=True)),
    ("1,x,5\n0,,6\n", CellRules(one_hot=True)),
    *[(TABLE, CellRules(known=known)) for known in (
        (Column("age", 1), Column("town", None, ("Oslo",))), (Column("age", 1), Column("city")),
        (Column("age"), Column("x", 1), Column("city")), (Column("age", 1),))],
    ("1,2,3\n", CellRules(known=(Column("", 1),))),
    ("y,a\n" + "".join(f"1,t{index}\n" for index in range(1001)), CellRules(one_hot=True))]


def test_cells_that_are_not_taken(golden: Golden, tmp_path: Path) -> None:
    cases = {f"{text[:20]!r}, {cells}": partial(_read, tmp_path, text, cells)
             for text, cells in WRONG_CELLS}

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
    training, test = sources.load(tmp_path, rules=BOTH)
    assert test is not None
    assert encoded(test, learnt(training, "mean")).x.tolist() == [[0, 1, 2]]


def test_other_files_have_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(InputError, match="--impute and --one-hot need "):
        sources.load(tmp_path / "s.npz", rules=BOTH)


def test_gaps_and_texts_need_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"t.csv: empty cells and strings need pandas: pip install "
                                         r"'\.\[tables\]' in gossamer's checkout"):
        _read(tmp_path, TABLE, BOTH)
    assert _read(tmp_path, "y,a\n1,2\n0,3\n", BOTH).x.tolist() == [[2], [3]]
