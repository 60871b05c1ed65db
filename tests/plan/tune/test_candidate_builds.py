"""Candidates that are built ahead of their measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gossamer import measure
from gossamer.errors import GossamerError
from gossamer.ops.algorithm import State
from gossamer.plan.prepare import BuiltForms
from gossamer.plan.tune import candidate_builds
from gossamer.plan.tune import runner as runner_module
from gossamer.plan.tune.candidate_builds import CandidateBuilds
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.layer_times import Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import TuningProfile
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.runner import AttemptRunner, attempts_of
from tests.plan.tune.paced import Paced, PacedDevice, layer

SECONDS = 20.0
"""Seconds after which a thread that waits in vain gives up."""


class Held(Paced):
    """A convolution whose builds wait until a test lets them go on."""

    def __init__(self, name: str, vendor: str = "") -> None:
        super().__init__(name, 10.0)
        self.vendor = vendor  # type: ignore[misc]
        self.goes_on = threading.Event()

    def prepare(self, *arguments: Any) -> State:
        assert self.goes_on.wait(SECONDS)
        return super().prepare(*arguments)


class Failing(Paced):
    def prepare(self, *arguments: Any) -> State:
        raise GossamerError("it cannot be built")


@pytest.fixture(autouse=True)
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    monkeypatch.setattr(candidate_builds, "processors", lambda: 4)


def attempts(count: int, algorithm: Paced, device: PacedDevice) -> list[Attempt]:
    """Returns an attempt for each of so many layers."""
    estimates, found = Estimates(device), []
    for number in range(count):
        of = layer(f"{algorithm.name} {number}", seed=number)
        assert of.problem is not None
        group = CandidateGroup(of.problem, of, [LayerTimes(of.name)])
        variant = next(iter(algorithm.variants(of.problem, device)))  # type: ignore[arg-type]
        found += attempts_of(group, [(algorithm, variant)], estimates)
    return found


def queue_of_configs(device: PacedDevice, *algorithms: Paced,
                     everything: bool = False) -> AttemptQueue:
    """Returns the queue of the configs of algorithms for one layer."""
    of, estimates = layer(), Estimates(device)
    assert of.problem is not None
    group = CandidateGroup(of.problem, of, [LayerTimes(of.name)])
    candidates = [(algorithm, variant) for algorithm in algorithms
                  for variant in algorithm.variants(of.problem, device)]  # type: ignore[arg-type]
    return AttemptQueue(attempts_of(group, candidates, estimates), estimates,
                        everything=everything)


@contextmanager
def building(queue: AttemptQueue, device: PacedDevice) -> Iterator[CandidateBuilds]:
    builds = CandidateBuilds(queue, device, CandidateMemory(device), TuningProfile(), None,
                             lambda: False)
    with builds.started():
        yield builds


def all_done(builds: CandidateBuilds) -> Iterator[tuple[Attempt, Callable[[], Any]]]:
    """Yields what is being built when it is done."""
    while builds.attempts:
        builds.wait()
        while (done := builds.done()) is not None:
            yield done


def test_those_that_need_the_compiler_and_others_have_a_limit_each(
        paced_device: PacedDevice) -> None:
    compiled, others = Held("compiled"), Held("library", vendor="a library")
    queue = AttemptQueue([*attempts(20, compiled, paced_device),
                          *attempts(20, others, paced_device)], Estimates(paced_device))

    def counts() -> tuple[int, int]:
        needing = sum(attempt.compiles for attempt in builds.attempts)
        return needing, len(builds.attempts) - needing

    with building(queue, paced_device) as builds:
        try:
            assert not list(builds.begin()) and counts() == (8, 2)
            queue.has_times = True
            others.goes_on.set()
            assert {attempt.compiles for attempt, _ in (_next(builds), _next(builds))} == {False}
            assert not list(builds.begin()) and counts() == (8, 2), "no more beside eight"
            compiled.goes_on.set()
            for _ in range(10):
                _next(builds)
            compiled.goes_on.clear()
            assert not list(builds.begin())
            assert sum(attempt.compiles for attempt in builds.attempts) == 6
        finally:
            compiled.goes_on.set()
            others.goes_on.set()
            list(all_done(builds))


def test_processors_with_nothing_to_compile_get_candidates_that_would_wait_for_others(
        paced_device: PacedDevice) -> None:
    algorithm = Held("held")
    algorithm.times_us = (10.0,) * 6
    queue = queue_of_configs(paced_device, algorithm)
    with building(queue, paced_device) as builds:
        try:
            assert not list(builds.begin())
            assert len(builds.attempts) == 4, "one, and others for the three idle processors"
        finally:
            algorithm.goes_on.set()
            list(all_done(builds))


def test_libraries_with_nothing_to_do_get_candidates_that_would_wait_for_others(
        paced_device: PacedDevice) -> None:
    compiled, library = Held("compiled"), Held("library", vendor="a library")
    queue = queue_of_configs(paced_device, compiled, library)
    with building(queue, paced_device) as builds:
        try:
            assert not list(builds.begin())
            assert {attempt.algorithm for attempt in builds.attempts} == {compiled, library}
        finally:
            compiled.goes_on.set()
            library.goes_on.set()
            list(all_done(builds))


def test_what_other_processes_took_is_remembered(paced_device: PacedDevice) -> None:
    algorithm = Paced("library", 10.0)
    algorithm.vendor = "a library"  # type: ignore[misc]

    class Workers:
        count = 4

        def submit(self, *arguments: Any) -> Future[BuiltForms]:
            future: Future[BuiltForms] = Future()
            future.set_result(BuiltForms({}, 2.0))
            return future

    queue = AttemptQueue(attempts(1, algorithm, paced_device), Estimates(paced_device))
    builds = CandidateBuilds(queue, paced_device, CandidateMemory(paced_device), TuningProfile(),
                             {True: Workers()}, lambda: False)  # type: ignore[dict-item]
    with builds.started():
        assert not list(builds.begin())
        ((_, result),) = all_done(builds)
        result()
    assert queue.costs.seconds_elsewhere("library") == 0.5


def _next(builds: CandidateBuilds) -> tuple[Attempt, Callable[[], Any]]:
    """Waits for a candidate that is built, and returns it."""
    end = time.monotonic() + SECONDS
    while (done := builds.done()) is None:
        assert time.monotonic() < end
        builds.wait()
    return done


def test_a_candidate_is_built_before_its_reference_is_computed(
        paced_device: PacedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, failing = Paced("paced", 10.0), Failing("failing", 10.0)
    built_before: list[int] = []

    class Noted(CandidateSet):
        def __init__(self, *arguments: Any) -> None:
            built_before.append(len(algorithm.built))
            super().__init__(*arguments)

    monkeypatch.setattr(candidate_builds, "CandidateSet", Noted)
    queue = AttemptQueue(attempts(1, algorithm, paced_device), Estimates(paced_device))
    with building(queue, paced_device) as builds:
        assert not list(builds.begin())
        ((attempt, result),) = all_done(builds)
        assert result()[0].variant == attempt.variant and built_before == [1]
    queue = AttemptQueue(attempts(1, failing, paced_device), Estimates(paced_device))
    with building(queue, paced_device) as builds:
        assert not list(builds.begin())
        ((_, result),) = all_done(builds)
        with pytest.raises(GossamerError, match="cannot be built"):
            result()
        assert len(built_before) == 2, "the thread that times needs the reference for a failure"


def test_candidates_share_packed_forms_while_the_reference_is_computed(
        paced_device: PacedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[str] = []

    class Packing(Paced):
        def prepare(self, weights: Any, *arguments: Any) -> State:
            def pack(arrays: Any) -> np.ndarray:
                packed.append("form")
                return np.zeros(4, np.float32)

            state = super().prepare(weights, *arguments)
            state.data = (state.data, weights.packed("form", pack))
            return state

    class Slow(CandidateSet):
        def __init__(self, *arguments: Any) -> None:
            time.sleep(0.1)
            super().__init__(*arguments)

    monkeypatch.setattr(candidate_builds, "CandidateSet", Slow)
    queue = queue_of_configs(paced_device, Packing("packing", *[10.0] * 6), everything=True)
    with building(queue, paced_device) as builds:
        assert not list(builds.begin())
        assert len([result() for _, result in all_done(builds)]) == 6
    assert packed == ["form"]


def test_when_time_is_over_few_of_the_required_are_built_at_a_time(
        paced_device: PacedDevice) -> None:
    algorithm, optional = Paced("required", 10.0), Held("optional")
    required = attempts(30, algorithm, paced_device)
    for attempt in required:
        attempt.is_required = True
    queue = AttemptQueue([*required, *attempts(30, optional, paced_device)],
                         Estimates(paced_device))
    is_over = False
    builds = CandidateBuilds(queue, paced_device, CandidateMemory(paced_device), TuningProfile(),
                             None, lambda: is_over)
    done = []
    with builds.started():
        try:
            assert not list(builds.begin())
            is_over = True
            builds.give_up_optional()
            optional.goes_on.set()
            while not list(builds.begin()) and builds.attempts:
                assert len(builds.attempts) <= 16
                done.append(_next(builds)[0])
        finally:
            optional.goes_on.set()
    assert set(done) == set(required)


def test_few_references_are_computed_at_a_time(paced_device: PacedDevice,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    class Slow(CandidateSet):
        def __init__(self, *arguments: Any) -> None:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.01)
            super().__init__(*arguments)
            with lock:
                at_once -= 1

    monkeypatch.setattr(candidate_builds, "CandidateSet", Slow)
    queue = AttemptQueue(attempts(8, Paced("paced", 10.0), paced_device), Estimates(paced_device))
    with building(queue, paced_device) as builds:
        assert not list(builds.begin())
        assert len(list(all_done(builds))) == 8
    assert most <= 2


def test_samples_are_taken_while_another_layer_is_built(
        paced_device: PacedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, held = Paced("quick", 10.0), Held("held")
    of_quick, of_held = attempts(1, quick, paced_device), attempts(1, held, paced_device)
    queue = AttemptQueue([*of_quick, *of_held], Estimates(paced_device))
    runner = AttemptRunner(queue, paced_device, CandidateMemory(paced_device), 5)
    sample = runner._sample

    def sampled(group: CandidateGroup) -> None:
        sample(group)
        # without these samples nothing lets the other layer be built
        held.goes_on.set()

    monkeypatch.setattr(runner, "_sample", sampled)
    runner.run()
    assert [attempt.time_us for attempt in (*of_quick, *of_held)] == [10.0, 10.0]
    assert of_quick[0].measured is not None and of_quick[0].measured.samples == 5


def test_the_fastest_is_sampled_again_beside_one_that_comes_later(
        paced_device: PacedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, held = Paced("quick", 10.0, 9.9, model_us=10.0), Held("held")
    (first,), of_held = attempts(1, quick, paced_device), attempts(1, held, paced_device)
    queue = AttemptQueue([first, *of_held], Estimates(paced_device))
    together: list[int] = []

    def sampled(tasks: Sequence[Any], *arguments: Any) -> Any:
        if arguments[0] > 1:
            together.append(len(tasks))
        return measure.sampled(tasks, *arguments)

    def further(*, all_begun: bool, none_built: bool) -> bool:
        if not together or held.goes_on.is_set():
            return False
        problem = first.group.problem
        variants = list(quick.variants(problem, paced_device))  # type: ignore[arg-type]
        queue.extend(attempts_of(first.group, [(quick, variants[1])], Estimates(paced_device)))
        held.goes_on.set()
        return True

    monkeypatch.setattr(runner_module, "sampled", sampled)
    AttemptRunner(queue, paced_device, CandidateMemory(paced_device), 5, further=further).run()
    assert together[0] == 1 and sorted(together[1:]) == [1, 2]
