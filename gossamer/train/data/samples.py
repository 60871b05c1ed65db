"""Data as a network takes them: checked float32 matrices, and labels as numbers of classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import InputError
from gossamer.tensor import TensorSpec, to_memory

_ROWS = 65536
"""Rows looked at together when numbers are checked."""


@dataclass(frozen=True)
class Samples:
    """x: (n, inputs) float32. targets: (n, outputs) float32. labels: for each row the index of
    its class, and classes: the labels by index; None for regression."""

    x: np.ndarray
    targets: np.ndarray
    labels: np.ndarray | None = None
    classes: np.ndarray | None = None
    _uploaded: dict[tuple[str, TensorSpec, str], Buffer] = field(
        default_factory=dict, repr=False, compare=False)

    def on(self, device: Device, x: TensorSpec, targets: TensorSpec) -> tuple[Buffer, Buffer]:
        """x and targets on a device, as they are to lie there; uploaded at the first call.

        Raises OutOfMemoryError where the device has no room.
        """
        for name, spec in (("x", x), ("targets", targets)):
            key = (device.name, spec, name)
            if key not in self._uploaded:
                self._uploaded[key] = device.upload(to_memory(getattr(self, name), spec),
                                                    f"the {name} to train on")
        return self._uploaded[device.name, x, "x"], self._uploaded[device.name, targets, "targets"]

    def rows(self, which: np.ndarray) -> Samples:
        """Some of the samples."""
        labels = None if self.labels is None else self.labels[which]
        return Samples(self.x[which], self.targets[which], labels, self.classes)

    def digest(self) -> str:
        """A hash of all numbers."""
        found = hashlib.sha256(f"{self.x.shape} {self.targets.shape}".encode())
        found.update(self.x.data)
        found.update(self.targets.data)
        return found.hexdigest()


def samples(x: Any, y: Any, sizes: tuple[int, ...], classes: np.ndarray | None = None,
            what: str = "") -> Samples:
    """What is trained on or validated with. Integer labels or strings become one-hot targets, a
    matrix of floats (or one column, where there is one output) is taken as the targets.

    classes: those that labels may have; None finds them. what: "validation " in messages.
    Raises InputError that names the row and column, or the label, that is wrong.
    """
    inputs = matrix(x, sizes[0], f"{what}x")
    if len(inputs) == 0:
        raise InputError(f"{what}x has no rows: expected at least one sample")
    y = np.asarray(y)
    rows = len(inputs)
    if y.ndim == 0 or len(y) != rows:
        held = "is one value" if y.ndim == 0 else f"has {len(y)}"
        raise InputError(f"{what}x has {rows} rows, {what}y {held}: expected as many")
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


def validation_samples(given: tuple[Any, Any], sizes: tuple[int, ...],
                       data: Samples) -> Samples:
    """The pair that was given to validate on. Raises InputError for another kind than the data."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError("validation: expected a pair of x and y")
    held = samples(*given, sizes, data.classes, "validation ")
    if (held.labels is None) != (data.labels is None):
        raise InputError("validation y holds labels and y numbers, or the other way round: "
                         "expected the same kind")
    return held


def matrix(values: Any, columns: int, what: str) -> np.ndarray:
    """(rows, columns) float32, all finite. Raises InputError that names what is wrong."""
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
        found = np.ascontiguousarray(array, np.float32)
    for first in range(0, len(found), _ROWS):
        finite = np.isfinite(found[first:first + _ROWS])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            row += first
            raise InputError(f"{what} has {array[row, column]} in row {row}, column {column}: "
                             "expected finite float32 numbers")
    return found


def _labelled(inputs: np.ndarray, y: np.ndarray, outputs: int, classes: np.ndarray | None,
              what: str) -> Samples:
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
    """The classes of labels, one an output: 0 and up for integers below the number of outputs,
    whether all occur or not; else those that occur, sorted."""
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
    """Raises InputError where labels are text and classes are numbers, or the other way."""
    if (y.dtype.kind in "USO") != (classes.dtype.kind in "USO"):
        raise InputError(f"{what}y is of type {y.dtype}, the classes are {listed(classes)}: "
                         "expected labels of the same kind")


def listed(classes: np.ndarray) -> str:
    """The classes for a message, the first of many."""
    shown = ", ".join(repr(value) for value in classes[:10].tolist())
    return shown if len(classes) <= 10 else f"{shown} and {len(classes) - 10} more"
