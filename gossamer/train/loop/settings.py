"""The settings with which a network is trained, and schedules of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from gossamer.errors import InputError, one_of
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.data.samples import DataShape, Samples, Scaling

INITIAL = ("glorot", "uniform")
OPTIMISERS = ("adam", "sgd")
KEEP = ("best", "last")
UNIFORM = 0.05
"""The largest magnitude of the initial parameters with "uniform", as in the published training."""
HIDDEN = (100,)
"""Units of the hidden layers where neither `sizes` nor `hidden` is given."""
_BATCH = 200
"""Number of samples of an update where `batch` is not given, unless there are fewer in all."""
_RATES = {"adam": 0.001, "sgd": 0.1}
"""The learning rate of each optimiser where none is given."""
_MOST = 2**31 - 1
"""The most parameters that kernels can address with indices of 32 bits."""
_RANGES = {"sigmoid": (0, 1), "tanh": (-1, 1)}
"""The lower and the upper bound of the values of each activation that has bounds."""


@dataclass(frozen=True)
class Settings:
    """The settings with which one network is trained.

    sizes: number of units of each layer, inputs first.
    The other fields are the parameters of MLP with the same names. `loss`, `learning_rate` and
    `batch` are never None here. Where `output` is None, BackpropProblem.output_activation is the
    activation of the outputs.
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
            raise InputError(f"momentum {self.momentum!r}: is for the optimiser 'sgd'; Adam has "
                             "its own")
        try:
            count = self.problem(0, 0).parameter_count
        except ValueError as error:
            raise InputError(str(error)) from None
        if count > _MOST:
            raise InputError(f"sizes {self.sizes}: {count} parameters, expected {_MOST} at most")
        for name, value in (("learning_rate", self.learning_rate),
                            ("target_error", self.target_error)):
            if value is not None and value <= 0:
                raise InputError(f"{name} {value!r}: expected a number above 0")
        if self.weight_decay < 0:
            raise InputError(f"weight_decay {self.weight_decay!r}: expected 0 or more")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum {self.momentum!r}: expected 0 or more, and below 1")
        if self.optimiser not in OPTIMISERS:
            raise InputError(f"optimiser {self.optimiser!r}: {one_of(self.optimiser, OPTIMISERS)}")
        if self.keep not in KEEP:
            raise InputError(f"keep {self.keep!r}: {one_of(self.keep, KEEP)}")
        if self.patience is not None and self.patience < 1:
            raise InputError(f"patience {self.patience}: expected 1 or more epochs, or None")
        if self.epochs < 1:
            raise InputError(f"epochs {self.epochs}: expected 1 or more epochs over the data")
        if self.initial not in INITIAL:
            raise InputError(f"initial {self.initial!r}: {one_of(self.initial, INITIAL)}")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed {self.seed}: expected 0 or more, or None for another each time")
        factor(self.schedule, 0)

    @staticmethod
    def of(mlp: Any, data: DataShape) -> Settings:
        """Return the settings with which an MLP is trained on samples of this shape.

        A loss, output or batch of None follows from the shape, and a learning rate of None from the
        optimiser. Raises InputError that names a wrong setting.
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
        """Return the problem of one epoch.

        rows: number of rows of the data.
        samples: number of rows on which each network is trained.
        weighted: whether the samples have weights.
        """
        return BackpropProblem(
            self.sizes, rows, samples, self.activation, self.loss, self.batch, self.momentum > 0,
            networks, adam=self.optimiser == "adam", output=self.output,
            weighted=weighted and self.loss != "cross_entropy")

    def scaling(self, data: Samples) -> Scaling:
        """Return how samples are scaled before training."""
        linear = self.problem(0, 0).output_activation == "linear"
        scales_targets = self.scale_targets and linear and data.labels is None
        return Scaling.of(data.x if self.standardise else None,
                          data.targets if scales_targets else None)

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise InputError where a target is outside the range of the outputs' activation."""
        activation = self.problem(0, 0).output_activation
        if activation not in _RANGES:
            return
        least, most = _RANGES[activation]
        outside = (targets < least) | (targets > most)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InputError(f"y has {targets[row, column]:g} in row {row}, column {column}: the "
                             f"outputs have the activation {activation}, which gives {least} to "
                             f"{most}; take output='linear', or bring y into that range")

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial parameters, (parameter_count,) float32, for all devices the same.

        Zeros for the numbers that the optimiser keeps follow the weights and biases.
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
        """Return learning rate, momentum and weight decay of the epoch after `epochs` epochs."""
        return (self.learning_rate * factor(self.schedule, epochs), self.momentum,
                self.weight_decay)


def given_sizes(mlp: Any) -> tuple[int, ...]:
    """Return the parameter `sizes` of an MLP as a tuple; () where it is empty or None.

    Raises InputError where it is wrong, or where `hidden` is given too.
    """
    sizes = mlp.sizes
    if sizes is None or (not isinstance(sizes, str | int) and len(sizes) == 0):
        return ()
    example = "all layers, inputs first and outputs last, such as (784, 32, 10)"
    if not _are_whole(sizes):
        raise InputError(f"sizes {sizes!r}: expected whole numbers, {example}")
    if len(sizes) < 2:
        raise InputError(f"sizes {tuple(map(int, sizes))}: expected {example}; hidden layers alone "
                         "are given by hidden")
    if mlp.hidden is not None:
        raise InputError(f"hidden {mlp.hidden!r}: sizes {tuple(map(int, sizes))} give all layers; "
                         "leave one of the two out")
    return tuple(map(int, sizes))


def units(mlp: Any, inputs: int, outputs: int) -> tuple[int, ...]:
    """Return the numbers of units of all layers of an MLP.

    inputs, outputs: the first and the last number where the MLP's `sizes` is empty.
    Raises InputError where `sizes` or `hidden` of the MLP is wrong.
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
        raise InputError(f"hidden {tuple(map(int, hidden))}: expected one unit or more in each "
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
"""A schedule of the learning rate as a user gives it; see factor()."""

_EXPECTED = "expected 'constant', 'inverse', ('step', epochs, factor) or a function of the epoch"


def factor(schedule: Schedule, epochs: int) -> float:
    """Return the factor of the learning rate in the epoch that follows `epochs` finished epochs.

    schedule: "constant" gives 1; "inverse" gives 1 / (1 + epochs); ("step", every, by) gives
    by ** (epochs // every); a function gives its result for `epochs`.
    Raises InputError for any other schedule, or where a function does not return a number of 0 or
    more.
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
