"""Times that scatter, as they do where another program keeps the device busy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from gossamer import measure as measure_module
from gossamer.plan.candidate import Candidate
from gossamer.plan.tune.candidates import CandidateSet
from gossamer.plan.tune.measures import MeasurementRequest
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Paced, PacedDevice, layer

SCATTERED = measure_module.SCATTERED


@pytest.fixture
def notices(paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
            known: Callable[..., None],
            monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Returns a function that measures an algorithm on a device, whose times are multiplied by the
    factors in turn, and returns the notices."""
    def measured(*factors: float) -> list[str]:
        turns, time = itertools.cycle(factors), paced_device.time
        monkeypatch.setattr(paced_device, "time",
                            lambda work, stream=None: time(work, stream) * next(turns))
        monkeypatch.setattr(measure_module, "SCATTERED", SCATTERED)
        algorithm = Paced("paced", *(100.0,) * 40)  # about a third of them are sampled
        known(algorithm)
        tuner = paced_tuner("max")
        tuner.measure_all([MeasurementRequest(layer("one"), [algorithm], paced_device)])
        assert tuner.measured == 40
        return tuner.notices

    return measured


@pytest.fixture
def all_candidates(paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
                   known: Callable[..., None]) -> Callable[..., list[Candidate]]:
    """Returns a function that measures all configs of an algorithm, and returns its candidates."""
    def measured(*times_us: float) -> list[Candidate]:
        algorithm = Paced("paced", *times_us)
        known(algorithm)
        request = MeasurementRequest(layer("one"), [algorithm], paced_device)
        tuner = paced_tuner("max")
        tuner.measure_all([request])
        return tuner.measure(request.layer, request.algorithms, paced_device)

    return measured


def test_steady_times_are_not_told(notices: Callable[..., list[str]]) -> None:
    assert notices(1.0, 1.1, 1.0, 1.1, 1.05) == []


def test_times_that_scatter_are_told(notices: Callable[..., list[str]]) -> None:
    (notice,) = notices(1.0, 2.0, 1.0, 2.0, 1.5)
    assert re.match(r"the times on .* scatter by \d+% from quartile to quartile", notice)


def test_the_best_is_timed_cold_though_no_time_is_near_the_best_first_sample(
        paced_device: PacedDevice, all_candidates: Callable[..., list[Candidate]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    # one execution and the first sample of each candidate come out shorter than all others
    calls, time = itertools.count(), paced_device.time
    monkeypatch.setattr(paced_device, "time", lambda work, stream=None: (
        time(work, stream) * (0.8 if next(calls) < 4 else 1.0)))
    monkeypatch.setattr(CandidateSet, "cold", lambda self, work: 500.0)
    best, other = all_candidates(100.0, 110.0)
    assert (best.measured.median_us, best.measured.cold_us) == (100.0, 500.0)
    assert (other.measured.median_us, other.measured.cold_us) == (110.0, None)


@pytest.mark.parametrize("disturbance_us", [900.0, 5000.0])
def test_one_long_execution_does_not_exclude_the_fastest(
        paced_device: PacedDevice, all_candidates: Callable[..., list[Candidate]],
        monkeypatch: pytest.MonkeyPatch, disturbance_us: float) -> None:
    # where candidates are built side by side, other processes use the device meanwhile
    monkeypatch.setattr(PacedDevice, "builds_side_by_side", True)
    disturbed, time = iter([disturbance_us]), paced_device.time

    def with_disturbance(work: Callable, stream: object = None) -> float:
        took = time(work, stream)
        return took + next(disturbed, 0.0) if took == 5.0 else took

    monkeypatch.setattr(paced_device, "time", with_disturbance)
    other, best = all_candidates(10.0, 5.0)
    assert (other.measured.median_us, best.measured.median_us) == (10.0, 5.0)
