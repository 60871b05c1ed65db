"""Memory limits for reading files, and the decompression of files.

A small file can describe large content, for example by compressed bytes, by the shape of an array,
or by a layer that enlarges its input. The size of the content is compared with a limit before
memory is allocated. The limit is derived from the size of the file or of the network's inputs,
unless GOSSAMER_MAX_BYTES sets it.
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
from typing import IO

from gossamer.errors import GossamerError, InputError, quoted, similar_file
from gossamer.io.text import bytes_text

VARIABLE = "GOSSAMER_MAX_BYTES"
LEAST = 2**28
"""Bytes allowed for every file, however small."""
MOST_RATIO = 32
"""Maximum ratio of the decompressed size to the compressed size of a file."""
MOST_GROWTH = 128
"""Maximum ratio of the size of a value in a network to the size of the network's inputs."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_CHUNK = 2**20
"""Bytes that are decompressed before the total is compared with the limit again."""
_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 2**24
"""Number of characters that every text line must stay below; enough for a few million numbers."""

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"),
           Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Linux's file about the machine's memory, and the files with a container's memory limit (cgroups
version 2 and version 1)."""


def set_limit() -> int | None:
    """Return the limit in GOSSAMER_MAX_BYTES; None if it is not set.

    The value 8G, for example, means 2**33 bytes. Raises InputError if the value is not a number of
    bytes.
    """
    text = os.environ.get(VARIABLE, "").strip()
    return bytes_of(text, VARIABLE) if text else None


def bytes_of(text: str, name: str, unit: str = "bytes") -> int:
    """Parse a number with an optional binary unit, such as 8G.

    Raises InputError for any other text.

    name: the option or variable with the text, for the message.
    unit: the counted unit, for the message.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise InputError(f"{name} is {quoted(text)}, expected a number of {unit} above 0, such "
                         "as 2000000000 or 8G")
    return int(match[1]) * _UNITS[match[2]]


def most_unpacked(packed: int) -> int:
    """Return the maximum decompressed bytes of a file of `packed` bytes."""
    return set_limit() or max(LEAST, MOST_RATIO * packed)


def check_unpacked(what: str, unpacked: int, packed: int) -> None:
    """Raise InputError if a file decompresses to too many bytes.

    what: name of the file, for the message.
    unpacked, packed: decompressed and compressed size in bytes.
    """
    limit = most_unpacked(packed)
    if unpacked > limit:
        raise InputError(f"{what}: unpacks to more than {bytes_text(limit)}, the limit for a file "
                         f"of {bytes_text(packed)}; if this is intended, set {raised(unpacked)}")


def most_value_bytes(inputs: int, batch: int = 0) -> int:
    """Return the maximum bytes of a value in a network.

    The same limit applies to the total size of all constants that the network's nodes compute.

    inputs: bytes of the network's inputs.
    batch: number of images that the user requested; 0 if the file fixes the batch size.
    """
    of_file = min(max(LEAST, MOST_GROWTH * inputs), host_memory() // 2)
    return set_limit() or max(of_file, LEAST // 4 * batch)


def host_memory() -> int:
    """Return the machine's memory in bytes; 16 GiB if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**34


def available_memory() -> int | None:
    """Return the free memory in bytes, or the container's limit if lower.

    If the free memory is unknown, the total memory of the machine is used instead. None means that
    nothing is known.
    """
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdigit()]
    lines = [line.split() for line in _text(_MEMINFO).splitlines()]
    free = [1024 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]]
    return min([*limits, *(free or [host_memory()])]) or None


def _text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def raised(needed: int) -> str:
    """Return a setting of GOSSAMER_MAX_BYTES >= `needed`, for messages."""
    return f"{VARIABLE}={max(-(-needed // 2**30), 1)}G"


@contextmanager
def opened(path: Path, damaged: type[GossamerError] = InputError) -> Iterator[IO[bytes]]:
    """Open a file for reading, with gzip decompression if necessary.

    damaged: error class for a truncated or damaged file.
    Raises InputError for a file that cannot be read or decompresses to too many bytes.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            # Seeking to the end and back empties the file's buffer; reading the whole file then
            # needs one copy less.
            file.seek(0, io.SEEK_END)
            file.seek(0)
            yield io.BytesIO(unpacked(file.read(), str(path), damaged)) if packed else file
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def unpacked(data: bytes, what: str, damaged: type[GossamerError] = InputError) -> bytes:
    """Return bytes, decompressed if they are in gzip format.

    what: name of the bytes, for messages.
    Raises the same errors as opened().
    """
    if data[:2] != _GZIP:
        return data
    result = bytearray()
    try:
        # the size that the data state may be wrong
        with gzip.open(io.BytesIO(data)) as content:
            while chunk := content.read(_CHUNK):
                result += chunk
                check_unpacked(what, len(result), len(data))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(f"{what}: is cut short or damaged ({error})") from None
    return bytes(result)


def whole(path: Path) -> bytes:
    """Return the bytes of a file, without decompression.

    Raises InputError for a file that cannot be read, and for a pipe or a device, which may never
    end.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot read {path}: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}{similar_file(path)}"
                         ) from None


@contextmanager
def opened_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a file like opened(), and yield its UTF-8 lines with their ends."""
    with opened(path) as content:
        try:
            yield _lines(path, io.TextIOWrapper(content, encoding="utf-8-sig", newline=""))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is not UTF-8 text (byte {error.object[error.start]:#04x})"
                             ) from None


def _lines(path: Path, text: IO[str]) -> Iterator[str]:
    number = 0
    while line := text.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise InputError(f"{path}: line {number} has {_LONGEST_LINE} characters or more; "
                             "expected one sample per line")
        yield line
