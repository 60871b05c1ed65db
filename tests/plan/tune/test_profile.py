"""The profile of tuning: where its time went."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.plan.tune import profile
from gossamer.plan.tune.profile import CHECKING, OTHER, TIMING, TuningProfile
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Paced, PacedDevice, layer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns a function that lets so many seconds pass."""
    now = [0.0]
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def seconds_of(summary: dict[str, Any]) -> dict[str, float]:
    """Returns the seconds of each stage of a summary."""
    return {row["stage"]: row["seconds"] for row in summary["stages"]}


def test_stages_exclude_one_another_and_add_up(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    with tuning.whole():
        clock(1.0)
        with tuning.stage(CHECKING):
            clock(2.0)
            with tuning.stage(TIMING):
                clock(4.0)
            clock(1.0)
        with tuning.stage(TIMING):
            clock(2.0)
    clock(100.0)
    with tuning.whole():
        clock(5.0)
    summary = tuning.summary()
    assert (summary["elapsed_s"], summary["device_share"]) == (15.0, 9.0 / 15.0)
    assert seconds_of(summary) == {TIMING: 6.0, OTHER: 6.0, CHECKING: 3.0}
    assert sum(row["share"] for row in summary["stages"]) == pytest.approx(1.0)
    assert [row["seconds"] for row in summary["stages"]] == [6.0, 6.0, 3.0]


def test_other_threads_do_not_count(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()

    def build() -> None:
        with tuning.stage("building"):
            clock(3.0)

    with tuning.whole(), tuning.stage(TIMING):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    assert seconds_of(tuning.summary()) == {TIMING: 3.0, OTHER: 0.0}


def test_stages_count_what_raises(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    with pytest.raises(KeyboardInterrupt), tuning.whole(), tuning.stage(TIMING):
        clock(5.0)
        raise KeyboardInterrupt
    assert (tuning.summary()["elapsed_s"], tuning.summary()["device_share"]) == (5.0, 1.0)


def test_a_profile_without_measuring_is_empty(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    assert tuning.summary() == {}
    with tuning.whole(), tuning.stage("listing configs"):
        clock(1.0)
    assert tuning.summary() == {}


def test_the_tuner_counts_its_stages(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    algorithm = Paced("paced", 100.0, 90.0)
    known(algorithm)
    tuner = paced_tuner()
    with tuner.profile.whole():
        tuner.measure(layer(), [algorithm], paced_device)
    summary = tuner.profile.summary()
    assert {CHECKING, TIMING} <= seconds_of(summary).keys()
    assert 0 < summary["device_share"] < 1
    warm = paced_tuner()
    with warm.profile.whole():
        warm.measure(layer(), [algorithm], paced_device)
    assert warm.profile.summary() == {}
