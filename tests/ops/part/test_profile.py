"""The times of the problems of a part, from the times of nodes in several runs."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.ops.algorithm import Variant
from gossamer.ops.part import profile
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import default_spec
from tests.ops.part.test_part import chain

RUNS = 9


class _Session:
    """A session whose nodes take longer in each run."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, inputs: object) -> None:
        self.runs += 1

    def node_times(self) -> list[tuple[str, float]]:
        return [node for run in range(self.runs) for node in (
            ("0/1", 10.0 * run), ("added by the library", 500.0), ("0/2", 1.0), ("2/7", 3.0))]


def test_the_median_of_runs_without_the_first_two(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _Session()
    monkeypatch.setattr(profile, "made_session", lambda *parts, profiled: session)
    spec = default_spec((2, 3))
    problem = chain(*[ReduceProblem(spec, "max", ())] * 3)
    times = profile.problem_times(problem, {}, Variant((), (spec,), (spec,)), [np.zeros((2, 3))])
    # of runs 2 to 8 the median is run 5; the second problem has no node of its own
    assert times == [51.0, 0.0, 3.0]
    assert session.runs == RUNS
