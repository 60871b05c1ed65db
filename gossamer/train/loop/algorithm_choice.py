"""The choice of the algorithm that trains, and of its config."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning, InputError, UnsupportedError
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.plan.choose.plan_assignment import SLACK
from gossamer.plan.program import Layer
from gossamer.plan.tune.tuner import EFFORTS, Tuner, usable

_LEAST_MEASURED, _MOST_MEASURED = 256, 2048
"""Samples of a launch that is measured: a power of two, so that epochs of many lengths share it."""
_MEASURED_IN_ALL = 2**15
"""Samples of all networks together, above the least: the reference goes through each."""
_SHORTEST = 256
"""Samples a launch below which a epoch is not cut for the sake of an algorithm."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """samples: how many one launch takes at most."""

    device: Device
    algorithm: Algorithm
    config: tuple[tuple[str, int | str], ...] | None
    samples: int

    def variant(self, problem: BackpropProblem) -> Variant:
        """Of the chosen config, or the first where there is none or the problem has it not."""
        variants = [variant for variant in self.algorithm.variants(problem, self.device)
                    if variant.precision == "fp32"]
        return next((each for each in variants if each.config == self.config), variants[0])


def choose(problem: BackpropProblem, device: Device, effort: str | None,
           algorithm: str | None) -> AlgorithmChoice:
    """How an epoch is trained: the algorithm called `algorithm`; else the fastest, measured, where an
    effort is given; else the one that is expected to be, see _expected(). Trains on the host, with
    a warning, where the device has none that can.

    Raises InputError for an unknown effort or algorithm, or where that algorithm cannot.
    """
    algorithms = OPS[problem.op].algorithms
    names = [algorithm.name for algorithm in algorithms]
    if effort is not None and effort not in EFFORTS:
        raise InputError(f"effort {effort!r}: expected one of {', '.join(EFFORTS)}")
    if algorithm is not None and algorithm not in names:
        raise InputError(f"algorithm {algorithm!r}: expected one of {', '.join(names)}")
    able, reasons = _supporting(problem, device)
    if algorithm is not None:
        able = [choice for choice in able if choice.algorithm.name == algorithm]
        if not able:
            raise InputError(f"algorithm {algorithm!r} cannot train {problem.describe()} on "
                             f"{device.name}: {reasons[algorithm]}")
    elif not able:
        host = find("host")
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        able, _ = _supporting(problem, host)
        if not able:
            raise UnsupportedError(f"nothing trains {problem.describe()}: {told}")
        warnings.warn(f"{device.name} cannot train {problem.describe()} ({told}); the host does",
                      GossamerWarning, stacklevel=4)
    able = _expected(problem, able)
    return able[0] if effort is None else _fastest(problem, able, effort)


def _expected(problem: BackpropProblem, able: Sequence[AlgorithmChoice]) -> list[AlgorithmChoice]:
    """The fastest first: the order of the op's list, from one launch a epoch over launches a block
    to launches a step. But exact blocking comes first where it takes one launch too: it has the
    least to do in turn then (docs/notes/performance.md)."""
    def follows(choice: AlgorithmChoice) -> bool:
        return not (isinstance(choice.algorithm, Blocked) and choice.algorithm.is_pipelined(
            problem.of_samples(choice.samples), choice.device))
    return sorted(able, key=follows)


def _supporting(problem: BackpropProblem,
                device: Device) -> tuple[list[AlgorithmChoice], dict[str, str]]:
    """The algorithms that can train the epoch, whole or in parts; and why others cannot."""
    able: list[AlgorithmChoice] = []
    reasons: dict[str, str] = {}
    for algorithm in OPS[problem.op].algorithms:
        for samples in _lengths(problem):
            reason = algorithm.supports(problem.of_samples(samples), device)
            if reason is None:
                able.append(AlgorithmChoice(device, algorithm, None, samples))
                break
            reasons[algorithm.name] = reason
        else:
            continue
        reasons.pop(algorithm.name, None)
    return able, reasons


def _lengths(problem: BackpropProblem) -> list[int]:
    """All samples, then ever fewer, in whole updates."""
    found = [problem.samples]
    while found[-1] > max(_SHORTEST, problem.batch):
        found.append(-(-found[-1] // (2 * problem.batch)) * problem.batch)
    return found


def _fastest(problem: BackpropProblem, able: Sequence[AlgorithmChoice], effort: str) -> AlgorithmChoice:
    """The first of those within 2% of the fastest over some samples of data like example_inputs:
    the same for every data set that is as dense."""
    device = able[0].device
    few = _measured(problem)
    layer = Layer("training", few.op, ["x", "targets", "order", "settings", "start"],
                  ["parameters", "loss"], list(few.outputs), few)
    measurable = [choice for choice in able if choice.algorithm.supports(few, device) is None]
    if not measurable:
        return able[0]
    candidates = Tuner(device, effort).measure(
        layer, [choice.algorithm for choice in measurable], device)
    working = usable(layer, candidates, device)
    least = min(candidate.cost for candidate in working)
    taken = next(candidate for candidate in working if candidate.cost <= (1 + SLACK) * least)
    length = next(choice.samples for choice in able if choice.algorithm is taken.algorithm)
    return AlgorithmChoice(device, taken.algorithm, taken.variant.config, length)


def _measured(problem: BackpropProblem) -> BackpropProblem:
    """What is measured: no more samples than the epoch has, but for the least."""
    most = min(_MOST_MEASURED, problem.samples, _MEASURED_IN_ALL // max(1, problem.networks))
    samples = max(_LEAST_MEASURED, 1 << max(0, most.bit_length() - 1))
    samples = max(1, samples // problem.batch) * problem.batch
    return replace(problem, rows=samples, samples=samples)
