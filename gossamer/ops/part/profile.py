"""Measures the time that ONNX Runtime takes for each problem of a part, by ONNX Runtime's
profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.ops.algorithm import Variant
from gossamer.ops.part.host import made_session
from gossamer.ops.part.model import part_of_node
from gossamer.ops.part.problem import PartProblem

_RUNS, _FIRST = 9, 2
"""The number of runs of a profile, and the number of its first runs that only warm up and are not
counted."""


def problem_times(problem: PartProblem, weights: Mapping[str, np.ndarray], variant: Variant,
                  inputs: Sequence[np.ndarray]) -> list[float]:
    """Returns the microseconds that each problem of a part takes, as the median of several runs.

    A problem takes 0 microseconds where ONNX Runtime has fused its nodes into the nodes of another
    problem. The times of nodes that ONNX Runtime adds, such as changes of layout, are not counted.

    inputs: the inputs of the part.
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
