"""The base class of algorithms that compute several layers in one step."""

from __future__ import annotations

import abc
from typing import ClassVar

from gossamer.ops.algorithm import Algorithm


class RegionAlgorithm(Algorithm, abc.ABC):
    """An algorithm that computes several layers in one step.

    patterns: the ops of the layers of each kind of region that it may compute, in an order in which
    each layer reads what the one before it writes. Every region of such layers is offered to
    supports(), which also sees which values other layers read (the exits of the problem).
    """

    op: ClassVar[str] = "region"
    patterns: ClassVar[tuple[tuple[str, ...], ...]]
