"""Training of single networks of a sweep, in this process or in others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, GossamerWarning
from gossamer.io.shared_object import load
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import AlgorithmChoice, choose
from gossamer.train.loop.checkpoint import Checkpointer, Throttle
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.loop.train_state import TrainState
from gossamer.train.loop.trainer import compile_kernels
from gossamer.train.network import TrainedNetwork, judged_rows

_UPDATE_S, _MULTIPLY_ADDS_PER_S = 5e-5, 5e9
"""Overhead of the NumPy calls of an update, in seconds, and multiply-adds per second of one CPU
core."""


@dataclass(frozen=True, eq=False)
class Split:
    """The samples on which a network is trained, and those on which it is scored.

    data: samples, scaled for training.
    rows: (samples,) indices of the rows of `data` that the network is trained on.
    is_fold: whether the network is scored on the other rows of `data`.
    validation_data: samples on which the network is scored after each epoch; None without them.
    """

    data: Samples
    rows: np.ndarray
    is_fold: bool
    validation_data: Samples | None

    @cached_property
    def judged(self) -> Samples:
        """Samples of the training data, evenly spaced, on which a trained network is scored."""
        return self.data.rows(judged_rows(self.rows))

    @cached_property
    def scored(self) -> Samples | None:
        """The samples on which a trained network is scored; None without held-out samples."""
        if not self.is_fold:
            return self.validation_data
        return self.data.rows(np.setdiff1d(np.arange(len(self.data.x)), self.rows))


@dataclass(eq=False)
class NetworkTraining:
    """The training of one network of a sweep.

    settings: how the network is trained.
    split: index of its samples among the sweep's splits.
    device: device that trains, or the argument of find() that names it.
    effort, algorithm, precision: arguments of choose(), which selects the algorithm.
    epochs: number of finished epochs at which training pauses.
    state: the training state; None before training begins.
    checkpointer: writer of the network's checkpoint file; None without checkpoints.
    seconds: duration of the finished epochs, during which other networks may have been trained,
    too.
    training_score, held_out_score: scores on the training data and on Split.scored; None before
    training, and if there are no such samples.
    """

    settings: Settings
    split: int
    device: str | Device | None
    effort: str | None
    algorithm: str | None
    precision: str
    epochs: int
    state: TrainState | None = None
    checkpointer: Checkpointer | None = None
    seconds: float = 0.0
    training_score: float | None = None
    held_out_score: float | None = None

    @property
    def score(self) -> float:
        """The score on held-out samples, else on the training data.

        NaN before training, and if training diverged.
        """
        score = self.training_score if self.held_out_score is None else self.held_out_score
        return math.nan if self.state is None or self.state.failure or score is None else score

    @property
    def loss(self) -> float:
        """Mean loss of the last epoch; NaN before the first."""
        return self.state.curve[-1] if self.state is not None and self.state.curve else math.nan

    def problem(self, splits: Sequence[Split]) -> BackpropProblem:
        """Return the problem of an epoch.

        Only networks with equal problems can be trained by the same launches.
        """
        split = splits[self.split]
        return self.settings.problem(len(split.data.x), len(split.rows))

    def expected_seconds(self, splits: Sequence[Split]) -> float:
        """Return the estimated seconds until training pauses, on one CPU core."""
        problem = self.problem(splits)
        samples, updates = problem.samples, -(-problem.samples // problem.batch)
        done = 0 if self.state is None else self.state.epochs_done
        return (self.epochs - done) * (updates * _UPDATE_S + samples * 3 * problem.weight_count
                                       / _MULTIPLY_ADDS_PER_S)

    @property
    def has_ended(self) -> bool:
        """Whether training has ended, early or after the last epoch."""
        return self.state is not None and (
            replace(self.state, settings=self.settings).ended)

    def begin(self) -> TrainState:
        """Return the state from which training continues.

        This is the state in the checkpoint if another process has trained the network further.
        """
        state, writer = self.state or TrainState.start(self.settings), self.checkpointer
        if writer is not None and writer.path.exists():
            stored = writer.resume(self.settings)
            state = stored if stored.epochs_done > state.epochs_done else state
        state.settings = replace(self.settings, epochs=min(self.epochs, self.settings.epochs))
        self.state = state
        return state

    def judge(self, split: Split) -> None:
        """Compute the scores of a network whose training has begun."""
        assert self.state is not None
        network = TrainedNetwork.kept_of(self.state)
        self.training_score = network.score(split.judged)
        if (scored := split.scored) is not None:
            self.held_out_score = network.score(scored)

    def pause(self, split: Split) -> None:
        """Compute the scores after training, and write the checkpoint."""
        assert self.state is not None
        if self.state.epochs_done or self.state.failure:
            self.judge(split)
        self.write()

    def write(self) -> None:
        """Replace the checkpoint file."""
        if self.checkpointer is not None and self.state is not None:
            self.checkpointer.write(self.state)


def train(trainings: Sequence[NetworkTraining], splits: Sequence[Split],
          pause: Callable[[NetworkTraining, Split], object] = NetworkTraining.pause
          ) -> list[NetworkTraining]:
    """Train networks of the same problem, device and data until each ends or pauses.

    After an interrupt or error, the finished epochs are kept in the trainings and in their
    checkpoints.

    pause: function that is called with each network after its training, and with its split.
    """
    first, of_each = trainings[0], [splits[training.split] for training in trainings]
    device = first.device if isinstance(first.device, Device) else find(first.device)
    states = [training.begin() for training in trainings]
    validation_data = of_each[0].validation_data
    loop = TrainLoop(
        states, of_each[0].data, [split.rows for split in of_each], device, first.effort,
        first.algorithm, None if validation_data is None
        else lambda state: TrainedNetwork.of(state).validated(validation_data), first.precision)
    throttle = Throttle()
    try:
        while loop.active:
            active = [training for training, state in zip(trainings, states, strict=True)
                      if not state.ended]
            seconds = loop.step()
            for training in active:
                training.seconds += seconds
            if first.checkpointer is not None and throttle.due:
                with throttle:
                    loop.fetch_parameters()
                    for training in trainings:
                        training.write()
    except BaseException:
        # if an error of the device ended the training, these calls may fail, too
        with suppress(GossamerError):
            loop.fetch_parameters()
            for training, split in zip(trainings, of_each, strict=True):
                training.pause(split)
        raise
    for training, split in zip(trainings, of_each, strict=True):
        pause(training, split)
    return list(trainings)


def train_jobs(jobs: Sequence[Sequence[NetworkTraining]], splits: Sequence[Split]) -> None:
    """Train the jobs one after another, each as train() does.

    The devices are those for which gossamer compiles kernels. While a job is trained, other threads
    compile the kernels of later jobs, and score the networks of earlier ones.
    """
    with (ThreadPoolExecutor() as scoring, ThreadPoolExecutor() as compiling, blas.limited(1)):
        try:
            for job in jobs[1:]:
                if job[0].effort is None:  # nothing is measured
                    compiling.submit(compile_kernels, *_choice(job, splits))
            scores = []
            for job in jobs:
                train(job, splits, lambda training, split: scores.append(
                    scoring.submit(training.pause, split)))
            for score in scores:
                score.result()
        finally:
            compiling.shutdown(wait=False, cancel_futures=True)


def _choice(trainings: Sequence[NetworkTraining], splits: Sequence[Split]
            ) -> tuple[BackpropProblem, AlgorithmChoice]:
    """Return the problem of networks that are trained together, and its algorithm."""
    first, split = trainings[0], splits[trainings[0].split]
    device = first.device if isinstance(first.device, Device) else find(first.device)
    problem = first.settings.problem(len(split.data.x), len(split.rows), len(trainings),
                                     split.data.weights is not None)
    decay = any(training.settings.weight_decay for training in trainings)
    return problem, choose(problem.like(split.data.x, decay), device, None, first.algorithm,
                           first.precision)


def train_elsewhere(path: tuple[str, int], trainings: Sequence[NetworkTraining]) -> tuple[
        list[NetworkTraining], list[str]]:
    """Train networks in another process, as train() does.

    path: the splits, as the path of a SharedObject.
    Returns the trainings, and the texts of gossamer's warnings during the training.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(trainings, load(path))
    return result, [str(warning.message) for warning in caught
                    if issubclass(warning.category, GossamerWarning)]
