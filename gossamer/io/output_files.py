"""Checks output files, which options name, before the work. Writes the files after the work, whole
or not at all."""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np

from gossamer.errors import InputError


def check(name: str, outputs: int, read: Sequence[str]) -> Path:
    """Return the file of --output, with symbolic links followed. Raises InputError where write()
    could not write this number of outputs to the file, or where the command reads the file."""
    if not name:
        raise InputError("--output: the name is empty; expected one that ends in .npy or .npz")
    named, path = Path(name), Path(os.path.realpath(name))
    try:
        path.exists() or path.parent.stat()
    except OSError as error:
        missing = "" if path.parent.is_dir() else f" (folder {path.parent})"
        raise InputError(f"--output {name}: {error.strerror}{missing}") from None
    check_named(f"--output {name}", named, (".npy", ".npz"))
    if named.suffix == ".npy" and outputs > 1:
        raise InputError(f"--output {name}: the network has {outputs} outputs; give a name that "
                         "ends in .npz")
    check_place(f"--output {name}", path, read)
    return path


def check_file(option: str, path: Path, suffix: str | None,
               read: Iterable[str | Path] = ()) -> None:
    """Raise InputError where the file does not have the suffix (None allows any), cannot be
    written, or is one of the files that the command reads."""
    if suffix is not None:
        check_named(f"{option} {path}", path, (suffix,))
    check_place(f"{option} {path}", path, read)


def check_named(option_text: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raise InputError unless the name has one of the suffixes. option_text: the option and its
    value, with which messages begin."""
    if path.suffix not in suffixes:
        raise InputError(f"{option_text}: expected a name that ends in {' or '.join(suffixes)}")


def check_place(option_text: str, path: Path, read: Iterable[str | Path]) -> None:
    """Raise InputError where no file can be written to the path, or where the path is a file that
    the command reads. option_text: the option and its value, with which messages begin."""
    if path.is_dir():
        raise InputError(f"{option_text}: is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{option_text}: there is no folder {path.parent}")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{option_text}: is no regular file")
        if any(Path(file).exists() and path.samefile(file) for file in read):
            raise InputError(f"{option_text}: is a file that this command reads; give another name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option_text}: the folder {path.parent} cannot be written to")


def write(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a .npy file of one array or a .npz file of several arrays to `path`. name: the user's
    name of the file. Raises InputError with the system's reason where writing fails."""
    with replacing(path, f"--output {name}") as file:
        if name.endswith(".npy"):
            (array,) = arrays.values()
            # given a real file, NumPy calls tofile(), which loses the reason of a failure
            np.lib.format.write_array(SimpleNamespace(write=file.write), array,
                                      allow_pickle=False)
        else:
            _write_npz(file, arrays)


@contextmanager
def replacing(path: Path, option_text: str = "") -> Iterator[IO[bytes]]:
    """Yield a new file, which replaces the file at the path when the body of the with statement
    ends and is removed when the body fails. option_text: the option and its value, with which
    messages begin instead of the path. Raises InputError where the file cannot be written."""
    try:
        with atomically_replacing(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{option_text or path}: cannot be written: "
                         f"{error.strerror or error}") from None


def _write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    # np.savez takes arrays as keywords, so that no array could have the name "file"
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


PARTIAL = ".partial-"
"""Beginning of the name of an incomplete file; a killed process may leave such a file."""


@contextmanager
def atomically_replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file open for writing. The file replaces `path` when the body of the with statement
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
