"""The tuner: measures the candidates of layers, or reads their measurements from the cache."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.measure import CpuContention
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem, Variant
from gossamer.plan.candidate import Candidate
from gossamer.plan.eligibility import reason_build_too_long
from gossamer.plan.measurement import Measurement, candidate_key, counted
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.alike import timed_problem
from gossamer.plan.tune.attempts import Attempts, ranked_elsewhere
from gossamer.plan.tune.device_check import compile_ahead
from gossamer.plan.tune.digests import Digests
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.kernel_costs import KernelCosts
from gossamer.plan.tune.layer_times import Attempt
from gossamer.plan.tune.listing import Listing
from gossamer.plan.tune.measures import Chosen, Further, Request
from gossamer.plan.tune.memory import CandidateMemory
from gossamer.plan.tune.profile import STORING, TuningProfile
from gossamer.plan.tune.queue import AttemptQueue, Progress
from gossamer.plan.tune.rates import know_rates
from gossamer.plan.tune.requested import Requested
from gossamer.plan.tune.results import Results
from gossamer.plan.tune.runner import AttemptRunner, measure_alone
from gossamer.plan.tune.thread_margin import without_small_gains
from gossamer.plan.tune.verification import Verification
from gossamer.plan.tune.worker_pools import WorkerPools

_FEW_SPREADS, _SCATTERED = 10, 1.25
"""Number of candidates from which on their samples say something of the device, and the ratio of
quartiles from which on they scatter; on an idle GPU it is below 1.05."""
_RESERVED = 0.2
"""Share of a budget that is left for the choice, at most."""
_STORE_SECONDS = 5.0
"""Seconds after which measurements are stored while others are made."""


class Tuner:
    """Measures candidates on one device, and on the host for layers that fall back to it.

    effort: "quick", "normal" or "max". precision: the least precise of PRECISIONS that is
    allowed. cache: the stored measurements; by default those of the device in the user's folder.
    note: called with a line of text for each batch of layers that is about to be measured.
    progress: called with a Progress after each candidate. budget_s: seconds, counted from start(),
    after which there should be a plan: a little earlier, no candidate is begun any more that it can
    do without; None for no limit.
    keeps_precisions: whether layers may have to be computed in float32 though float16 is faster.
    all_vendor_configs: whether all configs of vendors' libraries are measured, whatever the effort,
    and all candidates are, so that each algorithm has its best time.
    """

    def __init__(self, device: Device, effort: str = "normal", *, precision: str = "fp32",
                 cache: TuningCache | None = None,
                 note: Callable[[str], None] = lambda line: None,
                 progress: Callable[[Progress], None] = lambda progress: None,
                 budget_s: float | None = None, keeps_precisions: bool = False,
                 all_vendor_configs: bool = False) -> None:
        self.device = device
        self.effort = effort
        self._limits = EFFORTS[effort]
        if all_vendor_configs:
            self._limits = replace(self._limits, vendor_configs=None)
        self.everything = all_vendor_configs or self._limits.everything
        """Whether candidates that cannot be of use are measured too."""
        self.samples = self._limits.samples
        self.build_seconds = self._limits.build_seconds
        self.plans_s = self._limits.plans_s
        self.replacements = self._limits.replacements
        self.replacement_gain = self._limits.replacement_gain
        self.precision = precision
        self.precisions = PRECISIONS[:PRECISIONS.index(precision) + 1]
        self.cache = TuningCache(device) if cache is None else cache
        self.measured = 0
        """Number of candidates measured so far, without those from the cache."""
        self.profile = TuningProfile()
        self._budget_s = budget_s
        self._deadline = math.inf
        self._begun: float | None = None
        self._is_stopped = False
        self._spreads: list[float] = []
        self._progress = progress
        self.contention = CpuContention()
        self._listing = Listing(effort, self._limits, self.precisions, self.profile,
                                everything=self.everything, keeps_precisions=keeps_precisions,
                                stored=lambda *of: self._results.earlier(*of).values())
        self._memories: dict[str, CandidateMemory] = {}
        self._estimates: dict[str, Estimates] = {}
        self._costs: dict[str, KernelCosts] = {}
        self._workers = WorkerPools()
        self._compilers = ExitStack()
        self._knows_rates = False
        self._note = note
        self._known: dict[tuple[Problem, str, tuple[str, ...]], list[Candidate]] = {}
        self._results = Results(self.cache, device)
        self._digests = Digests()
        self._attempts = Attempts(self._results, self._digests, self.samples, precision,
                                  everything=self.everything,
                                  keeps_precisions=keeps_precisions)
        self._verification = Verification(self._results, self._digests, self.profile,
                                          self._memory_of)

    @property
    def reused(self) -> int:
        """Number of candidates whose measurements came from the cache."""
        return self._attempts.reused

    @property
    def not_tried(self) -> int:
        """Number of candidates that were not measured, as they could not be of use."""
        return self._attempts.not_tried

    def start(self) -> None:
        """Starts a plan, and the time that the budget allows for it. Candidates that were of no use
        beside the regions of the plan before may be of use now."""
        self._known.clear()
        self._results.forget_transient()
        self._begun = time.monotonic()
        self._deadline = math.inf if self._budget_s is None else self._begun + self._budget_s

    def stop(self) -> None:
        """Ends measuring as soon as what a plan cannot do without is known, for good; another
        thread, or the handler of a signal, may call this."""
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, or stop() was called."""
        return self._is_stopped or time.monotonic() > self._deadline

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about the files of measurements, and about the conditions under
        which new ones were made."""
        notices = self._results.notices
        if crowded := self.contention.notice:
            lost = "and" if self.contention.spoilt else "and those of whole plans"
            notices.append(f"{crowded}, {lost} are not kept: compile again when the machine is "
                           "quiet")
        spreads = self._spreads
        if len(spreads) >= _FEW_SPREADS and statistics.median(spreads) > _SCATTERED:
            notices.append(
                f"the times on {self.device.name} scatter by {statistics.median(spreads) - 1:.0%} "
                "from quartile to quartile: another program may keep it busy; compile again when "
                "it is idle, after `gossamer cache clear`")
        return notices

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        """Returns the algorithms' candidates within the effort, in order of preference. Those that
        would take too long to build, or were not tried, are among them as excluded."""
        request = Request(layer, algorithms, device)
        key = _known_key(request)
        if key not in self._known:
            self.measure_all([request])
            self._known[key] = self._candidates(request)
        return self._known[key]

    def list_candidates(self, layers: Iterable[Layer], device: Device) -> bool:
        """Starts to list the candidates of layers, so that refusal_reason() and measure() have
        them soon; returns whether that goes on while the caller does something else."""
        self._compilers.enter_context(device.compilers(processors()))
        self._know_rates(device)
        compile_ahead(device)
        return self._listing.ask(layers, device, self._workers)

    def measure_all(self, requests: Sequence[Request], further: Sequence[Further] = ()) -> None:
        """Measures the candidates of several layers together, so that measure() has them.

        further: requests that are made meanwhile. Where there are some, more configs may be added
        after the last of them.
        """
        by_device: dict[str, list[Request]] = {self.device.name: []} if further else {}
        for request in requests:
            if not self._is_known(request):
                by_device.setdefault(request.device.name, []).append(request)
        elsewhere: list[Request] = []
        for name, waiting in by_device.items():
            device = waiting[0].device if waiting else self.device
            elsewhere += self._measure(device, waiting,
                                       further if name == self.device.name else ())
        if elsewhere:
            self.measure_all(elsewhere)
        self._workers.end_on_device()

    def _is_known(self, request: Request) -> bool:
        return _known_key(request) in self._known

    def _measure(self, device: Device, requests: Sequence[Request],
                 further: Sequence[Further]) -> list[Request]:
        """Measures what is missing of the candidates of layers on a device. Returns those of the
        further requests that are of other devices."""
        self._know_rates(device)
        # where many are built at once, what decides of others does not wait for a plan that a
        # budget may end with
        required_first = self._budget_s is not None or not device.builds_side_by_side
        queue = AttemptQueue((), self._estimates_of(device), everything=self.everything,
                             worth=self._limits.worth, costs=self._costs_of(device),
                             required_first=required_first)
        requested = Requested(device, queue, self._listing, self._attempts,
                              self._estimates_of(device), further, self._is_known,
                              lambda: self.is_over, partial(self._announce, device))
        requested.add(requests)
        while not requested.attempts and requested.add_further(all_begun=True, none_built=True):
            pass
        attempts = requested.attempts
        if not attempts:
            return requested.elsewhere
        self._run(device, requested)
        if requested.followers:
            queue.extend(ranked_elsewhere(attempts, requested.followers))
            self._run(device, requested)
        while instead := self._attempts.required_instead(requested.work, attempts):
            queue.extend(attempt for attempt in instead if attempt not in queue)
            self._run(device, requested)
        return requested.elsewhere

    def _announce(self, device: Device, attempts: Sequence[Attempt]) -> None:
        """Tells of attempts that are to be measured, and starts the processes that build them."""
        if attempts:
            layers = {times.name for attempt in attempts for times in attempt.group.layers}
            self._note(f"{counted(len(layers), 'layer')}: {counted(len(attempts), 'candidate')}")
            self._workers.start(device, {attempt.algorithm for attempt in attempts
                                         if not attempt.algorithm.vendor})

    def _reserve(self) -> None:
        """Before the first candidate: leaves a part of the budget for the choice, which takes about
        as long as it took to list the candidates."""
        if self._budget_s is not None and self._begun is not None:
            listing_s = time.monotonic() - self._begun
            self._deadline -= min(listing_s, _RESERVED * self._budget_s)
        self._begun = None

    def _run(self, device: Device, requested: Requested) -> None:
        """Runs a queue of attempts and stores their results, those before an interrupt included."""
        self._reserve()
        queue, attempts = requested.queue, requested.attempts
        start = stored = time.monotonic()

        def progress() -> None:
            nonlocal stored
            if time.monotonic() - stored > _STORE_SECONDS:
                # a process that is killed loses no more than this
                self._attempts.store(device, attempts)
                stored = time.monotonic()
            # a region that is measured together with its layers takes their place, or none
            layers = [times for times in requested.work.times.values() if not times.parts]
            known = [times.best_us for times in layers if times.best]
            most, left = len(attempts), len(queue)
            spent = time.monotonic() - start
            self._progress(Progress(
                len(layers), len(known), sum(known),
                most, most - left, spent * left / max(1, most - left)))

        runner = AttemptRunner(
            queue, device, self._memory_of(device), self.samples,
            workers=self._workers.pools if device is self.device else None,
            contention=self.contention, profile=self.profile, progress=progress,
            is_over=lambda: self.is_over, further=requested.add_further, spreads=self._spreads)
        try:
            runner.run()
        finally:
            self.measured += len(runner.done)
            for attempt in attempts if self.is_over else ():
                if attempt.measured is None:
                    attempt.measured = Measurement.of(
                        attempt.algorithm, attempt.variant, not_tried=True,
                        failure="not tried: measuring was ended before")
                    attempt.is_transient = True
            with self.profile.stage(STORING):
                self._attempts.store(device, attempts)

    def _candidates(self, request: Request) -> list[Candidate]:
        """Returns the measured candidates of a layer."""
        layer, problem, device = request.layer, request.problem, request.device
        candidates = []
        for algorithm in request.algorithms:
            timed = timed_problem(problem, algorithm)
            results = self._results.of(timed, device)
            for variant in self._listing.within_effort(algorithm, problem, device):
                if variant.build_seconds > self.build_seconds:
                    reason = reason_build_too_long(variant, self.build_seconds, self._listing.why)
                    measured = Measurement.of(algorithm, variant, failure=reason)
                else:
                    measured = results[candidate_key(algorithm, variant)]
                    if measured.wrong_numbers and measured.weights != self._digests.of(layer):
                        measured = self._with_own_weights(request, algorithm, variant, timed)
                candidates.append(Candidate(algorithm, variant, measured))
        return without_small_gains(candidates)

    def _with_own_weights(self, request: Request, algorithm: Algorithm, variant: Variant,
                          timed: Problem) -> Measurement:
        """Returns the measurement, with a layer's own weights, of a candidate that was wrong with
        those of another layer."""
        (attempt,) = measure_alone(request.layer, request.device, [(algorithm, variant)],
                                   self.samples, self._memory_of(request.device), self.profile)
        assert attempt.measured is not None
        self.measured += 1
        if not attempt.is_transient:
            self._results.cache_of(request.device).put(timed, [attempt.measured])
        return attempt.measured

    def conversion_us(self, problem: Problem, device: Device) -> float | None:
        """Returns the least time that a conversion can take, by an estimate; None where it has been
        measured or shall be."""
        if self.everything or self._results.of(problem, device):
            return None
        return self._estimates_of(device).least_conversion_us(problem.inputs[0],
                                                              problem.outputs[0])

    def verify(self, chosen: Iterable[Chosen]) -> None:
        """Checks several candidates together, so that verified() knows of them."""
        self._verification.check(chosen)

    def verified(self, layer: Layer, candidate: Candidate, device: Device) -> Candidate:
        """Returns the candidate, excluded where it is wrong with the layer's own constants."""
        failure = self._verification.failure(layer, candidate, device)
        return candidate if failure is None else candidate.with_exclusion(failure)

    def flush(self) -> None:
        """Writes the measurements that are not on disk yet."""
        self._results.flush()

    def release(self) -> None:
        """Frees the memory that holds inputs and outputs of the layers to be measured, and ends the
        processes that build."""
        self._listing.give_up()
        # a second interrupt may end the wait for the others
        self._compilers.close()
        self._workers.close()
        for memory in self._memories.values():
            memory.release()

    def _memory_of(self, device: Device) -> CandidateMemory:
        if device.name not in self._memories:
            self._memories[device.name] = CandidateMemory(device)
        return self._memories[device.name]

    def _know_rates(self, device: Device) -> None:
        """Sees to it that the rates by which candidates are ordered are those of the device."""
        if device is self.device and not self._knows_rates:
            know_rates(device, self.cache)
            self._knows_rates = True

    def _estimates_of(self, device: Device) -> Estimates:
        if device.name not in self._estimates:
            self._estimates[device.name] = Estimates(device, self._limits.doubt)
        return self._estimates[device.name]

    def _costs_of(self, device: Device) -> KernelCosts:
        if device.name not in self._costs:
            self._costs[device.name] = KernelCosts(
                processors() if device.builds_side_by_side else 1)
        return self._costs[device.name]

    def refusal_reason(self, algorithm: Algorithm, problem: Problem, device: Device) -> str | None:
        """Returns why an algorithm does not support a problem on a device, or has no variant whose
        precision and build time are allowed; None where it has one."""
        return self._listing.refusal_reason(algorithm, problem, device)


def _known_key(request: Request) -> tuple[Problem, str, tuple[str, ...]]:
    names = tuple(algorithm.name for algorithm in request.algorithms)
    return request.problem, request.device.name, names
