"""The loop that trains several networks together and detects divergence."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer import debug
from gossamer.device.base import Device
from gossamer.io.text import duration_text
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import choose
from gossamer.train.loop.train_state import TrainState, Validation
from gossamer.train.loop.trainer import Trainer

_FIRST = 10
"""Number of samples at the start of training, called the first samples. Later losses are compared
with the mean loss of the first samples. If a batch has more samples than this, the first samples
are those of the first batch."""
_GROWTH = 1e6
"""Training has diverged if an epoch's mean loss exceeds this factor times the larger of two losses:
the mean loss of the first samples, and the loss of an untrained network."""

Validate = Callable[[TrainState], Validation]
"""A function that validates a network with the parameters after its last epoch."""


@dataclass(eq=False)
class _Slot:
    """A network in the loop.

    state: the network's training state.
    rows: (samples,) int32 indices of the rows that the network is trained on.
    start: number of epochs that were finished when the loop began.
    previous: the state's random generator before the last epoch.
    has_parameters: whether the state has the parameters after its last epoch. If not, these
    parameters are only on the device.
    """

    state: TrainState
    rows: np.ndarray
    start: int
    previous: np.random.Generator
    has_parameters: bool = True


class TrainLoop:
    """Trains several networks together.

    The networks have the same sizes, activation, loss, batch and number of samples. Either all of
    them use momentum, or none does.

    states: the training state of each network, which the loop updates.
    data: samples of all networks.
    rows: for each state, the indices of the rows of `data` that it is trained on.
    effort, algorithm, precision: arguments of choose(), which selects the algorithm.
    validate: function that validates a state after each epoch; None without validation data.
    """

    def __init__(self, states: Sequence[TrainState], data: Samples, rows: Sequence[np.ndarray],
                 device: Device, effort: str | None = None, algorithm: str | None = None,
                 validate: Validate | None = None, precision: str = "fp32") -> None:
        self.problem = states[0].settings.problem(len(data.x), len(rows[0]), len(states),
                                                  data.weights is not None)
        self._validate = validate
        self._slots = [_Slot(state, np.asarray(state_rows, np.int32), state.epochs_done, state.rng)
                       for state, state_rows in zip(states, rows, strict=True)]
        self._in_order = np.stack([slot.rows for slot in self._slots])
        self._settings = np.full((len(states), 3), np.nan, np.float32)
        decay = any(state.settings.weight_decay for state in states)
        choice = choose(self.problem.like(data.x, decay), device, effort, algorithm, precision)
        self._trainer = Trainer(self.problem, data,
                                np.stack([state.parameters for state in states]), choice)
        self.device, self.algorithm = choice.device, choice.algorithm.name
        for state in states:
            state.trained_by = self.device.name, self.algorithm
        self._early = max(_FIRST, self.problem.batch)
        self._untrained_loss = _untrained_loss(self.problem, data.targets)

    @property
    def active(self) -> bool:
        """Whether any state needs a further epoch."""
        return not all(slot.state.ended for slot in self._slots)

    def step(self) -> float:
        """Train all active states for one epoch, and return its duration in seconds.

        The parameters are copied into states that end with this epoch. For other states,
        fetch_parameters() copies them.
        """
        active_slots = [(index, slot) for index, slot in enumerate(self._slots)
                        if not slot.state.ended]
        order, next_generators = self._next_order()
        settings = self._settings.copy()
        # a learning rate that overflows makes training diverge, which is detected below
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
        if any(slot.state.ended and not slot.has_parameters for _, slot in active_slots):
            self.fetch_parameters()
        if debug.level() >= 2:
            debug.show(f"{self.problem.describe()}: {self.algorithm} on {self.device.name}: "
                       f"{duration_text(seconds * 1e6)}, {self._per_sample(seconds):.3f} us per "
                       "sample")
        return seconds

    def _note_progress(self, slots: Sequence[_Slot]) -> None:
        """Record each state's validation result or, without validation data, its loss."""
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
        """Copy the parameters after the last epoch into the states.

        A state with parameters that are not finite is marked as diverged.
        """
        trainer = self._trainer
        stale_slots = [(index, slot) for index, slot in enumerate(self._slots)
                       if not slot.has_parameters and not slot.state.failure]
        if not stale_slots:
            return
        if any(slot.state.epochs_done - slot.start == trainer.begun for _, slot in stale_slots):
            # Ctrl-C may have interrupted step() between counting the epoch and accept()
            trainer.accept()
        parameters = trainer.parameters()
        for index, slot in stale_slots:
            # Ctrl-C may have interrupted _count() after it appended the loss
            del slot.state.curve[slot.state.epochs_done:]
            if np.isfinite(parameters[index]).all():
                slot.state.parameters, slot.has_parameters = parameters[index], True
            else:
                self._step_back(index, slot, 1 + trainer.begun - trainer.accepted)

    def _next_order(self) -> tuple[np.ndarray, list[np.random.Generator]]:
        """Return the next epoch's order, and the generators after it.

        The order is (states, samples) int32: the indices of each state's rows in the order of
        training.
        """
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
        """Record the failure of states that diverged in this epoch.

        The losses of the samples are fetched only in a state's first epoch, or if its mean loss
        exceeds the bound.

        means: mean loss of each network. Means that overflowed are replaced by correct ones.
        """
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
                    # the losses are finite, but their sum overflowed float32
                    means[index] = state_losses.mean(dtype=np.float64)
                continue
            before = self._trainer.before(1)[index]
            if np.isfinite(before).all():
                state.parameters, slot.has_parameters = before, True
                state.failure = (
                    f"diverged in epoch {state.epochs_done + 1} at sample {bad + 1} (row "
                    f"{order[index, bad]}): its loss is {state_losses[bad]:g}"
                    + self._comparison(state, state_losses, bad))
            else:
                self._step_back(index, slot, 2)

    def _comparison(self, state: TrainState, losses: np.ndarray, bad: int) -> str:
        """Return text with the mean loss of the first samples; "" if there is none.

        losses: the loss of each sample in the epoch.
        bad: index of the sample at which training diverged.
        """
        first = state.first
        if first is None:
            # training diverged among the first samples: use only the samples before the bad one
            # that also belong to the first update
            early = losses[:self._early if bad >= self._early else min(bad, self.problem.batch)]
            if not len(early):
                return ""
            first = float(early.mean(dtype=np.float64))
        return f", but the mean loss of the first samples was {first:g}"

    def _bound(self, first: float) -> float:
        """Return the mean loss above which training has diverged.

        first: mean loss of the first samples.
        """
        least = max(first, self._untrained_loss)
        return _GROWTH * least if 0 < least < math.inf else sys.float_info.max

    def _count(self, slot: _Slot, rng: np.random.Generator, mean: float) -> None:
        """Count an epoch as finished.

        rng: the random generator after the epoch.
        mean: mean loss of the epoch.
        """
        state = slot.state
        slot.previous, slot.has_parameters = state.rng, False
        state.curve.append(mean)
        # a single call changes both fields, so Ctrl-C cannot leave only one of them changed
        vars(state).update(rng=rng, epochs_done=state.epochs_done + 1)

    def _step_back(self, index: int, slot: _Slot, epochs: int) -> None:
        """Undo a state's last epoch, which made parameters infinite or NaN.

        epochs: argument with which Trainer.before() returns the last finite parameters, 1 or 2.
        """
        state = slot.state
        state.failure = (f"diverged in epoch {state.epochs_done} at its last sample: the "
                         "parameters are no longer finite")
        state.parameters, slot.has_parameters = self._trainer.before(epochs)[index], True
        state.rng, state.epochs_done = slot.previous, state.epochs_done - 1
        state.curve.pop()

    def _per_sample(self, seconds: float) -> float:
        """Return the microseconds per sample of an epoch."""
        return seconds * 1e6 / max(1, self.problem.samples * self.problem.networks)


def _first_bad_sample(losses: np.ndarray, bound: float) -> int | None:
    """Return the sample at which training diverged, or None.

    This is the first sample whose loss is not finite. If all losses are finite but their mean
    exceeds the bound, it is the first sample whose loss is above the bound.
    """
    bad = ~np.isfinite(losses)
    if not bad.any():
        if losses.mean(dtype=np.float64) <= bound:
            return None
        bad = losses > bound
    return int(np.argmax(bad))


def _untrained_loss(problem: BackpropProblem, targets: np.ndarray) -> float:
    """Return the mean loss of an untrained network.

    The outputs are assumed to be 0 or, with cross-entropy, the same probability for all classes.
    """
    if problem.loss == "cross_entropy":
        return float(targets.mean(dtype=np.float64)) * problem.sizes[-1] * math.log(
            problem.sizes[-1])
    return 0.5 * float(np.einsum("ij,ij->", targets, targets, dtype=np.float64)) / len(targets)
