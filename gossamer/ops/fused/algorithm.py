"""The base class of algorithms that compute several layers in one step."""

from __future__ import annotations

import abc
from typing import ClassVar

from gossamer.ops.algorithm import Algorithm
from gossamer.ops.fused.problem import FusionProblem


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
        """Returns whether the layers are of the kind that the algorithm was made for; supports()
        says whether the algorithm can compute these layers. Reports give reasons only for layers
        that an algorithm recognises."""
        return True
