"""From the samples that an MLP is given to those that it is trained on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.train.data.samples import TASKS, Samples, samples
from gossamer.train.data.scaling import Scaling
from gossamer.train.loop import memory
from gossamer.train.loop.settings import Settings, given_sizes


def given_samples(mlp: Any, x: Any, y: Any, sample_weight: Any = None,
                  classes: np.ndarray | None = None) -> Samples:
    """Returns the checked samples that an MLP is given, as samples() does."""
    if mlp.task not in (None, *TASKS):
        raise InputError(f"task {mlp.task!r}: expected one of {', '.join(TASKS)}, or None")
    return samples(x, y, given_sizes(mlp), classes, task=mlp.task, sample_weight=sample_weight)


def trainable(settings: Settings, data: Samples, device: Device,
              scaling: Scaling | None = None) -> Samples:
    """Returns the samples as they are trained on.

    scaling: how they are scaled; None decides it by them.
    Raises InputError where the outputs cannot become a target, or the host has no room for the
    network.
    """
    memory.check(settings, device)
    settings.check_targets(data.targets)
    return data.scaled(settings.scaling(data) if scaling is None else scaling)


def digest_of(data: Samples, chosen_by: Samples | None) -> str:
    """Returns the hash of the samples that a checkpoint belongs to. chosen_by: the samples by which
    the best epoch is found, where there are such."""
    if chosen_by is None:
        return data.digest()
    return hashlib.sha256(f"{data.digest()} {chosen_by.digest()}".encode()).hexdigest()
