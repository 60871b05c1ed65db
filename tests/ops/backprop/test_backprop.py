from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.ops.backprop.problem import (
    ACTIVATIONS,
    LOSSES,
    OUTPUTS,
    BackpropProblem,
    gradient,
    reference,
)
from tests.ops.harness import check

ODD = [((1, 1), 3, 1), ((33, 1, 2), 5, 1), ((4, 3, 2), 0, 2), ((4, 3, 2), 3, 0),
       ((20, 17, 9, 5), 4, 3)]
"""Tuples of layer sizes, number of samples and number of networks."""

_SIZES = [(7, 3), (6, 5, 3), (5, 4, 6, 3), (4, 5, 3, 4, 2)]


@pytest.mark.parametrize("sizes", _SIZES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_finite_differences(activation: str, loss: str,
                                                   sizes: tuple[int, ...]) -> None:
    _check_gradients(BackpropProblem(sizes, 3, 3, activation, loss, batch=3))


@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients_of_every_output_activation(output: str) -> None:
    _check_gradients(BackpropProblem((5, 4, 3), 3, 3, "relu", batch=3, output=output))


def _check_gradients(problem: BackpropProblem) -> None:
    sizes = problem.sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, sizes[0]))
    targets = rng.random((3, sizes[-1]))
    sample_weights = rng.random(3)
    parameters = rng.standard_normal(problem.weight_count)

    def mean_loss(values: np.ndarray) -> float:
        return float(gradient(problem, problem.split(values), x, targets,
                              sample_weights)[0].mean())

    by_backprop = np.concatenate([part.ravel() for layer in gradient(
        problem, problem.split(parameters), x, targets, sample_weights)[1] for part in layer])
    step = 1e-6
    by_difference = np.array([
        (mean_loss(parameters + offset) - mean_loss(parameters - offset)) / (2 * step)
        for offset in step * np.eye(problem.weight_count)])
    assert np.linalg.norm(by_backprop - by_difference) <= 1e-7 * np.linalg.norm(by_difference)


def test_the_published_step() -> None:
    """The published step is w += rate * err * input with err = o (1 - o) (t - o)."""
    problem = BackpropProblem((3, 2), 1, 1)
    rng = np.random.default_rng(1)
    x, t, w, b = rng.random((1, 3)), np.array([[1.0, 0.0]]), rng.random((2, 3)), rng.random(2)
    o = 1 / (1 + np.exp(-(w @ x[0] + b)))
    err = o * (1 - o) * (t[0] - o)
    parameters, loss = reference(problem, [x, t, np.zeros((1, 1), np.int32),
                                           np.array([[0.3, 0, 0]]),
                                           np.concatenate([w.ravel(), b])[None]], {})
    expected = np.concatenate([(w + 0.3 * np.outer(err, x[0])).ravel(), b + 0.3 * err])
    np.testing.assert_allclose(parameters[0], expected, rtol=1e-12)
    np.testing.assert_allclose(loss, [[0.5 * ((t[0] - o) ** 2).sum()]], rtol=1e-12)


ADAM_AND_WEIGHTS = [
    {"adam": True}, {"adam": True, "batch": 4, "loss": "cross_entropy", "activation": "relu"},
    {"adam": True, "batch": 4, "weighted": True, "output": "linear"},
    {"weighted": True, "output": "tanh", "activation": "relu"},
    {"velocity": True, "weighted": True, "batch": 3, "output": "sigmoid", "activation": "tanh"}]
"""Arguments of problems with Adam, weighted samples and other outputs."""


@pytest.mark.parametrize("arguments", ADAM_AND_WEIGHTS)
def test_adam_and_weights_on_the_host(arguments: dict[str, Any]) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 10, networks=2, **arguments)
    check(problem, find("host"), inputs=problem.example_inputs(np.random.default_rng(0)))


@pytest.mark.parametrize("rule", ["plain", "velocity", "adam"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_host_takes_large_steps_as_the_reference_does(loss: str, rule: str) -> None:
    """Steps, decay, momentum and weights are so large that a part of an update that is missing is
    seen."""
    for activation, batch, weighted, sizes in itertools.product(
            ACTIVATIONS, (1, 3, 10, 12), (False, True), ((4, 3, 2), (3, 2), (2, 3, 3, 2))):
        problem = BackpropProblem(sizes, 6, 10, activation, loss, batch, rule == "velocity", 2,
                                  adam=rule == "adam", weighted=weighted)
        inputs = problem.example_inputs(np.random.default_rng(batch))
        inputs[1] += 0.25 * inputs[0][:, :1]
        inputs[3][:] = [0.3, 0.8 * (rule == "velocity"), 0.5], [0.1, 0.4 * (rule == "velocity"), 0]
        inputs[4][:, :problem.weight_count] *= 20
        check(problem, find("host"), inputs=inputs)


def test_adam_is_the_published_update() -> None:
    """The first update of Adam is the learning rate times the sign of the gradient."""
    problem = BackpropProblem((3, 2), 1, 1, adam=True)
    inputs = problem.example_inputs(np.random.default_rng(0))
    inputs[0][:] = 1
    inputs[3][:] = 0.01, 0, 0
    after = reference(problem, inputs, {})[0]
    count = problem.weight_count
    change = after[0, :count] - inputs[4][0, :count]
    np.testing.assert_allclose(change, -0.01 * np.sign(after[0, count:2 * count]), rtol=1e-5)
    assert after[0, -1] == 1


@pytest.mark.parametrize(("sizes", "samples", "networks"), ODD)
def test_odd_sizes_on_the_host(sizes: tuple[int, ...], samples: int, networks: int) -> None:
    problem = BackpropProblem(sizes, 5, samples, networks=networks)
    check(problem, find("host"), inputs=problem.example_inputs(np.random.default_rng(0)))


def test_bad_problems_are_refused() -> None:
    for wrong, message in (({"sizes": (3,)}, "two layers"), ({"sizes": (3, 0)}, "one unit"),
                           ({"activation": "cubic"}, "expected one of sigmoid"),
                           ({"loss": "hinge"}, "expected one of squared_error"),
                           ({"output": "step"}, "expected one of linear"),
                           ({"output": "linear", "loss": "cross_entropy"}, "are a softmax"),
                           ({"adam": True, "velocity": True}, "expected at most one of them"),
                           ({"batch": 0}, "a batch of 1")):
        with pytest.raises(ValueError, match=message):
            BackpropProblem(**{"sizes": (3, 2), "rows": 1, "samples": 1, **wrong})
