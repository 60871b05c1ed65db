"""Checks the weights that a user gives for each sample or for each class, and computes the weights
of samples from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gossamer.errors import ArrayError, quoted

BALANCED = "balanced"


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray:
    """Returns the weights of `rows` samples, divided by their mean, as float32."""
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
    """Returns the weights of rows, each multiplied by the weight of its class, and all divided by
    their mean, as float32.

    weights: (n,) weights of the rows; None where all are equal.
    class_weight: a mapping from label to weight, in which a label that is left out has the weight
    1; or "balanced", which gives each class a weight in inverse proportion to its number of rows.
    labels: (n,) index of each row's class.
    classes: the label of each class.
    Raises InputError where class_weight is neither a mapping nor "balanced", where a weight is not
    a finite number or is negative, where a label of class_weight is no class, and where all rows
    get the weight 0.
    """
    if isinstance(class_weight, str) and class_weight == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        by_class = len(labels) / np.maximum(counts, 1)
    elif isinstance(class_weight, Mapping):
        by_class = np.ones(len(classes))
        for label, weight in class_weight.items():
            places = np.flatnonzero(classes == label)
            if not len(places):
                raise ArrayError(f"class_weight has the label {quoted(label)}, which no class "
                                 "has; expected labels that y holds")
            if not isinstance(weight, int | float | np.number) or not 0 <= weight < np.inf:
                raise ArrayError(f"class_weight {quoted(weight)} of the label {quoted(label)}: "
                                 "expected a finite number of 0 or more")
            by_class[places] = weight
    else:
        raise ArrayError(f"class_weight {quoted(class_weight)}: expected 'balanced', a mapping "
                         "from label to weight, or None")
    of_rows = by_class[labels] * (1 if weights is None else weights.astype(np.float64))
    return _of_mean_1(of_rows, "class_weight leaves every row the weight zero: expected a weight "
                               "above 0 for a class that y holds")


def _of_mean_1(weights: np.ndarray, all_zero: str) -> np.ndarray:
    """Returns weights divided by their mean, as float32. all_zero: the message of the InputError
    that is raised where all of them are 0."""
    if not weights.any():
        raise ArrayError(all_zero)
    return (weights / weights.mean()).astype(np.float32)
