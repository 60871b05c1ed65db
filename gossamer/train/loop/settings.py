"""The checked parameters of an MLP, which say how one network is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from gossamer.errors import InputError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.loop.schedule import Schedule, factor

INITIAL = ("uniform", "glorot")
UNIFORM = 0.05
"""Bound of the published initial weights, which lie between its negative and it."""
_MOST = 2**31 - 1
"""Largest number of parameters that the 32-bit indices of kernels can count."""


@dataclass(frozen=True)
class Settings:
    """The settings with which one network is trained.

    sizes: number of units of each layer, inputs first.
    The other fields are the parameters of MLP with the same names.
    Raises InputError that names a wrong one.
    """

    sizes: tuple[int, ...]
    activation: str
    loss: str
    learning_rate: float
    schedule: Schedule
    momentum: float
    weight_decay: float
    batch: int
    epochs: int
    target_error: float | None
    shuffle: bool
    initial: str
    seed: int | None

    def __post_init__(self) -> None:
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
        if self.epochs < 1:
            raise InputError(f"epochs {self.epochs}: expected 1 or more epochs over the data")
        if self.initial not in INITIAL:
            raise InputError(f"initial {self.initial!r}: expected one of {', '.join(INITIAL)}")
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed {self.seed}: expected 0 or more, or None for another each time")
        factor(self.schedule, 0)

    @staticmethod
    def of(mlp: Any) -> Settings:
        """Returns the settings of an MLP. Raises InputError that names a wrong one."""
        return Settings(
            _sizes(mlp.sizes), mlp.activation, mlp.loss, _number(mlp, "learning_rate"),
            mlp.schedule, _number(mlp, "momentum"), _number(mlp, "weight_decay"),
            _whole(mlp, "batch"), _whole(mlp, "epochs"),
            None if mlp.target_error is None else _number(mlp, "target_error"),
            bool(mlp.shuffle), mlp.initial, None if mlp.seed is None else _whole(mlp, "seed"))

    def problem(self, rows: int, samples: int, networks: int = 1) -> BackpropProblem:
        """Returns the problem of one epoch over `samples` samples of data with `rows` rows."""
        return BackpropProblem(self.sizes, rows, samples, self.activation, self.loss, self.batch,
                               self.momentum > 0, networks)

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the initial parameters, and velocities of 0, the same for every device:
        (parameter_count,) float32."""
        problem = self.problem(0, 0)
        parameters = np.zeros(problem.parameter_count, np.float32)
        if self.initial == "uniform":
            parameters[:problem.weight_count] = rng.uniform(-UNIFORM, UNIFORM,
                                                            problem.weight_count)
        else:
            for weights, _ in problem.split(parameters):
                bound = math.sqrt(6 / sum(weights.shape))
                weights[...] = rng.uniform(-bound, bound, weights.shape)
        return parameters

    def numbers(self, epochs: int) -> tuple[float, float, float]:
        """Returns learning rate, momentum and weight decay of the epoch after so many epochs."""
        return (self.learning_rate * factor(self.schedule, epochs), self.momentum,
                self.weight_decay)


def _sizes(sizes: Any) -> tuple[int, ...]:
    example = "all layers, inputs first and outputs last, such as (784, 32, 10)"
    if isinstance(sizes, str) or not isinstance(sizes, Sequence | np.ndarray) or not all(
            isinstance(size, Integral) for size in sizes):
        raise InputError(f"sizes {sizes!r}: expected whole numbers, {example}")
    if len(sizes) < 2:
        raise InputError(f"sizes {tuple(map(int, sizes))}: expected {example}; hidden layers alone "
                         "are not enough")
    return tuple(map(int, sizes))


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
