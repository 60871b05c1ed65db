"""Opens files that gzip may have packed, with a limit on the size of their content."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from gossamer.errors import GossamerError, InputError, similar_file
from gossamer.io.limits import check_unpacked, most_unpacked

_CHUNK = 2**20
"""Number of bytes that are unpacked at a time. The total is compared with the limit after each of
these reads."""
_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 2**24
"""The most characters of a line of text, enough for a few million numbers."""


@contextmanager
def opened(path: Path, damaged: type[GossamerError] = InputError) -> Iterator[IO[bytes]]:
    """Open a file for reading, and unpacks it where it begins with the bytes of gzip.

    damaged: class of the error for a file that is cut short or damaged. Raises InputError for a
    file that cannot be read, or that unpacks to more bytes than gossamer.io.limits allows.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            # seeking to the end and back empties the file's buffer, so that reading the whole file
            # does not have to copy from it
            file.seek(0, io.SEEK_END)
            file.seek(0)
            if packed:
                _check(str(path), file)
            with gzip.open(file) if packed else file as content:
                yield cast(IO[bytes], content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(f"{path}: is cut short or damaged ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def unpacked(data: bytes, what: str, damaged: type[GossamerError] = InputError) -> bytes:
    """Return data, unpacked where they begin with the bytes of gzip. what: name of the data, for
    messages. Raises the errors of opened()."""
    if data[:2] != _GZIP:
        return data
    try:
        _check(what, io.BytesIO(data))
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(f"{what}: is cut short or damaged ({error})") from None


def whole(path: Path) -> bytes:
    """Return the bytes of a file as they are. Raises InputError for a file that cannot be read,
    and for a pipe or a device, which may never end."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot read {path}: is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}{similar_file(path)}"
                         ) from None


@contextmanager
def opened_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a file as opened() does, as lines of text in UTF-8 with their line ends."""
    with opened(path) as content:
        try:
            yield _lines(path, io.TextIOWrapper(content, encoding="utf-8-sig", newline=""))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is no text in UTF-8 (byte {error.object[error.start]:#04x})"
                             ) from None


def _lines(path: Path, text: IO[str]) -> Iterator[str]:
    number = 0
    while line := text.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise InputError(f"{path}: line {number} has {_LONGEST_LINE} characters or more, "
                             "expected a sample a line")
        yield line


def _check(what: str, file: IO[bytes]) -> None:
    """Raise InputError where a packed file unpacks to too many bytes. The file is unpacked once to
    count the bytes, without keeping them, since the size that a file states may be wrong."""
    packed = file.seek(0, io.SEEK_END)
    limit, unpacked = most_unpacked(packed), 0
    file.seek(0)
    with gzip.open(file) as content:
        while chunk := content.read(_CHUNK):
            unpacked += len(chunk)
            if unpacked > limit:
                check_unpacked(what, unpacked, packed)
    file.seek(0)
