"""Timing of whole calls on the host, from the call to its result."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gossamer.measure import Timing

Call = Callable[[], object]
"""A call that returns when its result is complete."""

ROUNDS = 5
"""Number of rounds in which contenders are measured in turn."""
_MOST_SAMPLES = 2**21
"""Maximum number of calls that a thread times per round of a closed loop, to limit memory."""
_SPIN_S = 2e-4
"""Seconds before a call is due at which a thread stops sleeping, and starts polling the clock.

A sleep until the call is due may end too late.
"""


@dataclass(frozen=True)
class Load:
    """The schedule of calls.

    threads: number of concurrently calling threads.
    rate: number of calls per second of all threads together; None for a closed loop. With a rate,
    each call is due at a fixed time, even if earlier calls have not ended. In a closed loop, each
    thread calls again as soon as its previous call has ended.
    seconds: duration of all rounds together.
    """

    threads: int = 1
    rate: float | None = None
    seconds: float = 2.0

    def __str__(self) -> str:
        loop = "closed loop" if self.rate is None else f"{self.rate:g} calls a second"
        return loop + (f", {self.threads} threads" if self.threads > 1 else "")


@dataclass(frozen=True)
class CallTimes:
    """The times of one contender's calls.

    samples: microseconds of each call, from its start to its end. With a rate, a call is timed from
    the moment when it was due.
    rounds: median of each round, in microseconds.
    elapsed_s: duration of all rounds together, in seconds.
    """

    samples: np.ndarray
    rounds: Sequence[float]
    elapsed_s: float

    @property
    def timing(self) -> Timing:
        """The median and the quartiles of all calls."""
        low, median, high = np.quantile(self.samples, [0.25, 0.5, 0.75])
        return Timing(float(median), float(low), float(high), len(self.samples))

    @property
    def tail(self) -> dict[str, float]:
        """The tail of the times, and the number of calls.

        The dict contains the 99th percentile, the 99.9th percentile and the maximum in
        microseconds, the number of calls, and the number of calls per second.
        """
        p99, p999 = np.quantile(self.samples, [0.99, 0.999])
        return {"p99_us": float(p99), "p99.9_us": float(p999), "max_us": float(self.samples.max()),
                "calls": float(len(self.samples)),
                "calls_a_second": len(self.samples) / self.elapsed_s}


def in_turn(contenders: Sequence[Callable[[], Call]], load: Load,
            before_round: Callable[[], None] = lambda: None) -> list[CallTimes | Exception]:
    """Measure contenders in turn, in several rounds.

    The result contains one entry per contender: the times of the contender's calls, or the error
    that a call raised.

    contenders: one function per contender that creates a `Call`. In each round, each thread creates
    one `Call`, calls it once untimed, and then times it repeatedly.
    before_round: function that is called before each round.
    """
    samples: list[list[np.ndarray]] = [[] for _ in contenders]
    elapsed = [0.0] * len(contenders)
    errors: dict[int, Exception] = {}
    for _ in range(ROUNDS):
        before_round()
        for index, new_call in enumerate(contenders):
            if index in errors:
                continue
            start = time.perf_counter()
            try:
                samples[index].append(_round(new_call, load))
            except Exception as error:
                errors[index] = error
            elapsed[index] += time.perf_counter() - start
    return [errors.get(index) or CallTimes(
                np.concatenate(parts), [float(np.median(part)) for part in parts], elapsed[index])
            for index, parts in enumerate(samples)]


def _round(new_call: Callable[[], Call], load: Load) -> np.ndarray:
    """Return the microseconds of the calls of one round."""
    ready = threading.Barrier(load.threads)
    due = _dues(load)

    def timed(_: int) -> np.ndarray | Exception:
        try:
            call = new_call()
            call()
            ready.wait()
            return _times(call, load.seconds / ROUNDS, due)
        except Exception as error:
            ready.abort()
            return error

    with ThreadPoolExecutor(load.threads) as pool:
        others = pool.map(timed, range(1, load.threads))
        # this thread is the first caller, because torch's CUDA graphs work only in the thread that
        # compiled them
        parts = [timed(0), *others]
    errors = [part for part in parts if isinstance(part, Exception)]
    if errors:
        # the other threads only stopped waiting for the one that failed
        raise next((error for error in errors
                    if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)]) / 1e3


def _dues(load: Load) -> Iterator[float] | None:
    """Return an iterator over the times when calls are due; None for a closed loop.

    The threads share the iterator. The times are in seconds from the start.
    """
    if load.rate is None:
        return None
    rate = load.rate
    return map(lambda index: index / rate, itertools.count())


def _times(call: Call, seconds: float, due: Iterator[float] | None) -> np.ndarray:
    """Return the nanoseconds of each call in this thread.

    due: the times when calls are due; None for a closed loop.
    """
    times = array("q")
    clock, add = time.perf_counter_ns, times.append
    start = before = clock()
    end = start + int(seconds * 1e9)
    if due is None:
        while before < end and len(times) < _MOST_SAMPLES:
            call()
            after = clock()
            add(after - before)
            before = after
    else:
        while (at := next(due)) < seconds:
            at_ns = start + int(at * 1e9)
            if (left := (at_ns - clock()) / 1e9) > _SPIN_S:
                time.sleep(left - _SPIN_S)
            while clock() < at_ns:
                pass
            call()
            add(clock() - at_ns)
    return np.frombuffer(times, np.int64).astype(np.float64)
