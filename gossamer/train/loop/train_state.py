"""The training state of a network, and the loop that trains several networks together."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gossamer import debug
from gossamer.device.base import Device
from gossamer.errors import TrainingError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import choose
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.trainer import Trainer

_FIRST = 10
"""The mean loss of this many first samples, or of the first update where that has more, is what
later losses are compared with."""
_GROWTH = 1e6
"""Training has diverged when an epoch's mean loss exceeds that of the first samples times this."""


_LEAST_GAIN = 1e-4
"""A mean loss is an improvement where it is smaller by at least this."""


@dataclass(frozen=True)
class Validation:
    """How well a network did on its validation data.

    loss: mean loss. score: accuracy, or R^2.
    """

    loss: float
    score: float

    def is_better(self, other: Validation) -> bool:
        """Says whether this is the better one: its score is higher or, where both are equal, its
        loss is smaller by what counts as an improvement."""
        return self.score > other.score or (
            self.score == other.score and self.loss <= other.loss - _LEAST_GAIN)


Validate = Callable[["TrainState"], Validation]
"""A function that validates a network with the parameters after its last epoch."""


@dataclass(frozen=True, eq=False)
class Best:
    """The epoch that did best on the validation data.

    epoch: its number, from 1. weights: (weight_count,) float32, the parameters after it.
    """

    epoch: int
    validation: Validation
    weights: np.ndarray


@dataclass(eq=False)
class TrainState:
    """One network's training so far.

    settings: how the network is trained.
    rng: generator that draws the order of the next epoch.
    parameters: (parameter_count,) float32, after the finished epochs.
    epochs_done: number of finished epochs.
    curve: mean loss of each epoch.
    first: mean loss of the very first samples; None before the first epoch.
    validation: how well the last epoch did; None without validation data.
    best: the best epoch so far; None without validation data, or where the last one is kept.
    idle: number of epochs since the last improvement.
    least: the mean loss of the last epoch that was an improvement without validation data.
    failure: text that says how training diverged, or "". The other fields are then those from
    before that epoch.
    """

    settings: Settings
    rng: np.random.Generator
    parameters: np.ndarray
    epochs_done: int = 0
    curve: list[float] = field(default_factory=list)
    first: float | None = None
    validation: Validation | None = None
    best: Best | None = None
    idle: int = 0
    least: float = math.inf
    failure: str = ""

    @staticmethod
    def start(settings: Settings) -> TrainState:
        """Returns the state before the first epoch."""
        rng = np.random.default_rng(settings.seed)
        return TrainState(settings, rng, settings.start(rng))

    def under(self, settings: Settings) -> TrainState:
        """Returns the state in which training goes on from the kept parameters with other settings.
        Velocities and Adam's means stay where both settings have them, and else start at 0."""
        problem, before = settings.problem(0, 0), self.settings.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        if problem.parameter_count == before.parameter_count:
            parameters[:] = self.parameters
        parameters[:problem.weight_count] = self.kept_weights
        return replace(self, settings=settings, parameters=parameters, curve=list(self.curve),
                       validation=None, best=None, idle=0, failure="")

    @property
    def kept_weights(self) -> np.ndarray:
        """The parameters that the trained network has, (weight_count,) float32: those after the
        best epoch where they are to be kept and there is one, else after the last."""
        if self.best is not None and self.settings.keep == "best":
            return self.best.weights
        return self.parameters[:self.settings.problem(0, 0).weight_count]

    @property
    def kept_epoch(self) -> int:
        """Number of the epoch after which the network has its kept parameters."""
        if self.best is not None and self.settings.keep == "best":
            return self.best.epoch
        return self.epochs_done

    @property
    def reached(self) -> bool:
        """True where the mean loss of the last epoch met the target error."""
        target = self.settings.target_error
        return target is not None and bool(self.curve) and self.curve[-1] <= target

    @property
    def out_of_patience(self) -> bool:
        """True where as many epochs as the patience brought no improvement."""
        return self.settings.patience is not None and self.idle >= self.settings.patience

    @property
    def ended(self) -> bool:
        """True where no further epoch is trained."""
        return (bool(self.failure) or self.reached or self.out_of_patience
                or self.epochs_done >= self.settings.epochs)

    def note_loss(self) -> None:
        """Takes note of whether the last epoch was an improvement, by its mean loss."""
        improved = self.curve[-1] <= self.least - _LEAST_GAIN
        self.idle = 0 if improved else self.idle + 1
        if improved:
            self.least = self.curve[-1]

    def note_validation(self, validation: Validation) -> None:
        """Takes note of how well the last epoch did on the validation data and, where the best one
        is kept, of its parameters if it is that one."""
        self.validation = validation
        if self.settings.keep != "best":
            self.note_loss()
            return
        self.idle += 1
        if self.best is None or validation.is_better(self.best.validation):
            count = self.settings.problem(0, 0).weight_count
            self.best = Best(self.epochs_done, validation, self.parameters[:count].copy())
            self.idle = 0

    def check(self) -> None:
        """Raises TrainingError where training diverged."""
        if self.failure:
            rate = self.settings.learning_rate
            scheduled_rate = self.settings.numbers(self.epochs_done)[0]
            raise TrainingError(
                f"training {self.failure}; the network is as it was after epoch "
                f"{self.kept_epoch}: try a learning_rate below {rate:g}"
                + (f" (which the schedule made {scheduled_rate:g} in this epoch)"
                   if scheduled_rate != rate else "")
                + ", or numbers in x nearer to 0")


@dataclass(eq=False)
class _Slot:
    """A network's place in the loop.

    state: its training state.
    rows: (samples,) int32 indices of the rows that it is trained on.
    start: number of epochs that were finished when the loop began.
    previous: the state's generator from before the last epoch.
    parameters_fetched: True where the state has the parameters after its last epoch; otherwise
    these are still on the device alone.
    """

    state: TrainState
    rows: np.ndarray
    start: int
    previous: np.random.Generator
    parameters_fetched: bool = True


class TrainLoop:
    """Trains several networks together: they have the same sizes, activation, loss and batch, as
    many samples each, and all of them use momentum or none does.

    states: the training state of each network, which the loop changes.
    rows: for each state the indices of the rows of `data` that it is trained on.
    validate: function that validates a state after each epoch; None without validation data.
    """

    def __init__(self, states: Sequence[TrainState], data: Samples, rows: Sequence[np.ndarray],
                 device: Device, effort: str | None = None, algorithm: str | None = None,
                 validate: Validate | None = None) -> None:
        self.problem = states[0].settings.problem(len(data.x), len(rows[0]), len(states),
                                                  data.weights is not None)
        self._validate = validate
        self._slots = [_Slot(state, np.asarray(state_rows, np.int32), state.epochs_done, state.rng)
                       for state, state_rows in zip(states, rows, strict=True)]
        self._in_order = np.stack([slot.rows for slot in self._slots])
        self._settings = np.full((len(states), 3), np.nan, np.float32)
        decay = any(state.settings.weight_decay for state in states)
        choice = choose(self.problem.like(data.x, decay), device, effort, algorithm)
        self._trainer = Trainer(self.problem, data,
                                np.stack([state.parameters for state in states]), choice)
        self.device, self.algorithm = choice.device, choice.algorithm.name
        self._early = max(_FIRST, self.problem.batch)
        self._untrained_loss = _untrained_loss(self.problem, data.targets)

    @property
    def active(self) -> bool:
        """True where any state needs a further epoch."""
        return not all(slot.state.ended for slot in self._slots)

    def step(self) -> float:
        """Trains all states that have not ended for one epoch, and returns the seconds it took.

        States that end with this epoch, or diverge, have their parameters afterwards; the others
        get theirs from fetch_parameters().
        """
        active_slots = [(index, slot) for index, slot in enumerate(self._slots)
                        if not slot.state.ended]
        order, next_generators = self._next_order()
        settings = self._settings.copy()
        # a learning rate that overflows makes training diverge, which is noticed below
        with np.errstate(over="ignore"):
            for index, slot in active_slots:
                settings[index] = slot.state.settings.numbers(slot.state.epochs_done)
        if not np.array_equal(settings, self._settings):
            self._settings = settings
        start = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            means = self._trainer.run(order, self._settings)
        seconds = time.perf_counter() - start
        self._find_diverged(active_slots, means, order)
        for index, slot in active_slots:
            if not slot.state.failure:
                self._count(slot, next_generators[index], float(means[index]))
        self._trainer.accept()
        self._note_progress([slot for _, slot in active_slots])
        if any(slot.state.ended and not slot.parameters_fetched for _, slot in active_slots):
            self.fetch_parameters()
        if debug.level() >= 2:
            debug.show(f"{self.problem.describe()}: {self.algorithm} on {self.device.name}: "
                       f"{seconds * 1e6:.1f} us, {self._per_sample(seconds):.3f} us a sample")
        return seconds

    def _note_progress(self, slots: Sequence[_Slot]) -> None:
        """Has each state that was trained take note of how well it did."""
        if self._validate is not None:
            self.fetch_parameters()
        for slot in slots:
            if slot.state.failure:
                continue
            if self._validate is None:
                slot.state.note_loss()
            else:
                slot.state.note_validation(self._validate(slot.state))

    def fetch_parameters(self) -> None:
        """Copies the parameters after each state's last epoch from the device into the state; a
        state whose parameters are no longer finite has diverged."""
        trainer = self._trainer
        stale_slots = [(index, slot) for index, slot in enumerate(self._slots)
                       if not slot.parameters_fetched and not slot.state.failure]
        if not stale_slots:
            return
        if any(slot.state.epochs_done - slot.start == trainer.begun for _, slot in stale_slots):
            # Ctrl-C may have come after the epoch was counted and before it was accepted
            trainer.accept()
        parameters = trainer.parameters()
        for index, slot in stale_slots:
            # Ctrl-C may have come after the loss was appended and before the epoch was counted
            del slot.state.curve[slot.state.epochs_done:]
            if np.isfinite(parameters[index]).all():
                slot.state.parameters, slot.parameters_fetched = parameters[index], True
            else:
                self._step_back(index, slot, 1 + trainer.begun - trainer.accepted)

    def _next_order(self) -> tuple[np.ndarray, list[np.random.Generator]]:
        """Returns the order of each state's next epoch, (states, samples) int32, and the generator
        that each state has after it."""
        generators = [slot.state.rng for slot in self._slots]
        if not any(slot.state.settings.shuffle for slot in self._slots):
            return self._in_order, generators
        order = self._in_order.copy()
        drawn: dict[str, tuple[np.ndarray, np.random.Generator]] = {}
        for index, slot in enumerate(self._slots):
            if slot.state.settings.shuffle and not slot.state.ended:
                # states with equal generators get the same order
                key = str(slot.state.rng.bit_generator.state)
                if key not in drawn:
                    rng = copy.deepcopy(slot.state.rng)
                    drawn[key] = rng.permutation(len(slot.rows)), rng
                permutation, generators[index] = drawn[key]
                order[index] = slot.rows[permutation]
        return order, generators

    def _find_diverged(self, active_slots: Sequence[tuple[int, _Slot]], means: np.ndarray,
                       order: np.ndarray) -> None:
        """Finds out which states diverged in this epoch. The samples' losses are fetched only in
        a state's first epoch, and where a mean loss exceeds its bound."""
        slots_to_check = [(index, slot) for index, slot in active_slots if slot.state.first is None
                          or not means[index] <= self._bound(slot.state.first)]
        losses = self._trainer.losses() if slots_to_check else None
        for index, slot in slots_to_check:
            assert losses is not None
            state_losses, state = losses[index], slot.state
            first = state.first
            if first is None:
                first = float(state_losses[:self._early].mean(dtype=np.float64))
            bad = _first_bad_sample(state_losses, self._bound(first))
            if bad is None:
                state.first = first
                if not np.isfinite(means[index]):
                    # the sum of the losses is beyond float32
                    means[index] = state_losses.mean(dtype=np.float64)
                continue
            before = self._trainer.before(1)[index]
            if np.isfinite(before).all():
                state.parameters, slot.parameters_fetched = before, True
                state.failure = (
                    f"diverged in epoch {state.epochs_done + 1} at sample {bad + 1} (row "
                    f"{order[index, bad]}): its loss is {state_losses[bad]:g}"
                    + self._comparison(state, state_losses, bad))
            else:
                self._step_back(index, slot, 2)

    def _comparison(self, state: TrainState, losses: np.ndarray, bad: int) -> str:
        """Returns the text that compares the loss of the sample where training diverged with the
        loss of the first samples."""
        first = state.first
        if first is None:
            # where that sample is an early one, only those before the first update count
            early = losses[:self._early if bad >= self._early else min(bad, self.problem.batch)]
            if not len(early):
                return ""
            first = float(early.mean(dtype=np.float64))
        return f", the first samples' was {first:g}"

    def _bound(self, first: float) -> float:
        """Returns the largest mean loss of an epoch that does not count as diverged."""
        least = max(first, self._untrained_loss)
        return _GROWTH * least if 0 < least < math.inf else sys.float_info.max

    def _count(self, slot: _Slot, rng: np.random.Generator, mean: float) -> None:
        """Counts an epoch as finished."""
        state = slot.state
        slot.previous, slot.parameters_fetched = state.rng, False
        state.curve.append(mean)
        # both change at once, so that they fit together whenever Ctrl-C comes
        vars(state).update(rng=rng, epochs_done=state.epochs_done + 1)

    def _step_back(self, index: int, slot: _Slot, epochs: int) -> None:
        """Undoes the last finished epoch, whose last update made parameters infinite or NaN.

        epochs: how many epochs of the trainer ago the parameters are that the state gets.
        """
        state = slot.state
        state.failure = (f"diverged in epoch {state.epochs_done} at its last sample: the "
                         "parameters are no longer finite")
        state.parameters, slot.parameters_fetched = self._trainer.before(epochs)[index], True
        state.rng, state.epochs_done = slot.previous, state.epochs_done - 1
        state.curve.pop()

    def _per_sample(self, seconds: float) -> float:
        """Returns the microseconds per sample of an epoch."""
        return seconds * 1e6 / max(1, self.problem.samples * self.problem.networks)


def _first_bad_sample(losses: np.ndarray, bound: float) -> int | None:
    """Returns the first sample whose loss is not finite or, where all are finite and their mean
    exceeds the bound, the first whose loss exceeds it; None where training did not diverge."""
    bad = ~np.isfinite(losses)
    if not bad.any():
        if losses.mean(dtype=np.float64) <= bound:
            return None
        bad = losses > bound
    return int(np.argmax(bad))


def _untrained_loss(problem: BackpropProblem, targets: np.ndarray) -> float:
    """Returns the mean loss of a network that has learned nothing: all of its outputs are 0, or
    all classes are equally likely."""
    if problem.loss == "cross_entropy":
        return float(targets.mean(dtype=np.float64)) * problem.sizes[-1] * math.log(
            problem.sizes[-1])
    return 0.5 * float(np.einsum("ij,ij->", targets, targets, dtype=np.float64)) / len(targets)
