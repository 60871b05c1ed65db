"""How long ONNX Runtime takes for each problem of a part, by its own profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.algorithm import Variant
from gossamer.ops.part.host import made_session
from gossamer.ops.part.model import part_of_node
from gossamer.ops.part.problem import PartProblem

_RUNS, _FIRST = 9, 2
"""Runs of a profile, and how many of them come before those that count."""


def problem_times(problem: PartProblem, weights: Mapping[str, np.ndarray], variant: Variant,
                  inputs: Sequence[np.ndarray]) -> list[float]:
    """Returns the microseconds that each problem of a part takes, the median of some runs. A
    problem whose nodes ONNX Runtime has made part of others takes none; what it adds itself, such
    as changes of layout, counts for none.

    inputs: what the part reads.
    """
    session = made_session(problem, weights, variant, profiled=True)
    for _ in range(_RUNS):
        session.run(inputs)
    runs: dict[int, list[list[float]]] = {}
    seen: dict[str, int] = {}
    for name, us in session.node_times():
        run = seen[name] = seen.get(name, -1) + 1
        number = part_of_node(name)
        if number is not None and run >= _FIRST:
            times = runs.setdefault(number, [[] for _ in range(_RUNS - _FIRST)])
            times[run - _FIRST].append(us)
    return [float(np.median([sum(times) for times in runs[number]])) if number in runs else 0.0
            for number in range(len(problem.parts))]
