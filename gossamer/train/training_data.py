"""Samples of an MLP: checks, scaling, hash, and the memory that training needs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import ArrayError, GossamerWarning, InputError, one_of
from gossamer.io.limits import available_memory
from gossamer.train.data.matrix import with_classes
from gossamer.train.data.samples import TASKS, Samples, Scaling, samples
from gossamer.train.loop.settings import Settings, given_sizes

_MOST_LABELS = 20
"""The warning that whole floats in y may be meant as labels requires that they have at most this
number of distinct values."""


def given_samples(mlp: Any, x: Any, y: Any, sample_weight: Any = None,
                  classes: np.ndarray | None = None) -> Samples:
    """Return checked samples, weighted by the MLP's class_weight.

    Warns if regression targets may be meant as labels. Raises errors as samples() does.

    classes: labels that may occur; None means the labels in y.
    """
    if mlp.task not in (None, *TASKS):
        raise InputError(f"task {mlp.task!r}: {one_of(mlp.task, [*TASKS, 'None'])}")
    data = samples(x, y, given_sizes(mlp), classes, task=mlp.task, sample_weight=sample_weight)
    if data.labels is None and mlp.task is None:
        _tell_of_labels(data.targets)
    if mlp.class_weight is None:
        return data
    if data.labels is None or data.classes is None:
        raise ArrayError("class_weight: y holds regression targets; expected class labels")
    return replace(data, weights=with_classes(data.weights, mlp.class_weight, data.labels,
                                              data.classes))


def _tell_of_labels(targets: np.ndarray) -> None:
    """Warn if regression targets have few distinct values, all of them whole."""
    if targets.shape[1] != 1 or not (targets == np.rint(targets)).all():
        return
    count = len(np.unique(targets))
    if 1 < count <= _MOST_LABELS and 2 * count <= len(targets):
        warnings.warn(
            f"y holds floats, which are treated as regression targets, but has only {count} "
            "different values, all whole: if they are class labels, give y.astype(int) or "
            "task='classification'; if they are targets, give task='regression'",
            GossamerWarning, stacklevel=4)


def trainable(settings: Settings, data: Samples, device: Device,
              scaling: Scaling | None = None) -> Samples:
    """Check targets and memory, and return samples scaled for training.

    scaling: the scaling to apply; None means the settings' scaling, computed from these samples.
    Raises InputError if a target is outside the outputs' range, or the host has too little memory
    for the network.
    """
    check_memory(settings, device)
    settings.check_targets(data.targets)
    return data.scaled(settings.scaling(data) if scaling is None else scaling)


def digest_of(data: Samples, chosen_by: Samples | None, rows: np.ndarray | None = None) -> str:
    """Return the hash of a checkpoint's samples.

    chosen_by: validation samples that select the kept epoch; None without them.
    rows: indices of the samples that are trained on; None means all.
    """
    digest = data.digest()
    if chosen_by is not None:
        digest = hashlib.sha256(f"{digest} {chosen_by.digest()}".encode()).hexdigest()
    return digest if rows is None else hashlib.sha256(digest.encode() + rows.tobytes()).hexdigest()


_BYTES_EACH = 8192
"""Approximate bytes that each network of a sweep needs besides its parameters."""
_COPIES, _DEVICE_COPIES = 2, 3
"""Number of copies of the parameters that exist at the same time on the host and on the training
device. The device has the current parameters, and those before each of the last two epochs."""


def check_memory(settings: Settings, device: Device) -> None:
    """Raise InputError if the host's memory cannot hold the parameters.

    The parameters include the state of the optimiser, and are counted once for each copy. A
    device's own memory is not checked here: the device raises an error when it allocates.
    """
    count = settings.problem(0, 0).parameter_count
    copies = _COPIES + (_DEVICE_COPIES if device.on_processors else 0)
    needed, free = 4 * count * copies, available_memory()
    if free is not None and needed > free:
        raise InputError(f"sizes {settings.sizes}: training {count} parameters needs {needed} "
                         f"bytes ({copies} copies), but {free} bytes of memory are available; "
                         "use fewer units")


def check_memory_of_all(networks: Sequence[Settings], nbytes: int) -> None:
    """Raise InputError if the host's memory is too small for all networks of a sweep.

    nbytes: bytes of the samples.
    """
    counts = [settings.problem(0, 0).parameter_count for settings in networks]
    needed = 4 * _COPIES * sum(counts) + _BYTES_EACH * len(counts) + nbytes
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(f"training {len(counts)} networks with up to {max(counts)} parameters "
                         f"takes {needed} bytes, {nbytes} of them for the samples, but {free} "
                         "bytes of memory are available; expected fewer or smaller networks")
