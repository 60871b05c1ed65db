"""The two steps of a batch norm by the statistics of its own input, each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.batch_norm.problem import reference as whole
from gossamer.ops.weights import Weights
from gossamer.tensor import default_spec
from gossamer_bench.published_steps.batch_statistics import BatchStatisticsProblem
from gossamer_bench.published_steps.batch_statistics import reference as statistics_of
from gossamer_bench.published_steps.normalise import NormaliseProblem
from gossamer_bench.published_steps.normalise import reference as normalised
from tests.fixtures import is_slow
from tests.ops.harness import check, op_of, random_inputs, random_weights, run_variant
from tests.tolerances import normalised_error


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (4, 6, 9, 5), (2, 2, 2, 3, 2)])
def test_each_step(device: Device, shape: tuple[int, ...]) -> None:
    norm = BatchNormProblem(default_spec(shape), 1e-3)
    check(BatchStatisticsProblem(norm), device)
    check(NormaliseProblem(norm), device)


def test_a_mean_far_from_zero_costs_no_digits(device: Device) -> None:
    shape = (2, 3, 5, 7) if is_slow(device) else (4, 3, 40, 50)
    x = np.random.default_rng(0).standard_normal(shape, np.float32) + np.float32(1000)
    norm = BatchNormProblem(default_spec(shape))
    problem, weights = BatchStatisticsProblem(norm), {"gamma": np.float32([1, -2, 0.1])}
    (expected,) = statistics_of(problem, [x], weights)
    for algorithm in op_of(problem).algorithms:
        for variant in algorithm.variants(problem, device) if (
                algorithm.supports(problem, device) is None) else ():
            (statistics,) = run_variant(algorithm, problem, variant, device,
                                        Weights(weights, device), [x])
            mean, rest, factor = statistics.astype(np.float64)
            assert normalised_error(mean + rest, expected[0]) < 1e-9
            assert normalised_error(factor, expected[2]) < 1e-6
    check(NormaliseProblem(norm), device, inputs=[x, statistics])


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)])
def test_nothing_gives_nothing(device: Device, shape: tuple[int, ...]) -> None:
    norm = BatchNormProblem(default_spec(shape))
    check(NormaliseProblem(norm), device)
    if norm.channels:
        with pytest.raises(ValueError, match=r"the mean of each channel of .* has no value"):
            BatchStatisticsProblem(norm)


def test_together_they_are_the_batch_norm() -> None:
    norm = BatchNormProblem(default_spec((3, 4, 5, 6)), 1e-3)
    (x,), weights = random_inputs(norm), random_weights(norm)
    (statistics,) = statistics_of(BatchStatisticsProblem(norm), [x], weights)
    (y,) = normalised(NormaliseProblem(norm), [x, statistics], weights)
    assert normalised_error(y, whole(norm, [x], weights)[0]) < 1e-12
