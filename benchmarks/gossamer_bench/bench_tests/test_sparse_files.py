"""Tests of the readers of MatrixMarket and .smtx files and archives."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from gossamer.errors import InputError, ModelError
from gossamer_bench.sparse_files import read_archive, read_sparse

BANNER = "%%MatrixMarket matrix coordinate real general\n"
MARKET = BANNER + "% a comment\n2 4 3\n1 1 1.5\n2 4 -2\n2 3 3e-2\n"
SMTX = "3, 8, 4\n0 2 2 4 \n1 7 0 5 \n"


def saved(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def message(folder: Path, name: str, text: str | bytes) -> str:
    """Returns the one-line message that refuses a malformed file, without the file's name at its
    start."""
    path = saved(folder, name, text)
    with pytest.raises(ModelError) as error:
        read_sparse(path)
    start, _, rest = str(error.value).partition(f"{path}: ")
    assert start == "" and "\n" not in rest
    return rest


@pytest.mark.parametrize("text", [
    MARKET, MARKET.replace("\n", "\r\n"), MARKET + "\n\n", MARKET.replace("% a", "%\n%\n\n% a"),
    MARKET.replace("% a", "  % a")])
def test_matrix_market(tmp_path: Path, text: str) -> None:
    expected = np.array([[1.5, 0, 0, 0], [0, 0, 3e-2, -2]], np.float32)
    for path in (saved(tmp_path, "w.mtx", text),
                 saved(tmp_path, "w.mtx.gz", gzip.compress(text.encode()))):
        weights = read_sparse(path)
        np.testing.assert_array_equal(weights.matrix.toarray(), expected)
        assert weights.matrix.dtype == np.float32 and not weights.is_mask
        assert weights.density == 3 / 8


def test_kinds_of_matrix_market(tmp_path: Path) -> None:
    integers = read_sparse(saved(tmp_path, "i.mtx", BANNER.replace("real", "integer")
                                 + "1 2 1\n1 2 7\n"))
    np.testing.assert_array_equal(integers.matrix.toarray(), [[0, 7]])
    pattern = read_sparse(saved(tmp_path, "p.mtx", BANNER.replace("real", "pattern")
                                + "1 2 1\n1 2\n"))
    open_ended = read_sparse(saved(tmp_path, "o.mtx", BANNER.replace("real", "pattern")
                                   + "1 2 1\n1 2\t"))  # SciPy 1.17 alone crashes
    np.testing.assert_array_equal(open_ended.matrix.toarray(), pattern.matrix.toarray())
    assert pattern.is_mask and pattern.matrix.toarray().tolist() == [[0, 1]]


def test_zeros_nan_and_infinity(tmp_path: Path) -> None:
    path = saved(tmp_path, "w.mtx", BANNER + "1 4 4\n1 1 0\n1 2 nan\n1 3 -inf\n1 4 1e-300\n")
    weights = read_sparse(path)
    np.testing.assert_array_equal(weights.matrix.toarray(), [[0, np.nan, -np.inf, 0]])
    assert weights.matrix.nnz == 2, "a stored zero is no nonzero"
    assert read_sparse(saved(tmp_path, "z.mtx", BANNER + "2 3 0\n")).density == 0


@pytest.mark.parametrize("text, expected", [
    ("", "line 1: not a Matrix Market file"),
    (b"\x00\x01\xff", "line 1: not a Matrix Market file"),
    (MARKET.removeprefix(BANNER), "line 1: not a Matrix Market file"),
    (MARKET.replace("coordinate", "foo"), "line 1: invalid MatrixMarket header element: foo"),
    (MARKET.replace("real", "complex"), "line 1: is coordinate complex general, expected"),
    (MARKET.replace("general", "symmetric").replace("2 4 3", "4 4 3"),
     "line 1: is coordinate real symmetric, expected"),
    ("%%MatrixMarket matrix array real general\n1 1\n2\n", "line 1: is array real general"),
    (BANNER, "line 1: invalid MatrixMarket header: Premature EOF"),
    (MARKET.replace("2 4 3", "2 4"), "line 3: invalid integer value"),
    (MARKET.replace("2 4 3", "2 four 3"), "line 3: invalid integer value"),
    (MARKET.replace("2 4 3", "-2 4 3"), "line 3: matrix dimensions can't be negative"),
    (MARKET.replace("2 4 3", "0 4 0"), "line 3: the matrix is 0 x 4"),
    (MARKET.replace("2 4 3", "2 4 9"), "line 3: 9 nonzeros do not fit 2 x 4"),
    (MARKET.replace("2 4 3", "99999 99999 3"), "line 3: 99999 x 99999 weights are 2^31 or more"),
    (MARKET.replace("2 4 3", "9 9 99999999999999999999999"), "line 3: integer out of range"),
    (MARKET.replace("2 4 3", "2 4 4"), "line 6: the file ends after 3 of 4"),
    (MARKET.replace("2 4 3", "40000 40000 1599999999"), "line 6: the file ends after 3 of 1599"),
    (MARKET.replace("2 4 3", "2 4 2"), "line 6: is entry 3, line 3 says that there are 2"),
    (MARKET.replace("2 4 -2", "3 4 -2"), "line 5: row index out of bounds"),
    (MARKET.replace("2 4 -2", "0 4 -2"), "line 5: row index out of bounds"),
    (MARKET.replace("2 4 -2", "2 5 -2"), "line 5: column index out of bounds"),
    (MARKET.replace("2 4 -2", "2 4.5 -2"), "line 5: is '2 4.5 -2', expected `row column value`"),
    (MARKET.replace("2 4 -2", "2 4 -2x"), "line 5: is '2 4 -2x'"),
    (MARKET.replace("2 4 -2", "2 4"), "line 5: is '2 4', expected `row column value`"),
    (MARKET.replace("2 4 -2", "2 4 two"), "line 5: is '2 4 two'"),
    # SciPy 1.17 crashes at these
    (MARKET.replace("3e-2\n", "3e-2\0\n"), "line 6: is '2 3 3e-2\\x00'"),
    (MARKET.replace("3e-2\n", "3e-2\f"), "line 6: is '2 3 3e-2\\x0c'"),
    (MARKET.replace("3e-2\n", "3e-2\r2 2 1"), "line 6: is '2 3 3e-2\\r2 2 1'"),
    (MARKET.replace("2 4 -2", "2 4 -2 9"), "line 5: is '2 4 -2 9'"),
    (MARKET.replace("2 4 -2", "1 1 -2"), "line 5: row 1, column 1 is given twice"),
    (MARKET.replace(" -2", " 1e39"), "line 5: its value is beyond float32"),
    (MARKET.replace(" -2", " -1e999"), "line 5: its value is beyond float32"),
], ids=lambda value: repr(value)[:60])
def test_malformed_matrix_market(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert message(tmp_path, "w.mtx", text).startswith(expected)


def test_the_line_of_an_entry_far_down(tmp_path: Path) -> None:
    lines = [f"{i % 100 + 1} {i // 100 + 1} 0.5" for i in range(20000)]
    lines[17000] = "101 3 0.5"
    text = BANNER + "%\n100 200 20000\n" + "\n".join(lines)
    assert message(tmp_path, "w.mtx", text).startswith("line 17004: row index out of bounds")


def test_a_damaged_gz(tmp_path: Path) -> None:
    content = gzip.compress(MARKET.encode())
    assert "is cut short" in message(tmp_path, "w.mtx.gz", content[:-9])
    read_sparse(saved(tmp_path, "plain.mtx.gz", MARKET))


@pytest.mark.parametrize("text", [SMTX, SMTX.strip(), SMTX.replace("\n", "\r\n"),
                                  SMTX.replace(", ", ",")])
def test_smtx(tmp_path: Path, text: str) -> None:
    weights = read_sparse(saved(tmp_path, "m.smtx", text))
    expected = np.zeros((3, 8))
    expected[[0, 0, 2, 2], [1, 7, 0, 5]] = 1
    np.testing.assert_array_equal(weights.matrix.toarray(), expected)
    assert weights.is_mask and weights.density == 4 / 24


def test_an_smtx_of_zeros(tmp_path: Path) -> None:
    assert read_sparse(saved(tmp_path, "m.smtx", "2, 3, 0\n0 0 0\n\n")).matrix.nnz == 0


@pytest.mark.parametrize("text, expected", [
    ("", "line 1: expected `rows, columns, nonzeros`, got ''"),
    ("3 8 4\n0 2 2 4\n1 7 0 5\n", "line 1: expected `rows, columns, nonzeros`, got '3 8 4'"),
    (SMTX.replace("3, 8", "-3, 8"), "line 1: expected `rows, columns, nonzeros`"),
    (SMTX.replace("3, 8", "3, 8, 8"), "line 1: expected `rows, columns, nonzeros`"),
    (SMTX.replace("3, 8, 4", "3, 8, " + "4" * 5000), "line 1: expected"),
    (SMTX.replace("3, 8, 4", "0, 8, 4"), "line 1: the matrix is 0 x 8"),
    (SMTX.replace("3, 8, 4", "3, 1, 4"), "line 1: 4 nonzeros do not fit 3 x 1"),
    (SMTX.replace("3, 8, 4", "65536, 32768, 4"), "line 1: 65536 x 32768 weights are 2^31 or more"),
    (SMTX.replace("3, 8", "4, 8"), "line 2: has 4 row offsets, expected 5"),
    ("3, 8, 4", "line 2: has 0 row offsets, expected 4"),
    (SMTX.replace("0 2 2 4", "0 2 x 4"), "line 2: number 3 of the row offsets is 'x'"),
    (SMTX.replace("0 2 2 4", "0 -2 2 4"), "line 2: number 2 of the row offsets is '-2'"),
    (SMTX.replace("0 2 2 4", "0 5 2 4"), "line 2: number 2 of the row offsets is '5'"),
    (SMTX.replace("0 2 2 4", "1 2 2 4"), "line 2: the offsets run from 1 to 4, expected 0 to 4"),
    (SMTX.replace("0 2 2 4", "0 2 2 3"), "line 2: the offsets run from 0 to 3, expected 0 to 4"),
    (SMTX.replace("0 2 2 4", "0 3 2 4"), "line 2: offset 3 is less than the one before"),
    (SMTX.replace("1 7 0 5", "1 7 0"), "line 3: has 3 columns, expected 4"),
    ("3, 8, 4\n0 2 2 4\n", "line 3: has 0 columns, expected 4"),
    (SMTX.replace("1 7 0 5", "1 8 0 5"), "line 3: number 2 of the columns is '8', expected 0 to 7"),
    (SMTX.replace("1 7 0 5", "1 7 0 1_0"), "line 3: number 4 of the columns is '1_0'"),
    (SMTX.replace("1 7 0 5", "1 7 0 " + "5" * 5000), "line 3: number 4 of the columns"),
    (SMTX.replace("1 7 0 5", "7 1 0 5"), "line 3: column 2 of the list, 1, does not ascend"),
    (SMTX.replace("1 7 0 5", "1 7 5 5"), "line 3: column 4 of the list, 5, does not ascend"),
    (SMTX + "9\n", "line 4: expected the end"),
    (SMTX.encode() + b"\xff", "line 4: is no text"),
], ids=lambda value: repr(value)[:60])
def test_malformed_smtx(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert message(tmp_path, "m.smtx", text).startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.mtx: cannot be read: No such file"):
        read_sparse(tmp_path / "absent.mtx")
    with pytest.raises(InputError, match=r"weights.npz: expected a name that ends in .mtx"):
        read_sparse(tmp_path / "weights.npz")
    (tmp_path / "folder.smtx").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        read_sparse(tmp_path / "folder.smtx")
    with pytest.raises(InputError, match="No such file"):
        read_archive(tmp_path / "absent.tar.gz")


@pytest.mark.parametrize("order", ["crs", "rsc"])
def test_filters(tmp_path: Path, order: str) -> None:
    """Column 7 of 2 channels of 2x3 taps is (c, r, s) = (1, 0, 1), or (r, s, c) = (1, 0, 1)."""
    weights = read_sparse(saved(tmp_path, "m.smtx", "1, 12, 1\n0 1\n7\n"))
    filters = weights.filters((2, 3), order)
    assert filters.shape == (1, 2, 2, 3) and filters.dtype == np.float32
    index = {"crs": (0, 1, 0, 1), "rsc": (0, 1, 1, 0)}[order]
    assert filters[index] == 1 and filters.sum() == 1
    with pytest.raises(InputError, match=r"m.smtx: 12 columns .* 5x5 taps"):
        weights.filters((5, 5))


def packed(path: Path, **texts: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_archives(tmp_path: Path) -> None:
    files = read_archive(packed(tmp_path / "a.tar.gz", b__smtx=SMTX, a__smtx="1, 1, 0\n0 0\n\n",
                                README="not read"))
    assert list(files) == ["a", "b"] and files["b"].matrix.nnz == 4


def test_malformed_archives(tmp_path: Path) -> None:
    bad = packed(tmp_path / "a.tar.gz", good__smtx=SMTX, bad__smtx=SMTX + "9\n")
    with pytest.raises(ModelError, match=r"a.tar.gz: bad.smtx: line 4: "):
        read_archive(bad)
    with pytest.raises(ModelError, match=r"holds no .smtx file"):
        read_archive(packed(tmp_path / "b.tar.gz", README="nothing"))
    cut = saved(tmp_path, "c.tar.gz", bad.read_bytes()[:60])
    with pytest.raises(ModelError, match=r"c.tar.gz: is cut short or damaged"):
        read_archive(cut)
    with pytest.raises(ModelError, match="no tar archive"):
        read_archive(saved(tmp_path, "d.tar", "plain text"))


@pytest.mark.slow
@pytest.mark.shared
def test_published_sets(shared: Path) -> None:
    data = shared / "data"
    if not data.is_dir():
        pytest.skip(f"no folder {data}")
    conv2 = read_sparse(data / "alexnet_pruned" / "coo_conv2.mtx")
    assert conv2.matrix.shape == (256, 1200) and conv2.matrix.nnz == 34979
    assert conv2.filters((5, 5))[21, 0, 0, 0] == np.float32(-0.0066267)
    masks = read_archive(data / "resnet50_masks" / "magnitude_0.90.tar.gz")
    assert len(masks) == 54
    three = masks["bottleneck_2_block_group1_1_1"]
    assert three.filters((3, 3), "rsc").shape[0] == three.matrix.shape[0]
    assert all(0 < mask.density < 0.2 for mask in masks.values())
