"""The measurements of a tuner, in this process and in the caches of its devices."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Problem
from gossamer.plan.measurement import CandidateKey, Measurement
from gossamer.plan.store.tuning_cache import TuningCache

_ByCandidate = dict[CandidateKey, Measurement]


class Results:
    """Measurements by the problem under which they are stored, and by device.

    cache: the stored measurements of `device`. The measurements of each other device are in another
    file in the same folder.
    """

    def __init__(self, cache: TuningCache, device: Device) -> None:
        self._cache = cache
        self._caches = {device.name: cache}
        self._known: dict[tuple[Problem, str], _ByCandidate] = {}

    def start(self) -> None:
        """Starts a plan: forgets failed candidates, and candidates that were left out for the
        previous plan."""
        for known in self._known.values():
            for key in [key for key, measured in known.items() if measured.failure]:
                del known[key]

    def cache_of(self, device: Device) -> TuningCache:
        """Returns the cache of a device."""
        if device.name not in self._caches:
            self._caches[device.name] = TuningCache(device, self._cache.path.parent)
        return self._caches[device.name]

    def of(self, problem: Problem, device: Device) -> _ByCandidate:
        """Returns the measurements that this process uses."""
        return self._known.get((problem, device.name), {})

    def stored(self, problem: Problem, device: Device) -> _ByCandidate:
        """Returns the measurements in the cache. Measurements that this process uses replace
        measurements of the same candidates."""
        on_disk = self.cache_of(device).get(problem) or ()
        return {**{measured.candidate_key: measured for measured in on_disk},
                **self.of(problem, device)}

    def keep(self, problem: Problem, device: Device, measured: Sequence[Measurement]) -> None:
        """Makes this process use these measurements of a problem's candidates."""
        if measured:
            self._known.setdefault((problem, device.name), {}).update(
                {each.candidate_key: each for each in measured})

    def flush(self) -> None:
        """Writes the measurements whose writing an interrupt ended."""
        for cache in self._caches.values():
            cache.flush()

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about the files of measurements."""
        return [line for cache in self._caches.values() for line in cache.notices]
