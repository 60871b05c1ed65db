"""Tests of the sampling of tasks, and of the notice on times that scatter."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from gossamer import measure
from gossamer.device.registry import find
from gossamer.errors import DeviceError
from gossamer.measure import (
    PreparedTask,
    Task,
    Timing,
    interleave,
    sampled,
    scatter_notice,
    wait_for_rest,
)


def test_times_that_scatter_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SCATTERED", 1.25)
    host = find("host")
    even, scattered = Timing(10.0, 9.5, 10.5, 10), Timing(10.0, 8.0, 12.0, 10)
    assert scatter_notice([], host) == ""
    assert scatter_notice([even, even, scattered], host) == ""
    assert scatter_notice([even, scattered, scattered], host).startswith(
        "the quartiles of the times on host differ by more than 25%, ")


def test_isolated_samples_begin_at_rest_with_an_execution_that_is_not_timed(
        monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(measure, "wait_for_rest", lambda: events.append("rest"))
    host = find("host")
    tasks = [Task(host, lambda stream: events.append("a")),
             Task(host, lambda stream: events.append("b"))]
    interleave(tasks, repeats=2, sample_us=0.0, isolated=True)
    assert "".join(event[0] for event in events) == "aabb" + "raarbb" * 2


@pytest.mark.parametrize(("busy_pauses", "pauses"), [(0, 1), (3, 4), (1000, measure._MOST_PAUSES)])
def test_threads_that_compute_are_waited_for(monkeypatch: pytest.MonkeyPatch, busy_pauses: int,
                                             pauses: int) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0 * len(slept))
    monkeypatch.setattr(time, "process_time", lambda: 0.5 * min(len(slept), busy_pauses))
    wait_for_rest()
    assert len(slept) == pauses


def test_calls_are_timed_until_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.001

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now))
    timing = measure.called(call, budget_us=7500)
    assert timing.repeats == 8 and timing.median_us == pytest.approx(1000)
    assert measure.called(call, budget_us=1).repeats == 2
    assert measure.called(call, repeats=5).repeats == 5


@pytest.mark.parametrize(("repeats", "budget_us", "rounds"), [
    (9, 0, 3), (9, 15, 3), (9, 16, 4), (2, 0, 2)])
def test_samples_end_with_the_budget(repeats: int, budget_us: float, rounds: int) -> None:
    times = [8.0, 4.0, -1.0, 12.0, 6.0]
    timing, *errors = sampled([PreparedTask(iter(times).__next__, 2), PreparedTask(lambda: -1, 1),
                               PreparedTask(lambda: 1 / 0, 1)], repeats, budget_us)
    taken = [time / 2 for time in times[:rounds] if time >= 0]
    assert list(vars(timing).values()) == [*np.percentile(taken, [50, 25, 75]), len(taken)]
    assert [type(error) for error in errors] == [DeviceError, ZeroDivisionError]
