"""Arrays in NumPy's format, from .npy and .npz files.

Before an array is read, the size that its header states is compared with the size of the file, so
that a wrong header cannot cause a huge allocation. Python objects are never read.
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from gossamer.errors import InputError, cut, one_line, similar_file
from gossamer.io.limits import check_unpacked

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGED = (EOFError, LookupError, MemoryError, NotImplementedError, OverflowError, RecursionError,
            RuntimeError, SyntaxError, TypeError, ValueError, tokenize.TokenError,
            zipfile.BadZipFile, zlib.error)
"""Errors that Python and NumPy raise for damaged files, and RuntimeError for encrypted files."""


class BadArray(ValueError):
    """An unreadable array; the message is the reason, to be appended to a file name."""


class PickledObjects(BadArray):
    """An array of Python objects, which are never read."""


def read_array(stream: IO[bytes], size: int) -> np.ndarray:
    """Read the array in a stream of NumPy's format.

    size: bytes of the whole stream.
    Raises BadArray if the array cannot be read.
    """
    try:
        if stream.read(len(MAGIC)) != MAGIC:
            raise BadArray("is not a .npy file")
        version = tuple(stream.read(2))
        if version not in _HEADERS:
            raise BadArray(f"has version {version} of NumPy's format, expected (1, 0) or (2, 0)")
        with warnings.catch_warnings():
            # NumPy warns about headers written by Python 2
            warnings.simplefilter("ignore")
            shape, fortran, dtype = _HEADERS[version](stream)  # type: ignore[index]
        if dtype.hasobject:
            raise PickledObjects("contains pickled Python objects, expected an array of numbers or "
                                 "strings")
        count = math.prod(shape)
        if (min(shape, default=0) < 0 or (count and not dtype.itemsize)
                or count * dtype.itemsize != size - stream.tell()):
            raise BadArray(f"has a header of shape {cut(str(shape))} and dtype {cut(str(dtype))}, "
                           f"but {size - stream.tell()} bytes of data follow")
        flat = np.empty(count, dtype)
        if flat.nbytes:
            _fill(stream, flat)
        return flat.reshape(shape, order="F" if fortran else "C")
    except BadArray:
        raise
    except _DAMAGED as error:
        raise BadArray(reason(error)) from None


def read_archive(file: Path | io.BytesIO, name: str) -> Archive:
    """Open a .npz file.

    name: name of the file, for the message of InputError.
    Raises BadArray if the file is not a .npz file, OSError if it cannot be read, and InputError if
    its arrays decompress to more bytes than gossamer.io.limits allows.
    """
    try:
        archive = zipfile.ZipFile(file)
    except _DAMAGED as error:
        raise BadArray(reason(error)) from None
    try:
        packed = file.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        check_unpacked(name, sum(info.file_size for info in archive.infolist()), packed)
        return Archive(archive)
    except BaseException:
        archive.close()
        raise


class Archive:
    """An open .npz file, to be used as a context manager.

    names: names of its arrays.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = [name.removesuffix(SUFFIX) for name in archive.namelist()
                      if name.endswith(SUFFIX)]

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> np.ndarray:
        """Return an array by name. Raises BadArray if it cannot be read."""
        try:
            info = self._archive.getinfo(name + SUFFIX)
            with self._archive.open(info) as stream:
                return read_array(stream, info.file_size)
        except BadArray:
            raise
        except _DAMAGED as error:
            raise BadArray(reason(error)) from None


def reason(error: Exception) -> str:
    """Return the text of a Python or NumPy error, cut to one short line."""
    return cut(one_line(" ".join(str(error).split()))) or type(error).__name__


def _fill(stream: IO[bytes], flat: np.ndarray) -> None:
    """Read the bytes of an array. Raises BadArray if the stream ends early."""
    target = flat.view(np.uint8).data
    filled = 0
    while filled < len(target):
        chunk = stream.read(min(2**24, len(target) - filled))
        if not chunk:
            raise BadArray(f"ends after {filled} of {len(target)} bytes")
        target[filled:filled + len(chunk)] = chunk
        filled += len(chunk)


def read_arrays(file: str, option: str) -> dict[str, np.ndarray]:
    """Return the arrays of a .npz or .npy file by name.

    The name of the array in a .npy file is "".

    option: the option that names the file, for messages.
    Raises InputError if the file cannot be read.
    """
    path = Path(file)
    try:
        with path.open("rb") as stream:
            if stream.read(2) != b"PK":
                stream.seek(0)
                return {"": read_array(stream, path.stat().st_size)}
        with read_archive(path, f"{option} {file}") as archive:
            return {name: archive.read(name) for name in archive.names}
    except FileNotFoundError:
        raise InputError(f"{option} {file}: no such file{similar_file(path)}") from None
    except OSError as error:
        raise InputError(f"{option} {file}: {error.strerror or 'cannot be read as a .npy array'}"
                         ) from None
    except BadArray as error:
        raise InputError(f"{option} {file}: cannot be read as a .npy array: {error}") from None
