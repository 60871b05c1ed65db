"""The samples that an MLP is trained on, their hash, and the memory that training needs."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import ArrayError, GossamerWarning, InputError, one_of
from gossamer.train.data.matrix import with_classes
from gossamer.train.data.samples import TASKS, Samples, Scaling, samples
from gossamer.train.loop.settings import Settings, given_sizes

_MOST_LABELS = 20
"""The most different values of floats in y, all whole, that may be meant as labels."""


def given_samples(mlp: Any, x: Any, y: Any, sample_weight: Any = None,
                  classes: np.ndarray | None = None) -> Samples:
    """Return checked samples for an MLP, as samples() does, with weights by its class_weight.

    Warns where numbers to learn may be meant as labels.

    classes: labels that may occur; None means those that do occur.
    """
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
    """Warn where numbers to learn look like labels: few values, all whole."""
    if targets.shape[1] != 1 or not (targets == np.rint(targets)).all():
        return
    count = len(np.unique(targets))
    if 1 < count <= _MOST_LABELS and 2 * count <= len(targets):
        warnings.warn(
            f"y holds floats, which are learnt as numbers, but has only {count} different values, "
            "all whole: if these are labels, give y.astype(int) or task='classification'; if not, "
            "task='regression' silences this warning", GossamerWarning, stacklevel=4)


def trainable(settings: Settings, data: Samples, device: Device,
              scaling: Scaling | None = None) -> Samples:
    """Return samples scaled for training, after a check of their targets and of the memory.

    scaling: how to scale the samples; None means as their own means and deviations say.
    Raises InputError where a target is outside of the outputs' range, or the host has too little
    memory for the network.
    """
    check_memory(settings, device)
    settings.check_targets(data.targets)
    return data.scaled(settings.scaling(data) if scaling is None else scaling)


def digest_of(data: Samples, chosen_by: Samples | None) -> str:
    """Return the hash of the samples to which a checkpoint belongs.

    chosen_by: the validation samples by which the kept epoch is chosen; None without them.
    """
    if chosen_by is None:
        return data.digest()
    return hashlib.sha256(f"{data.digest()} {chosen_by.digest()}".encode()).hexdigest()


_MEMINFO = Path("/proc/meminfo")
_LIMITS = (Path("/sys/fs/cgroup/memory.max"),
           Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Linux's file on the machine's memory, and the files with the memory limit of a container by
control groups of versions 2 and 1."""
_COPIES, _DEVICE_COPIES = 2, 3
"""How many copies of the parameters exist at the same time on the host, and on the device that
trains: there those after the last epoch, and those from before each of the last two epochs."""


def check_memory(settings: Settings, device: Device, networks: int = 1) -> None:
    """Raise InputError where the host's memory is too small for the copies of the parameters.

    The parameters include the numbers that the optimiser keeps. A device with its own memory raises
    an error when it allocates.
    """
    count = settings.problem(0, 0).parameter_count * networks
    copies = _COPIES + (_DEVICE_COPIES if device.on_processors else 0)
    needed, free = 4 * count * copies, available_memory()
    if free is not None and needed > free:
        raise InputError(f"sizes {settings.sizes}: training {count} parameters takes {needed} "
                         f"bytes ({copies} copies), but {free} bytes of memory are available; "
                         "expected fewer units")


def available_memory() -> int | None:
    """Return the bytes of memory that are free, or the container's limit where it is lower.

    Where the free bytes are not known, all bytes of the machine stand for them. None means that
    nothing is known.
    """
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdigit()]
    lines = [line.split() for line in _text(_MEMINFO).splitlines()]
    free = [1024 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]]
    return min([*limits, *(free or [find("host").limits.memory_bytes])]) or None


def _text(path: Path) -> str:
    """Return the text of a file; "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
