"""Compares the host's algorithms with the reference, for drawn layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.facts import REAL
from tests.ops.conv2d import drawn
from tests.ops.harness import check

_MOST_PRODUCTS = 400_000
"""The most multiply-adds of a layer that is computed."""


@pytest.mark.parametrize("layers", [drawn.dense, drawn.sparse, drawn.binary])
def test_the_host(layers: Callable[[int, int], Iterator[drawn.Drawn]]) -> None:
    for number, layer in enumerate(layers(90, 7)):
        problem = layer.problem
        if layer.arrays is None:
            continue
        per_image = problem.depth * problem.out_channels * problem.out_height * problem.out_width
        # what is drawn about results and weights need not hold, and a result that is clipped must
        # not hide large sums
        is_binary = problem.weights_info.scaled_signs
        problem = replace(
            problem, batch=min(problem.batch, _MOST_PRODUCTS // per_image), result=REAL,
            weights_info=replace(problem.weights_info, facts=REAL),
            facts=problem.facts if is_binary else ())
        arrays = dict(layer.arrays)
        if not is_binary:
            arrays["weight"] = arrays["weight"] / np.float32(8)
        if problem.batch or number % 3 == 0:
            check(problem, find("host"), weights=arrays, seed=number)
