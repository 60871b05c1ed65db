"""Reads .npy and .npz files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from gossamer.errors import InputError


def read_arrays(file: str, option: str) -> dict[str, np.ndarray]:
    """Returns the one array of a .npy file under the name "", or the arrays of a .npz file by
    their names. option: the option that named the file, for messages. Raises InputError."""
    path = Path(file)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise InputError(f"{option} {file}: no such file") from None
    except OSError as error:
        raise InputError(f"{option} {file}: {error.strerror or 'cannot be read as a .npy array'}"
                         ) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error)
        if "allow_pickle" in reason:  # NumPy's advice would run code that is in the file
            with path.open("rb") as opened:
                is_array = opened.read(6) == b"\x93NUMPY" or zipfile.is_zipfile(path)
            reason = "holds Python objects, expected numbers" if is_array else "is no .npy file"
        raise InputError(f"{option} {file}: cannot be read as a .npy array: {reason}") from None
