"""Cases of calls: what is called and timed, and the processors that it runs on."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.bench import call_contest, call_times, calls, processors
from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import ROUNDS, Call, CallTimes, Load, in_turn
from gossamer.bench.calls import BOUND, latency_case
from gossamer.bench.rows import Stamp
from gossamer.bench.work import OWN, TENSORS, AbsentError, CalledContender
from gossamer.device.registry import find
from gossamer.errors import DeviceError


def test_a_batch_after_another_is_called_as_often_as_there_are_batches() -> None:
    called: list[int] = []
    single = CalledContender(OWN, find("host"), lambda: lambda: called.append(1), lambda y: y,
                             "row", "")
    repeated = calls._repeated(single, 3, 2)
    repeated.new_call()()
    assert len(called) == repeated.runs == 3


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("cuda", [False, True])
def test_tensors_need_an_nvidia_gpu_and_torch(monkeypatch: pytest.MonkeyPatch, cuda: bool,
                                              torch: bool) -> None:
    class NetworkAskedError(Exception):
        """The network was made, so that nothing is missing."""

    make = Mock(side_effect=NetworkAskedError)
    setting: Any = SimpleNamespace(device=SimpleNamespace(name="cuda:7", runs_cuda_libraries=cuda))
    monkeypatch.setattr(calls, "find_spec", lambda name: object() if torch else None)
    with pytest.raises(NetworkAskedError if cuda and torch else AbsentError, match=(
            "" if cuda and torch else "torch is not installed: pip install .*bench" if cuda
            else "cuda:7 does not support torch tensors")):
        latency_case(make, 1, TENSORS, Load(), setting)


def _case(called: dict[str, Any]) -> CallCase:
    return CallCase("calls", "tiny", 1, 1, 1, 1.0, np.ones((1, 2)), called=called,
                    load=Load(seconds=0.01))


def _contender(name: str, value: float) -> Any:
    return lambda: CalledContender(name, find("host"), lambda: lambda: np.full((1, 2), value),
                                   lambda y: y, "row", "")


def test_wrong_and_absent_peers_are_listed() -> None:
    stamp = Stamp.of(find("host"), "a test")
    absent = Mock(side_effect=AbsentError("not installed"))
    result = call_contest.run(_case({OWN: _contender(OWN, 1), "wrong": _contender("wrong", 2),
                                     "away": absent}), stamp)
    assert [row.contender for row in result.rows] == [OWN]
    assert result.absent == {"away": "not installed"}
    assert "the result is wrong" in result.failed["wrong"]


def test_an_error_of_gossamer_ends_the_case() -> None:
    failing = Mock(side_effect=DeviceError("a kernel failed"))
    stamp = Stamp.of(find("host"), "a test")
    with pytest.raises(DeviceError, match="a kernel failed"):
        call_contest.run(_case({BOUND: failing}), stamp)
    with pytest.raises(RuntimeError, match="gossamer failed at tiny: its error is"):
        call_contest.run(_case({OWN: _contender(OWN, 2)}), stamp)


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
    failing = Mock(side_effect=ValueError("no memory"))
    failed, times = in_turn([lambda: failing, lambda: lambda: None],
                            Load(threads=threads, seconds=0.01))
    assert isinstance(failed, ValueError) and isinstance(times, CallTimes)


def test_percentiles() -> None:
    samples = np.concatenate([np.full(980, 10.0), np.full(20, 1000.0)])
    times = CallTimes(samples, [10.0] * 5, 0.1)
    assert times.tail["p99_us"] == 1000 and times.tail["max_us"] == 1000
    assert times.timing.median_us == times.timing.p75_us == 10


def test_a_load_says_what_it_is() -> None:
    assert str(Load()) == "closed loop"
    assert str(Load(4, 100)) == "100 calls a second, 4 threads"


BINDS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"),
                           reason="the system does not bind threads to processors")


def caches(folder: Path, processor: int, shared: dict[int, str]) -> None:
    """Writes the caches of a processor by their level as the system lists them."""
    for index, (level, text) in enumerate(shared.items()):
        cache = folder / f"cpu{processor}" / "cache" / f"index{index}"
        cache.mkdir(parents=True)
        (cache / "level").write_text(f"{level}\n")
        (cache / "shared_cpu_list").write_text(f"{text}\n")


def test_the_last_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 2, {1: "2", 2: "2,10", 3: "0-3,8,10-11"})
    assert processors.sharing_cache(2) == {0, 1, 2, 3, 8, 10, 11}
    assert processors.sharing_cache(3) == set()


def test_the_farthest_processor_that_shares_a_cache_counts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 1, {3: "0-3"})
    monkeypatch.setattr(processors, "allowed", lambda: [1, 2, 3, 9])
    times = {1: 22.0, 2: 40.0, 3: 142.0}
    monkeypatch.setattr(processors, "_read_ns", lambda writer, reader: times[writer])
    assert processors.transfer_ns() == 120.0
    times[1] = 150.0
    assert processors.transfer_ns() == 0.0


@pytest.mark.parametrize("allowed", [[], [1], [1, 9]])
def test_a_processor_that_shares_no_cache_is_not_far(
        allowed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 1, {3: "0-3"})
    monkeypatch.setattr(processors, "allowed", lambda: allowed)
    assert processors.transfer_ns() == 0.0


def test_what_was_far_most_times_is_told_of() -> None:
    for transfers, median in (((), 0), ((80.0,), 80), ((10.0, 81.0, 95.0), 81),
                              ((10.0, 10.0, 99.0), 10)):
        notice = processors.far_notice(transfers)
        assert notice.startswith(f"a cache line takes {median} ns") == (median > processors.FAR_NS)


@BINDS
def test_the_other_processor_writes_and_the_first_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process may use one processor")
    bound: list[int] = []
    set_affinity = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, chosen: (
        bound.extend(chosen if len(chosen) == 1 else ()), set_affinity(thread, chosen)))
    first, second, *_ = sorted(before)
    assert processors._read_ns(second, first) > 0
    assert bound == [second, first]
    assert os.sched_getaffinity(0) == before
