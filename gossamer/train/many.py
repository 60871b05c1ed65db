"""Train many independent networks at once, for sweeps, cross-validation and ensembles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, InputError, TrainingError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.loop.checkpoint import Throttle
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.mlp import MLP, device_of
from gossamer.train.network import TrainedNetwork
from gossamer.train.network_entry import GivenData, NetworkEntry, entries_of, open_checkpoint
from gossamer.train.predictor import become

SHARE = 8
"""Number of configs that a worker of a Ray cluster trains at once. It is the same for all clusters,
so that a run may be resumed in another cluster."""


@dataclass(frozen=True)
class ManyResult:
    """The networks that train_many() trained, and a row of results for each.

    Attributes
    ----------
    rows : list of dict
        One row for each network, in the order of the configs and then of the folds, with the keys

        - config (int): index of the config,
        - fold (int or None): index of the fold,
        - network (str): the MLP as text,
        - epochs (int): number of finished epochs,
        - loss (float): mean loss of the last epoch,
        - train_accuracy (float or None): accuracy on the training data, R^2 for regression,
          computed on at most 10,000 rows that are spread over all,
        - validation_accuracy (float or None): accuracy, or R^2, on the validation data; None
          without validation data,
        - seconds (float): duration of the epochs, which the network may share with others,
        - kept_epoch (int): number of the epoch whose parameters the network has,
        - state (str): "trained", "target reached", "no improvement" where the patience ended
          training, or a sentence that says how training diverged (the network is then as it was
          before the epoch that diverged); where training was interrupted also "stopped after
          epoch ..." or "not begun",
        - is_trained (bool): whether training began and did not diverge.
    networks : list of MLP
        The trained network of each row.
    """

    rows: list[dict[str, Any]]
    networks: list[MLP]

    @property
    def scores(self) -> np.ndarray:
        """Score of each network: its validation accuracy or, without one, its training accuracy.

        Returns
        -------
        numpy.ndarray
            Float64 of shape (configs, folds); NaN where training diverged or was not begun.
        """
        folds = 1 + max((row["fold"] or 0 for row in self.rows), default=0)
        return np.array([_score(row) for row in self.rows]).reshape(-1, folds)

    @property
    def best(self) -> MLP:
        """Network with the best score of the best config.

        The best config has the highest mean score over its folds and, among equal ones, the lowest
        mean loss.

        Returns
        -------
        MLP
            The trained network.

        Raises
        ------
        TrainingError
            If in every config some network diverged or was not begun.
        """
        scores = self.scores
        means = scores.mean(axis=1)
        trained_configs = np.flatnonzero(np.isfinite(means))
        if not len(trained_configs):
            raise TrainingError("there is no best config: of each config some network diverged or "
                                f"was not begun; the state of the first is: "
                                f"{self.rows[0]['state']}")
        folds = scores.shape[1]

        def loss(config: int) -> float:
            return float(np.mean([row["loss"] for row in self.rows[config * folds:][:folds]]))

        config = min(trained_configs.tolist(), key=lambda index: (-means[index], loss(index)))
        return self.networks[config * folds + int(np.argmax(scores[config]))]


def train_many(configs: Sequence[MLP | Mapping[str, Any]], x: Any, y: Any, *,
               folds: int | None = None, validation: tuple[Any, Any] | None = None,
               sample_weight: Any = None, device: str | Device | None = None,
               checkpoint: str | Path | None = None, resume: bool = False,
               ray: str | None = None) -> ManyResult:
    """Train one network for each config (and fold), many of them at once.

    Each network is trained as MLP.fit() would train it. The rows on which a fold is validated do
    not choose the epoch that is kept. Networks with the same sizes, activation, loss and batch are
    trained by the same launches of kernels, each with its own learning rate, schedule, momentum,
    decay, seed and last epoch. A network that diverges is marked in the result, and the others
    continue.

    When Ctrl-C or an error interrupts the training, the finished epochs are kept in the
    checkpoint, and as a ManyResult in the exception's attribute `result`.

    Parameters
    ----------
    configs : sequence of MLP or mapping
        Networks to train, each as an MLP, which stays as it is, or as a mapping of an MLP's
        parameters.
    x : array_like of float, shape (n, inputs)
        Samples.
    y : array_like, shape (n,) or (n, outputs)
        Labels or targets, as for MLP.fit().
    folds : int, optional
        Number of parts into which the rows are split, with the classes spread evenly over them.
        Each config is trained once for each part: a network is trained on the other parts and
        validated on this part.
    validation : pair of array_like, optional
        x and y to validate all networks on, in place of folds.
    sample_weight : array_like of float, shape (n,), optional
        Weight of each sample, as for MLP.fit().
    device : str or Device, optional
        Device for all networks; None takes the device of each config.
    checkpoint : str or Path, optional
        Folder of checkpoints, created if it is missing. Each network has a file there, which is
        replaced after epochs.
    resume : bool
        True to continue from the checkpoints. Networks without a file in the folder start anew.
    ray : str, optional
        A Ray cluster whose workers share the networks: "HOST:PORT", "auto" for the cluster that
        this machine belongs to, or "local". All workers must see the folder of checkpoints, from
        which the networks of a lost worker are trained again. With a cluster, `device` must be a
        name.

    Returns
    -------
    ManyResult
        The trained networks.

    Raises
    ------
    InputError
        If a setting or the data are wrong, or the checkpoint belongs to other networks; the
        message names the config.
    OutOfMemoryError
        If a device has no room.
    """
    if resume and checkpoint is None:
        raise InputError("resume=True needs the checkpoint to go on from: checkpoint=FOLDER")
    if folds is not None and validation is not None:
        raise InputError("folds are validated on the rows they leave out: give either folds or "
                         "validation")
    if ray is not None:
        return _train_on_ray(list(configs), ray, checkpoint, resume, {
            "x": x, "y": y, "folds": folds, "validation": validation,
            "sample_weight": sample_weight, "device": device})
    opened_device = find(device) if isinstance(device, str) else device
    entries: list[NetworkEntry] = []
    data: GivenData = {}
    for index, config in enumerate(configs):
        try:
            entries += entries_of(index, config, x, y, sample_weight, data, folds, validation,
                                  opened_device)
        except InputError as error:
            raise InputError(f"config {index}: {error}") from None
    if not entries:
        raise InputError("configs is empty: expected at least one MLP")
    if checkpoint is not None:
        open_checkpoint(entries, Path(checkpoint), resume)
    groups: dict[tuple[BackpropProblem, int, Device, str | None, str | None],
                 list[NetworkEntry]] = {}
    for entry in entries:
        group_device = opened_device or device_of(entry.mlp)
        problem = entry.state.settings.problem(len(entry.data.x), len(entry.rows))
        key = problem, id(entry.data), group_device, entry.mlp.effort, entry.mlp.algorithm
        groups.setdefault(key, []).append(entry)
    try:
        for (_, _, group_device, effort, algorithm), group in groups.items():
            _train(group, group_device, effort, algorithm)
    except BaseException as error:
        vars(error)["result"] = _result(entries)
        error.add_note("what was trained before is in this exception's attribute `result`"
                       + ("" if checkpoint is None else
                          f", and in {checkpoint}: resume=True goes on from there"))
        raise
    return _result(entries)


def sweep(base: MLP, grid: Mapping[str, Sequence[Any]]) -> list[MLP]:
    """Return one MLP for every combination of parameter values in a grid.

    Parameters
    ----------
    base : MLP
        Network that gives the parameters that are not in the grid.
    grid : mapping from str to sequence
        Values to try for each parameter of MLP; the last parameter varies fastest.

    Returns
    -------
    list of MLP
        Networks that are not trained.

    Raises
    ------
    InputError
        If MLP has no such parameter.
    """
    return [type(base)(**base.get_params()).set_params(**dict(zip(grid, values, strict=True)))
            for values in itertools.product(*grid.values())]


def cross_validate(mlp: MLP, x: Any, y: Any, folds: int = 5, *,
                   checkpoint: str | Path | None = None, resume: bool = False) -> ManyResult:
    """Train a network once for each fold, and validate it on the rows of that fold.

    Parameters
    ----------
    mlp : MLP
        Network to train, which stays as it is.
    x : array_like of float, shape (n, inputs)
        Samples.
    y : array_like, shape (n,) or (n, outputs)
        Labels or targets, as for MLP.fit().
    folds : int
        Number of folds, from 2 to n.
    checkpoint : str or Path, optional
        Folder of checkpoints, as for train_many().
    resume : bool
        True to continue from the checkpoint, as for train_many().

    Returns
    -------
    ManyResult
        The trained networks; its `scores` have the shape (1, folds).

    Raises
    ------
    InputError
        If settings or data are wrong, or the checkpoint belongs to another network.
    OutOfMemoryError
        If the device has no room.
    """
    return train_many([mlp], x, y, folds=folds, checkpoint=checkpoint, resume=resume)


def _train(group: Sequence[NetworkEntry], device: Device, effort: str | None,
           algorithm: str | None) -> None:
    """Train a group of networks of the same problem and data, and give their MLPs the results."""
    validation_data = group[0].validation_data
    training = TrainLoop(
        [entry.state for entry in group], group[0].data, [entry.rows for entry in group], device,
        effort, algorithm, None if validation_data is None
        else lambda state: TrainedNetwork.of(state).validated(validation_data))
    throttle = Throttle()
    try:
        while training.active:
            active_entries = [entry for entry in group if not entry.state.ended]
            seconds = training.step()
            for entry in active_entries:
                entry.seconds += seconds
            if group[0].checkpointer and throttle.due:
                with throttle:
                    training.fetch_parameters()
                    _write(group)
    except BaseException:
        # the device may fail, too, where its error is what stopped the training
        with suppress(GossamerError):
            training.fetch_parameters()
            _finish(group, training)
        raise
    _finish(group, training)


def _finish(group: Sequence[NetworkEntry], training: TrainLoop) -> None:
    """Give the MLPs of a group their trained networks, and write the checkpoints."""
    for entry in group:
        if entry.state.ended or entry.state.epochs_done:
            become(entry.mlp, entry.state, entry.data, training)
    _write(group)


def _write(group: Sequence[NetworkEntry]) -> None:
    for entry in group:
        if entry.checkpointer:
            entry.checkpointer.write(entry.state)


def _result(entries: Sequence[NetworkEntry]) -> ManyResult:
    for entry in entries:
        if entry.state.epochs_done and not hasattr(entry.mlp, "coefs_"):
            # the state was read from a checkpoint, and training stopped before the network's group
            become(entry.mlp, entry.state, entry.data, None)
    return ManyResult([entry.row() for entry in entries], [entry.mlp for entry in entries])


def _score(row: Mapping[str, Any]) -> float:
    if not row["is_trained"]:
        return math.nan
    accuracy = row["validation_accuracy"]
    return float(row["train_accuracy"] if accuracy is None else accuracy)


def _train_on_ray(configs: Sequence[MLP | Mapping[str, Any]], address: str,
                  checkpoint: str | Path | None, resume: bool,
                  given: Mapping[str, Any]) -> ManyResult:
    """Train the configs on the workers of a Ray cluster, SHARE of them at once.

    Where a worker is lost, its share is trained again, from the share's checkpoints if it has any.

    given: the other arguments of train_many().
    Raises InputError where the folder has the checkpoints of another run, or arguments are wrong.
    """
    from gossamer.ray import shared_out

    folder = None if checkpoint is None else Path(checkpoint).absolute()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.glob("share-*")):
            raise InputError(f"{folder}: has checkpoints already; give resume=True to go on from "
                             "them, or another folder")
    shares = [(configs[start:start + SHARE],
               None if folder is None else folder / f"share-{start // SHARE:05}")
              for start in range(0, len(configs), SHARE)]
    result = ManyResult([], [])
    for index, part in enumerate(shared_out(_train_share, shares, given, address or None)):
        result.rows.extend({**row, "config": row["config"] + index * SHARE} for row in part.rows)
        result.networks.extend(part.networks)
    return result


def _train_share(share: tuple[Sequence[MLP | Mapping[str, Any]], Path | None],
                 given: Mapping[str, Any]) -> ManyResult:
    """Train the configs of a share, from the share's checkpoints if it has any.

    It has some where the run is resumed, or where an earlier worker was lost.
    """
    configs, folder = share
    # the folder is empty where a worker was lost before it wrote its first file
    is_begun = folder is not None and folder.is_dir() and any(folder.iterdir())
    return train_many(configs, **given, checkpoint=folder, resume=is_begun)
