"""The tuner: measures the candidates of layers, or reads their measurements from the cache."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from gossamer.device.base import Device
from gossamer.measure import Timing, scatter_notice
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.candidate import Candidate, Measurement, candidate_key, counted
from gossamer.plan.policy import EFFORTS, reason_build_too_long
from gossamer.plan.program import Layer
from gossamer.plan.store.keys import problem_key
from gossamer.plan.store.tuning_cache import Caches, TuningCache
from gossamer.plan.tune.cost import LEAST_SHARE, conversion_us
from gossamer.plan.tune.measures import Chosen, MeasurementRequest, timed_problem
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import TuningProfile
from gossamer.plan.tune.rates import know_rates
from gossamer.plan.tune.rows import Group, Row
from gossamer.plan.tune.search import Progress, Promising, Search
from gossamer.plan.tune.space import Space
from gossamer.plan.tune.verification import Verification
from gossamer.plan.tune.workers import Compilers

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
        self.precisions = PRECISIONS[:PRECISIONS.index(precision) + 1]
        self.cache = TuningCache(device) if cache is None else cache
        self.measured = 0
        """Number of candidates measured so far, without the candidates of `reused`."""
        self.reused = 0
        """Number of candidates whose measurements came from the cache."""
        self.not_tried = 0
        """Number of candidates that were not measured, because they could not be of use."""
        self.profile = TuningProfile()
        self._budget_s = budget_s
        self._deadline = math.inf
        self._is_stopped = False
        self._timings: list[Timing] = []
        self._progress = progress
        self.space = Space(effort, self.limits, self.precisions, self.profile,
                           keeps_precisions=keeps_precisions, threads=threads)
        """The candidates that layers have."""
        self._memories: dict[str, CandidateMemory] = {}
        self._groups: dict[str, dict[Problem, Group]] = {}
        """The rows that this process knows, by the device's name and by their problem."""
        self._compilers = Compilers(device)
        self._knows_rates = False
        self._note = note
        self._caches = Caches(self.cache, device)
        self._verification = Verification(self._caches, self.profile, self._memory_of)

    def start(self) -> None:
        """Start a plan, and the time of its budget. Forgets which candidates were left out for the
        previous plan: candidates that the fusions of that plan made useless may be of use now."""
        for groups in self._groups.values():
            for group in groups.values():
                for row in group.rows.values():
                    if row.measured is not None and row.measured.failure:
                        row.measured = None
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
        if len(self._timings) >= _FEW_TIMINGS and (
                scattered := scatter_notice(self._timings, self.device)):
            notices.append(scattered)
        return notices

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        """Measure the algorithms' candidates within the effort, and return them as candidates()
        does."""
        request = MeasurementRequest(layer, algorithms, device)
        self.measure_all([request])
        return self.candidates(request)

    def ask(self, layers: Sequence[Layer], device: Device) -> None:
        """Begin to ask vendors' libraries, in other processes, which variants they have for
        layers. Only libraries that answer slowly are asked, and only where the device can build
        several candidates at the same time. The device's rates are measured first, since they
        decide the order in which variants are listed."""
        self._know_rates(device)
        self.space.ask(layers, device, self._compilers)

    def measure_all(self, requests: Sequence[MeasurementRequest]) -> None:
        """Measure the candidates of several layers together, so that measure() has them."""
        by_device: dict[str, list[MeasurementRequest]] = {}
        for request in requests:
            if not self._is_measured(request):
                by_device.setdefault(request.device.name, []).append(request)
        for of_device in by_device.values():
            scope = [[problem_key(request.problem), *(each.name for each in request.algorithms)]
                     for request in of_device]
            self._search(of_device[0].device, [of_device], json.dumps(scope))

    def measure_network(self, lists: Iterable[Sequence[MeasurementRequest]], scope: str,
                        promising: Promising) -> None:
        """Measure the candidates of a network's layers and fusions on the device together.

        lists, promising: as in Search.run(). scope: text that identifies the requests.
        """
        self._search(self.device, lists, scope, promising)
        # the processes take some time to end, in which the plan is assigned
        self._compilers.end()

    def _search(self, device: Device, lists: Iterable[Sequence[MeasurementRequest]], scope: str,
                promising: Promising | None = None) -> None:
        """Search on one device. The arguments are as in measure_network()."""
        self._know_rates(device)
        key = _digest(scope, self.effort, self.precision, self.space.keeps_precisions,
                      self.limits.everything)
        # the candidates that a plan cannot do without come first where a budget may end the search,
        # or where one candidate is built at a time
        required_first = self._budget_s is not None or not device.builds_side_by_side
        search = Search(device, self.space, key, self._caches.of(device), self._groups_of(device),
                        self._memory_of(device),
                        self._compilers if device is self.device else None,
                        self.profile, self._timings, required_first=required_first,
                        is_over=lambda: self.is_over,
                        begun=lambda rows: self._announce(device, rows),
                        progress=self._progress)
        try:
            search.run([list(chain(*lists))] if required_first else lists, promising)
        finally:
            self.measured += search.measured
            self.reused += search.reused
            self.not_tried += search.not_tried

    def _announce(self, device: Device, rows: Sequence[Row]) -> None:
        """Tell the user which candidates are to be measured, and start the processes that compile
        for them."""
        if rows:
            layers = {times.name for row in rows for times in row.group.layers}
            self._note(f"{counted(len(layers), 'layer')}: {counted(len(rows), 'candidate')}")
            self._compilers.start()

    def _is_measured(self, request: MeasurementRequest) -> bool:
        """Return whether this plan has a result of each candidate of a layer."""
        groups = self._groups_of(request.device)
        for algorithm in request.algorithms:
            group = groups.get(timed_problem(request.problem, algorithm))
            if group is None or any(
                    (row := group.rows.get(candidate_key(algorithm, variant))) is None
                    or row.is_open for variant in self.space.buildable(
                        algorithm, request.problem, request.device)):
                return False
        return True

    def candidates(self, request: MeasurementRequest) -> list[Candidate]:
        """Return the candidates of a layer whose measuring has begun, in order of preference.
        Candidates that would take too long to build, or were left out, are excluded candidates; a
        candidate that may still be measured has the time that is expected of it, too."""
        problem, device, most_s = request.problem, request.device, self.limits.build_seconds
        candidates = []
        for algorithm in request.algorithms:
            group = self._groups_of(device).get(timed_problem(problem, algorithm))
            for variant in self.space.within_effort(algorithm, problem, device):
                if variant.build_seconds > most_s:
                    reason = reason_build_too_long(variant, most_s, self.space.why)
                    candidates.append(Candidate(algorithm, variant, Measurement.of(
                        algorithm, variant, failure=reason)))
                    continue
                assert group is not None
                row = group.rows[candidate_key(algorithm, variant)]
                candidates.append(
                    Candidate(algorithm, variant, row.unmeasured, None, group.expected_us(row))
                    if row.measured is None else Candidate(algorithm, variant, row.measured))
        return candidates

    def conversion_us(self, problem: Problem, device: Device) -> float | None:
        """Return the least time that a conversion can take, by an estimate; None where the
        conversion was measured or is to be measured."""
        if self.limits.everything or problem in self._groups_of(device):
            return None
        return LEAST_SHARE * conversion_us(problem.inputs[0], problem.outputs[0], device)

    def verified(self, chosen: Iterable[Chosen]) -> list[Candidate]:
        """Return the candidates. A candidate that computes wrong numbers with the constants of its
        layer is excluded."""
        return self._verification.verified(chosen)

    def flush(self) -> None:
        """Write the measurements whose writing an interrupt ended."""
        self._caches.flush()

    def release(self) -> None:
        """Free the memory that holds inputs and outputs of the layers to be measured, and end the
        processes that compile."""
        self._compilers.close()
        for memory in self._memories.values():
            memory.release()

    def _memory_of(self, device: Device) -> CandidateMemory:
        if device.name not in self._memories:
            self._memories[device.name] = CandidateMemory(device)
        return self._memories[device.name]

    def _know_rates(self, device: Device) -> None:
        """Set, once, the rates of the tuner's device. Candidates are ordered by these rates."""
        if device is self.device and not self._knows_rates:
            know_rates(device, self.cache)
            self._knows_rates = True

    def _groups_of(self, device: Device) -> dict[Problem, Group]:
        return self._groups.setdefault(device.name, {})


def _digest(*parts: object) -> str:
    """Return hexadecimal digits that identify texts and numbers."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
