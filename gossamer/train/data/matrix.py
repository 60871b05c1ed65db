"""Checks of users' matrices and weights, and their conversion to float32."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from gossamer.errors import ArrayError, GossamerWarning, cut, quoted

_ROWS = 65536
"""Number of rows that are checked for infinities and NaN at a time, to bound the memory of the
check."""
_NAMED = 5
"""Maximum number of column names in a message."""


def matrix(values: Any, columns: int | None, what: str) -> np.ndarray:
    """Return a user's matrix as finite float32 of shape (rows, columns).

    values: any object that NumPy converts to an array of numbers, such as a data frame; or a sparse
    matrix of SciPy, which is converted to a dense one.
    columns: number of columns that the network's `sizes` require; None if any number is accepted.
    what: name of the matrix in messages, such as "x", "y" or "validation x".
    Raises InputError if the matrix is wrong, and TypeError if an element is neither a number nor a
    text.
    """
    names = feature_names(values)
    array = values.toarray() if scipy.sparse.issparse(values) else np.asarray(values)
    if array.dtype.kind == "c":
        raise ArrayError(f"Complex data not supported: {what} is of type {array.dtype}, expected "
                         "real numbers")
    if array.ndim != 2:
        # scikit-learn's checks of estimators look for the words "Reshape your data"
        width, name = "columns" if columns is None else columns, what.split()[-1]
        form = (f"{name}.reshape(len({name}), -1)" if array.ndim > 2 else
                f"{name}.reshape(-1, 1) for one column, or {name}.reshape(1, -1) for one row")
        raise ArrayError(f"{what} has shape {array.shape}: expected (rows, {width}). Reshape your "
                         f"data, such as by {form}")
    if array.dtype.kind in "OUS":
        # _numbers() raises an error that names the first text that is not a number; an array of
        # texts that are all numbers raises the error below
        numbers = _numbers(array, what, names)
        array = numbers if array.dtype.kind == "O" else array
    if array.dtype.kind not in "biuf":
        raise ArrayError(f"{what} is of type {array.dtype}: expected numbers; .astype(float) "
                         "converts strings to numbers")
    if array.shape[1] == 0:
        raise ArrayError(f"{what} has no columns, 0 feature(s) (shape={array.shape}) while a "
                         "minimum of 1 is required.")
    if columns is not None and array.shape[1] != columns:
        end = "begin" if what.endswith("x") else "end"
        raise ArrayError(f"{what} has {array.shape[1]} columns, but sizes {end} with {columns}; "
                         "expected the same number")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, np.float32)
    for first in range(0, len(rows), _ROWS):
        finite = np.isfinite(rows[first:first + _ROWS])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            row += first
            raise ArrayError(f"{what} has {array[row, column]} in row {row}, "
                             f"{_column(column, names)}: expected finite float32 numbers, neither "
                             "NaN nor infinite")
    return rows


def feature_names(x: Any) -> np.ndarray | None:
    """Return a data frame's column names as an object array.

    Returns None if x is not a data frame, or if a name is not a text.
    """
    names = list(getattr(x, "columns", ()))
    if not names or not all(isinstance(name, str) for name in names):
        return None
    return np.array(names, object)


def check_feature_names(x: Any, names: np.ndarray | None, what: str) -> None:
    """Raise InputError if x has other columns than the training samples.

    Warns if only one of the two has column names.

    names: the column names of the training samples; None if they had no names.
    what: name of x in messages.
    """
    given = feature_names(x)
    if given is None and names is None:
        return
    if given is None or names is None:
        warnings.warn(
            "X does not have valid feature names, but MLP was fitted with feature names: columns "
            "are matched by position" if given is None else
            "X has feature names, but MLP was fitted without feature names: columns are matched by "
            "position", GossamerWarning, stacklevel=4)
        return
    if np.array_equal(given, names):
        return
    unseen, missing = (sorted({*first} - {*second})
                       for first, second in ((given, names), (names, given)))
    faults = [f"Feature names {fault}: {_listed(columns)}" for fault, columns in (
        ("unseen at fit time", unseen),
        ("seen at fit time, yet now missing", missing)) if columns]
    if not faults:
        index = int(np.argmax(given != names)) if len(given) == len(names) else 0
        faults = [f"Feature names must be in the same order as they were in fit: column {index} "
                  f"is {quoted(given[index])} and was {quoted(names[index])}; "
                  f"{what.split()[-1]}[mlp.feature_names_in_] puts them in order"]
    raise ArrayError("The feature names should match those that were passed during fit. "
                     + "; ".join(faults))


def _numbers(array: np.ndarray, what: str, names: np.ndarray | None) -> np.ndarray:
    """Return texts and other objects as float64.

    Raises InputError for a text that is not a number, and TypeError for an object that is neither a
    text nor a number.
    """
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        for row, column in np.ndindex(*array.shape):
            value = array[row, column]
            fault = f"{what} has {quoted(value)} in row {row}, {_column(column, names)}"
            try:
                float(value)
            except ValueError:
                raise ArrayError(f"{fault}: expected numbers; scikit-learn's OneHotEncoder encodes "
                                 "strings as numbers") from None
            except TypeError:
                raise TypeError(f"{fault}: the argument must be a string or a real number"
                                ) from None
        raise


def _column(index: int, names: np.ndarray | None) -> str:
    """Return the name of a column in messages."""
    return f"column {index}" + ("" if names is None else f" ({quoted(names[index])})")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(cut(quoted(name)) for name in names[:_NAMED]) + more


BALANCED = "balanced"


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Return sample weights divided by their mean, as float32."""
    weights = np.asarray(sample_weight)
    if weights.dtype.kind not in "biuf" or weights.shape != (rows,):
        raise ArrayError(f"sample_weight has shape {weights.shape} and type {weights.dtype}: "
                         f"expected one number for each of the {rows} rows")
    weights = weights.astype(np.float64)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ArrayError(f"sample_weight has {weights[row]:g} in row {row}: expected finite "
                         "numbers of 0 or more")
    return _of_mean_1(weights, "sample_weight is zero in every row: expected a number above 0")


def with_classes(weights: np.ndarray | None, class_weight: Any, labels: np.ndarray,
                 classes: np.ndarray) -> np.ndarray:
    """Return row weights times class weights, divided by their mean.

    weights: (n,) weights of the rows; None if all are equal.
    class_weight: a mapping from label to weight, where labels that are not in the mapping have
    weight 1; or "balanced", which gives each class a weight inversely proportional to its number of
    rows.
    labels: (n,) index of each row's class.
    classes: the label of each class.
    Raises InputError if class_weight is something else or has a label that is not in `classes`, if
    a weight is negative or not finite, or if all resulting weights are 0.
    """
    if isinstance(class_weight, str) and class_weight == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        by_class = len(labels) / np.maximum(counts, 1)
    elif isinstance(class_weight, Mapping):
        by_class = np.ones(len(classes))
        for label, weight in class_weight.items():
            indices = np.flatnonzero(classes == label)
            if not len(indices):
                raise ArrayError(f"class_weight has the label {quoted(label)}, which is not a "
                                 "class; expected labels that occur in y")
            if not isinstance(weight, int | float | np.number) or not 0 <= weight < np.inf:
                raise ArrayError(f"class_weight {quoted(weight)} of the label {quoted(label)}: "
                                 "expected a finite number of 0 or more")
            by_class[indices] = weight
    else:
        raise ArrayError(f"class_weight {quoted(class_weight)}: expected 'balanced', a mapping "
                         "from label to weight, or None")
    of_rows = by_class[labels] * (1 if weights is None else weights.astype(np.float64))
    return _of_mean_1(of_rows, "class_weight is zero for every row: expected a weight above 0 for "
                               "a class that occurs in y")


def _of_mean_1(weights: np.ndarray, all_zero: str) -> np.ndarray:
    """Return weights divided by their mean, as float32.

    all_zero: the message of the InputError for weights that are all 0.
    """
    if not weights.any():
        raise ArrayError(all_zero)
    return (weights / weights.mean()).astype(np.float32)
