"""Samples in csv files, and the error messages for wrong files."""

import gzip
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from gossamer.errors import InputError
from gossamer.train.data import csv_files
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


@pytest.mark.parametrize("content, expected", [
    ("", "is empty, expected a line a sample"),
    ("\n \n", "is empty, expected a line a sample"),
    ("label,1x1\n", "has a heading and no samples"),
    ("5\n6\n", "line 1 has one cell, expected a label and numbers with commas between"),
    ("5,1,2\n0,3\n", "line 2 has 2 cells, the lines before it have 3"),
    ("label,a,b\n5,1,2\n\n0,3,4,5\n", "line 4 has 4 cells, the lines before it have 3"),
    ("label,a,b,c\n5,1,2\n", "line 2 has 3 cells, the lines before it have 4"),
    ("5,1,2\n0,x,3\n", "line 2, column 2 is 'x', expected a finite number; --label says which "
                       "column the labels are in, `train --one-hot` makes numbers of texts"),
    ("label,age,city\n5,1,2\n0,2,Oslo\n", "line 3, column 'city' is 'Oslo', expected a finite "
                                          "number; are labels in the last column?"),
    ("5,1,2\n0,3,x\n", "line 2, column 3 is 'x', expected a finite number; are labels in the last "
                       "column?"),
    ("a,1,two\nb,3,4\n", "line 1, column 3 is 'two', expected a finite number; --label says "
                         "which column the labels are in, `train --one-hot` makes numbers of "
                         "texts"),
    ("5,1,2\n0,3,\n", "line 2, column 3 is empty, expected a finite number; `train --impute mean` "
                      "fills such cells (or median, zero)"),
    ("label,age,b\n5,1,2\n0,nan,4\n", "line 3, column 'age' is 'nan', expected a finite number; "
                                      "`train --impute mean` fills such cells (or median, zero)"),
    ("5,1,2\n0,3,-inf\n", "line 2, column 3 is '-inf', expected a finite number"),
    ("5,1,2\n0,3,1e99\n", "line 2, column 3 is '1e99', expected a finite number"),
    ("5,1,2\n,3,4\n", "line 2: the label is empty"),
    ("5,1,2\nNaN,3,4\n", "line 2: the label is NaN"),
    ("5,1,2\n5.5,3,4\n", "the first column has 5.5, expected labels of classes; are they in the "
                         "last column? `train --task regression` learns numbers"),
    ("5,1,2\ninf,3,4\n", "the first column has inf, expected labels of classes; are they in the "
                         "last column? `train --task regression` learns numbers"),
    ("5,1,a\n0,3,b\n", "line 1, column 3 is 'a', expected a finite number; are labels in the last "
                       "column?"),
    (f"{'a' * 64},1\nb,2\n", "has labels of more than 63 characters"),
    ("5,a\n6,b\n", "line 1, column 2 is 'a', expected a finite number; are labels in the last "
                   "column?"),
    ("5,1\n1e300,2\n", "the first column has 1e300, expected labels of classes; are they in the "
                       "last column? `train --task regression` learns numbers"),
    (b"5,1,2\n0,\xff,4\n", "is no text in UTF-8 (byte 0xff)"),
])
def test_wrong_csv(tmp_path, content, expected):
    assert fault(csv(tmp_path, content)) == expected


def test_wrong_csv_with_labels_last(tmp_path):
    path = csv(tmp_path, "1,2,5\n3,x,0\n")
    assert fault(path, label="last") == (
        "line 2, column 2 is 'x', expected a finite number; --label says which column the labels "
        "are in, `train --one-hot` makes numbers of texts")


@pytest.mark.parametrize("number", ["x", "1e39", "inf"])
def test_wrong_numbers_to_learn(tmp_path, number):
    message = fault(csv(tmp_path, f"5,1\n{number},2\n"), numbers=True)
    assert message.startswith(f"the first column has '{number}', expected a number to learn; ")


@pytest.mark.parametrize("label", ["species", "2"])
def test_labels_in_any_column(tmp_path, label):
    data = read(csv(tmp_path, "length,species,width\n1,setosa,2\n3,virginica,4.5\n"), label=label)
    assert data.x.tolist() == [[1, 2], [3, 4.5]] and data.y.tolist() == ["setosa", "virginica"]
    assert [column.name for column in data.columns] == ["length", "width"]


@pytest.mark.parametrize("content, label, expected", [
    ("a,b,c\n1,2,3\n", "d", "label column 'd': expected a name in the first line (a, b, c), a "
                            "number from 1 to 3, first or last"),
    ("a,a,c\n1,2,3\n", "a", "label column 'a': several columns have that name"),
    ("a,b,c\n1,2,3\n", "4", "label column 4: expected a number from 1 to the 3 columns, the name "
                            "of a column, first or last"),
    ("a,b,c\n1,,3\n", "b", "line 2: the label is empty"),
    ("a,b,c\n1,2.5,3\n", "b", "the column 'b' has 2.5, expected labels of classes; are they in "
                              "another column, which --label names? `train --task regression` "
                              "learns numbers")])
def test_labels_in_no_column(tmp_path, content, label, expected):
    assert fault(csv(tmp_path, content), label=label) == expected


@pytest.mark.parametrize("label, message", [
    ("first", "the first column has 1.5, "), ("2", "column 2 has 2.5, "),
    ("3", "the last column has 3.5, "), ("last", "the last column has 3.5, ")])
def test_a_column_without_a_name_is_told_by_its_place(tmp_path, label, message):
    assert fault(csv(tmp_path, "1,2,3\n1.5,2.5,3.5\n"), label=label).startswith(message)


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


@pytest.mark.parametrize("text, message", [
    ('label,a,b\nb,3\n', "line 2 has 2 cells, the lines before it have 3"),
    ('label,a,b\n"b,3,4\nc,1,2\n', "line 3 has 1 cells, the lines before it have 3"),
    ('label,a\n"' + 140_000 * "b", "field larger than field limit")])
def test_first_samples_that_are_no_rows_under_their_heading(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=f"x.csv: {message}"):
        csv_files.read(tmp_path / "x.csv", "first", None)
