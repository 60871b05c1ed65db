"""Every kernel of back-propagation trains as the float64 reference does.

Each case builds kernels for its own sizes; to save time, each tests another variant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.backprop import OP
from gossamer.ops.backprop.batched import Batched
from gossamer.ops.backprop.blocked import gram
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.blocked.pipeline import unfit_sizes
from gossamer.ops.backprop.per_step import PerStep
from gossamer.ops.backprop.persistent import Persistent
from gossamer.ops.backprop.problem import OUTPUTS, BackpropProblem, reference
from gossamer.ops.weights import Weights
from tests.fixtures import is_slow
from tests.ops.backprop.test_backprop import ADAM_AND_WEIGHTS, ODD
from tests.ops.harness import check, run_variant
from tests.tolerances import normalised_error, tolerance

KERNELS = OP.algorithms[:-1]


def kinds(variants: list[Variant]) -> list[Variant]:
    """Return the variant with the fewest work-items of each kind, that is of each place of the
    weights, each form and each size of a group."""
    smallest: dict[Any, Variant] = {}
    for variant in sorted(variants, key=lambda v: v["threads"]):
        config = dict(variant.config)
        smallest.setdefault((config.get("weights"), config.get("form"), config.get("groups")),
                            variant)
    return list(smallest.values())


def one(turn: int) -> Callable[[list[Variant]], list[Variant]]:
    """Return a function that selects a variant of one kind, of another kind for each turn."""
    def take(variants: list[Variant]) -> list[Variant]:
        return [kinds(variants)[turn % len(kinds(variants))]]
    return take


@pytest.mark.parametrize(("sizes", "networks", "reason"), [
    ((1024, 64, 32), 65535, None), ((1024, 65, 32), 1, "outputs, has 65 and 32"),
    ((1024, 64, 33), 1, "outputs, has 64 and 33"),
    ((1024, 64, 32), 65536, "at most 65535 networks, has 65536"),
    ((9, 8, 8, 4), 1, "one hidden layer, has 2"), ((9, 4), 1, "one hidden layer, has 0")])
def test_sizes_of_the_sequential_core(sizes: tuple[int, ...], networks: int,
                                      reason: str | None) -> None:
    found = unfit_sizes(BackpropProblem(sizes, 1, 1, networks=networks))
    assert found is None if reason is None else reason in (found or "")


def inputs_of(problem: BackpropProblem, *, binary: bool = False) -> list[np.ndarray]:
    inputs = problem.example_inputs(np.random.default_rng(0))
    if binary:
        inputs[0] = np.ceil(inputs[0])
    return inputs


def check_blocked(problem: BackpropProblem, device: Device,
                  inputs: list[np.ndarray]) -> None:
    """Compare every kind of exact blocking with the reference."""
    expected = reference(problem, inputs, {})
    for variant in kinds(list(Blocked().variants(problem, device))):
        actual = run_variant(Blocked(), problem, variant, device, Weights({}, device, "the test"),
                             inputs)
        for y, r in zip(actual, expected, strict=True):
            assert normalised_error(y, r) <= tolerance("backprop"), variant.config_text


@pytest.mark.sanitize
@pytest.mark.parametrize(("turn", "activation", "loss", "velocity", "batch"), [
    (0, "sigmoid", "squared_error", False, 1), (1, "tanh", "cross_entropy", False, 1),
    (2, "relu", "squared_error", False, 1), (0, "relu", "cross_entropy", False, 4),
    (1, "sigmoid", "cross_entropy", True, 1), (2, "tanh", "squared_error", True, 4)])
def test_activations_losses_batches_and_momentum(
        compiled_device: Device, turn: int, activation: str, loss: str, velocity: bool,
        batch: int) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 10, activation, loss, batch, velocity, networks=2)
    check(problem, compiled_device, inputs=inputs_of(problem), taken=one(turn))


@pytest.mark.sanitize
@pytest.mark.parametrize("arguments", ADAM_AND_WEIGHTS)
def test_adam_and_weighted_samples(compiled_device: Device, arguments: dict[str, Any]) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 10, networks=2, **arguments)
    check(problem, compiled_device, inputs=inputs_of(problem), taken=one(0))


@pytest.mark.parametrize("output", OUTPUTS)
def test_output_activations(compiled_device: Device, output: str) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 10, "relu", output=output)
    check(problem, compiled_device, inputs=inputs_of(problem), taken=one(0))


def test_what_does_not_train_by_adam_names_what_does(compiled_device: Device) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 10, adam=True)
    reasons = {algorithm.name: algorithm.supports(problem, compiled_device)
               for algorithm in KERNELS}
    assert reasons.pop("per_step") is None and reasons.pop("batched") is None
    assert all("use batched or per_step" in reason for reason in reasons.values())


@pytest.mark.sanitize
@pytest.mark.parametrize(("turn", "sizes", "samples", "networks"),
                         [(turn, *case) for turn, case in enumerate(ODD)])
def test_odd_sizes(compiled_device: Device, turn: int, sizes: tuple[int, ...], samples: int,
                   networks: int) -> None:
    problem = BackpropProblem(sizes, 5, samples, networks=networks)
    check(problem, compiled_device, inputs=inputs_of(problem), taken=one(turn))


def test_a_thousand_samples(compiled_device: Device) -> None:
    """The inputs are binary, as published."""
    problem = (BackpropProblem((36, 6, 4), 10, 40) if is_slow(compiled_device)
               else BackpropProblem((512, 32, 10), 200, 1000))
    inputs = inputs_of(problem, binary=True)
    inputs[3][:] = 0.3, 0, 0
    check(problem, compiled_device, inputs=inputs, taken=lambda variants: [
        variant for variant in kinds(variants)
        if dict(variant.config).get("weights", "sparse") == "sparse"])


@pytest.mark.parametrize(("rate", "decay", "samples"), [(0.4, 1.0, 18), (0.5, 2.0, 5)])
def test_weights_that_decay_to_little_or_nothing(compiled_device: Device, rate: float,
                                                 decay: float, samples: int) -> None:
    problem = BackpropProblem((9, 5, 3), 6, samples)
    inputs = inputs_of(problem)
    inputs[3][:] = rate, 0, decay
    check(problem, compiled_device, inputs=inputs, taken=kinds)


def test_networks_that_see_the_same_samples_share_inner_products(compiled_device: Device) -> None:
    problem = BackpropProblem((9, 5, 3), 6, 66, networks=2)
    inputs = inputs_of(problem)
    inputs[2][1] = inputs[2][0]
    inputs[2][1, -1] += 1 if inputs[2][1, -1] < 5 else -1
    check_blocked(problem, compiled_device, inputs)


def test_inner_products_come_in_parts(compiled_device: Device,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_MOST_BYTES", 1)
    problem = BackpropProblem((9, 5, 3), 6, 70)
    check_blocked(problem, compiled_device, inputs_of(problem))


@pytest.mark.sanitize
def test_batches_that_do_not_fit_come_in_micro_batches(compiled_device: Device,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_device, "limits", replace(
        compiled_device.limits, shared_bytes_opt_in=10_000))
    problem = BackpropProblem((33, 20, 10, 3), 6, 50, "relu", "cross_entropy", 40, adam=True)
    inputs = inputs_of(problem)
    expected = reference(problem, inputs, {})
    for variant in kinds(list(Batched().variants(problem, compiled_device))):
        actual = run_variant(Batched(), problem, variant, compiled_device,
                             Weights({}, compiled_device, "the test"), inputs)
        for y, r in zip(actual, expected, strict=True):
            assert normalised_error(y, r) <= tolerance("backprop", variant.precision)


def test_training_goes_on_in_place_with_the_same_bits(compiled_device: Device) -> None:
    problem, device = BackpropProblem((9, 5, 3), 6, 20), compiled_device
    inputs = inputs_of(problem)
    for algorithm in KERNELS:
        for variant in kinds(list(algorithm.variants(problem, device))):
            weights = Weights({}, device, "the test")
            separate = run_variant(algorithm, problem, variant, device, weights, inputs)
            state = algorithm.prepare(weights, problem, variant, device)
            sources = [device.upload(array, "a test input") for array in inputs]
            losses = device.empty(problem.outputs[1].nbytes, "a test output")
            workspace = device.empty(max(variant.workspace, 1), "a test's workspace")
            algorithm.launch(state, sources, [sources[4], losses], workspace)
            parameters = np.empty_like(inputs[4])
            device.read(sources[4], parameters)
            assert parameters.tobytes() == separate[0].tobytes(), (
                algorithm.name, variant.config_text)


def test_a_sample_that_is_not_a_number_ends_no_run(compiled_device: Device) -> None:
    problem, device = BackpropProblem((9, 5, 3), 6, 20), compiled_device
    inputs = inputs_of(problem)
    inputs[0][inputs[2][0, 7], 4] = np.nan
    wrong = np.maximum.accumulate(inputs[2][0] == inputs[2][0, 7])
    for algorithm in KERNELS:
        for variant in kinds(list(algorithm.variants(problem, device))):
            losses = run_variant(algorithm, problem, variant, device,
                                 Weights({}, device, "the test"), inputs)[1][0]
            np.testing.assert_array_equal(np.isnan(losses), wrong, algorithm.name)


def test_what_does_not_fit_is_refused(compiled_device: Device) -> None:
    online = BackpropProblem((9, 5, 3), 6, 100_000)
    assert "samples per call" in str(PerStep().supports(online, compiled_device))
    wide = BackpropProblem((9, 70_000, 3), 6, 10)
    assert "bytes of shared memory" in str(Persistent().supports(wide, compiled_device))
    assert "bytes of shared memory" in str(Blocked().supports(wide, compiled_device))
    assert "bytes of shared memory" in str(Batched().supports(wide, compiled_device))
    large_batch = BackpropProblem((784, 1000, 10), 60_000, 60_000, batch=60_000, networks=20)
    assert "smaller batch" in str(PerStep().supports(large_batch, compiled_device))
    many = BackpropProblem((2, 1200, 1), 6, 10, networks=60_000)
    assert "sums per block, too many" in str(Blocked().supports(many, compiled_device))
    small = BackpropProblem((2, 2, 1), 6, 10, networks=65_535)
    assert Blocked().is_pipelined(small, compiled_device)
    reason = Blocked().supports(replace(small, networks=65_536), compiled_device)
    assert "at most 65535 networks, has 65536" in str(reason)
    for unsupported in (BackpropProblem((9, 5, 3), 6, 10, batch=2),
                        BackpropProblem((9, 5, 3), 6, 10, velocity=True)):
        assert "without momentum" in str(Blocked().supports(unsupported, compiled_device))
