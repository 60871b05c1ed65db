"""Notices on executions that other programs slow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.device.registry import find
from gossamer.errors import GossamerWarning
from gossamer.plan.run import slowed
from gossamer.plan.run.slowed import SlowedRuns
from tests.plan.small import compiled, images, small


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time now and the waiting so far, which tests advance; reading the latter takes 1 ms."""
    state = SimpleNamespace(now=0.0, waited=0.0, readings=0)

    def waited() -> float:
        state.readings += 1
        state.now += 1e-3
        return state.waited

    monkeypatch.setattr("gossamer.measure.waited_s", waited)
    monkeypatch.setattr(slowed, "time", SimpleNamespace(perf_counter=lambda: state.now))
    return state


def run(watch: SlowedRuns, clock: SimpleNamespace, seconds: float, waited: float,
        measured_us: float | None = None) -> None:
    with watch.watched(lambda: measured_us):
        clock.now += seconds
        clock.waited += waited


def test_a_plan_that_is_slowed_says_so_once(clock: SimpleNamespace) -> None:
    watch = SlowedRuns("net", find("host"))
    with pytest.warns(GossamerWarning, match=r"^net on host is slowed: in 0\.40 s of executions "
                                             r"its threads waited 0\.08 s for a processor"):
        for _ in range(3):  # the second is not watched, as the first was short
            run(watch, clock, 0.2, 0.04)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(watch, clock, 0.2, 0.2)


@pytest.mark.parametrize(("others", "measured_us", "told"), [
    (1.0, 1e5, True), (0.2, 1e5, False), (1.0, 1.5e5, False), (1.0, None, False)])
def test_executions_that_take_too_long_beside_other_programs_are_told(
        monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, others: float,
        measured_us: float | None, told: bool) -> None:
    """No thread waits, as other programs have the second processor of the same core."""
    monkeypatch.setattr("gossamer.measure.os.cpu_count", lambda: 2)
    monkeypatch.setattr("gossamer.measure.others_s", lambda: clock.now * others)
    watch = SlowedRuns("net", find("host"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):  # executions of 0.2 s in which no thread waits
            run(watch, clock, 0.2, 0.0, measured_us)
    assert [str(warning.message).partition(";")[0] for warning in caught] == ([
        "net on host is slowed: in 0.40 s of executions other programs had processors for 0.40 s, "
        "and the last execution took 200000 us where 100000 were measured"] if told else [])


@pytest.mark.parametrize(("seconds", "waited"), [(1.0, 0.09), (0.2, 0.001), (0.01, 0.0)])
@pytest.mark.filterwarnings("error")
def test_little_waiting_is_not_told(clock: SimpleNamespace, seconds: float, waited: float) -> None:
    watch = SlowedRuns("net", find("host"))
    for _ in range(8):
        run(watch, clock, seconds, waited)


def test_contention_is_seen_after_a_quiet_time(clock: SimpleNamespace) -> None:
    watch = SlowedRuns("net", find("host"))
    for _ in range(50):
        run(watch, clock, 0.5, 0.0)
    with pytest.warns(GossamerWarning, match="is slowed"):
        for _ in range(3):
            run(watch, clock, 0.5, 0.3)


@pytest.mark.filterwarnings("error")
def test_of_short_executions_only_some_are_watched(clock: SimpleNamespace) -> None:
    watch = SlowedRuns("net", find("host"))
    for _ in range(100):
        run(watch, clock, 2e-3, 0.0)
    # after a watched one, executions of 0.1 s, a hundred times the cost of watching, are not
    assert clock.readings == 2 * 2


@pytest.mark.filterwarnings("error")
def test_other_devices_and_systems_are_not_watched(clock: SimpleNamespace,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SlowedRuns("net", SimpleNamespace(on_processors=False))  # type: ignore[arg-type]
    run(elsewhere, clock, 1.0, 1.0)
    assert clock.readings == 0
    watch = SlowedRuns("net", find("host"))
    monkeypatch.setattr("gossamer.measure.waited_s", lambda: None)
    run(watch, clock, 1.0, 1.0)


def test_the_warning_names_the_line_that_calls_the_plan(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    waits: Iterator[float] = iter(range(0, 100, 10))
    monkeypatch.setattr("gossamer.measure.waited_s", lambda: next(waits))
    with pytest.warns(GossamerWarning, match="is slowed") as seen:
        plan(images(1))
    assert [warning.filename for warning in seen] == [__file__]
