"""The profile of tuning: where its time went."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

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
    monkeypatch.setattr(profile, "_processor_seconds", lambda: 2 * now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


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
    seconds = {row["stage"]: (row["seconds"], row["count"]) for row in tuning.rows()}
    assert seconds == {TIMING: (6.0, 2), CHECKING: (3.0, 1), OTHER: (1.0, 1)}
    summary = tuning.summary()
    assert (summary["elapsed_s"], summary["device_share"], summary["processors"]) == (10.0, 0.9, 2)
    assert sum(row["share"] for row in summary["stages"]) == pytest.approx(1.0)
    assert [row["stage"] for row in summary["stages"]] == [TIMING, CHECKING, OTHER]


def test_other_threads_are_counted_apart(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()

    def build() -> None:
        with tuning.stage("building"):
            clock(3.0)

    with tuning.whole(), tuning.stage(TIMING):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    rows = {(row["stage"], row["in_background"]): row["seconds"] for row in tuning.rows()}
    assert rows == {(TIMING, False): 3.0, (OTHER, False): 0.0, ("building", True): 3.0}
    assert tuning.rows()[-1]["in_background"]


def test_stages_count_what_raises(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    with pytest.raises(KeyboardInterrupt), tuning.whole(), tuning.stage(TIMING):
        clock(5.0)
        raise KeyboardInterrupt
    assert tuning.elapsed == 5.0 and tuning.summary()["device_share"] == 1.0


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
    stages = {row["stage"]: row["count"] for row in summary["stages"]}
    assert stages[CHECKING] == 2 and stages[TIMING] >= 2
    assert 0 < summary["device_share"] < 1
    assert summary["timed_s"] == pytest.approx(tuner.profile.device_us / 1e6) and (
        summary["timed_s"] > 0)
    warm = paced_tuner()
    with warm.profile.whole():
        warm.measure(layer(), [algorithm], paced_device)
    assert warm.profile.summary() == {}
