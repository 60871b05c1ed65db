"""Layers that share times, and layers so alike that they share the ranking of configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.measures import MeasurementRequest, likeness, timed_problem
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Paced, PacedDevice, layer

TIMES = (100.0, 90.0, 60.0, 95.0, 70.0, 97.0)


def problem(density: float, mask: str, channels: int = 4) -> Conv2dProblem:
    return Conv2dProblem(2, channels, 6, 6, 8, (3, 3), weights_info=WeightsInfo(density, mask))


def measure(tuner: Tuner, device: PacedDevice, layers: Sequence[Layer],
            *algorithms: Paced) -> list[Sequence[Candidate]]:
    tuner.measure_all([MeasurementRequest(each, algorithms, device) for each in layers])
    return [tuner.measure(each, algorithms, device) for each in layers]


def test_a_dense_algorithm_takes_no_notice_of_zeros() -> None:
    dense, sparse = Paced("dense", 1.0), Paced("sparse", 1.0, dense=False)
    one, other = problem(0.1, "one"), problem(0.2, "other")
    assert timed_problem(one, dense) == timed_problem(other, dense)
    assert timed_problem(one, sparse) == one


def test_layers_are_alike_by_shape_and_by_density_to_a_tenth() -> None:
    assert likeness(problem(0.11, "one")) == likeness(problem(0.09, "other"))
    assert likeness(problem(0.11, "one")) != likeness(problem(0.21, "one"))
    assert likeness(problem(0.1, "one")) != likeness(problem(0.1, "one", channels=5))
    assert likeness(problem(1.0, "")) is None


def test_dense_candidates_are_measured_once_for_all_layers_of_a_shape(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    dense = Paced("paced dense", 100.0, 90.0)
    known(dense)
    layers = [layer("one", mask="one", density=0.1), layer("two", mask="two", density=0.5, seed=1),
              layer("three", seed=2)]
    tuner = paced_tuner("max")
    measured = measure(tuner, paced_device, layers, dense)
    assert tuner.measured == 2 and len(dense.built) == 2
    assert [[candidate.cost for candidate in each] for each in measured] == [[100.0, 90.0]] * 3
    # the constants of the other layers are checked once each, before the candidate is taken
    fastest = measured[1][1]
    for _ in range(2):
        assert tuner.verified([(layers[1], fastest, paced_device)]) == [fastest]
    assert len(dense.built) == 3 and tuner.measured == 2
    assert tuner.verified([(each, fastest, paced_device) for each in layers]) == [fastest] * 3
    assert len(dense.built) == 4
    tuner.verified([(layers[2], fastest, paced_device)])
    assert len(dense.built) == 4
    later = paced_tuner("max")
    measure(later, paced_device, [layer("four", mask="four", density=0.3)], dense)
    assert (later.measured, later.reused) == (0, 2)


def test_the_second_of_two_layers_that_are_alike_gets_the_best_configs_of_the_first(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    sparse = Paced("paced sparse", *TIMES, dense=False)
    known(sparse)
    layers = [layer("one", mask="one", density=0.11),
              layer("two", mask="two", density=0.09, seed=1)]
    tuner = paced_tuner()
    first, second = measure(tuner, paced_device, layers, sparse)
    assert [candidate.cost for candidate in first] == list(TIMES)
    # the first config is what a plan without measurements takes, so that it is known of each layer
    assert [n for n, candidate in enumerate(second) if not candidate.measured.failure] == [0, 2, 4]
    assert {candidate.measured.failure for candidate in second if candidate.measured.failure} == {
        "not tried: not among the best for one, which is alike"}
    assert tuner.measured == len(sparse.built) == 6 + 3 and tuner.not_tried == 3
    again = paced_tuner()
    measure(again, paced_device, layers, sparse)
    assert (again.measured, again.reused, again.not_tried) == (0, 9, 3)


@pytest.mark.parametrize("effort", ["normal", "max"])
def test_layers_that_are_not_alike_get_all(paced_device: PacedDevice, effort: str,
                                           paced_tuner: Callable[..., Tuner],
                                           known: Callable[..., None]) -> None:
    sparse = Paced("paced sparse", *TIMES, dense=False)
    known(sparse)
    other = 0.5 if effort == "normal" else 0.1
    layers = [layer("one", mask="one", density=0.1),
              layer("two", mask="two", density=other, seed=1)]
    tuner = paced_tuner(effort)
    measure(tuner, paced_device, layers, sparse)
    assert tuner.measured == 12 and tuner.not_tried == 0


def test_a_check_with_other_constants_is_stored(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    dense = Paced("paced dense", 100.0)
    known(dense)
    one, two = layer("one"), layer("two", seed=1)
    for _ in range(2):
        tuner = paced_tuner()
        _, (candidate,) = measure(tuner, paced_device, [one, two], dense)
        assert tuner.verified([(two, candidate, paced_device)]) == [candidate]
        # once to be measured and once to be checked with the other constants
        assert len(dense.built) == 2


def test_an_interrupt_keeps_the_checks_that_were_passed(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Paced("paced dense", 100.0)
    known(dense)
    layers = [layer(name, seed=seed) for seed, name in enumerate(("one", "two", "three"))]
    tuner = paced_tuner()
    (candidate,) = measure(tuner, paced_device, layers, dense)[0]
    checked = CandidateSet.checked

    def interrupted(candidates: CandidateSet, *arguments: Any) -> Any:
        if candidates.digest == layers[2].digest:
            raise KeyboardInterrupt
        return checked(candidates, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CandidateSet, "checked", interrupted)
        tuner.verified([(each, candidate, paced_device) for each in layers])
    before = len(dense.built)
    paced_tuner().verified([(layers[1], candidate, paced_device)])
    assert len(dense.built) == before
