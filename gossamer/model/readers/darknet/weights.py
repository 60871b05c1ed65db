"""Reads .weights files: a header, and float32 numbers that the layers take in turn."""

from __future__ import annotations

import math
import string
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.errors import ModelError
from gossamer.io.packed import whole
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.other_kinds import by_content

_LARGEST = 2**40
"""The most numbers that a layer may ask for: more than any real file has."""
_MOST_MISSING = 2**24
"""The most numbers of one layer that are replaced by zeros after the end of the file. With zeros
the reader can go on, and count all missing numbers."""
_HEADER_START = 12
"""Number of bytes of the version numbers. In a .weights file some of these bytes are 0. A file in
which all of them are printable characters is text."""


class WeightsFile:
    """The numbers of a .weights file.

    The header consists of three int32 (major version, minor version, revision) and the number of
    photos that were seen in training: 8 bytes from version 0.2 on, 4 bytes in older versions.

    path: path of the file.
    revision: 0 in files of the original Darknet, more in files of AlexeyAB's fork.
    transposed: whether matrices of connected layers are stored as (inputs, outputs), as in very old
    files, whose version is above 1000.
    """

    def __init__(self, path: Path) -> None:
        """Reads a file. Raises InputError where the file cannot be read, and ModelError where it is
        too short for a header, ends within a number, or is text."""
        data = whole(path)
        if (kind := by_content(data)) is not None:
            raise ModelError(f"{path}: {kind}")
        if data and set(data[:_HEADER_START]) <= set(string.printable.encode()):
            raise ModelError(f"{path}: is text, not a .weights file; was a pointer (Git LFS) or a "
                             "web page downloaded in its place?")
        major, minor, self.revision = struct.unpack("<3i", data[:12].ljust(12, b"\0"))
        self.transposed = major > 1000 or minor > 1000
        header = 20 if major * 10 + minor >= 2 and not self.transposed else 16
        if len(data) < header:
            raise ModelError(f"{path}: has {len(data)} bytes, fewer than the header of a .weights "
                             "file")
        if (len(data) - header) % 4:
            raise ModelError(f"{path}: has {len(data)} bytes and ends within a number; is it cut "
                             "short?")
        self.path = path
        self._numbers = np.frombuffer(data, "<f4", offset=header)
        self._taken = 0
        self._short: Section | None = None

    def take(self, section: Section, *shape: int) -> np.ndarray:
        """Returns the next numbers, float32 of this shape. After the end of the file the numbers
        are zeros, and finish() says how many are missing. Raises ModelError at once where a layer
        needs more than _MOST_MISSING numbers and the file ends before the last of them."""
        count = math.prod(shape)
        if count > _LARGEST:
            raise section.error(f"has {count} weights, which no .weights file holds; its sizes are "
                                "wrong")
        start, self._taken = self._taken, self._taken + count
        if self._taken > self._numbers.size:
            if count > _MOST_MISSING:
                raise section.error(f"alone needs {count} numbers, and {self.path} holds "
                                    f"{self._numbers.size}; is it the .weights file of another "
                                    ".cfg?")
            self._short = self._short or section
            return np.broadcast_to(np.float32(0), shape)
        return self._numbers[start:self._taken].reshape(shape)

    def finish(self, cfg: Path, notices: Sequence[str]) -> None:
        """Raises ModelError unless the layers took all numbers of the file and no more. notices:
        warnings about the .cfg file, which may name the cause."""
        if self._taken == self._numbers.size:
            return
        if self._short is not None:
            difference = f"too short: it ends within {self._short.source}"
            of_first = ", or of its first layers alone, from which training starts"
        else:
            difference = f"too long by {self._numbers.size - self._taken}"
            of_first = ""
        told = "".join(f" ({notice})" for notice in notices)
        raise ModelError(f"{self.path}: holds {self._numbers.size} numbers, {cfg} needs "
                         f"{self._taken}, so that it is {difference}; is it the .weights file of "
                         f"another .cfg{of_first}?{told}")
