"""Records what the algorithms of convolutions offer for drawn layers, and what they prepare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from gossamer.ops.algorithm import Algorithm, Problem
from tests.ops.candidates import own_algorithms, supported
from tests.ops.candidates import recorded as offers
from tests.ops.conv2d import drawn
from tests.recorded import Recorded


def _layers(layers: Iterable[drawn.Drawn]
            ) -> Iterator[tuple[Problem, Mapping[str, np.ndarray] | None]]:
    return ((layer.problem, layer.arrays) for layer in layers)


def _of(*folders: str) -> Sequence[Algorithm]:
    """Returns the algorithms of convolutions whose modules lie in some folders."""
    return [algorithm for algorithm in own_algorithms(next(drawn.dense(1, 0)).problem)
            if any(f"conv2d.{folder}" in type(algorithm).__module__ for folder in folders)]


@pytest.mark.slow
def test_dense(recorded: Recorded) -> None:
    recorded("conv2d_dense", offers(_layers(drawn.dense(78, 1))))


@pytest.mark.slow
def test_sparse(recorded: Recorded) -> None:
    algorithms = _of("sparse", "shifted.shifted_sparse")
    recorded("conv2d_sparse", offers(_layers(drawn.sparse(36, 2)), lambda problem: algorithms))


@pytest.mark.slow
def test_suited(recorded: Recorded) -> None:
    algorithms = _of("dense.depthwise_tiled", "dense.mma.few", "shifted", "sparse.mma")
    recorded("conv2d_suited", offers(
        _layers(drawn.suited(84, 5)), lambda problem: [
            algorithm for algorithm in algorithms
            if (problem.weights_info.density < 1) == ("sparse" in algorithm.name)],
        ("h200", "sm_80", "sm_89"), most=6, others=1))


@pytest.mark.slow
def test_binary(recorded: Recorded) -> None:
    algorithms = _of("binary")
    recorded("conv2d_binary", offers(_layers(drawn.binary(50, 3)), lambda problem: algorithms))


def test_at_limits(recorded: Recorded) -> None:
    recorded("conv2d_limits", supported(drawn.at_limits(), ("h200", "opencl", "processors")))


@pytest.mark.slow
def test_windows(recorded: Recorded) -> None:
    algorithms = _of("dense.depthwise", "dense.mma.few", "shifted", "binary", "sparse")
    recorded("conv2d_windows", offers(_layers(drawn.windows()), lambda problem: [
        algorithm for algorithm in algorithms
        if problem.weights_info.density < 1 or "sparse" not in algorithm.name], others=1))


@pytest.mark.slow
def test_pruned_networks(recorded: Recorded) -> None:
    algorithms = _of("sparse", "shifted.shifted_sparse")
    recorded("conv2d_pruned", offers(_layers(drawn.pruned_networks()), lambda problem: algorithms))
