"""Reads the .npy and .npz files that options name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gossamer.errors import InputError
from gossamer.io import npy


def read_arrays(file: str, option: str) -> dict[str, np.ndarray]:
    """Returns the one array of a .npy file under the name "", or the arrays of a .npz file by
    their names. option: the option that named the file, for messages. Raises InputError where the
    file cannot be read."""
    path = Path(file)
    try:
        with path.open("rb") as stream:
            if stream.read(2) != b"PK":
                stream.seek(0)
                return {"": npy.read_array(stream, path.stat().st_size)}
        with npy.read_archive(path, f"{option} {file}") as archive:
            return {name: archive.read(name) for name in archive.names}
    except FileNotFoundError:
        raise InputError(f"{option} {file}: no such file") from None
    except OSError as error:
        raise InputError(f"{option} {file}: {error.strerror or 'cannot be read as a .npy array'}"
                         ) from None
    except npy.BadArray as error:
        raise InputError(f"{option} {file}: cannot be read as a .npy array: {error}") from None
