"""Files of samples, and what reading them gives or says."""

from pathlib import Path

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train.data import sources


def read(path, **options) -> sources.Dataset:
    found, test = sources.load(path, **options)
    assert test is None
    assert found.x.dtype == np.float32 and found.x.flags.c_contiguous
    assert found.x.shape[:1] == found.y.shape
    return found


def fault(path, **options) -> str:
    """What is said of a file, behind its name."""
    with pytest.raises(InputError) as caught:
        sources.load(path, **options)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message.replace(str(path), "FILE").removeprefix("FILE: ")


def csv(folder, content, name="x.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
