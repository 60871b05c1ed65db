"""What is read from csv files of many forms, with many rules for cells, is recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.model.metadata import Column
from gossamer.train.data import csv_files
from gossamer.train.data.columns import CellRules, encoded, learnt
from gossamer.train.data.dataset import Dataset
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome
from tests.train.dataset_texts import array_text, columns_text, dataset_text

HEADINGS: dict[str, list[str]] = {
    "none": [], "names": ["a", "b", "c"], "label first": ["Label", "1", "2"],
    "label last": ["1", "2", " species "], "twice": ["a", "b", "b"], "gap": ["a", "", "c"],
    "short": ["a", "b"], "numbers": ["7", "x", "9"]}
LABELS = ("first", "last", "0", "1", "2", "3", "4", "a", "b", "c", "none")
CELLS = ("", " ", "NA", "nan", "Null", "x", "1_0", "2.5", "-0", "inf", "-1e39", "3.4028235e38",
         "3.5e38", "0x1", '"7"', '"a,b"', "9" * 17)
RULES = {
    "numbers": CellRules(), "mean": CellRules("mean"), "texts": CellRules(one_hot=True),
    "both": CellRules("zero", one_hot=True),
    "known": CellRules(known=(Column("a", 2.5), Column("b", None, ("x", "9")), Column("c"))),
    "two known": CellRules(known=(Column("c"), Column("b", 0.0)))}


def _rows(count: int) -> list[list[str]]:
    return [["4", "1", "8.5"], ["2", "0", "3"], ["0", "6", "-7"]][:count]


def _lines(rows: Sequence[Sequence[str]], delimiter: str = ",") -> str:
    return "".join(delimiter.join(row) + "\n" for row in rows)


def test_headings_and_labels(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "t.csv", {}
    for (heading, names), label in itertools.product(HEADINGS.items(), LABELS):
        for count, delimiter in ((0, ","), (1, ";"), (2, "\t")):
            rows = [names, *_rows(count)] if names else _rows(count)
            path.write_text(_lines(rows, delimiter))
            found[f"{heading}, label {label}, {count} rows"] = outcome(
                lambda label=label: csv_files.read(path, label, None),
                hidden=tmp_path, text=dataset_text)
    recorded("csv_headings", found)


def _faulty_tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Yields tables with one cell of each kind at each place."""
    for cell, row, column in itertools.product(CELLS, range(3), range(3)):
        rows = _rows(3)
        rows[row][column] = cell
        yield f"{cell!r} at {row},{column}", rows


def test_cells_that_are_no_numbers(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "t.csv", {}
    for turn, (name, rows) in enumerate(_faulty_tables()):
        for rule, label, numbers, heading in (
                ("numbers", "first", False, turn % 2), ("numbers", "last", True, turn % 2),
                ("both", "last", False, 1), (("mean", "texts")[turn % 2], "2", False, 0)):
            path.write_text(_lines([["a", "b", "c"]] * heading + rows))
            found[f"{name}, {rule}, label {label}, {'numbers' if numbers else 'classes'}, "
                  f"{heading} headings"] = outcome(
                lambda label=label, numbers=numbers, rule=rule: csv_files.read(
                    path, label, None, numbers, RULES[rule]), hidden=tmp_path, text=dataset_text)
    recorded("csv_cells", found)


def test_drawn_tables(tmp_path: Path, recorded: Recorded) -> None:
    """Draws tables with several odd cells, rows of other lengths, empty lines and limits."""
    rng, path, found = np.random.default_rng(5), tmp_path / "t.csv", {}
    for case in range(500):
        width, count = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        rows = [[str(rng.choice(CELLS[:7] if rng.random() < 0.15 else
                                ["0", "1", "7", "30", "2.5"])) for _ in range(width)]
                for _ in range(count)]
        if rng.random() < 0.15:
            rows[rng.integers(count)].append("5")
        if rng.random() < 0.15:
            rows[rng.integers(count)].pop()
        if rng.random() < 0.6:
            rows.insert(0, ["a", "b", "c", "y"][-width:])
        text = _lines(rows, ",;\t"[case % 3]) if rng.random() < 0.8 else "\n \n" + _lines(
            rows).replace("\n", "\n\n")
        path.write_text(text)
        label, rule = str(rng.choice(["first", "last", "2", "y"])), str(rng.choice(list(RULES)))
        limit = [None, 1, max(1, count - 1), count, count + 1][rng.integers(5)]
        numbers = bool(rng.random() < 0.3)
        found[f"{case} {text!r} {label} {limit} {rule}{' numbers' * numbers}"] = outcome(
            partial(csv_files.read, path, label, limit, numbers, RULES[rule]), hidden=tmp_path,
            text=dataset_text)
    recorded("csv_drawn", found)


def test_tables_as_wide_as_pictures(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "t.csv", {}
    for width, cell, most, (rule, cells) in itertools.product(
            (49, 63, 64, 65, 81), ("0", "", "x", "-1", "0.5"), ("127", "128", "255", "256", "1"),
            (("zero", CellRules("zero")), ("both", CellRules("mean", one_hot=True)))):
        path.write_text(_lines([["3", *["7"] * (width - 2), most], ["4", *["2"] * (width - 2), "1"],
                                ["3", *["7"] * (width - 1)]]).replace("4,2", f"4,{cell}"))
        if most in ("127", "128") or (rule == "zero" and width == 65):
            found[f"{width} wide, {cell!r}, {most}, {rule}"] = outcome(
                lambda cells=cells: csv_files.read(path, "first", None, cells=cells),
                hidden=tmp_path, text=dataset_text)
    for count in (62, 63, 64, 65, 90):
        for label in ("first", "last"):
            path.write_text(_lines([["a" * count, "5", "b"], ["c", "6", "d" * count]]))
            found[f"labels of {count}, {label}"] = outcome(lambda label=label: csv_files.read(
                path, label, None, cells=CellRules(one_hot=True)),
                hidden=tmp_path, text=dataset_text)
    for count in (999, 1000, 1001):
        path.write_text(_lines([["1", f"t{index}"] for index in range(count)]))
        found[f"{count} texts"] = outcome(lambda: csv_files.read(
            path, "first", None, cells=CellRules(one_hot=True)), hidden=tmp_path,
            text=lambda data: f"{array_text(data.x)} {digest(data.columns)}")
    for count in (19, 20, 21, 80):
        path.write_text(_lines([[f"n{index}" for index in range(count)]]))
        found[f"{count} names"] = outcome(lambda: csv_files.read(path, "z", None), hidden=tmp_path)
    recorded("csv_wide", found)


def test_inputs_of_a_network(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "t.csv", {}
    known: dict[str, tuple[Column, ...]] = {
        "unknown": (), "named": (Column("a"), Column("b")), "other": (Column("b"), Column("z")),
        "turned": (Column("b", 1.5), Column("a")), "unnamed": (Column("", 3.0), Column("")),
        "texts": (Column("a", None, ("4", "x")), Column("b"))}
    for width, heading, label, name, cell in itertools.product(
            (1, 2, 3, 4), (0, 1), ("first", "last", "2"), known, ("1", "", "x")):
        rows = [[*row, "5"][:width] for row in _rows(2)]
        rows[0][width // 2] = cell
        path.write_text(_lines([["a", "b", "y", "z"][:width]] * heading + rows))
        for numbers in (2, 3) if name == "unknown" else (2,):
            case = f"{width} wide, {heading} headings, label {label}, {numbers} {name}, {cell!r}"
            found[case] = outcome(
                lambda label=label, numbers=numbers, name=name: csv_files.read_inputs(
                    path, numbers, label, known[name]), hidden=tmp_path,
                text=lambda pair: f"{array_text(pair[0])} {pair[1]}")
    recorded("csv_inputs", found)


def test_columns_are_learnt_and_encoded(recorded: Recorded) -> None:
    rng, found, nan = np.random.default_rng(3), {}, np.nan
    for case in range(120):
        rows = int(rng.integers(1, 5))
        values = ("p", "q", "r")[:rng.integers(1, 4)]
        x = np.stack([rng.choice([nan, 1, 2.5, -4], rows),
                      rng.choice([nan, *range(len(values))], rows),
                      rng.choice([0, 3, nan] if case % 3 else [0, 3], rows)],
                     axis=1).astype(np.float32)
        data = Dataset(x, np.zeros(rows, np.int64), (3, 1), True, "FILE",
                       (Column("u"), Column("v", None, values), Column("w")))
        later = Dataset(x[::-1] * [[2, 1, 1]], data.y, None, False, "LATER",
                        (*data.columns[:1], Column("v", None, ("q", "p", "s")[:len(values)]),
                         *data.columns[2:]))
        unnamed = replace(later, columns=(), x=np.minimum(later.x, [[9, 0, 9]]))
        for impute in (None, "mean", "median", "zero"):
            def text(impute: str | None = impute, data: Dataset = data, later: Dataset = later,
                     unnamed: Dataset = unnamed) -> str:
                columns = learnt(data, impute)
                return "; ".join([columns_text(columns), *(dataset_text(encoded(each, columns))
                                                           for each in (data, later, unnamed))])
            if case % 4 == 0 or impute == ("mean", "median", "zero")[case % 3]:
                found[f"{case} {impute}"] = outcome(text, text=str)
    recorded("columns_encoded", found)
