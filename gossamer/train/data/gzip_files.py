"""Opening of data files, compressed by gzip or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from gossamer.errors import InputError


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading and decompresses it where its first bytes are those of gzip. Raises
    InputError for a file that cannot be read, is cut short or is damaged."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.open(file) if packed else file as content:
                yield cast(IO[bytes], content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the packed file is cut short or damaged ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def opened_text(path: Path) -> Iterator[IO[str]]:
    """Opens a file as opened() does, as text in UTF-8."""
    with opened(path) as content:
        try:
            yield io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is no text in UTF-8 (byte {error.object[error.start]:#04x})"
                             ) from None
