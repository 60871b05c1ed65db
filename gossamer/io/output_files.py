"""Files that options name for what is written: checked before the work, written whole after it or
not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np

from gossamer.errors import InputError
from gossamer.io import atomic


def check(name: str, outputs: int, read: Sequence[str]) -> Path:
    """The file that `name` leads to, through symbolic links. Raises InputError when write()
    could not put so many outputs there, or when it is one of the files that are read."""
    if not name:
        raise InputError("--output: the name is empty; expected one that ends in .npy or .npz")
    given, path = Path(name), Path(os.path.realpath(name))
    try:
        path.exists() or path.parent.stat()
    except OSError as error:
        missing = "" if path.parent.is_dir() else f" (folder {path.parent})"
        raise InputError(f"--output {name}: {error.strerror}{missing}") from None
    check_named(f"--output {name}", given, (".npy", ".npz"))
    if given.suffix == ".npy" and outputs > 1:
        raise InputError(f"--output {name}: the network has {outputs} outputs; give a name that "
                         "ends in .npz")
    check_place(f"--output {name}", path, read)
    return path


def check_file(option: str, path: Path, suffix: str | None,
               read: Iterable[str | Path] = ()) -> None:
    """Raises InputError when no file of that suffix (None: of any) could take this place, or when
    it is one of the files that are read."""
    if suffix is not None:
        check_named(f"{option} {path}", path, (suffix,))
    check_place(f"{option} {path}", path, read)


def check_named(given: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raises InputError unless the name ends in one of these. given: the option and its value."""
    if path.suffix not in suffixes:
        raise InputError(f"{given}: expected a name that ends in {' or '.join(suffixes)}")


def check_place(given: str, path: Path, read: Iterable[str | Path]) -> None:
    """Raises InputError when no file could be put there, or one that is read would go. given: the
    option and its value."""
    if path.is_dir():
        raise InputError(f"{given}: is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{given}: there is no folder {path.parent}")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{given}: is no regular file")
        if any(Path(other).exists() and path.samefile(other) for other in read):
            raise InputError(f"{given}: is a file that this command reads; give another name")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{given}: the folder {path.parent} cannot be written to")


def write(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a .npy file of one array or a .npz file of several to `path`, which the user calls
    `name`. Raises InputError with the system's reason where that fails."""
    with replacing(path, f"--output {name}") as file:
        if name.endswith(".npy"):
            (array,) = arrays.values()
            # NumPy writes to what it takes for a file by itself and loses the reason of a failure
            np.lib.format.write_array(SimpleNamespace(write=file.write), array,
                                      allow_pickle=False)
        else:
            _write_npz(file, arrays)


@contextmanager
def replacing(path: Path, given: str = "") -> Iterator[IO[bytes]]:
    """A file that takes the place of the one at the path when all was written, else goes away.
    given: what the user calls it, where that is not the path. Raises InputError where it fails."""
    try:
        with atomic.replacing(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{given or path}: cannot be written: "
                         f"{error.strerror or error}") from None


def _write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    # np.savez takes the names as keywords, where "file" would be its own
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
