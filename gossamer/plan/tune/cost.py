"""The times that are expected of candidates, from models whose scale and error are learnt from
measured times.

The model time of a candidate comes from the algorithm's own model. For an algorithm without a
model, the model time is a lower bound, which follows from the arithmetic and the bytes of the
problem. For each kind of candidates (algorithm, precision and layouts) the ratios of measured times
to model times are stored. For later candidates of the kind, these ratios give an expected time, and
a least time that few candidates are expected to fall below. As long as a kind has few ratios, the
ratios of its algorithm and precision with all layouts stand in for them. For each problem only the
best time counts: an algorithm may be slow on one layer with all configs, which says nothing about
other layers.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.tensor import TensorSpec

_FEW = 6
"""From this number of problems of a kind on, the ratios of their best times to the model's times
are used."""
_UNKNOWN = 0.4
"""In a kind with few measured times, a time is expected to be at least this share of the model's
time."""
_FEW_WITH_ALL_LAYOUTS = 3
"""From this number of problems on, the ratios of an algorithm with all layouts stand in for the
ratios of a kind."""
_FEW_CONFIGS = 12
"""From this number of pairs of a later config and a first config on, the ratios of their times are
used."""
_MARGIN = 0.9
"""Factor by which the least time that follows from the known ratios is multiplied, because a new
time may be a little lower."""

Kind = tuple[str, ...]
"""An algorithm, a precision and the layouts of all inputs and outputs."""


@dataclass(frozen=True)
class NominalRates:
    """Nominal rates of a kind of devices.

    launch_us: the time of an empty launch in microseconds.
    flops: operations of one compute unit in a microsecond, by precision.
    nbytes: bytes that one compute unit moves in a microsecond.
    config: as long as few pairs of configs were measured, a later config is expected to take at
    least this share of the time of the algorithm's first config. The last config of a vendor's
    library can take half the time of its first config. On processors the share is lower, since the
    configs are in an order that was made for GPUs.
    layouts: as long as few times of a kind were measured, a candidate is expected to take at least
    this share of the time that follows from the times with other layouts. The share is lower on
    processors, since the models were fitted on GPUs.
    """

    launch_us: float
    flops: dict[str, float]
    nbytes: float
    config: float
    layouts: float


_GPU = NominalRates(2.0, {"fp32": 4.3e5, "tf32": 3.5e6, "fp16": 7e6}, 5e4, 0.5, 0.75)
_PROCESSOR = NominalRates(5.0, {"fp32": 5e4, "tf32": 5e4, "fp16": 5e4}, 8e3, 0.25, 0.4)


def rates_of(device: Device) -> NominalRates:
    """Return the nominal rates of a device's compute units; their scale is corrected by measured
    times, so only their proportions matter."""
    return _PROCESSOR if device.on_processors else _GPU


class Ratios:
    """Ratios of measured times to times that were known before. For each key only the least ratio
    counts.

    doubt: the share of ratios that may be below the ratio that least_us() uses.
    few: from this number of keys on, the ratios are used.
    unknown: the ratio that least_us() uses with fewer keys.
    most: the largest ratio that least_us() uses.
    margin: factor by which least_us() multiplies the known ratio.
    """

    def __init__(self, doubt: float, few: int, unknown: float, most: float = math.inf,
                 margin: float = _MARGIN) -> None:
        self._doubt, self._few, self._unknown, self._most, self._margin = (
            doubt, few, unknown, most, margin)
        self._of: dict[Hashable, float] = {}
        self._sorted: list[float] = []

    @property
    def are_few(self) -> bool:
        """Whether too few ratios are known to say much."""
        return len(self._sorted) < self._few

    def learn(self, key: Hashable, known_us: float, time_us: float) -> None:
        """Remember the ratio of a measured time to a time that was known before, if this ratio is
        the least of its key."""
        ratio = max(time_us, 1e-3) / max(known_us, 1e-3)
        self._of[key] = min(ratio, self._of.get(key, math.inf))
        self._sorted = sorted(self._of.values())

    def expected_us(self, known_us: float) -> float:
        """Return the product of a time with the geometric mean of the ratios; the time itself
        where no ratios are known."""
        return known_us * (statistics.geometric_mean(self._sorted) if self._sorted else 1.0)

    def least_us(self, known_us: float) -> float:
        """Return the product of a time with a low ratio, less a margin. At most the share `doubt`
        of the ratios are below this ratio."""
        if self.are_few:
            return known_us * self._unknown
        return known_us * self._margin * min(
            self._most, self._sorted[int(self._doubt * len(self._sorted))])

    def saving_us(self, known_us: float, bound_us: float) -> float | None:
        """Return how far the products of a time with each ratio are below a bound, on average. For
        a product above the bound, a distance of 0 enters the average. Return None where few ratios
        are known."""
        if self.are_few:
            return None
        below = bisect.bisect_left(self._sorted, bound_us / known_us)
        return sum(bound_us - known_us * ratio for ratio in self._sorted[:below]) / len(
            self._sorted)


class Estimates:
    """The estimates for candidates on one device.

    doubt: the share of candidates that may take less than the least time that is expected of them.
    of_kind: for each kind, the ratios of the best time for each problem to the model's time.
    of_algorithm: the same ratios for each algorithm that has a model and each precision, with all
    layouts.
    of_configs: by an algorithm's name, the ratios of times of later configs to the time of the
    first config.
    """

    def __init__(self, device: Device, doubt: float = 0.0) -> None:
        self.device = device
        self._rates = rates_of(device)
        self._launch_us = max(self._rates.launch_us, device.queued_us)
        self._units = max(1, device.limits.compute_units)
        self.of_kind: dict[Kind, Ratios] = defaultdict(lambda: Ratios(doubt, _FEW, _UNKNOWN))
        self.of_algorithm: dict[tuple[str, ...], Ratios] = defaultdict(
            lambda: Ratios(doubt, _FEW_WITH_ALL_LAYOUTS, _UNKNOWN,
                           margin=_MARGIN * self._rates.layouts))
        self.of_configs: dict[str, Ratios] = defaultdict(
            lambda: Ratios(doubt, _FEW_CONFIGS, self._rates.config, 1.0))

    def ratios(self, kind: Kind) -> Ratios:
        """Return the ratios that multiply the model times of candidates of a kind."""
        own, with_all_layouts = self.of_kind[kind], self.of_algorithm[kind[:2]]
        return with_all_layouts if own.are_few and not with_all_layouts.are_few else own

    def learn(self, algorithm: Algorithm, kind: Kind, problem: Problem, model_us: float,
              time_us: float) -> None:
        """Remember the ratio of a candidate's measured time to its model time."""
        self.of_kind[kind].learn(problem, model_us, time_us)
        if type(algorithm).expected_us is not Algorithm.expected_us:
            self.of_algorithm[kind[:2]].learn(problem, model_us, time_us)

    def model_us(self, algorithm: Algorithm, problem: Problem, variant: Variant) -> float:
        """Return the time by the algorithm's own model, with its launches; floor_us() where the
        algorithm has no model, and where all outputs are empty: models may divide by sizes."""
        is_empty = not any(spec.size for spec in problem.outputs)
        own = None if is_empty else algorithm.expected_us(problem, variant, self.device)
        if own is None:
            return self.floor_us(algorithm, problem, variant)
        return max(own, 0.1) + algorithm.launch_count(variant) * self.device.queued_us

    def floor_us(self, algorithm: Algorithm, problem: Problem, variant: Variant) -> float:
        """Return the time of a launch that computes and moves what the problem needs at nominal
        rates."""
        info = getattr(problem, "weights_info", None)
        share = 1.0 if algorithm.dense or info is None else info.density
        flops = problem.flops * share / (self._rates.flops[variant.precision] * self._units)
        return self._launch_us + max(flops, self._moved_us(*variant.inputs, *variant.outputs))

    def conversion_us(self, source: TensorSpec, target: TensorSpec) -> float:
        """Return the time that is expected of a conversion from one format to another."""
        return self._launch_us + self._moved_us(source, target)

    def least_conversion_us(self, source: TensorSpec, target: TensorSpec) -> float:
        """Return the least time that is expected of a conversion."""
        return _UNKNOWN * self.conversion_us(source, target)

    def _moved_us(self, *specs: TensorSpec) -> float:
        return sum(spec.nbytes for spec in specs) / (self._rates.nbytes * self._units)
