"""Case: one piece of work, stated without saying who does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gossamer.bench.peers import Alternative


@dataclass(frozen=True)
class Case:
    """One piece of work.

    flops, least_bytes: what nobody can do without: the arithmetic, and weights, inputs and
    outputs crossing memory once. density: the share of nonzero weights.
    expected: the output for the first images or rows, in float64.
    contenders: the alternatives of each, made when called; may raise AbsentError.
    sample_us: about how long one sample of a contender's time lasts.
    """

    suite: str
    name: str
    batch: int
    flops: int
    least_bytes: int
    density: float
    expected: np.ndarray
    contenders: dict[str, Callable[[], list[Alternative]]]
    notes: tuple[str, ...] = ()
    sample_us: float = 20_000.0
