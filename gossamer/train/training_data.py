"""Turns the samples that an MLP is given into the samples that the MLP is trained on."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import ArrayError, GossamerWarning, InputError, one_of
from gossamer.train.data.samples import TASKS, Samples, samples
from gossamer.train.data.scaling import Scaling
from gossamer.train.data.weights import with_classes
from gossamer.train.loop import memory
from gossamer.train.loop.settings import Settings, given_sizes

_MOST_LABELS = 20
"""Floats in y with at most this many different values, all whole, may be meant as labels."""


def given_samples(mlp: Any, x: Any, y: Any, sample_weight: Any = None,
                  classes: np.ndarray | None = None) -> Samples:
    """Returns checked samples for an MLP, as samples() does, with the class weights of the MLP.
    Warns where numbers to learn may be meant as labels."""
    if mlp.task not in (None, *TASKS):
        raise InputError(f"task {mlp.task!r}: {one_of(mlp.task, [*TASKS, 'None'])}")
    data = samples(x, y, given_sizes(mlp), classes, task=mlp.task, sample_weight=sample_weight)
    if data.labels is None and mlp.task is None:
        _tell_of_labels(data.targets)
    if mlp.class_weight is None:
        return data
    if data.labels is None or data.classes is None:
        raise ArrayError("class_weight: y holds numbers to learn; expected labels")
    return replace(data, weights=with_classes(data.weights, mlp.class_weight, data.labels,
                                              data.classes))


def _tell_of_labels(targets: np.ndarray) -> None:
    """Warns where each row has one number to learn, and these numbers take only a few different
    values, all whole."""
    if targets.shape[1] != 1 or not (targets == np.rint(targets)).all():
        return
    count = len(np.unique(targets))
    if 1 < count <= _MOST_LABELS and 2 * count <= len(targets):
        warnings.warn(
            f"y holds floats, which are learnt as numbers, though they are {count} different whole "
            "numbers: if they are labels, give y.astype(int) or task='classification'; "
            "task='regression' says that they are numbers", GossamerWarning, stacklevel=4)


def trainable(settings: Settings, data: Samples, device: Device,
              scaling: Scaling | None = None) -> Samples:
    """Returns the samples as they are trained on.

    scaling: the scaling of the samples; None computes the scaling from the samples.
    Raises InputError where a target is outside of the outputs' range, or the host has no room for
    the network.
    """
    memory.check(settings, device)
    settings.check_targets(data.targets)
    return data.scaled(settings.scaling(data) if scaling is None else scaling)


def digest_of(data: Samples, chosen_by: Samples | None) -> str:
    """Returns the hash of the samples that a checkpoint belongs to. chosen_by: the validation
    samples that decide which epoch is kept; None without them."""
    if chosen_by is None:
        return data.digest()
    return hashlib.sha256(f"{data.digest()} {chosen_by.digest()}".encode()).hexdigest()
