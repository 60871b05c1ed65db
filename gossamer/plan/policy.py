"""A user's decisions about the choice of algorithms.

The functions of this module return which algorithms may compute a layer, on which device, and why
the other algorithms may not.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError, closest, one_of, quoted
from gossamer.ops.algorithm import PRECISIONS, Algorithm, Problem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.host_threads import ALL, Threads
from gossamer.ops.registry import OPS
from gossamer.ops.zero_weights import ZeroWeights
from gossamer.plan.program import Layer
from gossamer.tensor import Format

Refusal = Callable[[Algorithm, Problem, Device], str | None]
"""A function that returns why an algorithm may not compute a problem on a device; None if it may.
"""


@dataclass(frozen=True)
class Effort:
    """The amount of measuring that a user permits.

    Candidates are measured in rounds. Rounds after the first one measure more configs of the
    fastest algorithms.

    configs: number of configs that the first round measures for each of gossamer's own algorithms;
    None for all.
    most_configs: number of configs that all rounds together may measure for each of gossamer's own
    dense algorithms; None for all. For an algorithm that skips zeros, `configs` is the limit of
    all rounds, because each of its configs has to be compiled for every layer anew.
    vendor_configs: number of configs that are measured for each algorithm of a vendor's library;
    None for all. This number is larger than `configs`, because libraries compile little, and their
    order of configs says little about speed.
    samples: number of timing samples for each candidate.
    widths: for each round after the first, the maximum of t / best, where t is an algorithm's time
    and best is the layer's best time. More configs are measured only for algorithms within this
    maximum.
    everything: whether the first round measures all candidates.
    """

    configs: int | None
    most_configs: int | None
    vendor_configs: int | None
    samples: int
    widths: tuple[float, ...] = ()
    everything: bool = False

    def configs_of(self, algorithm: Algorithm) -> int | None:
        """Return how many configs the first round measures; None for all."""
        return self.vendor_configs if algorithm.vendor else self.configs

    def most_configs_of(self, algorithm: Algorithm) -> int | None:
        """Return how many of an algorithm's configs all rounds may measure; None for all."""
        is_more = algorithm.dense and not algorithm.vendor
        return self.most_configs if is_more else self.configs_of(algorithm)


EFFORTS = {
    "quick": Effort(configs=2, most_configs=8, vendor_configs=4, samples=5,
                    widths=(2.0, 1.5, 1.2)),
    "normal": Effort(configs=4, most_configs=16, vendor_configs=10, samples=10,
                     widths=(3.0, 2.0, 1.5, 1.5, 1.5)),
    "max": Effort(configs=None, most_configs=None, vendor_configs=None, samples=20,
                  everything=True),
}
"""The efforts by their names."""
UNMEASURED = Effort(configs=1, most_configs=1, vendor_configs=1, samples=0)
"""The effort of plans without measurements: only the first config of each algorithm."""


@dataclass(frozen=True, eq=False)
class Policy:
    """The decisions of a user about the choice of algorithms.

    `gossamer.compile` describes the fields that are not described here.

    unfused: whether each layer is computed alone: without fusions, and without parts (several
    layers that ONNX Runtime computes in one run).
    force: names of the algorithms that certain layers must use, by the layers' names.
    threads: threads of a layer on the host, a number or ALL.
    vendors: whether algorithms of vendors' libraries may compute layers that gossamer's own
    algorithms compute too.
    boundary: format of the network's inputs and outputs of rank 4 in float32; None means NCHW and
    float32. Benchmarks set this to measure a section of a network in the format of the layers
    around it.

    Raises InputError if a field is invalid, or if fields exclude each other.
    """

    effort: str | None = None
    precision: str = "fp32"
    strict: bool = False
    only: str | None = None
    sparse_threshold: float | None = None
    calibration: Sequence[np.ndarray] | None = None
    tolerance: float | None = None
    unfused: bool = False
    budget_s: float | None = None
    force: Mapping[str, str] = field(default_factory=dict)
    boundary: Format | None = None
    threads: Threads = ALL
    vendors: bool = True

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in EFFORTS:
            raise InputError(f"effort {self.effort!r}: {one_of(self.effort, EFFORTS)}")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision {self.precision!r}: {one_of(self.precision, PRECISIONS)}")
        for name, number, limit, expected in (
                ("budget", self.budget_s, math.inf, "seconds above 0, such as 10"),
                ("tolerance", self.tolerance, math.inf,
                 "a normalised error above 0, such as 1e-3"),
                ("sparse_threshold", self.sparse_threshold, 1.0,
                 "a sparsity between 0 and 1, such as 0.6")):
            if number is not None and not (isinstance(number, numbers.Real) and 0 < number < limit):
                raise InputError(f"{name} {quoted(number)}: expected {expected}")
        if self.budget_s is not None and self.effort is None:
            raise InputError("budget: without an effort nothing is measured; pass one, such as "
                             "effort='normal'")
        if self.precision != "fp32" and self.effort is None:
            raise InputError(f"precision {self.precision!r} requires an effort, such as "
                             "effort='normal': lower precision is used only for layers where it is "
                             "measured to be faster")
        is_number = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if self.threads != ALL and not (is_number and int(self.threads) >= 1):
            raise InputError(f"threads {quoted(self.threads)}: expected {ALL!r}, or a number of 1 "
                             "or more")
        if self.only is not None and self.only not in (names := _algorithms()):
            raise InputError(f"only={self.only!r}: {_no_algorithm(self.only, names)}")
        for layer, algorithm in self.force.items():
            if algorithm not in (names := _algorithms()):
                raise InputError(
                    f"force: {layer!r} cannot use {algorithm!r}: {_no_algorithm(algorithm, names)}")
        if self.sparse_threshold is not None and self.only is not None:
            raise InputError("only and sparse_threshold are mutually exclusive; give one of them")
        if self.tolerance is not None and self.calibration is None:
            raise InputError("tolerance: needs calibration inputs, on which the error is measured; "
                             "pass calibration")


ANY = Policy()
"""The policy that restricts nothing."""


def _algorithms() -> set[str]:
    """Return the names of all algorithms, importing their code."""
    return {algorithm.name for op in OPS.values() for algorithm in op.algorithms}


def _no_algorithm(name: str, names: Collection[str]) -> str:
    """Return a message about an unknown algorithm name, with similar names.
    """
    close = closest(name, names)
    return "there is no such algorithm; " + (
        f"close to it: {', '.join(close)}" if close else
        "`gossamer compile` with --explain LAYER lists those of a layer")


def is_change_of_precision(problem: Problem) -> bool:
    """Return whether a problem converts to or from float16, whatever precision is allowed.

    Such conversions are those of inputs and outputs that the caller has in float16, and those
    between the layers of a plan. Layers of a network in float16 have float32 problems; their
    algorithms compute in float16 if the policy allows it. False for fusions likewise.
    """
    return not isinstance(problem, FusionProblem) and any(
        spec.dtype == "float16" for spec in (*problem.inputs, *problem.outputs))


def eligibility(layer: Layer, device: Device, refusal_reason: Refusal, policy: Policy = ANY
                ) -> tuple[list[Algorithm], Device, dict[str, str]]:
    """Return a layer's eligible algorithms, their device, and reasons against the others.

    The device is `device`, or the host if no algorithm may compute the layer on `device`. The
    reasons say, for each algorithm that is not eligible, why it may not compute the layer.

    refusal_reason: a function of an algorithm, a problem and a device. It returns why the algorithm
    does not support the problem on the device, or why none of the algorithm's variants is allowed,
    and None if the algorithm may compute the problem.
    policy: decides between the algorithms that can compute the layer; see allowed_on().

    Raises UnsupportedError if no algorithm can compute the layer, and InputError if the policy
    forces an algorithm that cannot compute it.
    """
    reasons: dict[str, str] = {}
    for layer_device in (device, find("host")):
        able, refused = allowed_on(layer, layer_device, refusal_reason, policy)
        reasons = {**refused, **reasons}
        if able:
            return able, layer_device, reasons
    if layer.name in policy.force:
        name = policy.force[layer.name]
        raise InputError(f"layer {layer.name}: {name} is forced but cannot compute it: "
                         f"{reasons.get(name, f'it does not support {layer.op}')}")
    raise UnsupportedError(
        f"{layer.source or layer.name}: no algorithm computes {layer.problem.describe()}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def allowed_on(layer: Layer, device: Device, refusal_reason: Refusal, policy: Policy,
               algorithms: Iterable[Algorithm] | None = None
               ) -> tuple[list[Algorithm], dict[str, str]]:
    """Return the algorithms that a policy allows on a device, and reasons against the others.

    A layer that the policy's `force` names uses only the algorithm that `force` specifies, and so
    does a fusion that covers the layer. For all others these rules apply in order:
    - Algorithms with by_name_only are left out, unless `only` names them.
    - Without `vendors`, algorithms of vendors' libraries are left out.
    - The algorithm that `only` names excludes all others.
    - ZeroWeights, which supports a layer whose weights are all zero, excludes all others.
    - With `sparse_threshold`, a layer whose sparsity is above this threshold uses algorithms that
    skip zeros; any other layer uses dense algorithms. Direct sparse convolution was published with
    this rule (X. Chen, "Escoin: efficient sparse convolutional neural network inference on GPUs",
    arXiv 1802.10280, 2018).
    The first rule always applies, and so does the last one to fusions, whose layers may be computed
    alone. Any other rule is skipped if it would leave no algorithm.

    algorithms: as for able_on().
    """
    able, reasons = able_on(layer.problem, device, refusal_reason, algorithms)

    def kept(keep: Callable[[Algorithm], bool], reason: str, *, always: bool = False) -> None:
        nonlocal able
        left = [algorithm for algorithm in able if keep(algorithm)]
        if left or always:
            reasons.update({algorithm.name: reason.format(algorithm.name) for algorithm in able
                            if algorithm not in left})
            able = left

    if forced := {policy.force[name] for name in layer.computes if name in policy.force}:
        kept(lambda algorithm: {algorithm.name} == forced,
             f"{' and '.join(sorted(forced))} is forced", always=True)
        return able, reasons
    kept(lambda algorithm: not algorithm.by_name_only or algorithm.name == policy.only,
         "is used only with only={!r}", always=True)
    if not policy.vendors:
        kept(lambda algorithm: not algorithm.vendor, "vendors' libraries are excluded")
    kept(lambda algorithm: algorithm.name == policy.only, f"{policy.only} is forced")
    kept(lambda algorithm: isinstance(algorithm, ZeroWeights),
         "all weights are zero")
    if policy.sparse_threshold is not None and layer.density is not None:
        # in floating point, 1 - 0.7 is a little more than 0.3
        above = round(1 - layer.density, 12) > policy.sparse_threshold
        kept(lambda algorithm: algorithm.dense != above,
             f"sparsity {1 - layer.density:.4g} is {'above' if above else 'not above'} the "
             f"threshold {policy.sparse_threshold:g}", always=bool(layer.covers))
    return able, reasons


def able_on(problem: Problem, device: Device, refusal_reason: Refusal,
            algorithms: Iterable[Algorithm] | None = None
            ) -> tuple[list[Algorithm], dict[str, str]]:
    """Return the algorithms that support a problem on a device, and reasons against the others.

    algorithms: the algorithms to consider; by default all algorithms of the op.
    """
    able: list[Algorithm] = []
    reasons: dict[str, str] = {}
    for algorithm in OPS[problem.op].algorithms if algorithms is None else algorithms:
        reason = refusal_reason(algorithm, problem, device)
        if reason is None:
            able.append(algorithm)
        else:
            reasons[algorithm.name] = reason
    return able, reasons
