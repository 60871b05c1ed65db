"""Samples in csv files, and the error messages for wrong files."""

import gzip
from functools import partial
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from gossamer.errors import InputError
from gossamer.train.data import csv_files, sources
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
    """Returns what a file is read as, or its error message, where cells are read as `numbers`."""
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
