"""Tests of the detection of contention, and of the sampling of tasks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer import measure
from gossamer.device.host import HostDevice
from gossamer.measure import CpuContention, PreparedTask, Timing, sampled

# the functions before the fixture of all tests replaces them
_waited_s, _others_s = measure.waited_s, measure.others_s

HOST = HostDevice()


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Iterator[float | None]]:
    """Iterators of the next results of the clock and of the system's count of waiting."""
    readings: dict[str, Iterator[float | None]] = {}
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: next(readings["now"])))
    monkeypatch.setattr(measure, "waited_s", lambda: next(readings["waited"]))
    return readings


@pytest.mark.parametrize(("waits", "spoilt"), [((0.0, 0.1), False), ((0.0, 0.3), True)])
def test_waiting_counts_beyond_a_tenth(clocks: dict[str, Iterator[float | None]],
                                       waits: tuple[float, float], spoilt: bool) -> None:
    clocks["now"], clocks["waited"] = iter([10.0, 12.0, 20.0, 20.5]), iter([*waits, 5.0, 4.0])
    contention = CpuContention()
    with contention.watched(HOST):
        pass
    assert contention.spoilt == spoilt and bool(contention.notice) is spoilt
    with contention.watched(HOST):  # a thread ended: nothing is subtracted
        pass
    assert contention.seconds == 2.5 and contention.waited_s == waits[1]


def test_moments_are_not_worth_a_word(clocks: dict[str, Iterator[float | None]]) -> None:
    clocks["now"], clocks["waited"] = iter([10.0, 10.005]), iter([0.0, 0.0049])
    contention = CpuContention()
    with contention.watched(HOST):
        pass
    assert contention.waited_s == 0.0049 and not contention.notice


def test_one_spoilt_stretch_matters_among_many(
        clocks: dict[str, Iterator[float | None]]) -> None:
    clocks["now"], clocks["waited"] = iter([0.0, 9.0, 9.0, 9.02]), iter([0.0, 0.0, 0.0, 0.006])
    contention = CpuContention()
    for _ in range(2):
        with contention.watched(HOST):
            pass
    assert contention.spoilt == 1
    assert contention.notice.startswith(
        "the processors were wanted elsewhere: in 9.0 s of sampling, threads waited 0.0 s for one")


@pytest.mark.parametrize(("waits", "taken", "spoilt"), [
    ([0.0], "first", False), ([1.0, 0.0], "second", False), ([1.0, 1.0, 1.0], "third", True)])
def test_times_are_taken_again_where_they_are_spoilt(
        clocks: dict[str, Iterator[float | None]], waits: list[float], taken: str,
        spoilt: bool) -> None:
    clocks["now"] = iter(range(100))
    clocks["waited"] = iter([each for wait in waits for each in (0.0, wait)])
    contention, times = CpuContention(), iter(["first", "second", "third", "fourth"])
    assert contention.undisturbed(HOST, lambda: next(times)) == (taken, spoilt)
    assert contention.spoilt == spoilt


def test_what_is_not_known_says_nothing(clocks: dict[str, Iterator[float | None]]) -> None:
    clocks["now"], clocks["waited"] = iter([0.0, 1.0]), iter([None])
    contention = CpuContention()
    with contention.watched(HOST):
        pass
    assert contention.seconds == 0 and not contention.notice


def test_other_devices_are_not_crowded(clocks: dict[str, Iterator[float | None]]) -> None:
    clocks["now"], clocks["waited"] = iter([0.0, 1.0]), iter([])
    contention = CpuContention()
    with contention.watched(SimpleNamespace(on_processors=False)):  # type: ignore[arg-type]
        pass
    assert not contention.notice


@pytest.mark.parametrize(("processors", "others", "told"), [
    (1, 0.4, False), (1, 0.6, True), (2, 0.7, False), (2, 0.9, True), (64, 40.0, False),
    (64, 60.0, True)])
def test_times_beside_busy_processors_are_too_long(
        monkeypatch: pytest.MonkeyPatch, clocks: dict[str, Iterator[float | None]],
        processors: int, others: float, told: bool) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    clocks["now"] = iter([0.0, 0.2, 0.2, 0.4, 0.4, 0.6])
    had = iter([0.0, 0.2 * others, 0.2 * others, 0.4 * others, 0.4 * others, 0.6 * others])
    monkeypatch.setattr(measure, "others_s", lambda: next(had))
    clocks["waited"] = itertools.repeat(0.0)
    contention = CpuContention()
    for stretch in range(3):  # the first is too short to tell
        with contention.watched(HOST):
            pass
        assert contention.others == pytest.approx(others if told and stretch else 0.0)
        assert bool(contention.notice) == (told and stretch > 0) and not contention.spoilt
    if told:
        assert contention.notice.startswith(f"other programs had {others} of {processors} proc")


def test_a_crowd_that_left_is_told_and_spoils_nothing_later(
        monkeypatch: pytest.MonkeyPatch, clocks: dict[str, Iterator[float | None]]) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    clocks["now"] = iter([0.0, 0.5, 0.5, 9.5, 9.5, 9.6])
    had = iter([0.0, 0.5, 0.5, 0.5, 0.5, 0.6])
    monkeypatch.setattr(measure, "others_s", lambda: next(had))
    clocks["waited"] = itertools.repeat(0.0)
    contention, others = CpuContention(), []
    for _ in range(3):  # the last is too short to tell
        with contention.watched(HOST):
            pass
        others.append(contention.others)
    assert others == [1.0, 0.0, 0.0]
    assert contention.notice.startswith(
        "other programs had 1.0 of 2 processors in 0.5 of 9.6 s of sampling: ")


def test_threads_that_wait_for_one_another_spoil_nothing(
        monkeypatch: pytest.MonkeyPatch, clocks: dict[str, Iterator[float | None]]) -> None:
    others = iter([7.0, 7.01, 7.01, 7.4])
    monkeypatch.setattr(measure, "others_s", lambda: next(others))
    clocks["now"], clocks["waited"] = iter([0.0, 1.0, 1.0, 2.0]), iter([0.0, 0.5, 0.5, 1.0])
    contention = CpuContention()
    for matters in (False, True):
        with contention.watched(SimpleNamespace(on_processors=True)):  # type: ignore[arg-type]
            pass
        assert bool(contention.notice) == matters
    assert contention.waited_s == pytest.approx(0.01 + 0.39)


def test_time_of_other_programs_is_what_is_left(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_STATISTICS", tmp_path / "stat")
    assert _others_s() is None
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu  {9 * ticks} {ticks} 0 777 777 0 0 {2 * ticks} 0 0\n"
                                   "cpu0 1 2 3\n")
    monkeypatch.setattr(measure.time, "process_time", lambda: 4.5)
    assert _others_s() == 7.5
    (tmp_path / "stat").write_text("cpu  1 2\n")
    assert _others_s() is None


def test_threads_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_THREADS", tmp_path / "task")
    assert _waited_s() is None
    for thread, line in (("7", "900 1500000000 3\n"), ("8", "5 250000000 1\n")):
        (tmp_path / "task" / thread).mkdir(parents=True)
        (tmp_path / "task" / thread / "schedstat").write_text(line)
    assert _waited_s() == 1.75
    (tmp_path / "task" / "8" / "schedstat").write_text("")
    assert _waited_s() is None


@pytest.mark.parametrize(("once", "first", "hopeless", "repeats"), [
    (50.0, 45.0, 4.0, 1),  # slow both times
    (50.0, 39.0, 4.0, 3),  # slow in its warm-up alone
    (30.0, 90.0, 4.0, 3),  # slow in its first sample alone, by a disturbance
    (-1.0, 90.0, 4.0, 3),  # the clock ran backwards: nothing is known of its warm-up
    (50.0, 45.0, float("inf"), 3),
])
def test_what_is_far_too_slow_is_sampled_once(once: float, first: float, hopeless: float,
                                              repeats: int) -> None:
    times = {"fast": iter([10.0, 10.0, 10.0]), "slow": iter([first, 80.0, 80.0])}

    def task(name: str, once_us: float) -> PreparedTask:
        return PreparedTask(lambda: next(times[name]), 1, once_us)

    fast, slow = sampled([task("fast", 11.0), task("slow", once)], 3, 1e6, hopeless)
    assert isinstance(fast, Timing) and isinstance(slow, Timing)
    assert (fast.repeats, slow.repeats) == (3, repeats)
    assert slow.median_us == (first if repeats == 1 else 80.0)
