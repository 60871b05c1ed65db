"""The base class of algorithms that compute several layers in one step."""

from __future__ import annotations

import abc
from typing import ClassVar

from gossamer.ops.algorithm import Algorithm
from gossamer.ops.fused.problem import FusionProblem


class FusionAlgorithm(Algorithm, abc.ABC):
    """An algorithm that computes several layers in one step.

    patterns: the ops of the layers of each kind of fusion that it may compute, in an order in which
    each layer reads what the one before it writes. Every fusion of such layers that the algorithm
    recognises is offered to supports(), which also sees which values other layers read (the exits
    of the problem).
    """

    op: ClassVar[str] = "fused"
    patterns: ClassVar[tuple[tuple[str, ...], ...]]

    def recognises(self, problem: FusionProblem) -> bool:
        """Returns whether the layers are of the kind that the algorithm was made for, be it able to
        compute these or not. Of other layers no report says why they are not computed as one."""
        return True
