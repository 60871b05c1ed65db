"""Keeps what is requested of a tuner on one device, and adds to it while others are measured."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.plan.program import Layer
from gossamer.plan.tune.alike import timed_problem
from gossamer.plan.tune.attempts import Attempts
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.layer_times import Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.listing import Listing
from gossamer.plan.tune.measures import Further, Request, When
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.work import Work

_EXTRA = 0.5
"""Share of the time that was spent until then for which more configs are tried."""


class Requested:
    """The candidates that were requested on a device so far, and the queue of the attempts to
    measure those of which nothing sufficient is known.

    further: requests that are made later. is_known: returns whether a request was answered before.
    is_over: returns whether measuring is to end. announce: called with attempts before they are put
    into the queue.
    """

    def __init__(self, device: Device, queue: AttemptQueue, listing: Listing, attempts: Attempts,
                 estimates: Estimates, further: Sequence[Further],
                 is_known: Callable[[Request], bool], is_over: Callable[[], bool],
                 announce: Callable[[Sequence[Attempt]], None]) -> None:
        self.work = Work()
        self.queue = queue
        self.attempts: list[Attempt] = []
        """The attempts for what was requested and is not known."""
        self.followers: dict[CandidateGroup, CandidateGroup] = {}
        """The groups of layers that are like another one, each with the group of that layer, whose
        attempts are ranked before theirs join the queue."""
        self.elsewhere: list[Request] = []
        """The further requests of other devices."""
        self._device = device
        self._listing = listing
        self._maker = attempts
        self._estimates = estimates
        self._further = list(further)
        self._may_add_configs = bool(further)
        self._is_known = is_known
        self._is_over = is_over
        self._announce = announce
        self._start = time.monotonic()
        self._has_looked = False
        """Whether more configs were looked for."""
        self._groups_of: defaultdict[LayerTimes, list[CandidateGroup]] = defaultdict(list)
        """The groups whose candidates may compute each layer or region."""

    def add(self, requests: Sequence[Request], *, are_extra: bool = False) -> None:
        """Adds requests. are_extra: whether they are of more configs than the effort has at first.
        """
        here = [request for request in requests
                if request.device is self._device and not self._is_known(request)]
        self.elsewhere += [request for request in requests if request.device is not self._device]
        new = self._listing.add(here, self.work, self._device, are_extra=are_extra)
        self._groups_of.clear()
        for group in self.work.groups.values():
            for times in group.layers:
                self._groups_of[times].append(group)
        attempts, followers = self._maker.missing(self._device, self.work, self._estimates, new)
        for attempt in attempts:
            attempt.is_extra = are_extra
        self.attempts += attempts
        self.followers |= followers
        self._announce(attempts)
        self.queue.extend(attempt for attempt in attempts if attempt.group not in followers)

    def add_further(self, *, all_begun: bool, none_built: bool) -> bool:
        """Adds the next further requests where their moment has come, and returns whether it has.
        After the last of them, more configs are added where that is worth it.

        all_begun: whether no attempt is left to begin. none_built: whether none is being built
        either, so that the moment for others may be waited for.
        """
        self._listing.ask_now()
        if self._is_over():
            # what may be taken without being measured is among what is listed
            self._further = [each for each in self._further if each.when is When.LISTED]
            self._may_add_configs = False
        if not (self._further and self._further[0].when is When.BUILDING):
            # what is listed when the first candidates are built needs the interpreter first
            self._listing.answer_here()
        if not self._further:
            return (self._may_add_configs and all_begun and (none_built or self._are_settled)
                    and self._add_configs(none_built))
        when = self._further[0].when
        if when is When.LISTED:
            if not self._listing.is_done and not none_built:
                return False
            self._listing.wait()
        if when is When.LAST and not all_begun:
            return False
        # before every layer and region has a time, little is known of what else may be of use
        if when in (When.TIMED, When.LAST) and not (none_built or self._are_settled):
            return False
        if requests := self._further.pop(0).requests(self.best_us):
            self.add(requests)
        return True

    def best_us(self, layer: Layer) -> float:
        """Returns the best time of a layer or region that is known so far in microseconds; infinite
        where none is."""
        times = None if layer.problem is None else self.work.times.get(layer.problem)
        return math.inf if times is None else times.best_us

    @property
    def _are_settled(self) -> bool:
        """Whether each layer and region has a time, or no candidate that may be of use."""
        return all(map(self._is_settled, self.work.times.values()))

    def _is_settled(self, times: LayerTimes) -> bool:
        return times.best_us < math.inf or not any(
            attempt.measured is None and not self.queue.is_hopeless(attempt)
            for group in self._groups_of[times] for attempt in group.attempts)

    @property
    def _layers(self) -> list[Layer]:
        """The layers that were requested, without regions."""
        layers = {request.layer.name: request.layer for request in self.work.requests}
        return [layer for layer in layers.values() if not layer.covers]

    def _add_configs(self, none_built: bool) -> bool:
        """Adds more configs of dense algorithms that are among the fastest for a layer, where these
        are expected to save enough, and returns whether there are any. Of those that skip zeros,
        each would be compiled for one layer only."""
        if (self._has_looked and not none_built) or time.monotonic() > self.queue.extra_until:
            return False
        self._has_looked = True
        known_us = [us for us in map(self.best_us, self._layers) if us < math.inf]
        least_us = self._listing.limits.more_gain * sum(known_us)
        names = {request.layer.name: request.problem for request in self.work.requests}
        counts = Counter(names.values())
        count_of = {times: counts[problem] for problem, times in self.work.times.items()}
        wanted = {(attempt.algorithm, attempt.group.problem) for attempt in self.attempts
                  if attempt.algorithm.dense and least_us < sum(
                      count_of[times] * self.queue.saving_us_of_configs(attempt, times)
                      for times in attempt.group.layers)}
        allowed = self._listing.allow_more(wanted, self._device)
        if not allowed:
            return False
        if self.queue.extra_until == math.inf:
            now = time.monotonic()
            self.queue.extra_until = now + _EXTRA * (now - self._start)
        more = [replace(request, algorithms=algorithms) for request in self.work.requests
                if (algorithms := [
                    algorithm for algorithm in request.algorithms
                    if (algorithm, timed_problem(request.problem, algorithm)) in allowed])]
        self.add(more, are_extra=True)
        return True
