"""Training samples: checks, scaling, and copies on devices."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import ArrayError, quoted
from gossamer.tensor import TensorSpec, pack
from gossamer.train.data.matrix import check_feature_names, checked_weights, feature_names, matrix

_ROUNDING = 1e-6
"""A column is treated as constant if its standard deviation is at most this fraction of its mean,
because rounding to float32 may cause such a deviation."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Standardisation of samples: (value - mean) / standard deviation.

    x: mean and standard deviation of each column of x, (2, columns) float32; None if x is not
    scaled.
    y: the same for the targets.
    """

    x: np.ndarray | None = None
    y: np.ndarray | None = None

    @staticmethod
    def of(x: np.ndarray | None, targets: np.ndarray | None) -> Scaling:
        """Return the scaling by the columns' means and standard deviations.

        x, targets: (n, columns) values, or None if they are not scaled.
        """
        return Scaling(*(None if values is None else _mean_and_deviation(values)
                         for values in (x, targets)))

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Return scaled x, (n, inputs)."""
        return x if self.x is None else (x - self.x[0]) / self.x[1]

    def targets(self, targets: np.ndarray) -> np.ndarray:
        """Return scaled targets, (n, outputs)."""
        return targets if self.y is None else (targets - self.y[0]) / self.y[1]

    def folded(self, layers: list[tuple[np.ndarray, np.ndarray]]) -> list[
            tuple[np.ndarray, np.ndarray]]:
        """Fold the scaling into a network's layers.

        The given layers compute scaled targets from scaled x. The returned layers compute unscaled
        targets from unscaled x. If targets are scaled, the outputs must be linear.

        layers: weights (units, units of the layer before) and biases (units,) of each layer.
        """
        layers = list(layers)
        if self.x is not None:
            mean, deviation = self.x.astype(np.float64)
            weight, bias = layers[0]
            divided = weight / deviation
            layers[0] = divided.astype(np.float32), (bias - divided @ mean).astype(np.float32)
        if self.y is not None:
            mean, deviation = self.y.astype(np.float64)
            weight, bias = layers[-1]
            layers[-1] = ((weight * deviation[:, None]).astype(np.float32),
                          (bias * deviation + mean).astype(np.float32))
        return layers


UNSCALED = Scaling()
"""The scaling that changes nothing."""


def _mean_and_deviation(values: np.ndarray) -> np.ndarray:
    """Return means and standard deviations of columns, (2, columns) float32.

    The deviation of a constant column is 1.
    """
    mean = values.mean(axis=0, dtype=np.float64)
    deviation = values.std(axis=0, dtype=np.float64)
    deviation[deviation <= _ROUNDING * np.abs(mean)] = 1
    return np.stack([mean, deviation]).astype(np.float32)


TASKS = ("classification", "regression")


@dataclass(frozen=True)
class DataShape:
    """The properties of samples that determine the default settings.

    rows: number of samples.
    inputs: number of columns of x.
    outputs: number of columns of the targets.
    labelled: whether y holds labels instead of regression targets.
    """

    rows: int
    inputs: int
    outputs: int
    labelled: bool


@dataclass(frozen=True)
class Samples:
    """Samples that a network is trained or validated on.

    x: (n, inputs) float32.
    targets: (n, outputs) float32.
    labels: (n,) index of each row's class; None for regression.
    classes: (outputs,) label of each class; None for regression.
    weights: (n,) float32, the weight of each row, 1 on average; None if all weights are equal.
    scaling: the scaling that was applied to `x` and `targets`.
    names: (inputs,) name of each column of x; None if the columns have no names.
    """

    x: np.ndarray
    targets: np.ndarray
    labels: np.ndarray | None = None
    classes: np.ndarray | None = None
    weights: np.ndarray | None = None
    scaling: Scaling = UNSCALED
    names: np.ndarray | None = None
    _uploaded: dict[tuple[str, TensorSpec, str, int], Buffer] = field(
        default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # buffers cannot be used in another process
        return {**vars(self), "_uploaded": {}}

    @property
    def shape(self) -> DataShape:
        """Numbers of rows and columns, and whether there are labels."""
        return DataShape(len(self.x), self.x.shape[1], self.targets.shape[1],
                         self.labels is not None)

    def on(self, device: Device, name: str, array: np.ndarray, spec: TensorSpec) -> Buffer:
        """Return a device buffer with an array, uploading each array only once.

        name: name of the array in the error's message.
        spec: shape and format of the array in the buffer.
        Raises OutOfMemoryError if the device has no room.
        """
        key = (device.name, spec, name, id(array))
        if key not in self._uploaded:
            self._uploaded[key] = device.upload(pack(array, spec), f"the {name} to train on")
        return self._uploaded[key]

    @cached_property
    def _weighted_targets(self) -> np.ndarray:
        assert self.weights is not None
        return self.targets * self.weights[:, None]

    def targets_for(self, loss: str) -> np.ndarray:
        """Return the targets for the kernels, (n, outputs) float32.

        Cross-entropy and its gradient are linear in the targets. For this loss, the targets are
        multiplied by the rows' weights here, so that the kernels need no weights.
        """
        if self.weights is None or loss != "cross_entropy":
            return self.targets
        return self._weighted_targets

    def rows(self, which: np.ndarray) -> Samples:
        """Return some of the samples."""
        return replace(self, x=self.x[which], targets=self.targets[which],
                       labels=None if self.labels is None else self.labels[which],
                       weights=None if self.weights is None else self.weights[which],
                       _uploaded={})

    def scaled(self, scaling: Scaling) -> Samples:
        """Return the samples after a scaling."""
        return replace(self, x=scaling.inputs(self.x), targets=scaling.targets(self.targets),
                       scaling=scaling, _uploaded={})

    def digest(self) -> str:
        """Return a hash of x, the targets and the weights."""
        digest = hashlib.sha256(f"{self.x.shape} {self.targets.shape}".encode())
        for array in (self.x, self.targets, self.weights):
            if array is not None:
                digest.update(array.data)
        return digest.hexdigest()


def samples(x: Any, y: Any, sizes: tuple[int, ...], classes: np.ndarray | None = None,
            what: str = "", task: str | None = None, sample_weight: Any = None) -> Samples:
    """Return checked samples.

    Labels (integers or strings) become one-hot targets. Floats are used as targets unchanged.

    sizes: units of the layers: x must have as many columns as the first layer has units, and the
    targets as many as the last. Empty if any numbers of columns are accepted.
    classes: labels that may occur; None means the labels in y.
    what: prefix of x and y in messages: "validation " for validation data.
    task: one of TASKS; None means that the dtype of y determines whether y holds labels.
    sample_weight: (n,) weight of each row, or None.
    Raises InputError that names the wrong row and column, or the wrong label.
    """
    columns, outputs = (sizes[0], sizes[-1]) if sizes else (None, None)
    inputs = matrix(x, columns, f"{what}x")
    if len(inputs) == 0:
        raise ArrayError(f"{what}x has no rows: expected at least one sample")
    if y is None:
        raise ArrayError(f"training requires y to be passed, but the target {what}y is None")
    y = _array_of(y, what)
    rows = len(inputs)
    if y.ndim == 0 or len(y) != rows:
        length = "is one value" if y.ndim == 0 else f"has {len(y)}"
        raise ArrayError(f"{what}x has {rows} rows, but {what}y {length}; expected one for each "
                         "row of x")
    weights = None if sample_weight is None else checked_weights(sample_weight, rows)
    if _are_labels(y, outputs, task, what):
        labelled = _labelled(inputs, y, outputs, classes, what, weights)
        return replace(labelled, names=feature_names(x))
    if y.ndim == 1:
        if outputs is not None and outputs > 1:
            raise ArrayError(f"{what}y has one number per row, of type {y.dtype}, but sizes end in "
                             f"{outputs}: give integer labels (y.astype(int)) to classify, or "
                             f"targets of shape ({rows}, {outputs})")
        y = y[:, None]
    return Samples(inputs, matrix(y, outputs, f"{what}y"), weights=weights,
                   names=feature_names(x))


def _array_of(y: Any, what: str) -> np.ndarray:
    """Return labels or targets as an array; only texts may have the dtype object."""
    array = np.asarray(y)
    if array.dtype.kind != "O" or all(isinstance(value, str) for value in array.flat):
        return array
    for index, value in np.ndenumerate(array):
        if not isinstance(value, Real | np.bool_):
            raise ArrayError(f"Unknown label type: {what}y has {quoted(value)} in row {index[0]}, "
                             "expected only strings, or only numbers")
    return np.array(array.tolist())


def _are_labels(y: np.ndarray, outputs: int | None, task: str | None, what: str) -> bool:
    """Return whether y holds labels instead of regression targets."""
    are_texts = y.dtype.kind in "US" or (y.dtype.kind == "O" and all(
        isinstance(value, str) for value in y.flat))
    if task == "regression":
        if are_texts:
            raise ArrayError(f"{what}y holds strings: expected numbers, because the task is "
                             "regression")
        return False
    if y.dtype.kind in "biu" and y.ndim == 2 and y.shape[1] > 1 and np.isin(y, (0, 1)).all() and (
            task is not None or outputs is None or (y.sum(axis=1) != 1).any()):
        raise ArrayError(f"{what}y has shape {y.shape} and only zeros and ones: several labels "
                         "per row (multilabel) are not supported; give one label per row "
                         "(y.argmax(axis=1) if each row has one), or y.astype(float) for "
                         "regression targets")
    if task == "classification":
        if y.dtype.kind == "f" and (y.ndim == 1 or y.shape[1:] == (1,)):
            are_wrong = ~(np.isfinite(y) & (y == np.rint(y)))
            if are_wrong.any():
                row = int(np.argmax(are_wrong))
                raise ArrayError(f"{what}y is continuous, with {y.flat[row]} in row {row}: "
                                 "expected whole numbers or strings as labels, neither NaN nor "
                                 "infinite, because the task is classification")
        return True
    if y.dtype.kind in "biu" and y.ndim == 2 and y.shape[1] > 1:
        return outputs is not None and y.shape[1] != outputs
    return are_texts or y.dtype.kind in "biu"


def validation_samples(pair: tuple[Any, Any], sizes: tuple[int, ...], data: Samples,
                       task: str | None = None) -> Samples:
    """Return checked validation samples, scaled like the training data.

    pair: x and y of the samples.
    data: the training data.
    Raises InputError if x or y is wrong, or if one of the two sets has labels and the other has
    regression targets.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArrayError("validation: expected a pair of x and y")
    check_feature_names(pair[0], data.names, "validation x")
    validation_data = samples(*pair, sizes, data.classes, "validation ", task)
    if (validation_data.labels is None) != (data.labels is None):
        raise ArrayError("one of y and validation y holds labels, the other holds numbers; "
                         "expected the same kind in both")
    return validation_data.scaled(data.scaling)


def _labelled(inputs: np.ndarray, y: np.ndarray, outputs: int | None,
              classes: np.ndarray | None, what: str, weights: np.ndarray | None) -> Samples:
    """Return samples with checked labels y and one-hot targets."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ArrayError(f"{what}y has shape {y.shape}: expected one label per row, or targets of "
                         f"shape ({len(y)}, {'outputs' if outputs is None else outputs})")
    if y.dtype.kind == "f":
        y = y.astype(np.int64)
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
        raise ArrayError(f"{what}y has the label {y[row].item()!r} in row {row}: expected one of "
                         f"{listed(classes)}")
    one_hot = np.eye(len(classes), dtype=np.float32)[labels]
    return Samples(inputs, one_hot, labels, classes, weights)


def found_classes(y: np.ndarray, outputs: int | None) -> np.ndarray:
    """Return the class of each output.

    If all labels are integers from 0 to `outputs` - 1, the classes are all these integers, even
    those that do not occur. In all other cases, the classes are the sorted labels that occur.

    outputs: number of outputs; None if the labels determine it.
    Raises InputError if there are not `outputs` classes, or there is only one.
    """
    if outputs is None:
        classes = np.unique(y)
        if len(classes) < 2:
            raise ArrayError(f"y has only one class, the label {classes[0].item()!r} in all "
                             f"{len(y)} rows: expected at least two classes")
        return classes
    if outputs == 1:
        raise ArrayError("y holds labels, but sizes end in 1; give one output for each class, or "
                         "floats (y.astype(float)) for regression")
    if y.dtype.kind in "iu" and y.min() >= 0 and y.max() < outputs:
        return np.arange(outputs, dtype=y.dtype)
    classes = np.unique(y)
    if len(classes) == outputs:
        return classes
    if y.dtype.kind in "iu":
        row = int(np.argmax((y < 0) | (y >= outputs)))
        raise ArrayError(f"y has the label {y[row]} in row {row}, and {len(classes)} different "
                         f"labels, but sizes end in {outputs}; expected the labels 0 to "
                         f"{outputs - 1}, or {outputs} different ones")
    raise ArrayError(f"y has {len(classes)} different labels, but sizes end in {outputs}; expected "
                     f"an output for each of {listed(classes)}")


def check_kind(y: np.ndarray, classes: np.ndarray, what: str) -> None:
    """Raise InputError unless labels and classes are both texts, or both numbers."""
    if (y.dtype.kind in "USO") != (classes.dtype.kind in "USO"):
        raise ArrayError(f"{what}y is of type {y.dtype}, but the classes are {listed(classes)}; "
                         "expected labels of the same kind")


def listed(classes: np.ndarray) -> str:
    """Return text with the first ten classes."""
    shown = ", ".join(repr(value) for value in classes[:10].tolist())
    return shown if len(classes) <= 10 else f"{shown} and {len(classes) - 10} more"
