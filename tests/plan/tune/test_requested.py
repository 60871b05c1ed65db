"""Requests and more configs join the queue while candidates are measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.registry import find
from gossamer.ops.algorithm import Algorithm, State
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer
from gossamer.plan.tune import candidate_builds, requested, worker_pools
from gossamer.plan.tune import tuner as tuner_module
from gossamer.plan.tune.listing import Listing
from gossamer.plan.tune.measures import Further, Request, When
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.tuner import Tuner
from gossamer.plan.tune.workers import BuildHereError
from tests.made import made
from tests.plan.tune.paced import Paced, PacedDevice, layer

TunerMaker = Callable[..., Tuner]
HOST_ALGORITHMS = OPS["conv2d"].algorithms


@pytest.fixture(params=[True, False], ids=["side by side", "one after another"])
def side_by_side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", request.param)
    return request.param


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[AttemptQueue]:
    """Returns the list of the queues that tuners make."""
    return made(monkeypatch, tuner_module, "AttemptQueue")


def further(when: When, requests: Sequence[Request], seen: dict[When, float],
            of: Layer) -> Further:
    """Returns requests for a moment, which note the best time of a layer that is known then."""
    def make(best_us: Callable[[Layer], float]) -> Sequence[Request]:
        seen[when] = best_us(of)
        return requests

    return Further(when, make)


def test_further_requests_are_made_at_their_moments(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None],
        side_by_side: bool) -> None:
    paced = Paced("paced", 100.0, 90.0)
    known(paced)
    layers = [layer(str(n), channels=4 + n, seed=n) for n in range(5)]
    first, *others = ([Request(each, [paced], paced_device)] for each in layers)
    seen: dict[When, float] = {}
    tuner = paced_tuner()
    tuner.measure_all(first, [further(when, requests, seen, layers[0])
                              for when, requests in zip(When, others, strict=True)])
    assert list(seen) == list(When)
    assert seen[When.BUILDING] == (math.inf if side_by_side else 90.0)
    assert seen[When.TIMED] <= 100.0 and seen[When.LAST] <= 100.0
    assert tuner.measured == 10
    for each in layers:
        assert [candidate.cost for candidate in tuner.measure(each, [paced], paced_device)] == [
            100.0, 90.0]
    assert tuner.measured == 10, "all was measured in one queue"


def test_what_is_requested_when_all_is_timed_does_not_wait_for_what_is_left(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None],
        queues: list[AttemptQueue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    monkeypatch.setattr(candidate_builds, "processors", lambda: 2)
    paced, slow = Paced("paced", *[100.0] * 40), Paced("slow", 900.0, model_us=1000.0)
    known(paced, slow)
    one, other, region, later = (layer(name, channels=4 + n, seed=n)
                                 for n, name in enumerate(("one", "other", "region", "later")))
    left: dict[When, int] = {}
    region_us: dict[When, float] = {}

    def note(when: When, requests: Sequence[Request]) -> Further:
        def make(best_us: Callable[[Layer], float]) -> Sequence[Request]:
            assert best_us(one) < math.inf and best_us(other) < math.inf
            left[when], region_us[when] = sum(map(len, queues)), best_us(region)
            return requests
        return Further(when, make)

    tuner = paced_tuner("max")
    tuner.measure_all([*(Request(each, [paced], paced_device) for each in (one, other)),
                       Request(region, [slow], paced_device, alone_us=10.0)],
                      [note(When.TIMED, [Request(later, [paced], paced_device)]),
                       note(When.LAST, [])])
    assert left[When.TIMED] > 0 and left[When.LAST] == 0 and tuner.measured == 121
    assert region_us[When.TIMED] == math.inf, "its candidate is not expected to be of use"


def test_further_requests_are_made_where_nothing_is_left_to_measure_before(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None]) -> None:
    paced = Paced("paced", 100.0, 90.0)
    known(paced)
    request = Request(layer(), [paced], paced_device)
    tuner = paced_tuner()
    tuner.measure_all([], [further(When.LAST, [request], {}, request.layer)])
    assert tuner.measured == 2


def test_further_requests_of_another_device_are_measured_there(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None]) -> None:
    paced = Paced("paced", 100.0)
    known(paced)
    host = find("host")
    here, there = layer("here"), layer("there", channels=5)
    able = [algorithm for algorithm in HOST_ALGORITHMS if there.problem is not None
            and algorithm.supports(there.problem, host) is None][:1]
    tuner = paced_tuner("quick")
    tuner.measure_all([Request(here, [paced], paced_device)],
                      [further(When.LISTED, [Request(there, able, host)], {}, here)])
    measured = tuner.measured
    assert tuner.measure(there, able, host)[0].measured.failure is None
    assert tuner.measured == measured > 1


def test_what_the_libraries_offer_is_waited_for_where_nothing_else_is_left(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None],
        side_by_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced("paced", 100.0)
    known(paced)
    waited = []
    monkeypatch.setattr(Listing, "is_done", property(lambda self: bool(waited)))
    monkeypatch.setattr(Listing, "wait", lambda self: waited.append(True))
    late = layer("late", channels=5)
    tuner = paced_tuner()
    tuner.measure_all([Request(layer(), [paced], paced_device)],
                      [further(When.LISTED, [Request(late, [paced], paced_device)], {}, late)])
    assert waited == [True] and tuner.measured == 2


class Builders:
    """In place of processes that build: notes what it is asked and leaves it to this process."""

    asked: ClassVar[list[str]] = []

    def __init__(self, device: Device, count: int, *, on_device: bool = False) -> None:
        """Takes what BuildWorkers takes."""

    def submit(self, algorithm: Algorithm, *arguments: Any) -> Future[Any]:
        self.asked.append(algorithm.name)
        future: Future[Any] = Future()
        future.set_exception(BuildHereError("nothing is built elsewhere"))
        return future

    def close(self) -> None:
        """Returns at once."""


def test_processes_that_start_late_build(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    monkeypatch.setattr(PacedDevice, "build_only", lambda self: None)
    monkeypatch.setattr(worker_pools, "BuildWorkers", Builders)
    monkeypatch.setattr(worker_pools, "processors", lambda: 2)
    monkeypatch.setattr(Builders, "asked", [])
    dense, sparse = Paced("dense", 100.0), Paced("sparse", 50.0, dense=False)
    known(dense, sparse)
    request = Request(layer(mask="some", density=0.5), [dense, sparse], paced_device)
    tuner = paced_tuner()
    tuner.measure_all([replace(request, algorithms=[dense])],
                      [further(When.LISTED, [request], {}, request.layer)])
    assert tuner.measured == 2 and Builders.asked == ["sparse"]


def test_the_libraries_are_asked_after_the_first_candidates_are_begun(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None],
        queues: list[AttemptQueue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    paced, begun = Paced("paced", 100.0, 90.0), []
    known(paced)
    monkeypatch.setattr(Listing, "ask_now", lambda self: begun.append(len(queues[0])))
    request = Request(layer(), [paced], paced_device)
    paced_tuner().measure_all([request], [further(When.LAST, [], {}, request.layer)])
    assert begun[0] < 2


def test_a_layer_that_is_requested_later_has_the_times_of_one_with_its_problem(
        paced_device: PacedDevice, paced_tuner: TunerMaker, known: Callable[..., None]) -> None:
    paced = Paced("paced", 100.0, 90.0)
    known(paced)
    masked = layer("masked", mask="some", density=0.5)
    tuner = paced_tuner()
    seen: dict[When, float] = {}
    tuner.measure_all([Request(layer(), [paced], paced_device)], [
        further(When.LISTED, [Request(masked, [paced], paced_device)], {}, masked),
        further(When.LAST, [], seen, masked)])
    assert seen[When.LAST] == 90.0
    assert tuner.measured == 2


class Uneven(Paced):
    """Its second config takes half the time of its first where a layer has an even number of
    channels, and one and a half times as long elsewhere; its third config is the fastest."""

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        before = state.device.elapsed_us  # type: ignore[attr-defined]
        super().launch(state, inputs, outputs, workspace, stream)
        is_even = state.problem.channels % 2 == 0  # type: ignore[attr-defined]
        times = (100.0, 50.0 if is_even else 150.0, 40.0, 60.0, 60.0, 60.0, 1.0)
        state.device.elapsed_us = before + times[int(str(state.variant["n"]))]  # type: ignore


LAYERS = [layer(str(n), channels=4 + n, seed=n) for n in range(14)]
"""Seven layers of each kind, of which enough is known together."""


@pytest.fixture
def uneven(known: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Uneven:
    monkeypatch.setattr(requested, "_EXTRA", 1e4)
    algorithm = Uneven("uneven", *[1.0] * 7)
    known(algorithm)
    return algorithm


def measured(tuner: Tuner, algorithm: Paced, device: PacedDevice) -> list[Sequence[Candidate]]:
    tuner.start()
    tuner.measure_all([], [further(When.LAST, [Request(each, [algorithm], device)
                                               for each in LAYERS], {}, LAYERS[0])])
    tuner.flush()
    return [tuner.measure(each, [algorithm], device) for each in LAYERS]


def test_more_configs_are_tried_where_others_of_the_algorithm_say_that_they_may_save_time(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    first = measured(paced_tuner("quick"), uneven, paced_device)
    # what is learnt of layers with an odd number of channels holds for the others too
    assert [len(candidates) for candidates in first] == [6] * 14
    assert [min(candidate.cost for candidate in candidates) for candidates in first] == [40.0] * 14
    again = paced_tuner("quick")
    tried = [[candidate for candidate in candidates if not candidate.measured.not_tried]
             for candidates in first]
    assert [[candidate for candidate in candidates if not candidate.measured.not_tried]
            for candidates in measured(again, uneven, paced_device)] == tried
    assert again.measured == 0, "a later plan has the same candidates"


def test_more_configs_are_tried_for_a_share_of_the_time_only(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested, "_EXTRA", 0.0)
    odd = measured(paced_tuner("quick"), uneven, paced_device)[1]
    assert [candidate.measured.failure for candidate in odd] == [
        None, None, *["not tried: the time for more configs was over"] * 4]


def test_what_a_plan_with_more_effort_measured_is_taken(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    measured(paced_tuner("max"), uneven, paced_device)
    tuner = paced_tuner("quick")
    assert [len(candidates) for candidates in measured(tuner, uneven, paced_device)] == [6] * 14
    assert tuner.measured == 0


def test_a_layer_that_has_no_time_keeps_the_others_from_no_configs(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker,
        known: Callable[..., None]) -> None:
    class Failing(Paced):
        def prepare(self, *arguments: Any) -> State:
            raise ValueError("it cannot be built")

    failing = Failing("failing", 1.0)
    known(failing)
    requests = [Request(each, [uneven], paced_device) for each in LAYERS]
    tuner = paced_tuner("quick")
    tuner.measure_all([*requests, Request(layer("bad", channels=50), [failing], paced_device)],
                      [further(When.LAST, [], {}, LAYERS[0])])
    assert len(tuner.measure(LAYERS[1], [uneven], paced_device)) == 6


def test_layers_of_one_shape_count_together_and_have_the_same_configs(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    masked = [layer(f"masked{n}", channels=5, mask=str(n), density=0.5, seed=1) for n in range(3)]
    requests = [Request(each, [uneven], paced_device) for each in (*LAYERS, *masked)]
    tuner = paced_tuner("quick")
    tuner.measure_all(requests, [further(When.LAST, [], {}, LAYERS[0])])
    assert tuner.measured == 14 * 6 - tuner.not_tried
    for each in masked:
        costs = [candidate.cost for candidate in tuner.measure(each, [uneven], paced_device)]
        assert len(costs) == 6 and min(costs) == 40.0


def test_no_more_configs_are_tried_where_others_of_the_algorithm_are_slower(
        known: Callable[..., None], paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    algorithm = Paced("well ordered", 100.0, 150.0, 40.0)
    known(algorithm)
    assert all(len(candidates) == 2
               for candidates in measured(paced_tuner("quick"), algorithm, paced_device))


def test_requests_that_nothing_follows_have_no_more_configs(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    tuner = paced_tuner("quick")
    tuner.measure_all([Request(each, [uneven], paced_device) for each in LAYERS])
    assert tuner.measured == 28


def test_nothing_more_is_listed_when_measuring_has_ended(
        uneven: Uneven, paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    tuner = paced_tuner("quick", progress=lambda progress: (
        tuner.stop() if progress.done == progress.candidates == 28 else None))
    asked = []
    tuner.measure_all([Request(each, [uneven], paced_device) for each in LAYERS], [
        Further(When.LAST, lambda best_us: asked.append(best_us) or [])])  # type: ignore
    assert tuner.measured == 28 and not tuner.not_tried and not asked


class ByPrecision(Paced):
    """Its configs are listed the other way round in float16."""

    def variants_in(self, problem: Any, device: Any, precisions: Sequence[str]) -> Any:
        listed = [variant for variant in self.variants(problem, device)
                  if variant.precision in precisions]
        return reversed(listed) if "fp16" in precisions else listed


def test_what_another_precision_measured_adds_nothing_to_be_measured(
        known: Callable[..., None], paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    algorithm = ByPrecision("reversed", *[100.0] * 20, precisions=("fp32", "fp16"))
    known(algorithm)
    request = Request(layer(), [algorithm], paced_device)
    for precision in ("fp32", "fp16", "fp32"):
        tuner = paced_tuner(precision=precision)
        tuner.measure_all([request])
        together = tuner.measured
        tuner.flush()
        assert len(tuner.measure(request.layer, [algorithm], paced_device)) >= 6
        assert tuner.measured == together
    assert together == 0


def test_algorithms_that_skip_zeros_have_no_more_configs(
        known: Callable[..., None], paced_device: PacedDevice, paced_tuner: TunerMaker) -> None:
    sparse = Uneven("sparse", *[1.0] * 7, dense=False)
    known(sparse)
    assert all(len(candidates) == 2
               for candidates in measured(paced_tuner("quick"), sparse, paced_device))
