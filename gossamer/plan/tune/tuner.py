"""The tuner: measures the candidates of layers, or reads their measurements from the cache."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from gossamer.device.base import Device
from gossamer.measure import scatter_notice
from gossamer.ops.algorithm import PRECISIONS, Algorithm
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.candidate import Candidate
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer, MeasuredLayer
from gossamer.plan.store.keys import problem_key
from gossamer.plan.store.tuning_cache import Caches, TuningCache
from gossamer.plan.tune.rates import know_rates
from gossamer.plan.tune.search import Progress, Promising, Search
from gossamer.plan.tune.space import Space

_FEW_TIMINGS = 10
"""The number of candidates that must be timed before a notice says how far the times scatter."""
_RESERVED, _RESERVED_S = 0.2, 5.0
"""The share of a budget that is reserved for the choice after the measurements, and the most
seconds of this share."""


class Tuner:
    """Measures candidates on one device, and on the host for layers that fall back to it.

    effort: "quick", "normal" or "max".
    precision: the least precise of PRECISIONS that is allowed.
    cache: the stored measurements; by default the measurements of the device in the user's folder.
    note: called with a line of text for each batch of layers that is about to be measured.
    progress: called with a Progress after each candidate.
    budget_s: seconds, counted from start(), after which there should be a plan; None for no limit.
    From a little before that time on, only candidates that the plan cannot do without are begun.
    keeps_precisions: whether candidates are measured even where less precise candidates are faster,
    because the plan may need them to keep its error within the policy's tolerance.
    all_vendor_configs: whether, whatever the effort, all configs of vendors' libraries are measured
    and no candidate is left out, so that each algorithm has its best time.
    threads: BLAS threads of a layer on the host.
    """

    def __init__(self, device: Device, effort: str = "normal", *, precision: str = "fp32",
                 cache: TuningCache | None = None,
                 note: Callable[[str], None] = lambda line: None,
                 progress: Callable[[Progress], None] = lambda progress: None,
                 budget_s: float | None = None, keeps_precisions: bool = False,
                 all_vendor_configs: bool = False, threads: Threads = ALL) -> None:
        self.device = device
        self.effort = effort
        self.limits = EFFORTS[effort]
        if all_vendor_configs:
            self.limits = replace(self.limits, vendor_configs=None, everything=True)
        self.precision = precision
        self.cache = TuningCache(device) if cache is None else cache
        self.space = Space(effort, self.limits, PRECISIONS[:PRECISIONS.index(precision) + 1],
                           keeps_precisions=keeps_precisions, threads=threads)
        """The candidates that layers have."""
        self._budget_s = budget_s
        self._deadline = math.inf
        self._is_stopped = self._knows_rates = False
        self._note, self._progress = note, progress
        self._caches = Caches(self.cache, device)
        self._searches: dict[str, Search] = {}

    @property
    def measured(self) -> int:
        """Number of candidates measured so far, without the candidates of `reused`."""
        return sum(search.measured for search in self._searches.values())

    @property
    def reused(self) -> int:
        """Number of candidates whose measurements came from the cache."""
        return sum(search.reused for search in self._searches.values())

    @property
    def not_tried(self) -> int:
        """Number of candidates that were not measured, because they could not be of use."""
        return sum(search.not_tried for search in self._searches.values())

    def start(self) -> None:
        """Start a plan, and the time of its budget. Forgets which candidates were left out for the
        previous plan: candidates that the fusions of that plan made useless may be of use now."""
        for search in self._searches.values():
            search.forget()
        if self._budget_s is not None:
            self._deadline = time.monotonic() + self._budget_s - min(
                _RESERVED * self._budget_s, _RESERVED_S)

    def stop(self) -> None:
        """End measuring for good, as soon as the candidates that a plan cannot do without are
        measured. Another thread, or the handler of a signal, may call this method."""
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, but for the time of the choice, or stop() was called."""
        return self._is_stopped or time.monotonic() > self._deadline

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about the files of measurements, and about the conditions under
        which new measurements were made."""
        notices = self._caches.notices
        timings = [timing for search in self._searches.values() for timing in search.timings]
        if len(timings) >= _FEW_TIMINGS and (scattered := scatter_notice(timings, self.device)):
            notices.append(scattered)
        return notices

    def ask(self, layers: Sequence[Layer], device: Device) -> list[Future[object]]:
        """Begin to ask vendors' libraries for their variants, as Space.ask() does. The device's
        rates are measured first, since they decide the order in which variants are listed."""
        return self.space.ask(layers, device, self._search(device).compilers)

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        """Measure the algorithms' candidates within the effort, and return them as candidates()
        does."""
        node = MeasuredLayer(layer, algorithms, device)
        self.measure_all([node])
        return node.candidates

    def measure_all(self, nodes: Iterable[MeasuredLayer]) -> None:
        """Measure the candidates of several layers together, and set them."""
        by_device: dict[str, list[MeasuredLayer]] = {}
        for node in nodes:
            by_device.setdefault(node.device.name, []).append(node)
        for of_device in by_device.values():
            scope = [[problem_key(node.layer.problem), *(each.name for each in node.algorithms)]
                     for node in of_device]
            self._search(of_device[0].device).run([of_device], self._key(json.dumps(scope)))
            for node in of_device:
                node.candidates = self.candidates(node)

    def measure_network(self, lists: Iterable[Sequence[MeasuredLayer]], scope: str,
                        promising: Promising) -> None:
        """Measure the candidates of a network's layers and fusions on the device together.

        lists, promising: as in Search.run(). scope: text that identifies them.
        """
        search = self._search(self.device)
        search.run(lists, self._key(scope), promising)
        # the processes take some time to end, in which the plan is assigned
        search.compilers.end()

    def candidates(self, node: MeasuredLayer) -> list[Candidate]:
        """Return the candidates of a layer whose measuring has begun; see Search.candidates()."""
        return self._search(node.device).candidates(node)

    def verified(self, chosen: Sequence[tuple[Layer, Candidate, Device]]) -> list[Candidate]:
        """Return the candidates. A candidate that computes wrong numbers with the constants of its
        layer is excluded."""
        verified: dict[int, Candidate] = {}
        for device in {device.name: device for _, _, device in chosen}.values():
            own = {index: (layer, candidate) for index, (layer, candidate, on) in enumerate(chosen)
                   if on is device}
            verified.update(zip(own, self._search(device).verified(list(own.values())),
                                strict=True))
        return [verified[index] for index in range(len(chosen))]

    def flush(self) -> None:
        """Write the measurements whose writing an interrupt ended."""
        self._caches.flush()

    def release(self) -> None:
        """Free the memory that holds inputs and outputs of the layers to be measured, and end the
        processes that compile."""
        for search in self._searches.values():
            search.compilers.close()
            search.memory.release()

    def _search(self, device: Device) -> Search:
        """Return the search on a device. Candidates are ordered by the rates of the tuner's device,
        which are measured once."""
        if device is self.device and not self._knows_rates:
            know_rates(device, self.cache)
            self._knows_rates = True
        if device.name not in self._searches:
            self._searches[device.name] = Search(
                device, self.space, self._caches.of(device),
                lambda: self.is_over, self._note, self._progress)
        return self._searches[device.name]

    def _key(self, scope: str) -> str:
        """Return hexadecimal digits that identify layers and the effort."""
        parts = (scope, self.effort, self.precision, self.space.keeps_precisions,
                 self.limits.everything)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
