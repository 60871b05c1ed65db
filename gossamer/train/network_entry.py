"""The networks that train_many() trains, each with its samples, state and checkpoint."""

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
    """One network of train_many(), with the samples for it and its training state.

    config: index of the network's config.
    fold: index of the network's fold; None without folds.
    mlp: a copy of the config, which gets the trained network.
    state: the training state.
    data: the samples, scaled for training.
    rows: (samples,) indices of the rows of `data` that the network is trained on.
    validation_data: samples to validate on; None without them, and with folds, where the network
    is validated on the rows of `data` that are not in `rows`.
    seconds: duration of the network's epochs so far, which it may share with other networks.
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
"""The scaled samples to train on and to validate on, by what decides their scaling: standardise,
scale_targets, the activation of the outputs, and the fold."""
GivenData = dict[tuple[int | None, int | None, str | None, str], tuple[Samples, _Scaled]]
"""The unscaled samples, and the same samples scaled, by what decides how x and y are read: the
expected numbers of inputs and outputs, the task, and the class weights as text. Networks share
them."""


def entries_of(index: int, config: MLP | Mapping[str, Any], x: Any, y: Any, sample_weight: Any,
               data: GivenData, folds: int | None, validation: tuple[Any, Any] | None,
               opened_device: Device | None) -> list[NetworkEntry]:
    """Return the networks of a config, one for each fold.

    index: index of the config.
    data: samples that earlier configs have in common with this one. New samples are added to it.
    opened_device: the device for all networks; None where each config states its own.
    """
    if isinstance(config, Mapping):
        mlp = MLP().set_params(**config)
    elif isinstance(config, MLP):
        mlp = config
    else:
        raise InputError(f"is {kind_of(config)}: expected an MLP, or a dict of its "
                         "parameters")
    given = given_sizes(mlp)
    weights = repr(mlp.class_weight)
    form = (given[0], given[-1], mlp.task, weights) if given else (None, None, mlp.task, weights)
    if form not in data:
        data[form] = given_samples(mlp, x, y, sample_weight), {}
    given_data, scaled_data = data[form]
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
    """Give each network its checkpoint file in the folder, and with `resume` the state in the
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
    """Return, for each fold, the rows outside of it, on which its network is trained.

    The classes are spread evenly over the folds.
    """
    count = len(data.x)
    if not isinstance(folds, Integral) or not 2 <= folds <= count:
        raise InputError(f"folds {folds!r}: expected a whole number from 2 to the {count} rows")
    by_class = np.arange(count) if data.labels is None else np.argsort(data.labels, kind="stable")
    fold_of_row = np.empty(count, np.intp)
    fold_of_row[by_class] = np.arange(count) % folds
    return [np.flatnonzero(fold_of_row != fold) for fold in range(folds)]
