"""How much faster a layer has to be with all threads of BLAS than with one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gossamer.ops.host_threads import ALL, THREADS
from gossamer.plan.candidate import Candidate

MARGIN = 0.8
"""Largest time with all threads, as a share of the time with one, for which all are taken."""


def without_small_gains(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns a layer's candidates, of which those with all threads are excluded that are hardly
    faster than the same with one thread.

    A layer that is timed alone finds the threads awake, as its last execution has just ended. In a
    network they may have to be woken up, and another program may have their processor.
    """
    single = {_others(candidate): candidate.cost for candidate in candidates
              if dict(candidate.variant.config).get(THREADS) == 1}
    result = []
    for candidate in candidates:
        one = single.get(_others(candidate), math.inf)
        if (dict(candidate.variant.config).get(THREADS) == ALL
                and MARGIN * one < candidate.cost < math.inf):
            candidate = candidate.with_exclusion(
                f"{candidate.cost:.1f} us against {one:.1f} us with one thread, which needs no "
                "second processor to be free")
        result.append(candidate)
    return result


def _others(candidate: Candidate) -> tuple[object, ...]:
    """Returns all that makes a candidate but the number of its threads."""
    variant = candidate.variant
    return (candidate.algorithm.name, variant.inputs, variant.outputs, variant.precision,
            tuple(setting for setting in variant.config if setting[0] != THREADS))
