"""Output files that options name, checked before the work and written atomically."""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np

from gossamer.errors import InputError, installing


def check(name: str, outputs: int, read: Sequence[str]) -> Path:
    """Return the path of --output with symbolic links resolved.

    outputs: number of arrays that will be written.
    read: files that the command reads and must not replace.
    Raises InputError if the arrays cannot be written to the file.
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
        raise InputError(f"--output {name}: the network has {outputs} outputs; use a name that "
                         "ends in .npz")
    check_place(f"--output {name}", path, read)
    return path


def check_file(option: str, path: Path, suffix: str | None,
               read: Iterable[str | Path] = ()) -> None:
    """Raise InputError if a file cannot or must not be written.

    suffix: the required suffix; None allows any.
    read: files that the command reads and must not replace.
    """
    if suffix is not None:
        check_named(f"{option} {path}", path, (suffix,))
    check_place(f"{option} {path}", path, read)


def check_named(option_text: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raise InputError unless a file has one of the suffixes, and its kind can be written.

    option_text: the option and its value, for the start of the message.
    """
    if path.suffix not in suffixes:
        raise InputError(f"{option_text}: expected a name that ends in {' or '.join(suffixes)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{option_text}: needs pyarrow: {installing('tables')}; or use .jsonl or "
                         ".csv, which need no other package")


def check_place(option_text: str, path: Path, read: Iterable[str | Path]) -> None:
    """Raise InputError if a path cannot be written, or is an input file.

    option_text: the option and its value, for the start of messages.
    read: files that the command reads and must not replace.
    """
    if path.is_dir():
        raise InputError(f"{option_text}: is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{option_text}: there is no folder {path.parent}")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{option_text}: is not a regular file")
        if any(Path(file).exists() and path.samefile(file) for file in read):
            raise InputError(f"{option_text}: is an input file of this command; use another name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{option_text}: the folder {path.parent} is not writable")


def write(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write one array as a .npy file, or several as a .npz file.

    name: the value of --output; its suffix determines the format.
    Raises InputError with the system's reason if writing fails.
    """
    with replacing(path, f"--output {name}") as file:
        if name.endswith(".npy"):
            (array,) = arrays.values()
            # for a real file, NumPy would call tofile(), whose errors lack the system's reason
            np.lib.format.write_array(SimpleNamespace(write=file.write), array,
                                      allow_pickle=False)
        else:
            _write_npz(file, arrays)


@contextmanager
def replacing(path: Path, option_text: str = "") -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the one at a path.

    The file is replaced at the end of a `with` block, unless the block fails.

    option_text: the option and its value, for the start of the message; by default the path.
    Raises InputError if the file cannot be written.
    """
    try:
        with atomically_replacing(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{option_text or path}: cannot be written: "
                         f"{error.strerror or error}") from None


def _write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    # np.savez accepts arrays only as keyword arguments, so no array could be named "file"
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


PARTIAL = ".partial-"
"""Prefix of the names of incomplete files, which a killed process may leave behind."""


@contextmanager
def atomically_replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the one at a path.

    The file is replaced at the end of a `with` block, unless the block or the writing fails.

    mode: the permissions of the file, before the process's umask is applied.
    Raises OSError if the file cannot be written.
    """
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
