"""Networks on their way from the first to the last epoch."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Sequence
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
"""Samples, or a first update's where those are more, whose mean loss is what later ones are held
against."""
_GROWTH = 1e6
"""How many times that the mean loss of a epoch may be before training counts as diverged."""


@dataclass(eq=False)
class TrainState:
    """One network's training so far.

    parameters: (parameter_count,) float32, after so many epochs. rng: gives the next epoch's
    order. curve: each epoch's mean loss. first: the mean loss of the first samples of all.
    failure: how it diverged; it then stands as it was before.
    """

    settings: Settings
    rng: np.random.Generator
    parameters: np.ndarray
    epochs_done: int = 0
    curve: list[float] = field(default_factory=list)
    first: float | None = None
    failure: str = ""

    @staticmethod
    def start(settings: Settings) -> TrainState:
        rng = np.random.default_rng(settings.seed)
        return TrainState(settings, rng, settings.start(rng))

    def under(self, settings: Settings) -> TrainState:
        """The same with other settings; velocities are kept, begin at 0 or are dropped."""
        problem = settings.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        kept = min(len(parameters), len(self.parameters))
        parameters[:kept] = self.parameters[:kept]
        return replace(self, settings=settings, parameters=parameters, curve=list(self.curve),
                       failure="")

    @property
    def reached(self) -> bool:
        """Whether the last epoch met the error goal."""
        goal = self.settings.target_error
        return goal is not None and bool(self.curve) and self.curve[-1] <= goal

    @property
    def ended(self) -> bool:
        return bool(self.failure) or self.reached or self.epochs_done >= self.settings.epochs

    def check(self) -> None:
        """Raises TrainingError when training diverged."""
        if self.failure:
            rate = self.settings.learning_rate
            made = self.settings.numbers(self.epochs_done)[0]
            raise TrainingError(
                f"training {self.failure}; the network is as it was after epoch {self.epochs_done}: "
                f"try a learning_rate below {rate:g}"
                + (f" (which the schedule made {made:g} in this epoch)" if made != rate else "")
                + ", or numbers in x nearer to 0")


@dataclass(eq=False)
class _Slot:
    """A state while it is trained: the rows it trains on, the epochs it came with, its generator
    as it was before the last epoch, and whether its parameters are those after it."""

    state: TrainState
    rows: np.ndarray
    start: int
    previous: np.random.Generator
    synchronised: bool = True


class TrainLoop:
    """Courses that are trained together: of the same sizes, activation, loss and batch, on as
    many samples each, with momentum all or none.

    rows: for each state the rows of the data that it trains on.
    """

    def __init__(self, states: Sequence[TrainState], data: Samples, rows: Sequence[np.ndarray],
                 device: Device, effort: str | None = None, algorithm: str | None = None) -> None:
        self.problem = states[0].settings.problem(len(data.x), len(rows[0]), len(states))
        self._slots = [_Slot(state, np.asarray(own, np.int32), state.epochs_done, state.rng)
                       for state, own in zip(states, rows, strict=True)]
        self._in_order = np.stack([slot.rows for slot in self._slots])
        self._settings = np.full((len(states), 3), np.nan, np.float32)
        decay = any(state.settings.weight_decay for state in states)
        choice = choose(self.problem.like(data.x, decay), device, effort, algorithm)
        self._trainer = Trainer(self.problem, data,
                                np.stack([state.parameters for state in states]), choice)
        self.device, self.algorithm = choice.device, choice.algorithm.name
        self._early = max(_FIRST, self.problem.batch)
        self._unlearnt = _unlearnt(self.problem, data.targets)

    @property
    def active(self) -> bool:
        return not all(slot.state.ended for slot in self._slots)

    def step(self) -> float:
        """One epoch of all; the seconds it took. A state that ends with it, or diverges, has its
        parameters when this returns; others have theirs from sync_parameters()."""
        going = [(index, slot) for index, slot in enumerate(self._slots) if not slot.state.ended]
        order, nexts = self._next_order()
        settings = self._settings.copy()
        with np.errstate(over="ignore"):  # training diverges then
            for index, slot in going:
                settings[index] = slot.state.settings.numbers(slot.state.epochs_done)
        if not np.array_equal(settings, self._settings):
            self._settings = settings
        start = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            means = self._trainer.run(order, self._settings)
        seconds = time.perf_counter() - start
        self._look(going, means, order)
        for index, slot in going:
            if not slot.state.failure:
                self._count(slot, nexts[index], float(means[index]))
        self._trainer.accept()
        if any(slot.state.ended and not slot.synchronised for _, slot in going):
            self.sync_parameters()
        if debug.level() >= 2:
            debug.show(f"{self.problem.describe()}: {self.algorithm} on {self.device.name}: "
                       f"{seconds * 1e6:.1f} us, {self._per_sample(seconds):.3f} us a sample")
        return seconds

    def sync_parameters(self) -> None:
        """Brings every state the parameters after its last epoch; one whose last update made
        them infinite has diverged."""
        trainer = self._trainer
        behind = [(index, slot) for index, slot in enumerate(self._slots)
                     if not slot.synchronised and not slot.state.failure]
        if not behind:
            return
        if any(slot.state.epochs_done - slot.start == trainer.begun for _, slot in behind):
            trainer.accept()  # Ctrl-C may have come after the epoch was counted and before this
        found = trainer.parameters()
        for index, slot in behind:
            del slot.state.curve[slot.state.epochs_done:]  # or before it was counted
            if np.isfinite(found[index]).all():
                slot.state.parameters, slot.synchronised = found[index], True
            else:
                self._step_back(index, slot, 1 + trainer.begun - trainer.accepted)

    def _next_order(self) -> tuple[np.ndarray, list[np.random.Generator]]:
        """The rows of the next epoch of each state, and its generator after it."""
        nexts = [slot.state.rng for slot in self._slots]
        if not any(slot.state.settings.shuffle for slot in self._slots):
            return self._in_order, nexts
        order = self._in_order.copy()
        drawn: dict[str, tuple[np.ndarray, np.random.Generator]] = {}
        for index, slot in enumerate(self._slots):
            if slot.state.settings.shuffle and not slot.state.ended:
                # those of one seed have the same order
                state = str(slot.state.rng.bit_generator.state)
                if state not in drawn:
                    rng = copy.deepcopy(slot.state.rng)
                    drawn[state] = rng.permutation(len(slot.rows)), rng
                permutation, nexts[index] = drawn[state]
                order[index] = slot.rows[permutation]
        return order, nexts

    def _look(self, going: Sequence[tuple[int, _Slot]], means: np.ndarray,
              order: np.ndarray) -> None:
        """Finds out which states diverged in this epoch. The samples' losses are fetched where
        the means give cause, and in a state's first epoch."""
        wanted = [(index, slot) for index, slot in going if slot.state.first is None
                  or not means[index] <= self._bound(slot.state.first)]
        losses = self._trainer.losses() if wanted else None
        for index, slot in wanted:
            assert losses is not None
            own, state = losses[index], slot.state
            first = state.first
            if first is None:
                first = float(own[:self._early].mean(dtype=np.float64))
            bad = _diverged(own, self._bound(first))
            if bad is None:
                state.first = first
                if not np.isfinite(means[index]):
                    # their sum is beyond float32
                    means[index] = own.mean(dtype=np.float64)
                continue
            before = self._trainer.before(1)[index]
            if np.isfinite(before).all():
                state.parameters, slot.synchronised = before, True
                state.failure = (
                    f"diverged in epoch {state.epochs_done + 1} at sample {bad + 1} (row "
                    f"{order[index, bad]}): its loss is {own[bad]:g}"
                    + self._compared(state, own, bad))
            else:
                self._step_back(index, slot, 2)

    def _compared(self, state: TrainState, own: np.ndarray, bad: int) -> str:
        """What the loss of the sample where training diverged is held against."""
        first = state.first
        if first is None:
            # of samples so early as that those before the first update
            early = own[:self._early if bad >= self._early else min(bad, self.problem.batch)]
            if not len(early):
                return ""
            first = float(early.mean(dtype=np.float64))
        return f", the first samples' was {first:g}"

    def _bound(self, first: float) -> float:
        """The largest mean loss of a epoch that does not count as diverged."""
        least = max(first, self._unlearnt)
        return _GROWTH * least if 0 < least < math.inf else sys.float_info.max

    def _count(self, slot: _Slot, rng: np.random.Generator, mean: float) -> None:
        state = slot.state
        slot.previous, slot.synchronised = state.rng, False
        state.curve.append(mean)
        # both at once, whenever Ctrl-C comes
        vars(state).update(rng=rng, epochs_done=state.epochs_done + 1)

    def _step_back(self, index: int, slot: _Slot, epochs: int) -> None:
        """Undoes the last epoch that was counted, whose last update was not finite."""
        state = slot.state
        state.failure = (f"diverged in epoch {state.epochs_done} at its last sample: the parameters "
                          "are no longer finite")
        state.parameters, slot.synchronised = self._trainer.before(epochs)[index], True
        state.rng, state.epochs_done = slot.previous, state.epochs_done - 1
        state.curve.pop()

    def _per_sample(self, seconds: float) -> float:
        return seconds * 1e6 / max(1, self.problem.samples * self.problem.networks)


def _diverged(losses: np.ndarray, bound: float) -> int | None:
    """The first sample whose loss is not finite, or beyond the bound where their mean is; None
    where all is well."""
    bad = ~np.isfinite(losses)
    if not bad.any():
        if losses.mean(dtype=np.float64) <= bound:
            return None
        bad = losses > bound
    return int(np.argmax(bad))


def _unlearnt(problem: BackpropProblem, targets: np.ndarray) -> float:
    """The mean loss of outputs that know nothing: all 0, or all classes as likely."""
    if problem.loss == "cross_entropy":
        return float(targets.mean(dtype=np.float64)) * problem.sizes[-1] * math.log(
            problem.sizes[-1])
    return 0.5 * float(np.einsum("ij,ij->", targets, targets, dtype=np.float64)) / len(targets)
