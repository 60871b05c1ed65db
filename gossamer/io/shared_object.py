"""SharedObject: an object whose arrays other processes of this machine map, instead of copying."""

from __future__ import annotations

import functools
import mmap
import os
import pickle
import tempfile
from types import TracebackType
from typing import IO, Any

from gossamer.errors import GossamerError

_ALIGNMENT = 64
"""Bytes to a multiple of which each array begins."""


class SharedObject:
    """An object in a file, from which load() makes read-only copies in other processes.

    The file lies in memory where the system has such files. It goes with the end of a `with` block,
    or with this process, even where this process is killed. Its arrays stay where they are mapped.

    path: what load() takes in the other processes.
    Raises GossamerError where the system has no room.
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
            raise GossamerError(f"other processes cannot get the samples: {error.strerror}"
                                ) from None
        name: Any = self._file.name
        self.path = (name if isinstance(name, str) else f"/proc/{os.getpid()}/fd/{name}"), end

    def __enter__(self) -> SharedObject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._file.close()


def _new_file() -> IO[bytes]:
    """Return a file without a name, in memory, or one that is removed when it is closed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("gossamer"), "wb")
    return tempfile.NamedTemporaryFile()


@functools.cache
def load(path: tuple[str, int]) -> Any:
    """Return the object of another process, the same one in each call."""
    name, end = path
    with open(name, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    pickled, parts = pickle.loads(content[end:])
    return pickle.loads(pickled, buffers=[content[start:stop] for start, stop in parts])
