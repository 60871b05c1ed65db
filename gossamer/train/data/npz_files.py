"""Labelled samples from .npz files.

The arrays x and y, or x_train and y_train, are the training samples, and x_test and y_test are the
test samples.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from gossamer.errors import GossamerWarning, InputError, cut
from gossamer.io import npy
from gossamer.io.text import shape_text
from gossamer.train.data.dataset import Dataset, are_pixels, has_grey_levels, picture_shape

_TRAINING, _TEST = (("x", "y"), ("x_train", "y_train")), ("x_test", "y_test")


def read(path: Path, limit: int | None, numbers: bool = False) -> tuple[Dataset, Dataset | None]:
    """Return the training samples, and the test samples or None.

    The array x is (n, features), or pictures as (n, height, width[, 1]) or (n, 1, height, width).
    The array y has n labels, which are whole numbers or texts. Files with Python objects are an
    error, and code in them is never run.

    limit: maximum number of samples of either set; None for all.
    numbers: whether y holds regression targets, which become float64.
    Raises InputError that names the array and its fault.
    """
    try:
        with npy.read_archive(path, str(path)) as arrays:
            names = set(arrays.names)
            training = [pair for pair in _TRAINING if names.issuperset(pair)]
            if len(training) > 1:
                raise InputError(f"{path}: has the arrays x, y and x_train, y_train; expected one "
                                 "of the two pairs to train on")
            if training:
                return (_part(path, arrays, *training[0], limit, numbers),
                        _part(path, arrays, *_TEST, limit, numbers)
                        if _has_test(path, names) else None)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except npy.BadArray as error:
        raise InputError(f"{path}: is not a .npz file, or is damaged ({error})") from None
    raise InputError(f"{path}: has the arrays {cut(', '.join(sorted(names))) or '(none)'}; "
                     "expected x and y, or x_train and y_train")


def _has_test(path: Path, names: set[str]) -> bool:
    """Return whether a file has test samples. Warns if it has only one of the two arrays."""
    missing = [name for name in _TEST if name not in names]
    if len(missing) == 1:
        (present,) = {*_TEST} - {*missing}
        warnings.warn(f"{path}: has {present} but no {missing[0]}; test samples need both",
                      GossamerWarning, stacklevel=4)
    return not missing


def _part(path: Path, arrays: npy.Archive, x_name: str, y_name: str, limit: int | None,
          numbers: bool) -> Dataset:
    """Return the samples in two arrays, after checking them."""
    x, y = (_array(path, arrays, name) for name in (x_name, y_name))
    if x.ndim < 2 or x.size == 0 or not (x.dtype == bool or np.issubdtype(x.dtype, np.floating)
                                         or np.issubdtype(x.dtype, np.integer)):
        raise InputError(f"{path}: {x_name} is {shape_text(x.shape)} {x.dtype}, expected numbers "
                         "of shape (samples, features) or (samples, height, width)")
    if y.ndim == 0 or y.shape not in ((len(y),), (len(y), 1)) or y.dtype.kind not in "iufUb":
        hint = f"; save {y_name}.argmax(axis=1)" if y.ndim == 2 else ""
        raise InputError(f"{path}: {y_name} is {shape_text(y.shape)} {y.dtype}, expected one "
                         f"label per sample{hint}")
    y = y.reshape(-1)
    if len(x) != len(y):
        raise InputError(f"{path}: {x_name} has {len(x)} samples, but {y_name} has {len(y)} labels")
    if numbers:
        y = _targets(path, y_name, y)
    elif y.dtype.kind != "U":
        values = y.astype(np.float64)
        # this finds NaN, too, because NaN is not equal to its floor
        wrong = np.flatnonzero((values != np.floor(values)) | (np.abs(values) >= 2.0**63))
        if wrong.size:
            raise InputError(f"{path}: {y_name}[{wrong[0]}] is {y[wrong[0]]}, expected an "
                             "integer class label")
        y = y.astype(np.int64)
    sides = tuple(size for size in x.shape[1:] if size > 1) if x.ndim == 4 else x.shape[1:]
    grey = x.dtype == np.uint8 and has_grey_levels(x)
    stored_shape = x.shape[1:]
    x, y = x[:limit], y[:limit]
    with np.errstate(over="ignore"):  # infinite numbers raise an error below
        x = x.reshape(len(x), -1).astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if wrong.size:
        raise InputError(f"{path}: {x_name}[{wrong[0]}] has a NaN or infinite number")
    shape = (sides[0], sides[1]) if len(sides) == 2 else picture_shape(x.shape[1])
    return Dataset(x, y, shape, grey or are_pixels(x, shape), str(path),
                   stored_shape=stored_shape)


def _targets(path: Path, name: str, y: np.ndarray) -> np.ndarray:
    """Return regression targets as float64."""
    if y.dtype.kind == "U":
        raise InputError(f"{path}: {name} holds strings, expected numeric regression targets")
    y = y.astype(np.float64)
    wrong = np.flatnonzero(~(np.abs(y) <= np.finfo(np.float32).max))
    if wrong.size:
        raise InputError(f"{path}: {name}[{wrong[0]}] is {y[wrong[0]]}, expected a finite float32 "
                         "number")
    return y


def _array(path: Path, arrays: npy.Archive, name: str) -> np.ndarray:
    """Return an array of the file.

    Raises InputError if it has Python objects, and BadArray if it cannot be read.
    """
    try:
        return arrays.read(name)
    except npy.PickledObjects as error:
        raise InputError(f"{path}: {name} {error}; save {name}.astype(...)") from None
    except npy.BadArray as error:
        raise npy.BadArray(f"{name}: {error}") from None
