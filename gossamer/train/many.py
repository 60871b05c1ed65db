"""Many independent networks at once: sweeps, cross-validation, ensembles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.train.mlp import MLP


@dataclass(frozen=True)
class ManyResult:
    """What came of each network.

    rows: one for each network, in the order of the configs and within a config of the folds:
    config (index), fold (index or None), epochs, loss, train_accuracy, validation_accuracy,
    seconds, and state ("trained", "target reached", or how it diverged).
    networks: the same as trained estimators.
    """

    rows: list[dict[str, Any]]
    networks: list[MLP]

    @property
    def best(self) -> MLP:
        raise NotImplementedError

    @property
    def scores(self) -> np.ndarray:
        """(configs, folds): the validation accuracy of each, or the training accuracy where
        there is no validation."""
        raise NotImplementedError


def train_many(configs: Sequence[MLP | Mapping[str, Any]], x: Any, y: Any, *,
               folds: int | None = None, validation: tuple[Any, Any] | None = None,
               device: str | Device | None = None) -> ManyResult:
    raise NotImplementedError


def sweep(base: MLP, grid: Mapping[str, Sequence[Any]]) -> list[MLP]:
    raise NotImplementedError


def cross_validate(mlp: MLP, x: Any, y: Any, folds: int = 5) -> ManyResult:
    raise NotImplementedError
