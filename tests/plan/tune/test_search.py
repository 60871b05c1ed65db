"""The search: what is measured, stored and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidate_checks import CandidateChecks
from gossamer.plan.tune.rows import LayerCandidates, timed_problem
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Known, MakeTuner, Paced, PacedDevice, layer


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_taken_is_the_best_of_what_was_measured(
        seed: int, side_by_side: bool, paced_device: PacedDevice, paced_tuner: MakeTuner,
        known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(paced_device), "builds_side_by_side", side_by_side)
    rng = np.random.default_rng(seed)
    algorithms = [Paced(f"paced{number}", *rng.uniform(20.0, 500.0, 3).round(1),
                        model_us=float(rng.uniform(50.0, 300.0))) for number in range(4)]
    known(*algorithms)
    tuner = paced_tuner("quick")
    layers = [layer(f"layer{channels}", channels=channels) for channels in (4, 8, 16)]
    tuner.measure_all([LayerCandidates(each, algorithms, paced_device) for each in layers])
    for each in layers:
        candidates = tuner.measure(each, algorithms, paced_device)
        for candidate in candidates:
            time_us = candidate.algorithm.times_us[  # type: ignore[attr-defined]
                int(str(candidate.variant["n"]))]
            assert candidate.measured.not_tried or candidate.cost == pytest.approx(time_us)
            if candidate.measured.not_tried:
                assert (candidate.measured.failure or "").startswith("not tried: ")
    assert tuner.measured + tuner.not_tried == sum(
        len(tuner.measure(each, algorithms, paced_device)) for each in layers)


def measured_configs(algorithm: Paced, tuner: Tuner, device: PacedDevice) -> list[int]:
    """Returns the configs that are measured of an algorithm, in order."""
    tuner.measure(layer(), [algorithm], device)
    return [n for _, n in algorithm.built]


def test_the_first_round_takes_the_configs_that_the_model_expects_to_be_fastest(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    class Modelled(Paced):
        def expected_us(self, problem: Any, variant: Variant, device: Device) -> float:
            return {3: 10.0, 1: 19.0}.get(int(str(variant["n"])), 500.0)

    algorithm = Modelled("modelled", 30.0, 20.0, 30.0, 10.0)
    known(algorithm)
    tuner = paced_tuner("quick")
    assert measured_configs(algorithm, tuner, paced_device) == [3, 1]


def test_a_round_goes_on_with_the_algorithms_near_the_best(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    near = Paced("near", 10.0, 10.0, *(8.0,) * 6, model_us=20.0)
    far = Paced("far", *(15.0,) * 8, model_us=20.0)
    known(near, far)
    candidates = paced_tuner("quick").measure(layer(), [near, far], paced_device)
    # 15 us are within twice 10 us, but not within 1.5 times 8 us
    assert (len(near.built), len(far.built)) == (8, 4)
    assert {candidate.measured.failure for candidate in candidates[12:]} == {
        "not tried: not reached in any round; estimate 14.2 us, limit 8.0 us"}


def test_layers_that_differ_in_their_zeros_take_the_best_config_of_the_first(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    """Each candidate would be built for the zeros of one layer."""
    sparse = Paced("sparse", 20.0, 10.0, dense=False, model_us=20.0)
    dense = Paced("dense", 50.0, model_us=40.0)
    known(sparse, dense)
    layers = [layer(f"conv{n}", mask=f"mask {n}", density=0.1 + n / 100, seed=n)
              for n in range(4)]
    tuner = paced_tuner("quick")
    tuner.measure_all([LayerCandidates(each, [dense, sparse], paced_device) for each in layers])
    firsts = [float(each.weights["weight"].flat[0]) for each in layers]
    assert sparse.built == [(firsts[0], 0), (firsts[0], 1), *((first, 1) for first in firsts[1:])]


def test_what_builds_long_is_measured_where_the_plan_would_take_it(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    class Long(Paced):
        def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
            return (replace(each, builds_long=True) for each in super().variants(problem, device))

    fast = Paced("fast", 10.0, model_us=10.0)
    slow, faster = Long("slow", 5.0, model_us=20.0), Long("faster", 5.0, model_us=9.0)
    known(fast, slow, faster)
    candidates = paced_tuner("quick").measure(layer(), [fast, slow, faster], paced_device)
    assert [len(each.built) for each in (fast, slow, faster)] == [1, 0, 1]
    assert candidates[1].measured.failure == (
        "not tried: not reached in any round; estimate 19.0 us, limit 5.0 us")


def test_the_rounds_measure_what_a_plan_would_take(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    algorithm = Paced("paced", *(10.0,) * 6)
    known(algorithm)
    conv, rounds = layer(), []

    def promising() -> list[tuple[LayerCandidates, Candidate]]:
        candidates = tuner.candidates(request)
        rounds.append([candidate.estimated_us is not None for candidate in candidates])
        return [(request, candidates[5])]

    tuner = paced_tuner("quick")
    request = LayerCandidates(conv, [algorithm], paced_device)
    tuner.measure_all([request], promising)
    assert [n for _, n in algorithm.built] == [0, 1, 5, 2, 3]
    assert rounds == [[False] * 2 + [True] * 4]
    assert tuner.candidates(request)[4].measured.failure == (
        "not tried: not reached in any round; estimate 9.5 us, limit 10.0 us")


LAYERS = [layer(f"layer{channels}", channels=channels) for channels in range(4, 20)]


def test_the_next_search_leaves_out_the_same(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    algorithm = Paced("paced", *(100.0,) * 6)
    known(algorithm)
    requests = [LayerCandidates(each, [algorithm], paced_device) for each in LAYERS]
    tuner = paced_tuner("quick")
    tuner.measure_all(requests)
    assert 16 <= tuner.measured < 96 and tuner.measured + tuner.not_tried == 96
    again = paced_tuner("quick")
    again.measure_all(requests)
    assert (again.measured, again.reused, again.not_tried) == (
        0, tuner.measured, tuner.not_tried)


@pytest.mark.parametrize("batch", [0, 1])
def test_only_layers_without_numbers_take_no_time(
        batch: int, paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    algorithm, tuner = Paced("paced", 100.0), paced_tuner()
    known(algorithm)
    problem = Conv2dProblem(batch, 4, 1, 1, 1, (1, 1))
    single = Layer("conv", ["x"], ["y"], problem,
                   {"weight": np.ones((1, 4, 1, 1), np.float32)})
    (candidate,) = tuner.measure(single, [algorithm], paced_device)
    assert candidate.cost == 100.0 * batch and tuner.measured == batch


def problem(density: float, mask: str, channels: int = 4) -> Conv2dProblem:
    return Conv2dProblem(2, channels, 6, 6, 8, (3, 3), weights_info=WeightsInfo(density, mask))


def measure(tuner: Tuner, device: PacedDevice, layers: Sequence[Layer],
            *algorithms: Paced) -> list[Sequence[Candidate]]:
    tuner.measure_all([LayerCandidates(each, algorithms, device) for each in layers])
    return [tuner.measure(each, algorithms, device) for each in layers]


def test_a_dense_algorithm_takes_no_notice_of_zeros() -> None:
    dense, sparse = Paced("dense", 1.0), Paced("sparse", 1.0, dense=False)
    one, other = problem(0.1, "one"), problem(0.2, "other")
    assert timed_problem(one, dense) == timed_problem(other, dense)
    assert timed_problem(one, sparse) == one


def test_dense_candidates_are_measured_once_for_all_layers_of_a_shape(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
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


def test_a_check_with_other_constants_is_stored(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
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
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known,
        monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Paced("paced dense", 100.0)
    known(dense)
    layers = [layer(name, seed=seed) for seed, name in enumerate(("one", "two", "three"))]
    tuner = paced_tuner()
    (candidate,) = measure(tuner, paced_device, layers, dense)[0]
    checked = CandidateChecks.checked

    def interrupted(candidates: CandidateChecks, *arguments: Any) -> Any:
        if candidates.digest == layers[2].digest:
            raise KeyboardInterrupt
        return checked(candidates, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CandidateChecks, "checked", interrupted)
        tuner.verified([(each, candidate, paced_device) for each in layers])
    before = len(dense.built)
    paced_tuner().verified([(layers[1], candidate, paced_device)])
    assert len(dense.built) == before
