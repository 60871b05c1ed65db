"""Offers of the simple ops' algorithms, and results, are recorded for drawn problems."""

from __future__ import annotations

import pytest

from gossamer.device.registry import find
from tests.ops.drawn import problems
from tests.ops.harness import check
from tests.ops.offers import exact_inputs, exact_weights, is_small, texts
from tests.recorded import Recorded

COUNTS = {"batch_norm": 50, "concat": 90, "copy": 220, "elementwise": 220, "gather": 100,
          "layer_norm": 110, "pad": 130, "pool": 110, "reduce": 120, "resize": 70, "softmax": 50,
          "top_k": 90}
"""Number of drawn problems of each op."""
DEVICES = (("h200", "host"), ("h200", "small"), ("h200", "host"), ("opencl", "processors"))


@pytest.mark.parametrize("op", COUNTS)
def test_what_is_offered_for_drawn_problems(op: str, recorded: Recorded) -> None:
    recorded(f"offers_{op}", texts(problems(op, COUNTS[op]), DEVICES))


@pytest.mark.parametrize("op", COUNTS)
def test_the_host_computes_drawn_problems(op: str) -> None:
    small = [problem for problem in problems(op, COUNTS[op]).values()
             if not isinstance(problem, str) and is_small(problem)]
    for problem in small:
        if any(any(spec.format.other_channels) for spec in problem.outputs):
            # the host writes no parts of larger tensors
            continue
        check(problem, find("host"), inputs=exact_inputs(problem), weights=exact_weights(problem))
