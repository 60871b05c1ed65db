"""Digests of layers' constants, each taken once."""

from __future__ import annotations

import numpy as np

from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import digest


class Digests:
    """The digests of the constants of layers."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[str, list[np.ndarray]]] = {}

    def of(self, layer: Layer) -> str:
        """Returns the digest of a layer's constants."""
        key = tuple(map(id, layer.weights.values()))
        if key not in self._known:
            # the arrays are stored too, so that no new array gets the id of a deleted one
            self._known[key] = (digest(layer.weights), list(layer.weights.values()))
        return self._known[key][0]
