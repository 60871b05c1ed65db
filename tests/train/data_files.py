"""Helpers that write files of samples, and read them or catch the error."""

from pathlib import Path

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train.data import sources


def read(path, **options) -> sources.Dataset:
    training, test = sources.load(path, **options)
    assert test is None
    assert training.x.dtype == np.float32 and training.x.flags.c_contiguous
    assert training.x.shape[:1] == training.y.shape
    return training


def fault(path, **options) -> str:
    """Return the error message for a file, without its name."""
    with pytest.raises(InputError) as caught:
        sources.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message.replace(str(path), "FILE").removeprefix("FILE: ")


def csv(folder, content, name="x.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
