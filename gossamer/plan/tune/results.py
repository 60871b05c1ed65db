"""The measurements of a tuner: those of this process, and those in the caches of its devices."""

from __future__ import annotations

from gossamer.device.base import Device
from gossamer.ops.algorithm import Problem
from gossamer.plan.measurement import CandidateKey, Measurement
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.layer_times import Attempt


class Results:
    """Measurements by the problem under which they are stored, and by device.

    cache: the stored measurements of `device`; other devices have a file of their own beside it.
    """

    def __init__(self, cache: TuningCache, device: Device) -> None:
        self._cache = cache
        self._caches = {device.name: cache}
        self._known: dict[tuple[Problem, str], dict[CandidateKey, Measurement]] = {}
        self._earlier: dict[tuple[Problem, str], dict[CandidateKey, Measurement]] = {}
        self._transient: set[tuple[Problem, str, CandidateKey]] = set()

    def cache_of(self, device: Device) -> TuningCache:
        """Returns the cache of a device."""
        if device.name not in self._caches:
            self._caches[device.name] = TuningCache(device, self._cache.path.parent)
        return self._caches[device.name]

    def of(self, problem: Problem, device: Device) -> dict[CandidateKey, Measurement]:
        """Returns the measurements that this process uses."""
        return self._known.get((problem, device.name), {})

    def stored(self, problem: Problem, device: Device) -> dict[CandidateKey, Measurement]:
        """Returns the measurements that are known, those that this process uses first."""
        return {**self.earlier(problem, device), **self.of(problem, device)}

    def earlier(self, problem: Problem, device: Device) -> dict[CandidateKey, Measurement]:
        """Returns the measurements that were in the cache when they were first asked for."""
        key = problem, device.name
        if key not in self._earlier:
            self._earlier[key] = {measured.candidate_key: measured
                                  for measured in self.cache_of(device).get(problem) or ()}
        return self._earlier[key]

    def are_of(self, attempt: Attempt, device: Device) -> bool:
        """Returns whether this process uses a measurement of a candidate already."""
        return attempt.key in self.of(attempt.group.problem, device)

    def has(self, attempt: Attempt, device: Device) -> bool:
        """Returns whether this process uses the measurement that a candidate has."""
        return self.of(attempt.group.problem, device).get(attempt.key) is attempt.measured

    def keep(self, attempt: Attempt, device: Device) -> None:
        """Makes the measurement that a candidate has the one that this process uses."""
        assert attempt.measured is not None
        problem = attempt.group.problem
        self._known.setdefault((problem, device.name), {})[attempt.key] = attempt.measured
        if attempt.is_transient:
            self._transient.add((problem, device.name, attempt.key))
        else:
            self._transient.discard((problem, device.name, attempt.key))

    def forget_transient(self) -> None:
        """Forgets the results that hold for one plan, or for that time, only."""
        for problem, name, key in self._transient:
            del self._known[problem, name][key]
        self._transient.clear()

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about the files of measurements."""
        return [line for cache in self._caches.values() for line in cache.notices]

    def flush(self) -> None:
        """Writes the measurements that are not on disk yet."""
        for cache in self._caches.values():
            cache.flush()
