"""The choice of the training algorithm and its config."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning, InputError, UnsupportedError, check_choice
from gossamer.measure import SLACK
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Variant
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.plan.policy import EFFORTS
from gossamer.plan.program import Layer
from gossamer.plan.tune.rows import usable
from gossamer.plan.tune.tuner import Tuner

TRAINING_PRECISIONS = ("fp32", "tf32")
"""The precisions in which some algorithm trains, from the most to the least precise."""
_LEAST_MEASURED, _MOST_MEASURED = 256, 2048
"""Lower and upper bound of the number of samples in a measured launch, before the number is rounded
down to a multiple of the batch size. The number is a power of two, so that epochs of many lengths
share one measurement."""
_MEASURED_IN_ALL = 2**15
"""Maximum number of samples in a measured launch, summed over all networks. However, each network
has at least _LEAST_MEASURED samples. The maximum is needed because the float64 reference trains on
all of these samples, too."""
_SHORTEST = 256
"""If an algorithm does not support a launch of more samples than this, a launch of half as many
samples is tried."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """The device, algorithm and config for a training.

    config: the fastest config; None if nothing was measured.
    samples: maximum number of samples in one launch.
    precision: the precision of the fastest variant if variants were measured; if not, the least
    precise of TRAINING_PRECISIONS that is allowed.
    """

    device: Device
    algorithm: Algorithm
    config: tuple[tuple[str, int | str], ...] | None
    samples: int
    precision: str = "fp32"

    def variant(self, problem: BackpropProblem) -> Variant:
        """Return the variant with `config`, or the first variant if none has it.

        Only variants of one precision are considered: the least precise one that is allowed and
        that the algorithm supports.
        """
        variants = list(self.algorithm.variants(problem, self.device))
        allowed = PRECISIONS[:PRECISIONS.index(self.precision) + 1]
        precision = max((variant.precision for variant in variants
                         if variant.precision in allowed), key=allowed.index)
        variants = [variant for variant in variants if variant.precision == precision]
        return next((variant for variant in variants if variant.config == self.config),
                    variants[0])


def choose(problem: BackpropProblem, device: Device, effort: str | None,
           algorithm: str | None, precision: str = "fp32") -> AlgorithmChoice:
    """Choose the device, the algorithm and the config for a training.

    If no algorithm of the device can train the problem, the host is used, with a warning.

    effort: effort at which the algorithms are measured to find the fastest; with None, the first
    algorithm of _expected() is used.
    algorithm: name of the algorithm to use; None allows all algorithms.
    precision: the least precise of TRAINING_PRECISIONS that is allowed. If nothing was measured and
    this precision is not used, a warning says so.
    Raises InputError for an unknown effort, algorithm or precision, or if the named algorithm
    cannot train the problem. Raises UnsupportedError if no algorithm can train it on the host
    either.
    """
    algorithms = OPS[problem.op].algorithms
    names = [algorithm.name for algorithm in algorithms]
    if effort is not None:
        check_choice("effort", effort, EFFORTS)
    if algorithm is not None:
        check_choice("algorithm", algorithm, names)
    check_choice("precision", precision, TRAINING_PRECISIONS)
    choices, reasons = _supporting(problem, device, precision)
    if algorithm is not None:
        choices = [choice for choice in choices if choice.algorithm.name == algorithm]
        if not choices:
            raise InputError(f"algorithm {algorithm!r} cannot train {problem.describe()} on "
                             f"{device.name}: {reasons[algorithm]}")
    elif not choices:
        host = find("host")
        reason_text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        choices, _ = _supporting(problem, host, precision)
        if not choices:
            raise UnsupportedError(f"no algorithm can train {problem.describe()}: {reason_text}")
        warnings.warn(
            f"{device.name} cannot train {problem.describe()} ({reason_text}); the host trains it "
            "instead", GossamerWarning, stacklevel=4)
    choices = _expected(problem, choices)
    if effort is not None:
        return _fastest(problem, choices, effort)
    if algorithm is None:
        _tell_of_slow_processor(choices[0])
    if precision != "fp32":
        _tell_of_unused_precision(problem, choices[0])
    return choices[0]


def _tell_of_slow_processor(choice: AlgorithmChoice) -> None:
    """Warn if OpenCL on a CPU trains much slower than NumPy.

    On OpenCL CPU devices, all algorithms except Blocked are much slower than NumPy
    (docs/notes/training.md).
    """
    device = choice.device
    if (device.compiles and device.on_processors and not device.is_simulator
            and not isinstance(choice.algorithm, Blocked)):
        warnings.warn(f"{device.name} is a processor, on which {choice.algorithm.name} trains many "
                      "times slower than NumPy: omit the device, or give 'host'",
                      GossamerWarning, stacklevel=5)


def _tell_of_unused_precision(problem: BackpropProblem, choice: AlgorithmChoice) -> None:
    """Warn if the allowed precision is not used."""
    used = choice.variant(problem.of_samples(choice.samples)).precision
    if used != choice.precision:
        warnings.warn(f"precision {choice.precision!r} is not used: {choice.algorithm.name} on "
                      f"{choice.device.name} trains {problem.describe()} in {used}; only batched, "
                      "on NVIDIA GPUs with tensor cores for TF32, trains batches of more than 4 "
                      "samples in tf32", GossamerWarning, stacklevel=5)


def _expected(problem: BackpropProblem,
              choices: Sequence[AlgorithmChoice]) -> list[AlgorithmChoice]:
    """Return the choices sorted by expected speed, fastest first.

    Blocked is first if a single launch trains an epoch, because it has the least work that is
    sequential over the samples (docs/notes/training.md). The other algorithms stay in the op's
    order: those that train an epoch in one launch come first, then those that train a block of
    samples, and then those that train a step.
    """
    def is_later(choice: AlgorithmChoice) -> bool:
        return not (isinstance(choice.algorithm, Blocked) and choice.algorithm.is_pipelined(
            problem.of_samples(choice.samples), choice.device))
    return sorted(choices, key=is_later)


def _supporting(problem: BackpropProblem, device: Device,
                precision: str) -> tuple[list[AlgorithmChoice], dict[str, str]]:
    """Return the possible choices, and why other algorithms cannot train.

    Each choice has the longest launches that its algorithm supports. The keys of the reasons are
    names of algorithms.
    """
    choices: list[AlgorithmChoice] = []
    reasons: dict[str, str] = {}
    for algorithm in OPS[problem.op].algorithms:
        for samples in _lengths(problem):
            reason = algorithm.supports(problem.of_samples(samples), device)
            if reason is None:
                choices.append(AlgorithmChoice(device, algorithm, None, samples, precision))
                break
            reasons[algorithm.name] = reason
        else:
            continue
        reasons.pop(algorithm.name, None)
    return choices, reasons


def _lengths(problem: BackpropProblem) -> list[int]:
    """Return the possible numbers of samples in a launch, largest first.

    The first number is that of all samples. Each further number is half of the one before, rounded
    up to a multiple of the batch size.
    """
    lengths = [problem.samples]
    while lengths[-1] > max(_SHORTEST, problem.batch):
        lengths.append(-(-lengths[-1] // (2 * problem.batch)) * problem.batch)
    return lengths


def _fastest(problem: BackpropProblem, choices: Sequence[AlgorithmChoice],
             effort: str) -> AlgorithmChoice:
    """Return the first choice within SLACK (2%) of the fastest.

    A smaller problem with random data is timed, so that data sets of about the same density share
    one measurement.
    """
    device = choices[0].device
    measured = _measured_problem(problem)
    inputs = ["x", "targets", "order", "settings", "start", "sample_weights"]
    layer = Layer("training", inputs[:len(measured.inputs)],
                  ["parameters", "loss"], measured)
    measurable = [choice for choice in choices
                  if choice.algorithm.supports(measured, device) is None]
    if not measurable:
        return choices[0]
    candidates = Tuner(device, effort, precision=choices[0].precision).measure(
        layer, [choice.algorithm for choice in measurable], device)
    working = usable(layer, candidates, device)
    least = min(candidate.cost for candidate in working)
    fastest = next(candidate for candidate in working if candidate.cost <= (1 + SLACK) * least)
    length = next(choice.samples for choice in choices if choice.algorithm is fastest.algorithm)
    return AlgorithmChoice(device, fastest.algorithm, fastest.variant.config, length,
                           fastest.variant.precision)


def _measured_problem(problem: BackpropProblem) -> BackpropProblem:
    """Return the smaller problem that is measured instead of an epoch.

    Its number of samples is the largest power of two within three limits: the samples of the epoch,
    _MOST_MEASURED, and each network's share of _MEASURED_IN_ALL. If this is less than
    _LEAST_MEASURED, the number is _LEAST_MEASURED. Then the number is rounded down to whole
    batches, but never below one batch.
    """
    most = min(_MOST_MEASURED, problem.samples, _MEASURED_IN_ALL // max(1, problem.networks))
    samples = max(_LEAST_MEASURED, 1 << max(0, most.bit_length() - 1))
    samples = max(1, samples // problem.batch) * problem.batch
    return replace(problem, rows=samples, samples=samples)
