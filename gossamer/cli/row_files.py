"""Output files of `run` with one row per input.

JSON Lines and CSV files are appended to row by row, and an interrupted run can continue them. NumPy
and Parquet files appear only when they are complete.
"""

from __future__ import annotations

import abc
import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from gossamer.errors import InputError
from gossamer.io import output_files
from gossamer.io.text import shape_text

GROWING = (".jsonl", ".csv")
"""Suffixes of the files that can be continued."""
_JSON = json.JSONEncoder(allow_nan=False).encode
"""Function that encodes a row's document() as JSON. It accepts Python's numbers, not NumPy's."""
_MOST_COLUMNS = 4096
"""Maximum number of columns of a CSV file, with one column per number of a row."""


@dataclass(frozen=True)
class Row:
    """The result of a network for one input.

    name: the input's file, or its index in a CSV file.
    label: the input's label in a CSV file; None without a label.
    error: reason why the input could not be read, or why its outputs are wrong; "" without an
    error.
    classes: the best classes, as returned by best_classes(); None if the network does not score
    classes.
    outputs: the outputs for this input, without the batch dimension, by name.
    """

    name: str | int
    label: str | None = None
    error: str = ""
    classes: Sequence[Mapping[str, Any]] | None = None
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    def document(self, key: str) -> dict[str, Any]:
        """Return the row as a JSON object.

        key: the key of the row's name: "file" or "sample".
        """
        result: dict[str, Any] = {key: self.name}
        if self.label is not None:
            result["label"] = self.label
        if self.error:
            result["error"] = self.error
        elif self.classes is not None:
            result["classes"] = self.classes
        else:
            result["outputs"] = {name: _numbers(values) for name, values in self.outputs.items()}
        return result

    def columns(self, key: str) -> dict[str, Any]:
        """Return the row as table columns, with outputs as flat arrays.

        key: the column of the row's name: "file" or "sample".
        """
        result: dict[str, Any] = {key: self.name}
        if self.label is not None:
            result["label"] = self.label
        result["error"] = self.error or None
        if self.classes is None:
            return result | {name: values.reshape(-1) for name, values in self.outputs.items()}
        for rank, line in enumerate(self.classes, 1):
            result |= {f"{name}_{rank}": value for name, value in line.items()}
        return result


def _numbers(values: np.ndarray) -> Any:
    """Return an array as nested lists of Python numbers.

    A float32 or float16 becomes the float64 with the same shortest decimal representation, so that
    JSON and CSV contain no superfluous digits.
    """
    if values.dtype in (np.float32, np.float16):
        values = values.astype(str).astype(np.float64)
    return values.tolist()


def check(path: Path, option_text: str, outputs: int) -> None:
    """Raise InputError if rows cannot be written to a file of this name.

    option_text: the option and its value, for messages.
    outputs: number of network outputs.
    """
    output_files.check_named(option_text, path, tuple(_KINDS))
    if path.suffix == ".npy" and outputs > 1:
        raise InputError(f"{option_text}: the network has {outputs} outputs; use .jsonl or "
                         ".parquet for several outputs")


class RowFile(abc.ABC):
    """A file of rows that is completed at the end of a `with` block.

    If the block fails, a JSON Lines or CSV file keeps its rows; a file of another kind is not
    written. The first row without an error determines the columns; rows before it are buffered.

    done: the names of the rows already in the file, as text.
    """

    what_stays = ""
    """The end of the message for a file that cannot be written."""
    _is_begun = False
    """Whether the columns are known; rows are buffered until then."""

    def __init__(self, path: Path, option_text: str, key: str, resume: bool = False) -> None:
        self._path = path
        self._option_text = option_text
        self._key = key
        self._stack = ExitStack()
        self._waiting: list[Row] = []
        self.done: set[str] = set()

    def write(self, rows: Sequence[Row], count: int) -> None:
        """Add rows.

        count: number of rows of the complete file.
        Raises InputError if the rows cannot be written.
        """
        self._waiting += rows
        with self._named_errors():
            if not self._is_begun:
                typical = next((row for row in rows if not row.error), None)
                if typical is None:
                    return
                self._begin(typical, count)
                self._is_begun = True
            self._add(self._waiting)
        self._waiting = []

    def complete(self) -> None:
        """Write the buffered rows after the last row, if all rows have errors."""
        if self._waiting:
            self._begin(self._waiting[0], len(self._waiting))
            self._add(self._waiting)

    def _begin(self, typical: Row, count: int) -> None:  # noqa: B027
        """Prepare the file for rows with the columns of a typical one.

        count: number of rows of the complete file.
        """

    @abc.abstractmethod
    def _add(self, rows: Sequence[Row]) -> None:
        """Write rows. Raises InputError if their columns are others than those of the file."""

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self._named_errors(), self._stack:
            if error is not None:
                raise error  # so that an incomplete file is removed
            self.complete()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self._option_text}: cannot be written: "
                             f"{error.strerror or error}{self.what_stays}") from None


class _Lines(RowFile):
    """A text file to which rows are appended.

    If the process ends early, the rows stay in the file. An incomplete last row is removed when the
    file is continued.
    """

    what_stays = "; the rows written so far are kept, and --resume continues the file"

    def __init__(self, path: Path, option_text: str, key: str, resume: bool = False) -> None:
        super().__init__(path, option_text, key)
        self._file: IO[str] | None = None
        self._mode = "w"
        if resume and path.exists():
            self._mode = "a"
            self._continue()

    def _continue(self) -> None:
        with self._named_errors():
            text = self._path.read_bytes().decode("utf-8", "surrogateescape")
        whole = self._whole(text)
        self.done = self._names(whole)
        if whole != text:
            with self._named_errors(), output_files.atomically_replacing(self._path) as file:
                file.write(whole.encode("utf-8", "surrogateescape"))

    def _append(self, text: str) -> None:
        if self._file is None:
            # file names may contain bytes that are not UTF-8
            self._file = self._stack.enter_context(self._path.open(
                self._mode, encoding="utf-8", newline="", errors="surrogateescape"))
        self._file.write(text)
        self._file.flush()

    @abc.abstractmethod
    def _whole(self, text: str) -> str:
        """Return the complete rows at the start of a file's text."""

    @abc.abstractmethod
    def _names(self, text: str) -> set[str]:
        """Return the names of the rows in a file's text.

        Raises InputError if the rows were not written by this command.
        """

    def _other_rows(self, line: int, expected: str) -> InputError:
        return InputError(f"{self._option_text}: --resume continues only files of this command; "
                          f"expected {expected} in line {line}; omit --resume to overwrite "
                          "the file")


class JsonLines(_Lines):
    """One line with a JSON object per row."""

    _is_begun = True

    def _add(self, rows: Sequence[Row]) -> None:
        self._append("".join([_JSON(row.document(self._key)) + "\n" for row in rows]))

    def _whole(self, text: str) -> str:
        return text[:text.rfind("\n") + 1]

    def _names(self, text: str) -> set[str]:
        names = set()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                names.add(str(json.loads(line)[self._key]))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise self._other_rows(number, f"a JSON object with {self._key!r}") from None
        return names


class CsvLines(_Lines):
    """A CSV table with a line of headings. A continued table keeps its headings."""

    def __init__(self, path: Path, option_text: str, key: str, resume: bool = False) -> None:
        self._headings: list[str] = []
        super().__init__(path, option_text, key, resume)
        self._is_begun = bool(self._headings)

    def _begin(self, typical: Row, count: int) -> None:
        self._headings = list(self._cells(typical))
        self._write_cells([self._headings])

    def _add(self, rows: Sequence[Row]) -> None:
        cells = [self._cells(row) for row in rows]
        for row, of_row in zip(rows, cells, strict=True):
            if not row.error and list(of_row) != self._headings:
                raise self._other_rows(1, f"the headings {','.join(list(of_row)[:8])}")
        self._write_cells([of_row.get(name) for name in self._headings] for of_row in cells)

    def _cells(self, row: Row) -> dict[str, Any]:
        """Return the cells of a row by their headings, one per number of an array."""
        cells = {name: value for column, values in row.columns(self._key).items()
                 for name, value in _cells(column, values)}
        if len(cells) > _MOST_COLUMNS:
            raise InputError(f"{self._option_text}: a row has {len(cells)} numbers, but a .csv "
                             f"file has at most {_MOST_COLUMNS} columns; use .npy or .jsonl, "
                             "which have no limit")
        return cells

    def _write_cells(self, rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._append(text.getvalue())

    def _whole(self, text: str) -> str:
        end = text.rfind("\n") + 1
        # a line break with an odd number of quotation marks before it is inside a quoted cell, and
        # does not end a row
        while text.count('"', 0, end) % 2:
            end = text.rfind("\n", 0, end - 1) + 1
        return text[:end]

    def _names(self, text: str) -> set[str]:
        rows = csv.reader(io.StringIO(text, newline=""))
        self._headings = next(rows, [])
        if text and self._headings[:1] != [self._key]:
            raise self._other_rows(1, f"a first column {self._key!r}")
        return {row[0] for row in rows if row}


def _cells(column: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a value, one per number of an array."""
    if not isinstance(value, np.ndarray):
        yield column, value
    elif value.size == 1:
        yield column, _numbers(value)[0]
    else:
        for index, number in enumerate(_numbers(value)):
            yield f"{column}_{index}", number


class NumpyFile(RowFile):
    """The rows of one output as an array; the rows of unreadable inputs are NaN.

    Rows are written immediately, to a temporary file that is renamed when it is complete.
    """

    def complete(self) -> None:
        """Write no file if all rows have errors."""

    def _begin(self, typical: Row, count: int) -> None:
        values = next(iter(typical.outputs.values()))
        self._empty = np.full_like(values, np.nan if values.dtype.kind == "f" else 0)
        self._file: IO[bytes] = self._stack.enter_context(
            output_files.replacing(self._path, self._option_text))
        np.lib.format.write_array_header_2_0(self._file, {
            "descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False,
            "shape": (count, *values.shape)})

    def _add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = self._empty if row.error else next(iter(row.outputs.values()))
            if row.error and values.dtype.kind != "f":
                raise InputError(f"{self._option_text}: an input could not be read, and "
                                 f"{values.dtype} has no NaN to mark its row; use .jsonl or .csv")
            if values.shape != self._empty.shape:
                raise InputError(
                    f"{self._option_text}: the output of {row.name} has shape "
                    f"{shape_text(values.shape)}, but that of earlier inputs has "
                    f"{shape_text(self._empty.shape)}, which does not fit into one array; use "
                    ".jsonl or .parquet, or resize all images with --size")
            self._file.write(np.ascontiguousarray(values).tobytes())


class ParquetFile(RowFile):
    """A Parquet table, in which an output is a list of numbers.

    Rows are written immediately, to a temporary file that is renamed when it is complete.
    """

    _writer: Any = None

    def complete(self) -> None:
        """Write the buffered rows, and the end of the table."""
        super().complete()
        if self._writer is not None:
            self._writer.close()

    def _begin(self, typical: Row, count: int) -> None:
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.Table.from_pylist([
            {name: "" if value is None else value
             for name, value in typical.columns(self._key).items()}]).schema
        file = self._stack.enter_context(output_files.replacing(self._path, self._option_text))
        self._writer = parquet.ParquetWriter(file, schema)

    def _add(self, rows: Sequence[Row]) -> None:
        import pyarrow

        self._writer.write_table(pyarrow.Table.from_pylist(
            [row.columns(self._key) for row in rows], schema=self._writer.schema))


_KINDS: dict[str, type[RowFile]] = {
    ".jsonl": JsonLines, ".csv": CsvLines, ".npy": NumpyFile, ".parquet": ParquetFile}
"""The class of file by its suffix."""


def open_rows(path: Path, option_text: str, key: str, resume: bool) -> RowFile:
    """Open the file of rows at a path that check() has accepted.

    key: the JSON key or column heading of the rows' names.
    resume: whether to continue an existing file.
    """
    return _KINDS[path.suffix](path, option_text, key, resume)
