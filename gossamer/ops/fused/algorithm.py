"""Algorithms that compute several layers in one step, and the constants that they pack."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.weights import Pack, Weights


class FusionAlgorithm(Algorithm, abc.ABC):
    """An algorithm that computes several layers in one step.

    patterns: the kinds of fusion that the algorithm may compute. Each pattern lists the ops of the
    layers, ordered so that each layer reads a result of the layer before it. A fusion is
    passed to supports() if it matches a pattern and the algorithm recognises it. The exits of the
    fusion say which of its values other layers read.
    """

    op: ClassVar[str] = "fused"
    patterns: ClassVar[tuple[tuple[str, ...], ...]]

    def recognises(self, problem: FusionProblem) -> bool:
        """Return whether the algorithm was made for such layers.

        supports() says whether the algorithm can compute these layers. Reports give reasons only
        for layers that an algorithm recognises.
        """
        return True


class RenamedWeights(Weights):
    """Constants under other names.

    The original `Weights` packs them and keeps the packed arrays.

    names: the original name of each constant, by its new name.
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
