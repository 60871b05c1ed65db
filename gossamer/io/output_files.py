"""Output files that options name: checked before the work, and written after it, whole or not at
all."""

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
    """Return the file of --output, with symbolic links followed.

    outputs: number of arrays that write() will get.
    read: files that the command reads, which must not be replaced.
    Raises InputError where the arrays cannot be written to the file.
    """
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
    """Raise InputError where a file cannot be written, or must not be.

    suffix: the suffix that the file must have; None allows any.
    read: files that the command reads, which must not be replaced.
    """
    if suffix is not None:
        check_named(f"{option} {path}", path, (suffix,))
    check_place(f"{option} {path}", path, read)


def check_named(option_text: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raise InputError unless a file has one of the suffixes.

    option_text: the option and its value, with which the message begins.
    """
    if path.suffix not in suffixes:
        raise InputError(f"{option_text}: expected a name that ends in {' or '.join(suffixes)}")


def check_place(option_text: str, path: Path, read: Iterable[str | Path]) -> None:
    """Raise InputError where no file can be written at a path, or the path is a file that the
    command reads.

    option_text: the option and its value, with which messages begin.
    """
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
    """Write one array as a .npy file, or several as a .npz file.

    name: the value of --output, whose suffix decides.
    Raises InputError with the system's reason where writing fails.
    """
    with replacing(path, f"--output {name}") as file:
        if name.endswith(".npy"):
            (array,) = arrays.values()
            # for a real file NumPy would call tofile(), whose errors do not tell the reason
            np.lib.format.write_array(SimpleNamespace(write=file.write), array,
                                      allow_pickle=False)
        else:
            _write_npz(file, arrays)


@contextmanager
def replacing(path: Path, option_text: str = "") -> Iterator[IO[bytes]]:
    """Yield a file that replaces the one at the path at the end of a `with` block, if the block
    does not fail.

    option_text: the option and its value, with which the message begins in place of the path.
    Raises InputError where the file cannot be written.
    """
    try:
        with atomically_replacing(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{option_text or path}: cannot be written: "
                         f"{error.strerror or error}") from None


def _write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    # not by np.savez, which takes arrays as keywords, so that none could have the name "file"
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


PARTIAL = ".partial-"
"""Beginning of the name of an incomplete file, which a killed process may leave behind."""


@contextmanager
def atomically_replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file that replaces the one at `path` at the end of a `with` block, if neither the
    block nor the writing fails.

    mode: the permissions of the file, less the process's umask.
    Raises OSError where the file cannot be written.
    """
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
