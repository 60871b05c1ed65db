"""Reads published sparse weights: MatrixMarket files, such as those of SkimCaffe's pruned AlexNet,
and the masks of Google's DLMC (.smtx); benchmarks/README.md says where both are from."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import io as scipy_io
from scipy import sparse

from gossamer.errors import InputError, ModelError, quoted
from gossamer.io.limits import check_unpacked, opened

SUFFIXES = (".mtx", ".mtx.gz", ".smtx")

_MOST = 2**31
"""A matrix of this many weights or more is refused, because indices are 32-bit."""
_ORDERS = {"crs": (0, 1, 2, 3), "rsc": (0, 3, 1, 2)}
"""The permutation that brings the axes of an array into the order (M, C, R, S). The axes of the
array are M, and then the axes that the key names."""
_HEADER = re.compile(r"\s*(\d{1,12})\s*,\s*(\d{1,12})\s*,\s*(\d{1,12})\s*")
_VALUE = rb"[ \t]+[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|(?i:inf|infinity|nan))"
_ENTRIES = {field: re.compile(rb"[ \t]*\d+[ \t]+\d+" + (b"" if field == "pattern" else _VALUE)
                              + rb"[ \t]*\r?")
            for field in ("real", "double", "integer", "unsigned-integer", "pattern")}
"""For each value type that is read from MatrixMarket files, the pattern of an entry's line."""
_BLANKS = b" \t\r"


@dataclass(frozen=True)
class SparseWeightsFile:
    """The weights of a file.

    name: name of the file in messages.
    matrix: float32 weights with a row for each output channel (groups stacked); the columns of a
    row ascend.
    is_mask: True where the file has no values; all values of `matrix` are then 1.
    """

    name: str
    matrix: sparse.csr_array
    is_mask: bool = False

    @property
    def density(self) -> float:
        return self.matrix.nnz / max(self.matrix.shape[0] * self.matrix.shape[1], 1)

    def filters(self, kernel: tuple[int, int], order: str = "crs") -> np.ndarray:
        """Returns the weights as a dense array (M, C/groups, R, S).

        order: order of the axes within a row of the matrix, outermost first: "crs" (SkimCaffe) or
        "rsc" (the 3x3 layers of DLMC). Raises InputError where the number of columns is no
        multiple of the number of taps.
        """
        rows, columns = self.matrix.shape
        taps = kernel[0] * kernel[1]
        if columns % taps:
            raise InputError(f"{self.name}: {columns} columns are no whole number of channels of "
                             f"{kernel[0]}x{kernel[1]} taps; give the kernel of this layer")
        sizes = {"c": columns // taps, "r": kernel[0], "s": kernel[1]}
        split = self.matrix.toarray().reshape(rows, *(sizes[axis] for axis in order))
        return np.ascontiguousarray(split.transpose(_ORDERS[order]))


def read_sparse(path: str | Path) -> SparseWeightsFile:
    """Reads a .mtx, .mtx.gz (MatrixMarket, coordinate, general) or .smtx file (DLMC).

    Raises InputError when the file cannot be read or unpacked. Raises ModelError, which names file
    and line, where the file is malformed.
    """
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    with opened(path, ModelError) as file:
        data = file.read()
    parse = _parse_smtx if path.suffix == ".smtx" else _parse_matrix_market
    return parse(str(path), data)


def read_archive(path: str | Path) -> dict[str, SparseWeightsFile]:
    """Reads the .smtx files of a .tar or .tar.gz archive, sorted by their names without suffix.

    Raises InputError when the archive cannot be read. Raises ModelError where the archive is
    damaged, has no .smtx file, or has a malformed .smtx file.
    """
    path = Path(path)
    files = {}
    try:
        with (opened(path, ModelError) as content,
              tarfile.open(fileobj=content, mode="r:") as archive):
            packed = path.stat().st_size
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and member.name.endswith(".smtx"):
                    name = f"{path}: {member.name}"
                    # a sparse file, as tar calls it, has holes that take no bytes in the archive
                    check_unpacked(name, member.size, packed)
                    files[Path(member.name).stem] = _parse_smtx(name, file.read())
    except ModelError:
        raise
    except (tarfile.TarError, ValueError, LookupError, OverflowError) as error:
        raise ModelError(f"{path}: is cut short or no tar archive ({error})") from None
    if not files:
        raise ModelError(f"{path}: holds no .smtx file")
    return dict(sorted(files.items()))


def _parse_matrix_market(name: str, data: bytes) -> SparseWeightsFile:
    """The weights of a MatrixMarket file. Raises ModelError that names file and line."""
    lines = data.removesuffix(b"\n").split(b"\n")
    try:
        rows, columns, count, kind, field, symmetry = scipy_io.mminfo(io.BytesIO(data))
    except (ValueError, OverflowError) as error:
        raise _market_error(name, lines, error) from None
    if kind != "coordinate" or symmetry != "general" or field not in _ENTRIES:
        raise ModelError(f"{name}: line 1: is {kind} {field} {symmetry}, expected coordinate, "
                         "real, integer or pattern, general")
    _check_size(f"{name}: line {_entry_line(lines, 0)}", rows, columns, count)
    _check_entries(name, lines, field, count)
    check_unpacked(f"{name}: {rows} x {columns} weights", 4 * rows * columns, len(data))
    try:
        # SciPy 1.17 reads beyond the end where the last line ends in a blank without a line break
        matrix = scipy_io.mmread(io.BytesIO(data + b"\n"))
    except (ValueError, OverflowError) as error:
        raise _market_error(name, lines, error) from None
    keys = matrix.row.astype(np.int64) * columns + matrix.col
    order = np.argsort(keys, kind="stable")
    repeated = order[1:][keys[order][1:] == keys[order][:-1]]
    if len(repeated):
        first = int(repeated.min())
        raise ModelError(f"{name}: line {_entry_line(lines, first + 1)}: row "
                         f"{matrix.row[first] + 1}, column {matrix.col[first] + 1} is given twice")
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32)
    for entry in np.flatnonzero(np.isinf(values)):
        number = _entry_line(lines, int(entry) + 1)
        if b"inf" not in lines[number - 1].lower():
            raise ModelError(f"{name}: line {number}: its value is beyond float32")
    result = sparse.csr_array((values, (matrix.row, matrix.col)), (rows, columns))
    result.eliminate_zeros()
    result.sort_indices()
    return SparseWeightsFile(name, result, field == "pattern")


def _market_error(name: str, lines: list[bytes], error: Exception) -> ModelError:
    """SciPy's error as a ModelError; SciPy names the line unless the sizes are wrong."""
    reason = str(error).strip().rstrip(".") or type(error).__name__
    match = re.fullmatch(r"Line (\d+): (.*)", reason)
    if match:
        number, reason = min(int(match[1]), max(len(lines), 1)), match[2]
    else:
        number = _entry_line(lines, 0)
    return ModelError(f"{name}: line {number}: {reason[:1].lower()}{reason[1:]}; expected a "
                      "MatrixMarket file (coordinate, general)")


def _entry_line(lines: list[bytes], entry: int) -> int:
    """Returns the number of the line that has an entry. Lines and entries count from 1; entry 0 is
    the line of sizes."""
    remaining = entry
    for number, line in enumerate(lines, start=1):
        if line.strip(_BLANKS) and not line.lstrip().startswith(b"%"):
            if remaining == 0:
                return number
            remaining -= 1
    return max(len(lines), 1)


def _check_entries(name: str, lines: list[bytes], field: str, count: int) -> None:
    """Raises ModelError for malformed entries that SciPy does not refuse. SciPy ignores text behind
    the numbers of a line, and reads `4.5` as the two numbers 4 and .5. SciPy allocates memory for
    all entries before it counts them, and crashes at a NUL behind the last entry."""
    expected = "row column" if field == "pattern" else "row column value"
    first, entries = _entry_line(lines, 0), 0
    for number, line in enumerate(lines[first:], start=first + 1):
        if not line.strip(_BLANKS):
            continue
        if not _ENTRIES[field].fullmatch(line):
            text = line.decode("ascii", "replace")[:40]
            raise ModelError(f"{name}: line {number}: is {quoted(text)}, expected `{expected}`")
        entries += 1
        if entries > count:
            raise ModelError(f"{name}: line {number}: is entry {entries}, line {first} says that "
                             f"there are {count}")
    if entries < count:
        raise ModelError(f"{name}: line {len(lines)}: the file ends after {entries} of {count} "
                         "entries")


def _check_size(where: str, rows: int, columns: int, count: int) -> None:
    """Raises ModelError for a matrix that is empty or too large, and for more nonzeros than the
    matrix can have."""
    if rows < 1 or columns < 1:
        raise ModelError(f"{where}: the matrix is {rows} x {columns}, expected 1 x 1 or more")
    if rows * columns >= _MOST:
        raise ModelError(f"{where}: {rows} x {columns} weights are 2^31 or more: indices are "
                         "32-bit")
    if count > rows * columns:
        raise ModelError(f"{where}: {count} nonzeros do not fit {rows} x {columns}")


def _parse_smtx(name: str, data: bytes) -> SparseWeightsFile:
    """The mask of an .smtx file: line 1 has `rows, columns, nonzeros`, line 2 the rows' offsets and
    line 3 the columns. Raises ModelError that names file and line."""
    try:
        lines = data.decode("ascii").rstrip().split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{name}: line {number}: is no text; expected an .smtx file") from None
    header = _HEADER.fullmatch(lines[0])
    if header is None:
        raise ModelError(f"{name}: line 1: expected `rows, columns, nonzeros`, got "
                         f"{lines[0][:40]!r}")
    rows, columns, count = map(int, header.groups())
    _check_size(f"{name}: line 1", rows, columns, count)
    if len(lines) > 3:
        raise ModelError(f"{name}: line 4: expected the end after the columns of line 3")
    # a matrix of zeros has an empty third line
    lines += [""] * (3 - len(lines))
    offsets = _integers(f"{name}: line 2", lines[1], rows + 1, "row offsets", count)
    column_of = _integers(f"{name}: line 3", lines[2], count, "columns", columns - 1)
    check_unpacked(f"{name}: {rows} x {columns} weights", 4 * rows * columns, len(data))
    if offsets[0] != 0 or offsets[-1] != count:
        raise ModelError(f"{name}: line 2: the offsets run from {offsets[0]} to {offsets[-1]}, "
                         f"expected 0 to {count}")
    if (falling := np.flatnonzero(np.diff(offsets) < 0)).size:
        raise ModelError(f"{name}: line 2: offset {falling[0] + 2} is less than the one before")
    row_of = np.repeat(np.arange(rows), np.diff(offsets))
    wrong = np.flatnonzero((np.diff(column_of) <= 0) & (np.diff(row_of) == 0))
    if wrong.size:
        raise ModelError(f"{name}: line 3: column {wrong[0] + 2} of the list, "
                         f"{column_of[wrong[0] + 1]}, does not ascend within its row")
    matrix = sparse.csr_array((np.ones(count, np.float32), column_of, offsets), (rows, columns))
    return SparseWeightsFile(name, matrix, True)


def _integers(where: str, line: str, count: int, what: str, largest: int) -> np.ndarray:
    """The numbers of a line, each 0 to `largest`. Raises ModelError that begins with `where`."""
    words = line.split()
    if len(words) != count:
        raise ModelError(f"{where}: has {len(words)} {what}, expected {count}")
    for index, word in enumerate(words, start=1):
        if not word.isdecimal() or len(word) > 12 or int(word) > largest:
            raise ModelError(f"{where}: number {index} of the {what} is {word[:20]!r}, expected 0 "
                             f"to {largest}")
    return np.array(words, dtype=np.int64).astype(np.int32)
