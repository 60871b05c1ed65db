"""The number of BLAS threads on the host: of each layer where nothing else is measured, and of the
network as a whole. One and all of them are timed in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.measure import CpuContention, interleave
from gossamer.ops.algorithm import Variant
from gossamer.ops.host_threads import ALL, THREADS
from gossamer.plan.candidate import Candidate, why_not_others
from gossamer.plan.choose.plan_times import EndToEnd, end_to_end
from gossamer.plan.prepare import build
from gossamer.plan.program import Program, Step
from gossamer.plan.run.context import Context
from gossamer.plan.tune.examples import Examples
from gossamer.plan.tune.thread_margin import MARGIN
from gossamer.plan.tune.tuner import Tuner

_LEAST_FLOPS = 2**20
"""Floating-point operations of a layer from which on the number of threads matters: one thread
computes fewer within about 0.05 ms."""
_SAMPLES = 3
_LONG_US = 1e5
"""Microseconds of an execution that serves as a sample itself, and not as a warm-up."""
_SECONDS = 1.0
"""Seconds after which no further layer is timed."""
_MOST_FLOPS = 2**34
"""Floating-point operations of a network up to which it is timed as a whole even where nothing is
measured: some executions take a second or two."""
_WHOLE_MARGIN = 0.95
"""Largest time of a network some of whose layers have all threads, as a share of its time with one,
for which they keep them."""
_NO_GAIN = "the network as a whole is no faster with more than one thread"


def settled(name: str, program: Program, device: Device, tuner: Tuner | None,
            note: Callable[[str], None] = lambda line: None) -> tuple[Program, EndToEnd | None]:
    """Returns the program, or the same program with one BLAS thread for every layer where that is
    as fast as a whole; and its time, where the two were compared and the time is stored.

    Layers that are timed alone do not show what threads cost that have to be woken up, or that
    other programs keep from a processor in the middle of a network. tuner: stores the times; None
    where nothing is stored, and a large network is not timed.
    """
    if device.compiles or not any(_has_all_threads(step.variant) for step in program.steps):
        return program, None
    single = replace(program, steps=[_with_one_thread(step, tuner) for step in program.steps],
                     measured=[replace(layer, candidates=_without_all_threads(layer.candidates))
                               for layer in program.measured])
    if tuner is not None:
        times = end_to_end(name, [program, single], device, tuner, note)
        medians = [time.timing.median_us if time.timing else math.inf for time in times]
        index = 0 if medians[0] <= _WHOLE_MARGIN * medians[1] else 1
        return (program, single)[index], times[index]
    if sum(step.problem.flops for step in program.steps) > _MOST_FLOPS:
        return program, None
    tasks = [Context(name, each, device).ready() for each in (program, single)]
    (several_time, single_time), spoilt = CpuContention().undisturbed(
        device, lambda: interleave(tasks, repeats=_SAMPLES, sample_us=2e4))
    gains = several_time.median_us <= _WHOLE_MARGIN * single_time.median_us
    return program if gains and not spoilt else single, None


def _with_one_thread(step: Step, tuner: Tuner | None) -> Step:
    """Returns a step with one BLAS thread. Where candidates were measured it takes the fastest that
    has one thread and the same formats."""
    if not _has_all_threads(step.variant):
        return replace(step, candidates=_without_all_threads(step.candidates))
    if tuner is None:
        return replace(step, variant=_thread_variants(step)[0])
    candidates = _without_all_threads(step.candidates)
    formats = step.variant.inputs, step.variant.outputs
    fitting = [candidate for candidate in candidates
               if (candidate.variant.inputs, candidate.variant.outputs) == formats]
    verified = (tuner.verified(step.layer, candidate, step.device)
                for candidate in sorted(fitting, key=lambda candidate: candidate.cost))
    taken = next(candidate for candidate in verified if candidate.is_usable)
    reasons = {name: reason for name, reason in step.rejected.items()
               if name != taken.algorithm.name}
    return replace(step, algorithm=taken.algorithm, variant=taken.variant, candidates=candidates,
                   rejected={**reasons, **why_not_others(candidates, taken)})


def _has_all_threads(variant: Variant) -> bool:
    return (THREADS, ALL) in variant.config


def _without_all_threads(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns candidates, of which those with all threads are excluded."""
    return [candidate.with_exclusion(_NO_GAIN)
            if _has_all_threads(candidate.variant) and not candidate.measured.failure
            else candidate for candidate in candidates]


def with_threads(program: Program, device: Device) -> Program:
    """Returns a program in which each large layer on the host has all threads of BLAS where these
    make it faster.

    Layers that are small, and those that were timed while other programs had the processors, keep
    the one thread of their algorithms' first configs, and so do the smaller ones of the large
    layers where timing takes long. device: the plan's; only a program on the host is changed.
    """
    if device.compiles:
        return program
    large = sorted((step for step in program.steps if step.problem.flops >= _LEAST_FLOPS),
                   key=lambda step: -step.problem.flops)
    taken: dict[object, Variant] = {}
    examples, contention, start = Examples(device), CpuContention(), time.monotonic()
    for step in large:
        variants = _thread_variants(step)
        if len(variants) == 1 or _key(step) in taken:
            continue
        if time.monotonic() - start > _SECONDS:
            break
        try:
            fastest, spoilt = contention.undisturbed(
                device, partial(_fastest, step, variants, examples))
        except (MemoryError, OutOfMemoryError):
            continue
        taken[_key(step)] = step.variant if spoilt else fastest
    return replace(program, steps=[replace(step, variant=taken.get(_key(step), step.variant))
                                   for step in program.steps])


def _key(step: Step) -> object:
    return step.algorithm.name, step.problem, step.variant


def _thread_variants(step: Step) -> list[Variant]:
    """Returns the variants of a step that differ from its own in the number of threads only, its
    own among them, in the algorithm's order."""
    def others(variant: Variant) -> Variant:
        return replace(variant, config=tuple(setting for setting in variant.config
                                             if setting[0] != THREADS))

    return [variant for variant in step.algorithm.variants(step.problem, step.device)
            if others(variant) == others(step.variant)]


def _fastest(step: Step, variants: Sequence[Variant], examples: Examples) -> Variant:
    """Returns the first variant, or another that is clearly faster. Their samples are taken in
    turn."""
    works = [_work(step, variant, examples) for variant in variants]
    samples = [[work()] for work in works]
    if max(times[0] for times in samples) < _LONG_US:
        samples = [[] for _ in works]
        for _ in range(_SAMPLES):
            for work, times in zip(works, samples, strict=True):
                times.append(work())
    medians = [statistics.median(times) for times in samples]
    best = medians.index(min(medians))
    return variants[best] if medians[best] <= MARGIN * medians[0] else variants[0]


def _work(step: Step, variant: Variant, examples: Examples) -> Callable[[], float]:
    """Returns a function that executes a step in a variant and returns the microseconds."""
    device, problem = step.device, step.problem
    state, _ = build(step.algorithm, step.layer.weights_on(device), problem, variant, device)
    inputs = [examples.buffer(problem, index, array, spec) for index, (array, spec) in enumerate(
        zip(examples.of(problem), variant.inputs, strict=True))]
    outputs = [device.empty(spec.nbytes, "a timed layer's output") for spec in variant.outputs]
    workspace = device.empty(variant.workspace, "a timed layer's workspace")
    return lambda: device.time(
        lambda stream: step.algorithm.launch(state, inputs, outputs, workspace, stream))
