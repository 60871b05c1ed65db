"""When measuring ends, and notices about times that scatter."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer import measure as measure_module
from gossamer.ops.algorithm import State
from gossamer.plan.candidate import Candidate
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune import tuner as tuner_module
from gossamer.plan.tune.rows import LayerCandidates, usable
from gossamer.plan.tune.tuner import Progress, Tuner
from tests.plan.tune.paced import Known, MakeTuner, Paced, PacedDevice, layer

TIMES = (100.0, 90.0, 60.0)


@pytest.fixture
def algorithm(known: Known) -> Paced:
    paced = Paced("paced", *TIMES)
    known(paced)
    return paced


LAYERS = ("one", "two")


def layers() -> list[Layer]:
    return [layer(name, channels=4 + n, seed=n) for n, name in enumerate(LAYERS)]


def measure(tuner: Tuner, device: PacedDevice, algorithm: Paced) -> list[Sequence[Candidate]]:
    of = layers()
    tuner.measure_all([LayerCandidates(each, [algorithm], device) for each in of])
    measured = [tuner.measure(each, [algorithm], device) for each in of]
    for each, candidates in zip(of, measured, strict=True):
        assert usable(each, candidates, device)
    return measured


def check_only_the_first_is_known(measured: Sequence[Sequence[Candidate]]) -> None:
    for candidates in measured:
        assert [candidate.measured.failure for candidate in candidates] == [
            None, *["not tried: the search ended early"] * 2]
        assert all(candidate.measured.not_tried for candidate in candidates[1:])


@pytest.mark.parametrize(("budget_s", "end"), [(10.0, 13.0), (100.0, 100.0)])
def test_a_budget_leaves_time_for_the_choice(
        budget_s: float, end: float, paced_tuner: MakeTuner,
        monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(tuner_module, "time", SimpleNamespace(monotonic=lambda: now))
    tuner = paced_tuner(budget_s=budget_s)
    tuner.start()
    now = end - 0.1
    assert not tuner.is_over
    now = end + 0.1
    assert tuner.is_over


def test_a_spent_budget_leaves_what_a_plan_can_do_without(
        paced_device: PacedDevice, paced_tuner: MakeTuner, algorithm: Paced) -> None:
    tuner = paced_tuner(budget_s=1e-9)
    tuner.start()
    check_only_the_first_is_known(measure(tuner, paced_device, algorithm))
    assert (tuner.measured, tuner.not_tried) == (2, 4) and tuner.is_over
    stored = [measured for each in layers() if not each.is_reshape
              for measured in tuner.cache.get(each.problem) or ()]
    assert len(stored) == 2 and not any(measured.not_tried for measured in stored)
    later = paced_tuner()
    measured = measure(later, paced_device, algorithm)
    assert [[candidate.cost for candidate in each] for each in measured] == [list(TIMES)] * 2
    assert (later.measured, later.reused, later.not_tried) == (4, 2, 0)


def test_a_budget_counts_from_its_start(paced_device: PacedDevice, algorithm: Paced,
                                        paced_tuner: MakeTuner) -> None:
    tuner = paced_tuner(budget_s=1e-9)
    assert not tuner.is_over
    measure(tuner, paced_device, algorithm)
    assert tuner.measured == 6
    generous = paced_tuner("max", budget_s=3600.0)
    generous.start()
    measure(generous, paced_device, algorithm)
    assert generous.measured == 6 and not generous.is_over


def test_another_thread_may_stop_it(paced_device: PacedDevice, paced_tuner: MakeTuner,
                                    algorithm: Paced) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 2:
            stopping = threading.Thread(target=tuner.stop)
            stopping.start()
            stopping.join()

    tuner = paced_tuner(progress=stop)
    tuner.start()
    first, second = measure(tuner, paced_device, algorithm)
    assert [candidate.measured.not_tried for candidate in first] == [False, False, True]
    # a plan cannot do without a candidate of the second layer
    check_only_the_first_is_known([second])
    assert tuner.is_over and tuner.measured == 3
    tuner.start()
    assert tuner.is_over, "the next batch size is not measured either"


def test_an_interrupt_keeps_and_counts_what_was_measured(
        paced_device: PacedDevice, paced_tuner: MakeTuner, algorithm: Paced) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done == 5:
            raise KeyboardInterrupt

    tuner = paced_tuner(progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(tuner, paced_device, algorithm)
    assert tuner.measured == 5
    cache = paced_tuner().cache
    stored = [measured for each in layers() if not each.is_reshape
              for measured in cache.get(each.problem) or ()]
    assert len(stored) == 5
    later = paced_tuner()
    measured = measure(later, paced_device, algorithm)
    assert (later.measured, later.reused) == (1, 5)
    assert all(candidate.measured.samples == later.limits.samples for each in measured
               for candidate in each)


def test_progress_is_told_after_each_candidate(
        paced_device: PacedDevice, paced_tuner: MakeTuner, algorithm: Paced) -> None:
    told: list[Progress] = []
    measure(paced_tuner(progress=told.append), paced_device, algorithm)
    assert [progress.done for progress in told] == [1, 2, 3, 4, 5, 6]
    assert {(progress.layers, progress.candidates) for progress in told} == {(2, 6)}
    assert (told[0].known_layers, told[0].best_us) == (1, 100.0)
    assert (told[-1].known_layers, told[-1].best_us) == (2, 120.0)
    assert told[-1].seconds_left == 0 <= min(progress.seconds_left for progress in told)
    nothing: list[Progress] = []
    measure(paced_tuner(progress=nothing.append), paced_device, algorithm)
    assert nothing == []


def test_a_useless_candidate_is_left_and_counted(
        paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known) -> None:
    fast, slow = Paced("fast", 10.0), Paced("slow", 1000.0, model_us=1000.0)
    known(fast, slow)
    tuner = paced_tuner()
    of = layer()
    _, left = tuner.measure(of, [fast, slow], paced_device)
    assert left.measured.failure == "not tried: lower bound 400.0 us, limit 10.0 us"
    assert (tuner.measured, tuner.not_tried, len(slow.built)) == (1, 1, 0)
    again = paced_tuner()
    assert again.measure(of, [fast, slow], paced_device)[1] == left
    assert (again.measured, again.reused, again.not_tried) == (0, 1, 1)
    everything = paced_tuner(all_vendor_configs=True)
    _, measured = everything.measure(of, [fast, slow], paced_device)
    assert measured.cost == 1000.0 and everything.not_tried == 0


class Broken(Paced):
    """An algorithm that cannot be made ready."""

    def prepare(self, *arguments: Any) -> State:
        raise RuntimeError("no such tile")


def test_what_fails_is_replaced_though_the_budget_is_spent(
        paced_device: PacedDevice, known: Known, tmp_path: Path) -> None:
    broken, low = Broken("broken", 1.0, 2.0), Paced("low", 5.0, precisions=("tf32",))
    good = Paced("good", 10.0, 20.0)
    known(broken, low, good)
    of = layers()
    for algorithms, measured in (([broken, low, good], "good"), ([low], "low"),
                                 ([broken], None)):
        tuner = Tuner(paced_device, precision="tf32", budget_s=1e-9,
                      cache=TuningCache(paced_device, tmp_path / str(measured)))
        tuner.start()
        tuner.measure_all([LayerCandidates(each, algorithms, paced_device) for each in of])
        for each in of:
            candidates = tuner.measure(each, algorithms, paced_device)
            assert {candidate.algorithm.name for candidate in candidates
                    if math.isfinite(candidate.cost)} == ({measured} if measured else set())
        assert sum(candidate.measured.not_tried for each in of for candidate in tuner.measure(
            each, algorithms, paced_device)) == tuner.not_tried


@pytest.fixture
def half_and_full(known: Known) -> list[Paced]:
    """A fast algorithm in float16 and a slow one in float32."""
    both = [Paced("half", 10.0, precisions=("fp16",)),
            Paced("full", 1000.0, 900.0, model_us=1000.0)]
    known(*both)
    return both


@pytest.mark.parametrize("keeps", [False, True])
def test_a_tolerance_keeps_precise_candidates(
        paced_device: PacedDevice, paced_tuner: MakeTuner, half_and_full: list[Paced],
        keeps: bool) -> None:
    tuner = paced_tuner(precision="fp16", keeps_precisions=keeps)
    candidates = tuner.measure(layer(), half_and_full, paced_device)
    # those in float32 may be worth it for the tolerance only
    assert [candidate.measured.not_tried for candidate in candidates] == [
        False, not keeps, not keeps]


@pytest.mark.parametrize(("first", "then"), [
    ({"precision": "fp16"}, {"precision": "fp32"}),
    ({"precision": "fp16"}, {"precision": "fp16", "keeps_precisions": True})])
def test_what_was_not_tried_among_less_precise_candidates_is_tried_without_them(
        paced_device: PacedDevice, paced_tuner: MakeTuner, half_and_full: list[Paced],
        first: dict[str, Any], then: dict[str, Any]) -> None:
    allowed = half_and_full if then["precision"] == "fp16" else half_and_full[1:]
    assert paced_tuner(**first).measure(layer(), half_and_full, paced_device)[-1].measured.not_tried
    *_, last = paced_tuner(**then).measure(layer(), allowed, paced_device)
    assert last.measured.median_us == 900.0
    again = paced_tuner(**first)
    again.measure(layer(), half_and_full, paced_device)
    assert again.measured == 0


SCATTERED = measure_module.SCATTERED


@pytest.fixture
def notices(paced_device: PacedDevice, paced_tuner: MakeTuner, known: Known,
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
        tuner.measure_all([LayerCandidates(layer("one"), [algorithm], paced_device)])
        assert tuner.measured == 40
        return tuner.notices

    return measured


@pytest.fixture
def all_candidates(paced_device: PacedDevice, paced_tuner: MakeTuner,
                   known: Known) -> Callable[..., list[Candidate]]:
    """Returns a function that measures all configs of an algorithm, and returns its candidates."""
    def measured(*times_us: float) -> list[Candidate]:
        algorithm = Paced("paced", *times_us)
        known(algorithm)
        request = LayerCandidates(layer("one"), [algorithm], paced_device)
        tuner = paced_tuner("max")
        tuner.measure_all([request])
        return tuner.measure(request.layer, request.algorithms, paced_device)

    return measured


def test_steady_times_are_not_told(notices: Callable[..., list[str]]) -> None:
    assert notices(1.0, 1.1, 1.0, 1.1, 1.05) == []


def test_times_that_scatter_are_told(notices: Callable[..., list[str]]) -> None:
    (notice,) = notices(1.0, 2.0, 1.0, 2.0, 1.5)
    assert re.match(r"the quartiles of the times on .* differ by more than 25%", notice)


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
