"""The networks that train_many() trains, with samples, states and checkpoints."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import InputError, kind_of
from gossamer.train.data.samples import Samples, validation_samples
from gossamer.train.loop.checkpoint import Checkpointer
from gossamer.train.loop.settings import Settings, given_sizes
from gossamer.train.loop.train_state import TrainState
from gossamer.train.mlp import MLP, device_of
from gossamer.train.network import TrainedNetwork
from gossamer.train.training_data import check_memory, digest_of, given_samples, trainable


@dataclass(eq=False)
class NetworkEntry:
    """One network, the samples for it, and its training state.

    config: index of the network's config.
    fold: index of the network's fold; None without folds.
    mlp: a copy of the config, which becomes the trained network.
    state: the training state.
    data: the samples, scaled for training.
    rows: (samples,) indices of the rows of `data` that the network is trained on.
    validation_data: samples to validate on; None without validation. Also None with folds: the
    network of a fold is validated on the rows of `data` that are not in `rows`.
    seconds: duration of the launches so far.
    checkpointer: writer of the network's checkpoint file; None without checkpoints.
    """

    config: int
    fold: int | None
    mlp: MLP
    state: TrainState
    data: Samples
    rows: np.ndarray
    validation_data: Samples | None
    seconds: float = 0.0
    checkpointer: Checkpointer | None = None

    def row(self) -> dict[str, Any]:
        """Return the network's row of a ManyResult."""
        state, network = self.state, TrainedNetwork.kept_of(self.state)
        begun = state.epochs_done > 0 or bool(state.failure)
        validation_data = self.validation_data
        if self.fold is not None:
            validation_data = self.data.rows(np.setdiff1d(np.arange(len(self.data.x)), self.rows))
        outcome = ("target reached" if state.reached
                 else "no improvement" if state.out_of_patience else "trained" if state.ended
                 else f"stopped after epoch {state.epochs_done}" if begun else "not begun")
        return {
            "config": self.config, "fold": self.fold, "network": repr(self.mlp),
            "epochs": state.epochs_done, "loss": state.curve[-1] if state.curve else math.nan,
            "train_accuracy": network.judged(self.data, self.rows) if begun else None,
            "validation_accuracy": None if validation_data is None or not begun
                else network.score(network.outputs(validation_data.x), validation_data),
            "seconds": self.seconds, "kept_epoch": state.kept_epoch,
            "state": state.failure or outcome,
            "is_trained": begun and not state.failure}


_Scaled = dict[tuple[bool, bool, str, int | None], tuple[Samples, Samples | None]]
"""For each scaling, the samples to train on and to validate on. A key holds standardise,
scale_targets, the activation of the outputs, and the fold."""
GivenData = dict[tuple[int | None, int | None, str | None, str], tuple[Samples, _Scaled]]
"""The samples as they were given, once for each way to read them. A key holds the expected numbers
of inputs and outputs, the task and the weights of classes. A value holds the samples, and a mapping
with the scaled samples to train on and to validate on for each scaling. The keys of this mapping
are the settings and the fold that decide the scaling."""


def entries_of(index: int, config: MLP | Mapping[str, Any], x: Any, y: Any, sample_weight: Any,
               data: GivenData, folds: int | None, validation: tuple[Any, Any] | None,
               opened_device: Device | None) -> list[NetworkEntry]:
    """Return the networks of a config, one for each fold.

    data: the samples of earlier configs, to which the samples of this config are added.
    """
    if isinstance(config, Mapping):
        mlp = MLP().set_params(**config)
    elif isinstance(config, MLP):
        mlp = config
    else:
        raise InputError(f"is {kind_of(config)}: expected an MLP, or a dict of its "
                         "parameters")
    given = given_sizes(mlp)
    weight = repr(mlp.class_weight)
    ends = (given[0], given[-1], mlp.task, weight) if given else (None, None, mlp.task, weight)
    if ends not in data:
        data[ends] = given_samples(mlp, x, y, sample_weight), {}
    given_data, scaled_data = data[ends]
    rows_by_fold = ([(None, np.arange(len(given_data.x)))] if folds is None
                    else list(enumerate(_rows_of_folds(given_data, folds))))
    device = opened_device or device_of(mlp)
    entries = []
    for fold, rows in rows_by_fold:
        settings = Settings.of(mlp, replace(given_data.shape, rows=len(rows)))
        check_memory(settings, device, len(rows_by_fold))
        # each fold is scaled by the rows that it is trained on
        scaling = settings.scaling(given_data.rows(rows) if folds else given_data)
        key = (settings.standardise, settings.scale_targets,
               settings.problem(0, 0).output_activation, None if scaling.is_trivial else fold)
        if key not in scaled_data:
            training_data = trainable(settings, given_data, device, scaling)
            scaled_data[key] = training_data, (
                None if validation is None
                else validation_samples(validation, settings.sizes, training_data, mlp.task))
        training_data, validation_data = scaled_data[key]
        entries.append(NetworkEntry(index, fold, type(mlp)(**mlp.get_params()),
                                    TrainState.start(settings), training_data, rows,
                                    validation_data))
    return entries


def open_checkpoint(entries: Sequence[NetworkEntry], folder: Path, resume: bool) -> None:
    """Give each network its file in the folder and, where training is resumed, the state in that
    file."""
    if resume and not any(_file(entry, folder).exists() for entry in entries):
        raise InputError(f"{folder}: has no checkpoint of these networks to resume from: give "
                         "another folder, or leave resume out to start anew")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoint {folder}: cannot be made: {error.strerror}; expected a "
                         "folder") from None
    digests: dict[int, str] = {}
    for entry in entries:
        if id(entry.data) not in digests:
            digests[id(entry.data)] = digest_of(entry.data, None)
        digest = digests[id(entry.data)]
        if entry.validation_data is not None and entry.state.settings.keep == "best":
            digest = digest_of(entry.data, entry.validation_data)
        if entry.fold is not None:
            digest = hashlib.sha256(digest.encode() + entry.rows.tobytes()).hexdigest()
        entry.checkpointer = Checkpointer(_file(entry, folder), digest)
        if resume and _file(entry, folder).exists():
            entry.state = entry.checkpointer.resume(entry.state.settings)


def _file(entry: NetworkEntry, folder: Path) -> Path:
    fold = "" if entry.fold is None else f"-fold{entry.fold}"
    return folder / f"{entry.config}{fold}.checkpoint"


def _rows_of_folds(data: Samples, folds: int) -> list[np.ndarray]:
    """Return the rows that each fold trains on, in the order of the data."""
    count = len(data.x)
    if not isinstance(folds, Integral) or not 2 <= folds <= count:
        raise InputError(f"folds {folds!r}: expected a whole number from 2 to the {count} rows")
    by_class = np.arange(count) if data.labels is None else np.argsort(data.labels, kind="stable")
    part = np.empty(count, np.intp)
    part[by_class] = np.arange(count) % folds
    return [np.flatnonzero(part != fold) for fold in range(folds)]
