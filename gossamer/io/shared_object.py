"""SharedObject: an object with arrays that other processes of this machine map without a copy."""

from __future__ import annotations

import functools
import mmap
import os
import pickle
import tempfile
from typing import IO, Any

from gossamer.errors import GossamerError

_ALIGNMENT = 64
"""Alignment of each array in the file, in bytes."""


class SharedObject:
    """An object that is stored in a file, from which other processes load it with load().

    The arrays of a loaded object are read-only views of the mapped file. The file is in memory if
    the system supports memfd_create(), else on disk. The file is removed by close(),
    or when this process ends. A file in memory is freed even if this process is killed.
    Arrays that other processes have mapped stay valid.

    path: the argument of load() in the other processes.
    Raises GossamerError if the system has no room for the file.
    """

    def __init__(self, value: Any) -> None:
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        parts, end = [], 0
        for part in (array.raw() for array in arrays):
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + part.nbytes
            parts.append((start, end))
        self._file = _new_file()
        try:
            for (start, _), array in zip(parts, arrays, strict=True):
                self._file.seek(start)
                self._file.write(array.raw())
            self._file.write(pickle.dumps((pickled, parts)))
            self._file.flush()
        except OSError as error:
            self._file.close()
            raise GossamerError("cannot share data with other processes: "
                                f"{error.strerror}") from None
        name: Any = self._file.name
        self.path = (name if isinstance(name, str) else f"/proc/{os.getpid()}/fd/{name}"), end

    def close(self) -> None:
        """Remove the file; other processes keep what they have loaded."""
        self._file.close()


def _new_file() -> IO[bytes]:
    """Return an unnamed file in memory, or else a temporary file that is removed when closed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("gossamer"), "wb")
    return tempfile.NamedTemporaryFile()


@functools.cache
def load(path: tuple[str, int]) -> Any:
    """Return the object that another process has stored; further calls return the same object.

    path: the attribute `path` of the SharedObject.
    """
    name, end = path
    with open(name, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    pickled, parts = pickle.loads(content[end:])
    return pickle.loads(pickled, buffers=[content[start:stop] for start, stop in parts])
