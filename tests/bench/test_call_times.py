"""Times of calls, by a clock that only calls and sleeping move."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.bench import call_times
from gossamer.bench.call_times import ROUNDS, Call, CallTimes, Load, in_turn


class Clock:
    """A clock in nanoseconds that each look moves by one."""

    def __init__(self) -> None:
        self.now = 0

    def look(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(call_times, "time", SimpleNamespace(
        perf_counter_ns=clock.look, perf_counter=lambda: clock.look() / 1e9, sleep=clock.sleep))
    return clock


def _taking(clock: Clock, us: float, called: list[float]) -> Call:
    def call() -> None:
        called.append(us)
        clock.now += round(us * 1e3)

    return call


def test_a_closed_loop_calls_again_when_a_call_has_ended(clock: Clock) -> None:
    called: list[float] = []
    slow, quick = in_turn([lambda us=us: _taking(clock, us, called) for us in (100.0, 20.0)],
                          Load(seconds=0.01))
    assert isinstance(slow, CallTimes) and isinstance(quick, CallTimes)
    assert slow.timing.median_us == pytest.approx(100, rel=1e-3)
    assert quick.timing.median_us == pytest.approx(20, rel=1e-3)
    # each round of 2 ms calls once before it is timed
    assert slow.tail["calls"] == len(slow.samples) == pytest.approx(100, abs=5)
    assert slow.tail["calls_a_second"] == pytest.approx(10_000, rel=0.1)
    # contenders are called in turn
    changes = sum(before != after for before, after in itertools.pairwise(called))
    assert changes == 2 * ROUNDS - 1 and len(slow.rounds) == ROUNDS


@pytest.mark.slow
def test_calls_of_a_given_rate_count_from_when_they_were_due(clock: Clock) -> None:
    in_time, late = in_turn([lambda us=us: _taking(clock, us, []) for us in (100.0, 3000.0)],
                            Load(rate=1000, seconds=0.05))
    assert isinstance(in_time, CallTimes) and isinstance(late, CallTimes)
    assert len(in_time.samples) == 5 * 10
    np.testing.assert_allclose(in_time.samples, 100, rtol=0.01)
    # each call of 3 ms is due 1 ms after the one before, and waits for it
    np.testing.assert_allclose(late.samples[:10], 3000 + 2000 * np.arange(10), rtol=0.01)


def test_threads_share_a_rate() -> None:
    threads = set()
    (times,) = in_turn([lambda: lambda: threads.add(threading.get_ident())],
                       Load(threads=3, rate=4000, seconds=0.1))
    assert isinstance(times, CallTimes) and len(times.samples) == 5 * 80
    assert threading.get_ident() in threads


def test_one_thread_is_the_callers() -> None:
    threads = set()
    in_turn([lambda: lambda: threads.add(threading.get_ident())], Load(seconds=0.01))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_ends_its_contender_only(threads: int) -> None:
    def failing() -> object:
        raise ValueError("no memory")

    failed, times = in_turn([lambda: failing, lambda: lambda: None],
                            Load(threads=threads, seconds=0.01))
    assert isinstance(failed, ValueError) and isinstance(times, CallTimes)


def test_percentiles_and_histogram() -> None:
    samples = np.concatenate([np.full(980, 10.0), np.full(20, 1000.0)])
    times = CallTimes(samples, [10.0] * 5, 0.1)
    assert times.tail["p99_us"] == 1000 and times.tail["max_us"] == 1000
    assert times.timing.median_us == times.timing.p75_us == 10
    text = times.histogram(8)
    assert text.startswith("10 us \N{FULL BLOCK}      ") and text.endswith(
        "\N{LOWER ONE EIGHTH BLOCK} 1000 us")
    # all calls alike
    assert CallTimes(np.full(5, 3.0), [3.0], 0.1).histogram(4).startswith("3 us ")


def test_a_load_says_what_it_is() -> None:
    assert str(Load()) == "closed loop"
    assert str(Load(4, 100)) == "100 calls a second, 4 threads"
