"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PARTIAL = ".partial-"
"""How the name of a file begins that is not written to its end yet; a killed process leaves it."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file open for writing that takes the place of `path` when the body ends, and goes away
    when the body or the writing fails. Raises OSError."""
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
