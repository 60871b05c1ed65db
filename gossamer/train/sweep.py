"""Train many different networks on the same samples: sweeps, cross-validation and ensembles."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, TrainingError, kind_of
from gossamer.io.output_files import replacing
from gossamer.train.loop.checkpoint import Checkpointer
from gossamer.train.mlp import MLP, device_of
from gossamer.train.network_training import NetworkTraining
from gossamer.train.predictor import become
from gossamer.train.sweep_data import SweepData
from gossamer.train.sweep_workers import SweepWorkers
from gossamer.train.training_data import check_memory_of_all

_MOST = 1_000_000
"""Maximum number of combinations of a grid."""
_ROUNDS = "rounds.json"
"""The file, in a folder of checkpoints, that lists the configs left after each round of successive
halving."""

Grid = Mapping[str, Iterable[Any]]


@dataclass(frozen=True)
class SweepResult:
    """The networks that sweep() trained, and a row of results for each.

    Attributes
    ----------
    rows : list of dict
        One row for each network, in the order of the configs and then of the folds. A config is
        one combination of parameters. The keys are

        - config (int): index of the config,
        - fold (int or None): index of the fold,
        - param_NAME: value of each parameter that is in the grid, or that differs between the base
          networks,
        - network (str): the MLP as text,
        - epochs (int): number of finished epochs,
        - loss (float): mean loss of the last epoch; NaN before the first,
        - train_accuracy (float or None): accuracy on the training data, R^2 for regression,
          computed on at most 10,000 evenly spaced rows,
        - validation_accuracy (float or None): accuracy, or R^2, on the validation data or the fold;
          None without either,
        - seconds (float): duration of the epochs, during which other networks may have been
          trained, too,
        - score (float): the validation accuracy or, without one, the training accuracy; NaN if
          training diverged or was not begun,
        - kept_epoch (int): number of the epoch that the network's parameters come from,
        - round (int): the last round of successive halving that the network took part in, from 0,
        - state (str): "trained", "target reached", "no improvement" if the patience ended training,
          "stopped by halving after epoch ...", or a sentence that says how training diverged (the
          network is then as it was before the epoch that diverged). After an interruption, the
          state can also be "stopped after epoch ..." or "not begun",
        - is_trained (bool): whether training began and did not diverge.
    networks : list of MLP
        The trained network of each row.
    """

    rows: list[dict[str, Any]]
    networks: list[MLP]

    def table(self) -> Any:
        """Return the rows as a table.

        Returns
        -------
        pandas.DataFrame or list of dict
            A data frame if pandas is installed, else `rows`.
        """
        if find_spec("pandas") is None:
            return self.rows
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def scores(self) -> np.ndarray:
        """Score of each network, as in `rows`.

        Returns
        -------
        numpy.ndarray
            Float64 of shape (configs, folds); NaN if training diverged or was not begun.
        """
        return self.values("score")

    @property
    def best_config(self) -> int:
        """Index of the best config.

        Of the configs in the last round of halving, the one with the highest mean score over its
        folds is the best; of configs with equal scores, the one with the lowest mean loss.

        Returns
        -------
        int
            The index.

        Raises
        ------
        TrainingError
            If every config has a network that diverged or was not begun.
        """
        means = self.scores.mean(axis=1)
        losses, rounds = self.values("loss").mean(axis=1), self.values("round")[:, 0]
        trained = np.flatnonzero(np.isfinite(means))
        if not len(trained):
            failed = self.rows[np.isfinite(self.scores).argmin()]
            raise TrainingError("there is no best config: in every config, at least one network "
                                "diverged or was not begun; the state of the first such network "
                                f"is: {failed['state']}")
        return min(trained.tolist(),
                   key=lambda config: (-rounds[config], -means[config], losses[config]))

    @property
    def best(self) -> MLP:
        """The best config's network with the highest score.

        Returns
        -------
        MLP
            The trained network.

        Raises
        ------
        TrainingError
            If every config has a network that diverged or was not begun.
        """
        scores = self.scores[config := self.best_config]
        return self.networks[config * len(scores) + int(np.argmax(scores))]

    def values(self, key: str) -> np.ndarray:
        """Return the number that each row has under a key.

        Parameters
        ----------
        key : str
            Key of the number in the rows.

        Returns
        -------
        numpy.ndarray
            Float64 of shape (configs, folds); NaN for None.
        """
        folds = 1 + max((row["fold"] or 0 for row in self.rows), default=0)
        return np.array([row[key] for row in self.rows], np.float64).reshape(-1, folds)


@dataclass(eq=False)
class _Network:
    """A network of a sweep.

    config: index of the network's config.
    fold: index of its fold; None without folds.
    mlp: the MLP into which the trained network is copied.
    round: the last round of successive halving that the network took part in.
    is_halted: whether successive halving stopped the network early.
    """

    config: int
    fold: int | None
    mlp: MLP
    training: NetworkTraining
    round: int = 0
    is_halted: bool = False

    def row(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the network's row of a SweepResult, with the parameters `names`."""
        training, state = self.training, self.training.state
        epochs = 0 if state is None else state.epochs_done
        failure = "" if state is None else state.failure
        outcome = ("not begun" if not epochs or state is None
                   else f"stopped by halving after epoch {epochs}" if self.is_halted
                   else "target reached" if state.reached
                   else "no improvement" if state.out_of_patience
                   else "trained" if training.has_ended else f"stopped after epoch {epochs}")
        return {
            "config": self.config, "fold": self.fold,
            **{f"param_{name}": getattr(self.mlp, name) for name in names},
            "network": repr(self.mlp), "epochs": epochs, "loss": training.loss,
            "train_accuracy": training.training_score,
            "validation_accuracy": training.held_out_score, "seconds": training.seconds,
            "score": training.score,
            "kept_epoch": 0 if state is None else state.kept_epoch,
            "round": self.round, "state": failure or outcome,
            "is_trained": epochs > 0 and not failure}


def sweep(base: MLP | Sequence[MLP], grid: Grid | Sequence[Grid], x: Any, y: Any, *,
          folds: int | None = None, validation: tuple[Any, Any] | None = None,
          sample_weight: Any = None, device: str | Device | None = None,
          halving: int | None = None, checkpoint: str | Path | None = None,
          resume: bool = False, ray: str | None = None,
          processes: int | None = None) -> SweepResult:
    """Train a network for each combination of parameters and each fold, many at once.

    Each network is trained as MLP.fit() would train it. The validation rows of a fold are not used
    to choose the epoch that is kept. A network that diverges is marked in the result, and the
    others continue.

    On the host, the networks are distributed over processes, which read the samples from shared
    memory. On other devices, networks with the same sizes, activation, loss, optimiser and batch
    are trained by the same launches of kernels, each with its own learning rate, schedule,
    momentum, decay, seed and last epoch.

    If Ctrl-C or an error interrupts the training, the finished epochs are kept in the checkpoint,
    and in a SweepResult in the exception's attribute `result`. The epochs of networks that other
    processes were training are only in the checkpoint.

    Parameters
    ----------
    base : MLP or sequence of MLP
        Network that defines the parameters that are not in the grid; it is not changed. If there
        are several networks, each is trained with each combination.
    grid : mapping from str to sequence, or sequence of such mappings
        Values to try for each parameter of MLP, in all combinations; the last parameter varies
        fastest. If there are several grids, as in scikit-learn, the combinations of each grid are
        tried. {} stands for the base network itself.
    x : array_like of float, shape (n, inputs)
        Samples.
    y : array_like, shape (n,) or (n, outputs)
        Labels or targets, as for MLP.fit().
    folds : int, optional
        Number of parts into which the rows are split, with the classes spread evenly over them.
        Each config is trained once for each part: a network is trained on the other parts and
        validated on this part.
    validation : pair of array_like, optional
        x and y to validate all networks on, instead of folds.
    sample_weight : array_like of float, shape (n,), optional
        Weight of each sample, as for MLP.fit().
    device : str or Device, optional
        Device for all networks; None means the device of each MLP.
    halving : int, optional
        Factor f of successive halving, 2 or more, which stops unpromising networks early. There are
        k = floor(log_f(min(configs, epochs))) rounds before the last one. In the first round, all
        networks are trained for a fraction 1 / f**k of their epochs. After each round, the configs
        are ranked by their mean scores, and the best fraction 1 / f of them continues to f times as
        many epochs. Configs with equal scores are ranked by lower loss, then by their order.
        Sources: K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and
        hyperparameter optimization", AISTATS 2016; L. Li et al., "Hyperband: a novel bandit-based
        approach to hyperparameter optimization", JMLR 18, 2018 (algorithm SuccessiveHalving).
    checkpoint : str or Path, optional
        Folder of checkpoints, created if it is missing. Each network has a file in the folder. The
        file is replaced from time to time, after an epoch.
    resume : bool
        True to continue from the checkpoints. Networks without a file in the folder start anew.
    ray : str, optional
        A Ray cluster whose workers share the networks: "HOST:PORT", "auto" for the cluster that
        this machine belongs to, or "local". All workers must have access to the folder of
        checkpoints: if a worker is lost, the training of its networks is resumed from there. With a
        cluster, `device` must be a name.
    processes : int, optional
        Number of processes that train on the host, including this one. None means one for each
        processor, or only this process if training is expected to take less than a second.

    Returns
    -------
    SweepResult
        The trained networks.

    Raises
    ------
    InputError
        If a setting is wrong, if the data are wrong, if the host has too little memory for all
        networks, or if the checkpoint belongs to other networks. The message names the config.
    OutOfMemoryError
        If a device has no room.
    """
    if resume and checkpoint is None:
        raise InputError("resume=True needs checkpoints to continue from: give checkpoint=FOLDER")
    if folds is not None and validation is not None:
        raise InputError("give folds or validation, not both: with folds, each network is "
                         "validated on the rows of its own fold")
    for name, value, least in (("halving", halving, 2), ("processes", processes, 1)):
        if value is not None and (not isinstance(value, Integral) or value < least):
            raise InputError(f"{name} {value!r}: expected a whole number of {least} or more")
    configs, names = _configs(base, grid)
    opened_device = find(device) if isinstance(device, str) else device
    data = SweepData(x, y, sample_weight, folds, validation)
    networks: list[_Network] = []
    for index, mlp in enumerate(configs):
        mlp_device = opened_device or device_of(mlp)
        # a worker of a cluster opens its own device
        where = mlp_device if ray is None else device or mlp.device
        try:
            networks += [
                _Network(index, None if folds is None else fold, type(mlp)(**mlp.get_params()),
                         NetworkTraining(settings, split, where, mlp.effort, mlp.algorithm,
                                         mlp.precision, settings.epochs))
                for fold, (settings, split) in enumerate(data.of(mlp, mlp_device))]
        except InputError as error:
            # keep the error's class: errors of arrays are ValueErrors, too
            raise type(error)(f"config {index}: {error}") from None
    check_memory_of_all([network.training.settings for network in networks], data.nbytes)
    folder = None if checkpoint is None else Path(checkpoint).absolute()
    if folder is not None:
        _open_checkpoints(networks, data, folder, resume)
    try:
        with SweepWorkers(data, processes, ray) as workers:
            _train(networks, workers, halving, folder)
    except BaseException as error:
        vars(error)["result"] = _result(networks, data, names)
        error.add_note("the networks trained so far are in this exception's attribute `result`"
                       + ("" if checkpoint is None else
                          f", and in {checkpoint}: resume=True continues from there"))
        raise
    return _result(networks, data, names)


def _configs(base: MLP | Sequence[MLP], grid: Grid | Sequence[Grid]) -> tuple[
        list[MLP], list[str]]:
    """Return an MLP for each combination, and the names of the parameters that vary."""
    bases = [base] if isinstance(base, MLP) else list(base)
    for mlp in bases:
        if not isinstance(mlp, MLP):
            raise InputError(f"base has {kind_of(mlp)}: expected an MLP, or a sequence of them")
    grids = [grid] if isinstance(grid, Mapping) else list(grid)
    if not bases or not grids:
        raise InputError(f"{'grid' if bases else 'base'} is empty: expected at least one "
                         + ("mapping" if bases else "MLP"))
    combinations: list[dict[str, Any]] = []
    first = bases[0].get_params()
    for each in grids:
        values = _values(each)
        for name in values:
            if name not in first:
                raise bases[0].unknown(name)
        count = len(bases) * (len(combinations) + math.prod(map(len, values.values())))
        if count > _MOST:
            raise InputError(f"grid: has {count} combinations; expected {_MOST} at most")
        combinations += [dict(zip(values, chosen, strict=True))
                         for chosen in itertools.product(*values.values())]
    names = list(dict.fromkeys([*itertools.chain(*combinations), *(
        name for name, value in first.items()
        if any(repr(mlp.get_params()[name]) != repr(value) for mlp in bases))]))
    return [type(mlp)(**mlp.get_params()).set_params(**combination)
            for mlp in bases for combination in combinations], names


def _values(grid: Grid) -> dict[str, list[Any]]:
    """Return the values to try for each parameter."""
    if not isinstance(grid, Mapping):
        raise InputError(f"grid has {kind_of(grid)}: expected a mapping from parameters to "
                         "sequences of values")
    result = {}
    for name, values in grid.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InputError(f"grid {name!r} is {kind_of(values)}: expected a sequence of values, "
                             f"such as [{values!r}]")
        result[name] = list(values)
        if not result[name]:
            raise InputError(f"grid {name!r} is empty: expected at least one value")
    return result


def _open_checkpoints(networks: Sequence[_Network], data: SweepData, folder: Path,
                      resume: bool) -> None:
    """Give each network its checkpoint file and, with `resume`, the state in the file."""
    def file_of(network: _Network) -> Path:
        fold = "" if network.fold is None else f"-fold{network.fold}"
        return folder / f"{network.config}{fold}.checkpoint"

    is_begun = any(file_of(network).exists() for network in networks)
    if resume and not is_begun:
        raise InputError(f"{folder}: has no checkpoint of these networks to resume from: give "
                         "another folder, or omit resume to start from scratch")
    if is_begun and not resume:
        raise InputError(f"{folder}: already has checkpoints; give resume=True to continue "
                         "from them, or another folder")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"checkpoint {folder}: cannot be made: {error.strerror}; expected a "
                         "folder") from None
    if not resume:
        (folder / _ROUNDS).unlink(missing_ok=True)
    for network in networks:
        training = network.training
        training.checkpointer = Checkpointer(
            file_of(network), data.digest(training.settings, training.split))
        if resume and file_of(network).exists():
            training.state = training.checkpointer.resume(training.settings)


def _train(networks: Sequence[_Network], workers: SweepWorkers, halving: int | None,
           folder: Path | None) -> None:
    """Train the networks; if `halving` is given, in rounds."""
    by_config: dict[int, list[_Network]] = {}
    for network in networks:
        by_config.setdefault(network.config, []).append(network)
    left, shares = list(by_config), _shares(networks, len(by_config), halving)
    rounds = _Rounds(folder, len(by_config), halving)
    for number, share in enumerate(shares):
        going_on = [network for config in left for network in by_config[config]]
        for network in going_on:
            network.round = number
            network.training.epochs = -(-network.training.settings.epochs // share)
        if number < len(rounds.kept):
            kept = rounds.kept[number]
        else:
            workers.train([network.training for network in going_on])
            if share == 1:
                return
            kept = sorted(left, key=lambda config: _rank(by_config[config]))
            kept = sorted(kept[:max(1, len(left) // (halving or 1))])
            rounds.add(kept)
        for config in set(left) - set(kept):
            for network in by_config[config]:
                network.is_halted = not network.training.has_ended
        left = kept


def _shares(networks: Sequence[_Network], configs: int, halving: int | None) -> list[int]:
    """Return, for each round, the divisor of the numbers of epochs."""
    if halving is None:
        return [1]
    epochs, rounds = max(network.training.settings.epochs for network in networks), 0
    while halving**(rounds + 1) <= min(configs, epochs):
        rounds += 1
    return [halving**number for number in range(rounds, -1, -1)]


def _rank(networks: Sequence[_Network]) -> tuple[bool, float, float]:
    """Return a key that sorts the best config first."""
    score = float(np.mean([network.training.score for network in networks]))
    loss = float(np.mean([network.training.loss for network in networks]))
    return math.isnan(score), -score, loss


class _Rounds:
    """The finished rounds of successive halving, stored in the folder of checkpoints.

    kept: for each round, the configs that continue after the round.
    Raises InputError if the folder has the rounds of another sweep.
    """

    def __init__(self, folder: Path | None, configs: int, halving: int | None) -> None:
        self._path = None if folder is None else folder / _ROUNDS
        self._sweep = {"configs": configs, "halving": halving}
        self.kept: list[list[int]] = []
        if self._path is not None and self._path.exists():
            try:
                stored = json.loads(self._path.read_text())
                self.kept = stored.pop("kept")
            except (OSError, ValueError, LookupError, AttributeError):
                stored = None
            if stored != self._sweep:
                raise InputError(f"{self._path}: has the rounds of a different sweep: give the "
                                 "same networks and the same halving, or another folder")

    def add(self, kept: list[int]) -> None:
        """Add a round."""
        self.kept.append(kept)
        if self._path is not None:
            with replacing(self._path) as file:
                file.write(json.dumps({**self._sweep, "kept": self.kept}).encode())


def _result(networks: Sequence[_Network], data: SweepData, names: Sequence[str]) -> SweepResult:
    for network in networks:
        training = network.training
        if training.state is None or not (training.state.epochs_done or training.state.failure):
            continue
        split = data.splits[training.split]
        if training.training_score is None:
            # the state was read from a checkpoint, and training was interrupted before this
            # network's turn
            training.judge(split)
        training.state.settings = training.settings
        become(network.mlp, training.state, split.data)
    return SweepResult([network.row(names) for network in networks],
                       [network.mlp for network in networks])

