"""Limits of the memory that a file may ask for, and the reading of packed files within them.

A small file can describe a large content: packed bytes, the shape of an array, a layer that makes
its input larger. The size of the content is compared with a limit before memory is taken. The limit
follows from the size of the file or of the inputs, unless GOSSAMER_MAX_BYTES states it.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from gossamer.errors import GossamerError, InputError, quoted, similar_file
from gossamer.io.text import bytes_text

VARIABLE = "GOSSAMER_MAX_BYTES"
LEAST = 2**28
"""Bytes that every file may ask for, however small it is."""
MOST_RATIO = 32
"""The most bytes that a packed file may unpack to, as a multiple of the file's own bytes."""
MOST_GROWTH = 128
"""The most bytes of a value inside a network, as a multiple of the bytes of the network's inputs.
"""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_CHUNK = 2**20
"""Bytes that are unpacked at a time, before their sum is compared with the limit again."""
_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 2**24
"""Characters that a line of text may not reach, enough for a few million numbers."""


def set_limit() -> int | None:
    """Return the limit that the variable GOSSAMER_MAX_BYTES states, such as 2**33 for 8G; None
    where it is not set. Raises InputError where it is no number of bytes."""
    text = os.environ.get(VARIABLE, "").strip()
    return bytes_of(text, VARIABLE) if text else None


def bytes_of(text: str, name: str, unit: str = "bytes") -> int:
    """Return the number that a text such as 8G states, with units of 1024. Raises InputError for
    any other text.

    name: the option or variable with the text, for the message.
    unit: what is counted, for the message.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise InputError(f"{name} is {quoted(text)}, expected a number of {unit} above 0, such "
                         "as 2000000000 or 8G")
    return int(match[1]) * _UNITS[match[2]]


def most_unpacked(packed: int) -> int:
    """Return the most bytes that a packed file may unpack to. packed: size of the file."""
    return set_limit() or max(LEAST, MOST_RATIO * packed)


def check_unpacked(what: str, unpacked: int, packed: int) -> None:
    """Raise InputError where a packed file unpacks to too many bytes.

    what: name of the file, for the message.
    unpacked, packed: bytes of the file's content and of the file itself.
    """
    limit = most_unpacked(packed)
    if unpacked > limit:
        raise InputError(f"{what}: unpacks to more than {bytes_text(limit)}, the limit for a file "
                         f"of {bytes_text(packed)}; where that is meant, set {raised(unpacked)}")


def most_value_bytes(inputs: int, batch: int = 0) -> int:
    """Return the most bytes of a value inside a network, and of all constants that its nodes make.

    inputs: bytes of the network's inputs.
    batch: the number of images that the user asked for; 0 where the file fixes it.
    """
    of_file = min(max(LEAST, MOST_GROWTH * inputs), host_memory() // 2)
    return set_limit() or max(of_file, LEAST // 4 * batch)


def host_memory() -> int:
    """Return the bytes of the machine's memory; 16 GiB where the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**34


def raised(needed: int) -> str:
    """Return text that sets GOSSAMER_MAX_BYTES to at least `needed` bytes, for messages."""
    return f"{VARIABLE}={max(-(-needed // 2**30), 1)}G"


@contextmanager
def opened(path: Path, damaged: type[GossamerError] = InputError) -> Iterator[IO[bytes]]:
    """Open a file for reading, and unpack it where it begins with gzip's bytes.

    damaged: class of the error for a file that is cut short or damaged.
    Raises InputError for a file that cannot be read, or that unpacks to too many bytes.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            # seeking to the end and back empties the file's buffer, from which reading the whole
            # file would otherwise have to copy
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
    """Return bytes, unpacked where they begin with gzip's. Raises as opened() does.

    what: name of the bytes, for messages.
    """
    if data[:2] != _GZIP:
        return data
    try:
        _check(what, io.BytesIO(data))
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(f"{what}: is cut short or damaged ({error})") from None


def whole(path: Path) -> bytes:
    """Return the bytes of a file, without unpacking them. Raises InputError for a file that cannot
    be read, and for a pipe or a device, which may never end."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot read {path}: is no regular file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}{similar_file(path)}"
                         ) from None


@contextmanager
def opened_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a file as opened() does, and yield its lines of text in UTF-8 with their ends."""
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
            raise InputError(f"{path}: line {number} has {_LONGEST_LINE} characters or more; "
                             "expected one sample in each line")
        yield line


def _check(what: str, file: IO[bytes]) -> None:
    """Raise InputError where a packed file unpacks to too many bytes.

    The file is unpacked to count the bytes, which are dropped: the size that it states may be
    wrong.
    """
    packed = file.seek(0, io.SEEK_END)
    limit, unpacked = most_unpacked(packed), 0
    file.seek(0)
    with gzip.open(file) as content:
        while chunk := content.read(_CHUNK):
            unpacked += len(chunk)
            if unpacked > limit:
                check_unpacked(what, unpacked, packed)
    file.seek(0)
