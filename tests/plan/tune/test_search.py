"""The search: what is measured, stored and left out, and layers of similar shape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer
from gossamer.errors import DeviceError
from gossamer.ops.algorithm import State
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.candidate import Candidate
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.cost import Estimates
from gossamer.plan.tune.layer_times import Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.measures import MeasurementRequest, similar_shape, timed_problem
from gossamer.plan.tune.ranking import Ranking
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Paced, PacedDevice, layer


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_taken_is_the_best_of_what_was_measured_and_no_worse_than_the_first(
        seed: int, side_by_side: bool, paced_device: PacedDevice,
        paced_tuner: Callable[..., Tuner], known: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(paced_device), "builds_side_by_side", side_by_side)
    rng = np.random.default_rng(seed)
    algorithms = [Paced(f"paced{number}", *rng.uniform(20.0, 500.0, 3).round(1),
                        model_us=float(rng.uniform(50.0, 300.0))) for number in range(4)]
    known(*algorithms)
    tuner = paced_tuner("quick")
    layers = [layer(f"layer{channels}", channels=channels) for channels in (4, 8, 16)]
    tuner.measure_all([MeasurementRequest(each, algorithms, paced_device) for each in layers])
    for each in layers:
        candidates = tuner.measure(each, algorithms, paced_device)
        if not side_by_side:  # otherwise it may be left out by what is expected
            assert min(candidate.cost for candidate in candidates) <= algorithms[0].times_us[0]
        for candidate in candidates:
            time_us = candidate.algorithm.times_us[  # type: ignore[attr-defined]
                int(str(candidate.variant["n"]))]
            assert candidate.measured.not_tried or candidate.cost == pytest.approx(time_us)
            if candidate.measured.not_tried:
                assert (candidate.measured.failure or "").startswith("not tried: ")
    assert tuner.measured + tuner.not_tried == sum(
        len(tuner.measure(each, algorithms, paced_device)) for each in layers)


def test_all_is_requested_before_more_is_measured(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    algorithm, built = Paced("paced", 100.0, 90.0), []
    known(algorithm)

    def others() -> list[MeasurementRequest]:
        built.append(len(algorithm.built))
        return [request(8), request(16)]

    def request(channels: int) -> MeasurementRequest:
        return MeasurementRequest(layer(f"layer{channels}", channels=channels), [algorithm],
                                  paced_device)

    tuner = paced_tuner()
    tuner.measure_network([[request(4)]], others, "a network")
    assert built == [0] and tuner.measured == 6
    tuner.release()


class Telling(Paced):
    """A paced algorithm that tells when its first candidate is built, and when it is measured."""

    def __init__(self, name: str, *times_us: float) -> None:
        super().__init__(name, *times_us)
        self.is_built, self.is_measured = threading.Event(), threading.Event()

    def prepare(self, *arguments: Any) -> State:
        self.is_built.set()
        return super().prepare(*arguments)

    def launch(self, *arguments: Any, **options: Any) -> None:
        self.is_measured.set()
        super().launch(*arguments, **options)


def test_candidates_are_built_while_the_next_requests_are_made(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner], known: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    first, second = Telling("first", 100.0), Paced("second", 90.0)
    known(first, second)

    def requests() -> Iterator[list[MeasurementRequest]]:
        yield [MeasurementRequest(layer(), [first], paced_device)]
        assert first.is_built.wait(20.0)
        yield []
        yield [MeasurementRequest(layer(), [second], paced_device)]

    tuner = paced_tuner()
    tuner.measure_network(requests(), list, "a network")
    assert tuner.measured == 2
    tuner.release()


def test_candidates_are_measured_while_further_requests_are_made(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner], known: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    first, second = Telling("first", 100.0), Paced("second", 90.0)
    known(first, second)

    def others() -> list[MeasurementRequest]:
        assert first.is_measured.wait(20.0)
        return [MeasurementRequest(layer(), [second], paced_device)]

    tuner = paced_tuner()
    tuner.measure_network(
        [[MeasurementRequest(layer(), [first], paced_device)]], others, "a network")
    assert tuner.measured == 2
    tuner.release()


def test_an_error_of_further_requests_ends_the_search(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    def others() -> list[MeasurementRequest]:
        raise DeviceError("the library has failed")

    algorithm = Paced("paced", 100.0)
    known(algorithm)
    with pytest.raises(DeviceError, match="the library has failed"):
        paced_tuner().measure_network(
            [[MeasurementRequest(layer(), [algorithm], paced_device)]], others, "a network")


def test_a_layer_without_a_time_is_tried_by_what_is_expected(paced_device: PacedDevice) -> None:
    conv = layer()
    assert isinstance(conv.problem, Conv2dProblem)
    group = CandidateGroup(conv.problem, conv)
    group.join(LayerTimes("conv"))
    attempts = []
    for name, model_us in (("slowest", 300.0), ("slower", 200.0), ("fastest", 100.0)):
        algorithm = Paced(name, 100.0, model_us=model_us)
        (variant,) = algorithm.variants(conv.problem, paced_device)
        attempts.append(Attempt(group, algorithm, variant, model_us))
        group.add(attempts[-1])
    ranking = Ranking(Estimates(paced_device), EFFORTS["quick"], required_first=False)
    ranking.extend(attempts)
    taken = [ranking.pop() for _ in attempts]
    assert [each and each[0].algorithm.name for each in taken] == ["fastest", "slower", "slowest"]


class Mixed(Paced):
    """A convolution whose second config takes a share of the time of the first for layers with an
    even number of channels, and the same time for others; its further ones take 50 us."""

    def __init__(self, share: float) -> None:
        super().__init__("mixed", 100.0, 100.0, 50.0, 50.0, 50.0)
        self._share = share

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        super().launch(state, inputs, outputs, workspace, stream)
        if state.variant["n"] == 1 and state.problem.inputs[0].shape[1] % 2 == 0:
            state.device.elapsed_us -= 100.0 * (1.0 - self._share)


LAYERS = [layer(f"layer{channels}", channels=channels) for channels in range(4, 20)]


@pytest.mark.parametrize(("share", "best_us"), [(0.6, 50.0), (1.0, 100.0)])
def test_more_configs_are_tried_where_the_first_ones_promise_something(
        share: float, best_us: float, paced_device: PacedDevice,
        paced_tuner: Callable[..., Tuner], known: Callable[..., None]) -> None:
    algorithm = Mixed(share)
    known(algorithm)
    tuner = paced_tuner("quick")
    tuner.measure_all([MeasurementRequest(each, [algorithm], paced_device) for each in LAYERS])
    for each in LAYERS[1::2]:
        assert min(candidate.cost for candidate in tuner.measure(
            each, [algorithm], paced_device)) == pytest.approx(best_us)


def test_the_next_search_leaves_out_the_same(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    algorithm = Mixed(1.0)
    known(algorithm)
    requests = [MeasurementRequest(each, [algorithm], paced_device) for each in LAYERS]
    tuner = paced_tuner("quick")
    tuner.measure_all(requests)
    assert 16 <= tuner.measured < 80 and tuner.measured + tuner.not_tried == 80
    again = paced_tuner("quick")
    again.measure_all(requests)
    assert (again.measured, again.reused, again.not_tried) == (
        0, tuner.measured, tuner.not_tried)


@pytest.mark.parametrize("batch", [0, 1])
def test_only_layers_without_numbers_take_no_time(
        batch: int, paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    algorithm, tuner = Paced("paced", 100.0), paced_tuner()
    known(algorithm)
    problem = Conv2dProblem(batch, 4, 1, 1, 1, (1, 1))
    single = Layer("conv", ["x"], ["y"], problem,
                   {"weight": np.ones((1, 4, 1, 1), np.float32)})
    (candidate,) = tuner.measure(single, [algorithm], paced_device)
    assert candidate.cost == 100.0 * batch and tuner.measured == batch


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
    assert similar_shape(problem(0.11, "one")) == similar_shape(problem(0.09, "other"))
    assert similar_shape(problem(0.11, "one")) != similar_shape(problem(0.21, "one"))
    assert similar_shape(problem(0.1, "one")) != similar_shape(problem(0.1, "one", channels=5))
    assert similar_shape(problem(1.0, "")) is None


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
