"""The constants of a fusion under the names that the problem of one of its parts gives them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.weights import Pack, Weights


class RenamedWeights(Weights):
    """Constants under other names. The original `Weights` packs them and keeps the packed arrays.

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
