"""Checked samples for a network: float32 matrices, and labels as indices of classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import InputError
from gossamer.tensor import TensorSpec, pack

_ROWS = 65536
"""Number of rows that are checked for infinite numbers at once."""


@dataclass(frozen=True)
class Samples:
    """Samples that a network is trained or validated on.

    x: (n, inputs) float32.
    targets: (n, outputs) float32.
    labels: (n,) index of each row's class; None for regression.
    classes: (outputs,) label of each class; None for regression.
    """

    x: np.ndarray
    targets: np.ndarray
    labels: np.ndarray | None = None
    classes: np.ndarray | None = None
    _uploaded: dict[tuple[str, TensorSpec, str], Buffer] = field(
        default_factory=dict, repr=False, compare=False)

    def on(self, device: Device, x: TensorSpec, targets: TensorSpec) -> tuple[Buffer, Buffer]:
        """Returns x and targets as buffers of a device, laid out as the specs say. They are
        uploaded at the first call.

        Raises OutOfMemoryError where the device has no room.
        """
        for name, spec in (("x", x), ("targets", targets)):
            key = (device.name, spec, name)
            if key not in self._uploaded:
                self._uploaded[key] = device.upload(pack(getattr(self, name), spec),
                                                    f"the {name} to train on")
        return self._uploaded[device.name, x, "x"], self._uploaded[device.name, targets, "targets"]

    def rows(self, which: np.ndarray) -> Samples:
        """Returns some of the samples."""
        labels = None if self.labels is None else self.labels[which]
        return Samples(self.x[which], self.targets[which], labels, self.classes)

    def digest(self) -> str:
        """Returns a hash of all numbers."""
        digest = hashlib.sha256(f"{self.x.shape} {self.targets.shape}".encode())
        digest.update(self.x.data)
        digest.update(self.targets.data)
        return digest.hexdigest()


def samples(x: Any, y: Any, sizes: tuple[int, ...], classes: np.ndarray | None = None,
            what: str = "") -> Samples:
    """Returns checked samples. Integer labels or strings become one-hot targets; a matrix of
    floats, or one column where there is one output, is used as the targets.

    classes: labels that may occur; None takes those that do.
    what: "validation " in the messages for validation data.
    Raises InputError that names the row and column, or the label, that is wrong.
    """
    inputs = matrix(x, sizes[0], f"{what}x")
    if len(inputs) == 0:
        raise InputError(f"{what}x has no rows: expected at least one sample")
    y = np.asarray(y)
    rows = len(inputs)
    if y.ndim == 0 or len(y) != rows:
        length = "is one value" if y.ndim == 0 else f"has {len(y)}"
        raise InputError(f"{what}x has {rows} rows, {what}y {length}: expected as many")
    if y.dtype.kind in "biuUS" or (y.dtype.kind == "O" and all(
            isinstance(value, str) for value in y.flat)):
        if y.ndim == 2 and y.shape[1] == sizes[-1] and y.dtype.kind in "biu" and sizes[-1] > 1:
            return Samples(inputs, matrix(y, sizes[-1], f"{what}y"))
        return _labelled(inputs, y, sizes[-1], classes, what)
    if y.ndim == 1:
        if sizes[-1] > 1:
            raise InputError(f"{what}y is one number a row, of type {y.dtype}, where sizes end in "
                             f"{sizes[-1]}: give integer labels (y.astype(int)) to classify, or "
                             f"targets of shape ({rows}, {sizes[-1]})")
        y = y[:, None]
    return Samples(inputs, matrix(y, sizes[-1], f"{what}y"))


def validation_samples(pair: tuple[Any, Any], sizes: tuple[int, ...],
                       data: Samples) -> Samples:
    """Returns the checked pair (x, y) to validate on. Raises InputError where y is of another kind
    than that of the training data."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError("validation: expected a pair of x and y")
    validation_data = samples(*pair, sizes, data.classes, "validation ")
    if (validation_data.labels is None) != (data.labels is None):
        raise InputError("validation y holds labels and y numbers, or the other way round: "
                         "expected the same kind")
    return validation_data


def matrix(values: Any, columns: int, what: str) -> np.ndarray:
    """Returns values as (rows, columns) float32, all of them finite. Raises InputError that says
    what is wrong; `what` names the values in it."""
    array = np.asarray(values)
    end = "begin" if what.endswith("x") else "end"
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} is of type {array.dtype}: expected numbers")
    if array.ndim != 2:
        raise InputError(f"{what} has shape {array.shape}: expected (rows, {columns}), such as "
                         f"{what.split()[-1]}.reshape(-1, {columns})")
    if array.shape[1] != columns:
        raise InputError(f"{what} has {array.shape[1]} columns, sizes {end} with {columns}: "
                         "expected as many")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, np.float32)
    for first in range(0, len(rows), _ROWS):
        finite = np.isfinite(rows[first:first + _ROWS])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            row += first
            raise InputError(f"{what} has {array[row, column]} in row {row}, column {column}: "
                             "expected finite float32 numbers")
    return rows


def _labelled(inputs: np.ndarray, y: np.ndarray, outputs: int, classes: np.ndarray | None,
              what: str) -> Samples:
    """Returns samples whose labels y are checked, with one-hot targets."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"{what}y has shape {y.shape}: expected one label a row, or targets of "
                         f"shape ({len(y)}, {outputs})")
    if y.dtype.kind == "O":
        y = y.astype(str)
    if classes is None:
        classes = found_classes(y, outputs)
    else:
        check_kind(y, classes, what)
    labels = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    wrong = classes[labels] != y
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{what}y has the label {y[row].item()!r} in row {row}: expected one of "
                         f"{listed(classes)}")
    return Samples(inputs, np.eye(outputs, dtype=np.float32)[labels], labels, classes)


def found_classes(y: np.ndarray, outputs: int) -> np.ndarray:
    """Returns the classes of labels, one for each output. For integers from 0 to below the number
    of outputs they are all of these, whether they occur or not; otherwise the labels that occur,
    sorted. Raises InputError where there are more or fewer than outputs."""
    if outputs == 1:
        raise InputError("y holds labels, and sizes end in 1: expected an output for each class, "
                         "or floats (y.astype(float)) for one that is a number")
    if y.dtype.kind in "iu" and y.min() >= 0 and y.max() < outputs:
        return np.arange(outputs, dtype=y.dtype)
    classes = np.unique(y)
    if len(classes) == outputs:
        return classes
    if y.dtype.kind in "iu":
        row = int(np.argmax((y < 0) | (y >= outputs)))
        raise InputError(f"y has the label {y[row]} in row {row}: sizes end in {outputs}, which "
                         f"takes labels 0 to {outputs - 1}, or {outputs} different ones; y has "
                         f"{len(classes)}")
    raise InputError(f"y has {len(classes)} different labels, sizes end in {outputs}: expected as "
                     f"many; they are {listed(classes)}")


def check_kind(y: np.ndarray, classes: np.ndarray, what: str) -> None:
    """Raises InputError where labels are texts and classes are numbers, or the other way round."""
    if (y.dtype.kind in "USO") != (classes.dtype.kind in "USO"):
        raise InputError(f"{what}y is of type {y.dtype}, the classes are {listed(classes)}: "
                         "expected labels of the same kind")


def listed(classes: np.ndarray) -> str:
    """Returns the classes as text for a message, of more than ten the first ten."""
    shown = ", ".join(repr(value) for value in classes[:10].tolist())
    return shown if len(classes) <= 10 else f"{shown} and {len(classes) - 10} more"
