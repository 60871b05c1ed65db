"""The base class of algorithms for fusions, and weights with renamed arrays."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.weights import Pack, Weights


class FusionAlgorithm(Algorithm, abc.ABC):
    """An algorithm that computes several layers in one step.

    patterns: the kinds of fusion that the algorithm may compute. Each pattern lists the ops of the
    layers in order; each layer reads a result of the previous layer. supports() is called for
    fusions whose ops match and for which recognises() returns True.

    takes_moves: whether a fusion also has the neighbouring layers that only move or scale values,
    such as transposes and slices. Its ops may then be any.

    The exits of a fusion are the values that layers outside the fusion read.
    """

    op: ClassVar[str] = "fused"
    patterns: ClassVar[tuple[tuple[str, ...], ...]]
    takes_moves: ClassVar[bool] = False

    def matches(self, ops: Sequence[str]) -> bool:
        """Return whether layers of these ops, in order, may be of the algorithm's kinds."""
        return self.takes_moves or tuple(ops) in self.patterns

    def recognises(self, problem: FusionProblem) -> bool:
        """Return whether the layers are of the kind that the algorithm computes.

        The algorithm may still be unable to compute a particular fusion; supports() returns the
        reason. Reports list such reasons only for layers that the algorithm recognises.
        """
        return True


class RenamedWeights(Weights):
    """Weights whose constants have other names.

    Packing and caching are delegated to the original `Weights`.

    names: maps each constant's new name to its original name.
    """

    def __init__(self, weights: Weights, names: Mapping[str, str]) -> None:
        self.arrays = _renamed(weights.arrays, names)
        self.layer = weights.layer
        self._weights = weights
        self._names = dict(names)

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Hash of the constants."""
        return self._weights.digest

    def packed(self, key: str, pack: Pack) -> Buffer:
        return self._weights.packed(key, lambda arrays: pack(_renamed(arrays, self._names)))


def _renamed(arrays: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {here: arrays[name] for here, name in names.items()}
