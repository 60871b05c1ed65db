"""What is requested of a tuner on one device, at once and while it measures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm
from gossamer.plan.program import Layer
from gossamer.plan.tune.attempts import Attempts
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.listing import Listing, Work
from gossamer.plan.tune.measures import Further, Request, When
from gossamer.plan.tune.queue import Attempt, AttemptQueue, CandidateGroup, LayerTimes

_EXTRA = 0.25
"""Share of the time that was spent until then for which more configs are tried."""


class Requested:
    """The candidates that were requested on a device so far, and the queue of the attempts to
    measure those of which nothing sufficient is known.

    further: requests that are made later. is_known: returns whether a request was answered before.
    begin: called with attempts before they are put into the queue.
    """

    def __init__(self, device: Device, queue: AttemptQueue, listing: Listing, attempts: Attempts,
                 estimates: Estimates, further: Sequence[Further],
                 is_known: Callable[[Request], bool],
                 begin: Callable[[Sequence[Attempt]], None]) -> None:
        self.work = Work()
        self.queue = queue
        self.attempts: list[Attempt] = []
        """The attempts that are in the queue or were."""
        self.followers: dict[CandidateGroup, CandidateGroup] = {}
        """The groups of layers that are like another one, each with the group of that layer; their
        attempts are not in the queue."""
        self.elsewhere: list[Request] = []
        """The further requests of other devices."""
        self._device = device
        self._listing = listing
        self._maker = attempts
        self._estimates = estimates
        self._further = list(further)
        self._is_known = is_known
        self._begin = begin
        self._start = time.monotonic()

    def add(self, requests: Sequence[Request]) -> None:
        """Adds requests."""
        here = [request for request in requests
                if request.device is self._device and not self._is_known(request)]
        self.elsewhere += [request for request in requests if request.device is not self._device]
        for request in here:
            # what was measured once is not left out later
            self._listing.extend(request, self._maker.configs_of(request))
        attempts, followers = self._maker.missing(
            self._device, self.work, self._estimates,
            self._listing.add(here, self.work, self._device))
        if not (self._further and self._further[0].when is When.BUILDING):
            # what is listed at once needs the interpreter first
            self._listing.answer_here()
        self.attempts += attempts
        self.followers |= followers
        self._begin(attempts)
        self.queue.extend(attempt for attempt in attempts if attempt.group not in followers)

    def add_further(self, all_begun: bool, none_built: bool) -> bool:
        """Adds the next further requests where their moment has come, and returns whether it has.
        After the last of them, more configs are added where that is worth it.

        all_begun: whether no attempt is left to begin. none_built: whether none is being built
        either, so that the moment for others may be waited for.
        """
        if not self._further:
            return all_begun and self._add_configs()
        when = self._further[0].when
        if when is When.LISTED and not self._listing.is_done:
            if not none_built:
                return False
            self._listing.wait()
        if when is When.LAST and not all_begun:
            return False
        self.add(self._further.pop(0).requests(self.best_us))
        return True

    def best_us(self, layer: Layer) -> float:
        """Returns the best time of a layer or region that is known so far in microseconds; infinite
        where none is."""
        times = None if layer.problem is None else self.work.times.get(layer.problem)
        return math.inf if times is None else times.best_us

    def _add_configs(self) -> bool:
        """Adds more configs of dense algorithms that are among the fastest for a layer, where these
        are expected to save enough, and returns whether there are any. Of those that skip zeros,
        each would be compiled for one layer only."""
        least_us = self._listing.limits.more_gain * self.queue.total_us
        wanted: dict[LayerTimes, set[Algorithm]] = {}
        for attempt in self.attempts:
            for times in attempt.group.layers if attempt.algorithm.dense else ():
                if self.queue.saving_us_of_others(attempt, times) > least_us:
                    wanted.setdefault(times, set()).add(attempt.algorithm)
        more = []
        for request in self.work.requests:
            algorithms = wanted.get(self.work.times[request.problem], ())
            if extended := self._listing.extend(request, dict.fromkeys(algorithms, math.inf)):
                more.append(replace(request, algorithms=extended))
        if more:
            known, now = len(self.attempts), time.monotonic()
            self.add(more)
            for attempt in self.attempts[known:]:
                attempt.is_extra = True
            self.queue.extra_until = now + _EXTRA * (now - self._start)
        return bool(more)
