"""Writes files whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PARTIAL = ".partial-"
"""Beginning of the name of an incomplete file; a killed process may leave such a file."""


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yields a file open for writing. The file replaces `path` when the body of the with statement
    ends, and is removed when the body or the writing fails. Raises OSError where a file operation
    fails.

    mode: the permissions of the file, less the process's umask.
    """
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
