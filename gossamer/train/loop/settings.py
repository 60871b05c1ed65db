"""Settings of a network's training, and schedules of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from gossamer.errors import InputError, check_choice
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import DataShape, Samples, Scaling

INITIAL = ("glorot", "uniform")
OPTIMISERS = ("adam", "sgd")
KEEP = ("best", "last")
UNIFORM = 0.05
"""Maximum magnitude of the initial parameters with "uniform", as in the published training (see
MLP.published)."""
HIDDEN = (100,)
"""Default units of the hidden layers."""
_BATCH = 200
"""Default number of samples per update, if there are at least as many samples."""
_RATES = {"adam": 0.001, "sgd": 0.1}
"""Default learning rate of each optimiser."""
_MOST = 2**31 - 1
"""Maximum number of parameters, because kernels index them with 32-bit integers."""
_RANGES = {"sigmoid": (0, 1), "tanh": (-1, 1)}
"""Lower and upper bound of the values of each bounded activation."""


@dataclass(frozen=True)
class Settings:
    """The settings with which one network is trained.

    sizes: number of units of each layer, inputs first.
    The other fields are the parameters of MLP with the same names. `loss`, `learning_rate` and
    `batch` are never None here. If `output` is None, the outputs have the activation
    BackpropProblem.output_activation.
    Raises InputError that names a wrong setting.
    """

    sizes: tuple[int, ...]
    activation: str
    output: str | None
    loss: str
    optimiser: str
    learning_rate: float
    schedule: Schedule
    momentum: float
    weight_decay: float
    batch: int
    epochs: int
    target_error: float | None
    patience: int | None
    keep: str
    shuffle: bool
    standardise: bool
    scale_targets: bool
    initial: str
    seed: int | None

    def __post_init__(self) -> None:
        if self.momentum and self.optimiser == "adam":
            raise InputError(f"momentum {self.momentum!r}: needs the optimiser 'sgd', because Adam "
                             "has its own momentum")
        try:
            count = self.problem(0, 0).parameter_count
        except ValueError as error:
            raise InputError(str(error)) from None
        if count > _MOST:
            raise InputError(f"sizes {self.sizes}: {count} parameters, expected at most {_MOST}")
        for name, value in (("learning_rate", self.learning_rate),
                            ("target_error", self.target_error)):
            if value is not None and value <= 0:
                raise InputError(f"{name} {value!r}: expected a number above 0")
        if self.weight_decay < 0:
            raise InputError(f"weight_decay {self.weight_decay!r}: expected 0 or more")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum {self.momentum!r}: expected at least 0, and below 1")
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        check_choice("keep", self.keep, KEEP)
        if self.patience is not None and self.patience < 1:
            raise InputError(f"patience {self.patience}: expected 1 or more epochs, or None")
        if self.epochs < 1:
            raise InputError(f"epochs {self.epochs}: expected 1 or more epochs over the data")
        check_choice("initial", self.initial, INITIAL)
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed {self.seed}: expected 0 or more, or None for a new seed each "
                             "time")
        factor(self.schedule, 0)

    @staticmethod
    def of(mlp: Any, data: DataShape) -> Settings:
        """Return an MLP's settings for samples of this shape.

        If the MLP's loss, output or batch is None, the shape determines it; if the learning rate is
        None, the optimiser determines it. Raises InputError that names a wrong setting.
        """
        labelled, optimiser = data.labelled, mlp.optimiser
        loss = mlp.loss or ("cross_entropy" if labelled else "squared_error")
        output = mlp.output
        if output is None and loss == "squared_error" and not labelled:
            output = "linear"
        return Settings(
            units(mlp, data.inputs, data.outputs), mlp.activation, output, loss,
            optimiser,
            _RATES.get(optimiser, 1.0) if mlp.learning_rate is None
            else _number(mlp, "learning_rate"),
            mlp.schedule, _number(mlp, "momentum"), _number(mlp, "weight_decay"),
            min(_BATCH, data.rows) if mlp.batch is None else _whole(mlp, "batch"),
            _whole(mlp, "epochs"),
            None if mlp.target_error is None else _number(mlp, "target_error"),
            None if mlp.patience is None else _whole(mlp, "patience"), mlp.keep,
            bool(mlp.shuffle), bool(mlp.standardise), bool(mlp.scale_targets), mlp.initial,
            None if mlp.seed is None else _whole(mlp, "seed"))

    def problem(self, rows: int, samples: int, networks: int = 1,
                weighted: bool = False) -> BackpropProblem:
        """Return the back-propagation problem of one epoch.

        rows: number of rows of the data.
        samples: number of rows on which each network is trained.
        weighted: whether the samples have weights.
        """
        return BackpropProblem(
            self.sizes, rows, samples, self.activation, self.loss, self.batch, self.momentum > 0,
            networks, adam=self.optimiser == "adam", output=self.output,
            weighted=weighted and self.loss != "cross_entropy")

    def scaling(self, data: Samples) -> Scaling:
        """Return the scaling that is applied to samples before training."""
        return Scaling.of(data.x if self.standardise else None,
                          data.targets if self._scales_targets(data) else None)

    def scales(self, data: Samples) -> bool:
        """Return whether samples are scaled before training."""
        return self.standardise or self._scales_targets(data)

    def _scales_targets(self, data: Samples) -> bool:
        linear = self.problem(0, 0).output_activation == "linear"
        return self.scale_targets and linear and data.labels is None

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise InputError if targets exceed the output activation's range."""
        activation = self.problem(0, 0).output_activation
        if activation not in _RANGES:
            return
        least, most = _RANGES[activation]
        outside = (targets < least) | (targets > most)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InputError(f"y has {targets[row, column]:g} in row {row}, column {column}: the "
                             f"outputs have the activation {activation} with the range {least} to "
                             f"{most}; use output='linear', or scale y to that range")

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial parameters, (parameter_count,) float32.

        The initial parameters are the same for all devices. The weights and biases come first,
        followed by the optimiser's state, which is zero.
        """
        problem = self.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        if self.initial == "uniform":
            parameters[:problem.weight_count] = rng.uniform(-UNIFORM, UNIFORM,
                                                            problem.weight_count)
        else:
            for weights, _ in problem.split(parameters[:problem.weight_count]):
                bound = math.sqrt(6 / sum(weights.shape))
                weights[...] = rng.uniform(-bound, bound, weights.shape)
        return parameters

    def numbers(self, epochs: int) -> tuple[float, float, float]:
        """Return the learning rate, momentum and weight decay after `epochs` finished epochs."""
        return (self.learning_rate * factor(self.schedule, epochs), self.momentum,
                self.weight_decay)


def given_sizes(mlp: Any) -> tuple[int, ...]:
    """Return the parameter `sizes` of an MLP as a tuple; () for None.

    Raises InputError if `sizes` is wrong, or if both `sizes` and `hidden` are given.
    """
    sizes = mlp.sizes
    if sizes is None or (not isinstance(sizes, str | int) and len(sizes) == 0):
        return ()
    example = "all layers, inputs first and outputs last, such as (784, 32, 10)"
    if not _are_whole(sizes):
        raise InputError(f"sizes {sizes!r}: expected whole numbers, {example}")
    if len(sizes) < 2:
        raise InputError(f"sizes {tuple(map(int, sizes))}: expected {example}; to give only the "
                         "hidden layers, use hidden")
    if mlp.hidden is not None:
        raise InputError(f"hidden {mlp.hidden!r}: sizes {tuple(map(int, sizes))} already includes "
                         "the hidden layers; omit one of the two")
    return tuple(map(int, sizes))


def units(mlp: Any, inputs: int, outputs: int) -> tuple[int, ...]:
    """Return the numbers of units of all layers of an MLP.

    inputs, outputs: numbers of units of the first and the last layer if the MLP's `sizes` is empty.
    Raises InputError if `sizes` or `hidden` of the MLP is wrong.
    """
    if sizes := given_sizes(mlp):
        return sizes
    hidden = HIDDEN if mlp.hidden is None else mlp.hidden
    if isinstance(hidden, Integral) and not isinstance(hidden, bool):
        hidden = (hidden,)
    if not _are_whole(hidden):
        raise InputError(f"hidden {hidden!r}: expected whole numbers, the units of each hidden "
                         "layer, such as (100,)")
    if min(hidden, default=1) < 1:
        raise InputError(f"hidden {tuple(map(int, hidden))}: expected at least one unit in each "
                         "layer")
    return (inputs, *map(int, hidden), outputs)


def _are_whole(values: Any) -> bool:
    return (isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
            and all(isinstance(value, Integral) for value in values))


def _number(mlp: Any, name: str) -> float:
    value = getattr(mlp, name)
    if not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{name} {value!r}: expected a finite number")
    return float(value)


def _whole(mlp: Any, name: str) -> int:
    value = getattr(mlp, name)
    if not isinstance(value, Integral):
        raise InputError(f"{name} {value!r}: expected a whole number")
    return int(value)


Schedule = str | Sequence[Any] | Callable[[int], float]
"""A user's schedule of the learning rate; see factor()."""

_EXPECTED = "expected 'constant', 'inverse', ('step', epochs, factor) or a function of the epoch"


def factor(schedule: Schedule, epochs: int) -> float:
    """Return the learning rate's factor after `epochs` finished epochs.

    The factor is 1 for the schedule "constant", 1 / (1 + epochs) for "inverse", by ** (epochs //
    every) for ("step", every, by), and schedule(epochs) for a function. Raises InputError for any
    other schedule, or if a function does not return a number of 0 or more.
    """
    if callable(schedule):
        result: Any = schedule(epochs)
        if not _is_number(result) or result < 0:
            raise InputError(f"schedule {name(schedule)}: expected a factor of 0 or more after "
                             f"{epochs} epochs, got {result!r}")
        return float(result)
    if isinstance(schedule, str):
        if schedule == "constant":
            return 1.0
        if schedule == "inverse":
            return 1 / (1 + epochs)
    elif isinstance(schedule, Sequence) and len(schedule) == 3 and schedule[0] == "step":
        every: Any
        by: Any
        _, every, by = tuple(schedule)
        if _is_number(every) and every >= 1 and every == int(every) and _is_number(by) and by >= 0:
            try:
                return float(by) ** (epochs // int(every))
            except OverflowError:
                return math.inf
    raise InputError(f"schedule {schedule!r}: {_EXPECTED}")


def name(schedule: Schedule) -> str:
    """Return a schedule as text that is the same in every process."""
    if callable(schedule):
        module = getattr(schedule, "__module__", type(schedule).__module__)
        return f"{module}.{getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
    return schedule if isinstance(schedule, str) else repr(tuple(schedule))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
