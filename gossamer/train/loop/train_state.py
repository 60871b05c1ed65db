"""Networks on their way from the first to the last pass."""

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
"""How many times that the mean loss of a pass may be before training counts as diverged."""


@dataclass(eq=False)
class Course:
    """One network's training so far.

    parameters: (parameter_count,) float32, after so many passes. rng: gives the next pass's
    order. curve: each pass's mean loss. first: the mean loss of the first samples of all.
    failure: how it diverged; it then stands as it was before.
    """

    settings: Settings
    rng: np.random.Generator
    parameters: np.ndarray
    passes: int = 0
    curve: list[float] = field(default_factory=list)
    first: float | None = None
    failure: str = ""

    @staticmethod
    def start(settings: Settings) -> Course:
        rng = np.random.default_rng(settings.seed)
        return Course(settings, rng, settings.start(rng))

    def under(self, settings: Settings) -> Course:
        """The same with other settings; velocities are kept, begin at 0 or are dropped."""
        problem = settings.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        kept = min(len(parameters), len(self.parameters))
        parameters[:kept] = self.parameters[:kept]
        return replace(self, settings=settings, parameters=parameters, curve=list(self.curve),
                       failure="")

    @property
    def reached(self) -> bool:
        """Whether the last pass met the error goal."""
        goal = self.settings.target_error
        return goal is not None and bool(self.curve) and self.curve[-1] <= goal

    @property
    def ended(self) -> bool:
        return bool(self.failure) or self.reached or self.passes >= self.settings.epochs

    def check(self) -> None:
        """Raises TrainingError when training diverged."""
        if self.failure:
            rate = self.settings.learning_rate
            made = self.settings.numbers(self.passes)[0]
            raise TrainingError(
                f"training {self.failure}; the network is as it was after pass {self.passes}: "
                f"try a learning_rate below {rate:g}"
                + (f" (which the schedule made {made:g} in this pass)" if made != rate else "")
                + ", or numbers in x nearer to 0")


@dataclass(eq=False)
class _Seat:
    """A course while it is trained: the rows it trains on, the passes it came with, its generator
    as it was before the last pass, and whether its parameters are those after it."""

    course: Course
    rows: np.ndarray
    start: int
    previous: np.random.Generator
    settled: bool = True


class Training:
    """Courses that are trained together: of the same sizes, activation, loss and batch, on as
    many samples each, with momentum all or none.

    rows: for each course the rows of the data that it trains on.
    """

    def __init__(self, courses: Sequence[Course], data: Samples, rows: Sequence[np.ndarray],
                 device: Device, effort: str | None = None, algorithm: str | None = None) -> None:
        self.problem = courses[0].settings.problem(len(data.x), len(rows[0]), len(courses))
        self._seats = [_Seat(course, np.asarray(own, np.int32), course.passes, course.rng)
                       for course, own in zip(courses, rows, strict=True)]
        self._in_order = np.stack([seat.rows for seat in self._seats])
        self._settings = np.full((len(courses), 3), np.nan, np.float32)
        decay = any(course.settings.weight_decay for course in courses)
        choice = choose(self.problem.like(data.x, decay), device, effort, algorithm)
        self._trainer = Trainer(self.problem, data,
                                np.stack([course.parameters for course in courses]), choice)
        self.device, self.algorithm = choice.device, choice.algorithm.name
        self._early = max(_FIRST, self.problem.batch)
        self._unlearnt = _unlearnt(self.problem, data.targets)

    @property
    def active(self) -> bool:
        return not all(seat.course.ended for seat in self._seats)

    def step(self) -> float:
        """One pass of all; the seconds it took. A course that ends with it, or diverges, has its
        parameters when this returns; others have theirs from settle()."""
        going = [(index, seat) for index, seat in enumerate(self._seats) if not seat.course.ended]
        order, nexts = self._next_order()
        settings = self._settings.copy()
        with np.errstate(over="ignore"):  # training diverges then
            for index, seat in going:
                settings[index] = seat.course.settings.numbers(seat.course.passes)
        if not np.array_equal(settings, self._settings):
            self._settings = settings
        start = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            means = self._trainer.run(order, self._settings)
        seconds = time.perf_counter() - start
        self._look(going, means, order)
        for index, seat in going:
            if not seat.course.failure:
                self._count(seat, nexts[index], float(means[index]))
        self._trainer.accept()
        if any(seat.course.ended and not seat.settled for _, seat in going):
            self.settle()
        if debug.level() >= 2:
            debug.show(f"{self.problem.describe()}: {self.algorithm} on {self.device.name}: "
                       f"{seconds * 1e6:.1f} us, {self._per_sample(seconds):.3f} us a sample")
        return seconds

    def settle(self) -> None:
        """Brings every course the parameters after its last pass; one whose last update made
        them infinite has diverged."""
        trainer = self._trainer
        unsettled = [(index, seat) for index, seat in enumerate(self._seats)
                     if not seat.settled and not seat.course.failure]
        if not unsettled:
            return
        if any(seat.course.passes - seat.start == trainer.begun for _, seat in unsettled):
            trainer.accept()  # Ctrl-C may have come after the pass was counted and before this
        found = trainer.parameters()
        for index, seat in unsettled:
            del seat.course.curve[seat.course.passes:]  # or before it was counted
            if np.isfinite(found[index]).all():
                seat.course.parameters, seat.settled = found[index], True
            else:
                self._step_back(index, seat, 1 + trainer.begun - trainer.accepted)

    def _next_order(self) -> tuple[np.ndarray, list[np.random.Generator]]:
        """The rows of the next pass of each course, and its generator after it."""
        nexts = [seat.course.rng for seat in self._seats]
        if not any(seat.course.settings.shuffle for seat in self._seats):
            return self._in_order, nexts
        order = self._in_order.copy()
        drawn: dict[str, tuple[np.ndarray, np.random.Generator]] = {}
        for index, seat in enumerate(self._seats):
            if seat.course.settings.shuffle and not seat.course.ended:
                # those of one seed have the same order
                state = str(seat.course.rng.bit_generator.state)
                if state not in drawn:
                    rng = copy.deepcopy(seat.course.rng)
                    drawn[state] = rng.permutation(len(seat.rows)), rng
                permutation, nexts[index] = drawn[state]
                order[index] = seat.rows[permutation]
        return order, nexts

    def _look(self, going: Sequence[tuple[int, _Seat]], means: np.ndarray,
              order: np.ndarray) -> None:
        """Finds out which courses diverged in this pass. The samples' losses are fetched where
        the means give cause, and in a course's first pass."""
        wanted = [(index, seat) for index, seat in going if seat.course.first is None
                  or not means[index] <= self._bound(seat.course.first)]
        losses = self._trainer.losses() if wanted else None
        for index, seat in wanted:
            assert losses is not None
            own, course = losses[index], seat.course
            first = course.first
            if first is None:
                first = float(own[:self._early].mean(dtype=np.float64))
            bad = _diverged(own, self._bound(first))
            if bad is None:
                course.first = first
                if not np.isfinite(means[index]):
                    # their sum is beyond float32
                    means[index] = own.mean(dtype=np.float64)
                continue
            before = self._trainer.before(1)[index]
            if np.isfinite(before).all():
                course.parameters, seat.settled = before, True
                course.failure = (
                    f"diverged in pass {course.passes + 1} at sample {bad + 1} (row "
                    f"{order[index, bad]}): its loss is {own[bad]:g}"
                    + self._compared(course, own, bad))
            else:
                self._step_back(index, seat, 2)

    def _compared(self, course: Course, own: np.ndarray, bad: int) -> str:
        """What the loss of the sample where training diverged is held against."""
        first = course.first
        if first is None:
            # of samples so early as that those before the first update
            early = own[:self._early if bad >= self._early else min(bad, self.problem.batch)]
            if not len(early):
                return ""
            first = float(early.mean(dtype=np.float64))
        return f", the first samples' was {first:g}"

    def _bound(self, first: float) -> float:
        """The largest mean loss of a pass that does not count as diverged."""
        least = max(first, self._unlearnt)
        return _GROWTH * least if 0 < least < math.inf else sys.float_info.max

    def _count(self, seat: _Seat, rng: np.random.Generator, mean: float) -> None:
        course = seat.course
        seat.previous, seat.settled = course.rng, False
        course.curve.append(mean)
        # both at once, whenever Ctrl-C comes
        vars(course).update(rng=rng, passes=course.passes + 1)

    def _step_back(self, index: int, seat: _Seat, passes: int) -> None:
        """Undoes the last pass that was counted, whose last update was not finite."""
        course = seat.course
        course.failure = (f"diverged in pass {course.passes} at its last sample: the parameters "
                          "are no longer finite")
        course.parameters, seat.settled = self._trainer.before(passes)[index], True
        course.rng, course.passes = seat.previous, course.passes - 1
        course.curve.pop()

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
