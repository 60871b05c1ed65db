"""Many independent networks at once: sweeps, cross-validation, ensembles."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, InputError, TrainingError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import Samples, samples, validation_samples
from gossamer.train.loop import memory
from gossamer.train.loop.checkpoint import Checkpointer, Throttle
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainLoop, TrainState
from gossamer.train.mlp import MLP, become, device_of
from gossamer.train.network import TrainedNetwork


@dataclass(frozen=True)
class ManyResult:
    """What came of each network.

    rows: one for each, in the order of the configs and within a config of the folds: config
    (index), fold (index or None), network (as text), epochs, loss (mean of the last epoch),
    train_accuracy (over 10,000 rows spread over those it trained on, where they are more),
    validation_accuracy (None without validation; both are R^2 for regression), seconds (of the
    launches it shared with others), and state ("trained", "target reached", how it diverged: it
    then stands as it was before; or "stopped", or "not begun", where something ended the work).
    networks: the same as trained estimators.
    """

    rows: list[dict[str, Any]]
    networks: list[MLP]

    @property
    def scores(self) -> np.ndarray:
        """(configs, folds): the validation accuracy of each network, or where there is none that
        of training; NaN where it diverged or was not begun."""
        folds = 1 + max((row["fold"] or 0 for row in self.rows), default=0)
        return np.array([_score(row) for row in self.rows]).reshape(-1, folds)

    @property
    def best(self) -> MLP:
        """The network with the best score, or the least loss of those; with folds the best one of
        the config whose mean over the folds is best.

        Raises TrainingError where none came through.
        """
        scores = self.scores
        means = scores.mean(axis=1)
        able = np.flatnonzero(np.isfinite(means))
        if not len(able):
            raise TrainingError(f"of {len(self.rows)} networks none came through"
                                + (" all folds" if scores.shape[1] > 1 else "")
                                + f"; the first {self.rows[0]['state']}")
        folds = scores.shape[1]

        def loss(config: int) -> float:
            return float(np.mean([row["loss"] for row in self.rows[config * folds:][:folds]]))

        config = min(able.tolist(), key=lambda index: (-means[index], loss(index)))
        return self.networks[config * folds + int(np.argmax(scores[config]))]


def train_many(configs: Sequence[MLP | Mapping[str, Any]], x: Any, y: Any, *,
               folds: int | None = None, validation: tuple[Any, Any] | None = None,
               device: str | Device | None = None, checkpoint: str | Path | None = None,
               resume: bool = False) -> ManyResult:
    """Trains each config, an MLP or what its constructor takes, as its fit() would: those of the
    same sizes, activation, loss and batch at once, each with its own learning rate, schedule,
    momentum, decay, seed and end.

    folds: each config is trained so many times, each time without another part of the rows, which
    it is then validated on; the classes are spread evenly over the parts. validation: x and y to
    validate all on. device: for all; None takes each config's own. checkpoint: a folder, made
    where there is none, in which each network has a file that is replaced after epochs. resume:
    goes on from that folder: what is trained stays, what is not there begins.
    A network that diverges is marked in the result, and the others go on. What was trained when
    Ctrl-C comes, or an error, is kept in the checkpoint, and as a ManyResult in the exception's
    attribute `result`.

    Raises InputError for wrong settings, which names the config, or wrong data, or a checkpoint of
    others.
    """
    if resume and checkpoint is None:
        raise InputError("resume=True needs the checkpoint to go on from: checkpoint=FOLDER")
    if folds is not None and validation is not None:
        raise InputError("folds are validated on the rows they leave out: give either folds or "
                         "validation")
    opened_device = find(device) if isinstance(device, str) else device
    entries: list[_NetworkEntry] = []
    data: _Data = {}
    for index, config in enumerate(configs):
        try:
            entries += _entries(index, config, x, y, data, folds, validation, opened_device)
        except InputError as error:
            raise InputError(f"config {index}: {error}") from None
    if not entries:
        raise InputError("configs is empty: expected at least one MLP")
    if checkpoint is not None:
        _keep(entries, Path(checkpoint), resume)
    groups: dict[tuple[BackpropProblem, Device, str | None, str | None], list[_NetworkEntry]] = {}
    for entry in entries:
        own = opened_device or device_of(entry.mlp)
        problem = entry.state.settings.problem(len(entry.data.x), len(entry.rows))
        groups.setdefault((problem, own, entry.mlp.effort, entry.mlp.algorithm), []).append(entry)
    try:
        for (_, own, effort, algorithm), group in groups.items():
            _train(group, own, effort, algorithm)
    except BaseException as error:
        vars(error)["result"] = _result(entries)
        error.add_note("what was trained until then is in this exception's attribute `result`"
                       + ("" if checkpoint is None else
                          f", and in {checkpoint}: resume=True goes on from there"))
        raise
    return _result(entries)


def sweep(base: MLP, grid: Mapping[str, Sequence[Any]]) -> list[MLP]:
    """A copy of the base for every combination of the values that the grid has for parameters of
    MLP; the last parameter changes fastest. Raises InputError for an unknown parameter."""
    return [type(base)(**base.get_params()).set_params(**dict(zip(grid, values, strict=True)))
            for values in itertools.product(*grid.values())]


def cross_validate(mlp: MLP, x: Any, y: Any, folds: int = 5, *,
                   checkpoint: str | Path | None = None, resume: bool = False) -> ManyResult:
    """Trains the network so many times at once, each time without another part of the rows,
    which it is validated on: `scores` has the accuracies. checkpoint and resume as in
    train_many(), which says what is raised too."""
    return train_many([mlp], x, y, folds=folds, checkpoint=checkpoint, resume=resume)


@dataclass(eq=False)
class _NetworkEntry:
    """One network: which it is, what it is trained on and validated with, and its state."""

    config: int
    fold: int | None
    mlp: MLP
    state: TrainState
    data: Samples
    rows: np.ndarray
    held: Samples | None
    seconds: float = 0.0
    checkpointer: Checkpointer | None = None

    def row(self) -> dict[str, Any]:
        state, network = self.state, TrainedNetwork.of(self.state)
        begun = state.epochs_done > 0 or bool(state.failure)
        held = self.held
        if self.fold is not None:
            held = self.data.rows(np.setdiff1d(np.arange(len(self.data.x)), self.rows))
        outcome = ("target reached" if state.reached else "trained" if state.ended
                 else f"stopped after epoch {state.epochs_done}" if begun else "not begun")
        return {
            "config": self.config, "fold": self.fold, "network": repr(self.mlp),
            "epochs": state.epochs_done, "loss": state.curve[-1] if state.curve else math.nan,
            "train_accuracy": network.judged(self.data, self.rows) if begun else None,
            "validation_accuracy": None if held is None or not begun
                else network.score(network.outputs(held.x), held),
            "seconds": self.seconds, "state": state.failure or outcome}


_Data = dict[tuple[int, int], tuple[Samples, Samples | None]]
"""What was made of x and y, and of those to validate on, by inputs and outputs."""


def _entries(index: int, config: MLP | Mapping[str, Any], x: Any, y: Any,
             data: _Data, folds: int | None, validation: tuple[Any, Any] | None,
             opened_device: Device | None) -> list[_NetworkEntry]:
    """A config's networks, one a fold."""
    if isinstance(config, Mapping):
        mlp = MLP().set_params(**config)
    elif isinstance(config, MLP):
        mlp = config
    else:
        raise InputError(f"is a {type(config).__name__}: expected an MLP, or a dict of its "
                         "parameters")
    settings = Settings.of(mlp)
    ends = settings.sizes[0], settings.sizes[-1]
    if ends not in data:
        own = samples(x, y, settings.sizes)
        data[ends] = own, (None if validation is None
                           else validation_samples(validation, settings.sizes, own))
    own, held = data[ends]
    whole = np.arange(len(own.x))
    parts = [(None, whole)] if folds is None else list(enumerate(_without_parts(own, folds)))
    memory.check(settings, opened_device or device_of(mlp), len(parts))
    return [_NetworkEntry(index, fold, type(mlp)(**mlp.get_params()), TrainState.start(settings), own, rows,
                   held) for fold, rows in parts]


def _keep(entries: Sequence[_NetworkEntry], folder: Path, resume: bool) -> None:
    """Gives each network its file in the folder, and to resume the state that it holds."""
    if resume and not any(_file(entry, folder).exists() for entry in entries):
        raise InputError(f"{folder}: has no checkpoint of these networks to resume from: give "
                         "another folder, or leave resume out to begin anew")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoint {folder}: cannot be made: {error.strerror}; expected a "
                         "folder") from None
    digests: dict[int, str] = {}
    for entry in entries:
        if id(entry.data) not in digests:
            digests[id(entry.data)] = entry.data.digest()
        digest = digests[id(entry.data)]
        if entry.fold is not None:
            digest = hashlib.sha256(digest.encode() + entry.rows.tobytes()).hexdigest()
        entry.checkpointer = Checkpointer(_file(entry, folder), digest)
        if resume and _file(entry, folder).exists():
            entry.state = entry.checkpointer.resume(entry.state.settings)


def _file(entry: _NetworkEntry, folder: Path) -> Path:
    fold = "" if entry.fold is None else f"-fold{entry.fold}"
    return folder / f"{entry.config}{fold}.checkpoint"


def _without_parts(data: Samples, folds: int) -> list[np.ndarray]:
    """For each fold the rows that it trains on, in their order."""
    count = len(data.x)
    if not isinstance(folds, Integral) or not 2 <= folds <= count:
        raise InputError(f"folds {folds!r}: expected a whole number from 2 to the {count} rows")
    by_class = np.arange(count) if data.labels is None else np.argsort(data.labels, kind="stable")
    part = np.empty(count, np.intp)
    part[by_class] = np.arange(count) % folds
    return [np.flatnonzero(part != fold) for fold in range(folds)]


def _train(group: Sequence[_NetworkEntry], device: Device, effort: str | None,
           algorithm: str | None) -> None:
    """Trains networks of one problem to their ends, and fills their MLPs."""
    training = TrainLoop([entry.state for entry in group], group[0].data,
                        [entry.rows for entry in group], device, effort, algorithm)
    throttle = Throttle()
    try:
        while training.active:
            going = [entry for entry in group if not entry.state.ended]
            seconds = training.step()
            for entry in going:
                entry.seconds += seconds
            if group[0].checkpointer and throttle.due:
                with throttle:
                    training.sync_parameters()
                    _write(group)
    except BaseException:
        # what stopped the work may have stopped the device too
        with suppress(GossamerError):
            training.sync_parameters()
            _finish(group, training)
        raise
    _finish(group, training)


def _finish(group: Sequence[_NetworkEntry], training: TrainLoop) -> None:
    for entry in group:
        if entry.state.ended or entry.state.epochs_done:
            become(entry.mlp, entry.state, entry.data, training)
    _write(group)


def _write(group: Sequence[_NetworkEntry]) -> None:
    for entry in group:
        if entry.checkpointer:
            entry.checkpointer.write(entry.state)


def _result(entries: Sequence[_NetworkEntry]) -> ManyResult:
    for entry in entries:
        if entry.state.epochs_done and not hasattr(entry.mlp, "coefs_"):
            # from a checkpoint, and stopped before it was gone on with
            become(entry.mlp, entry.state, entry.data, None)
    return ManyResult([entry.row() for entry in entries], [entry.mlp for entry in entries])


def _score(row: Mapping[str, Any]) -> float:
    if row["state"].startswith("diverged") or row["state"] == "not begun":
        return math.nan
    found = row["validation_accuracy"]
    return float(row["train_accuracy"] if found is None else found)
