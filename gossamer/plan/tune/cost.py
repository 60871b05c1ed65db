"""What candidates cost: the times that are expected of them, from models whose scale and error are
learnt from measured times, and the seconds that building them takes.

An algorithm's own model, or else a floor from the arithmetic and the bytes of the problem, gives a
time. How far measured times are from it is remembered for each algorithm, precision and layout, so
that later candidates have an expected time and a least time, below which none of their kind was.
Of each problem only the best time counts: the configs of one layer, on which an algorithm may be
slow for a reason of its own, say nothing of other layers.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.tensor import TensorSpec

_FEW = 6
"""Number of problems from which on the ratios of their best times to the model are relied on."""
_UNKNOWN = 0.4
"""Least ratio of a measured time to the model of a kind of which little is known."""
_OTHER_LAYOUT = 0.6
"""Factor by which the least ratio of a layout may be below that of the best of all layouts."""
_FEW_CONFIGS = 12
"""Number of pairs of configs from which on their ratios are relied on."""
_MARGIN = 0.9
"""Factor by which a time may be below what the ratios that were seen so far say."""
_CONVERSION = 2.0
"""Factor between the floor of a conversion and what it may take."""

_BUILDERS = 8
"""Candidates that are built at the same time, about, where as many kernels can be compiled."""
_COMPILE_SECONDS = 0.5
"""Seconds that compiling a kernel is expected to take before any was compiled."""

Kind = tuple[str, ...]
"""An algorithm, a precision and the layouts of all inputs and outputs."""


@dataclass(frozen=True)
class Rates:
    """Nominal rates of one compute unit for a microsecond, and the time of an empty launch.

    config: the least ratio of the times of a later and the first config of an algorithm of which
    little is known. The last config of a vendor's library can take half the time of its first, and
    on processors orders that were made for GPUs say less.
    """

    launch_us: float
    flops: dict[str, float]
    nbytes: float
    config: float


_GPU = Rates(2.0, {"fp32": 4.3e5, "tf32": 3.5e6, "fp16": 7e6}, 5e4, 0.5)
_PROCESSOR = Rates(5.0, {"fp32": 5e4, "tf32": 5e4, "fp16": 5e4}, 8e3, 0.25)


def rates_of(device: Device) -> Rates:
    """Returns the nominal rates of a device's compute units; their scale is corrected by measured
    times, so only their proportions matter."""
    return _PROCESSOR if device.on_processors else _GPU


class _Ratios:
    """Ratios of measured to expected times. doubt: the share of ratios that may be below what
    `least` says."""

    def __init__(self, doubt: float) -> None:
        self._doubt = doubt
        self._sorted: list[float] = []
        self._logarithms = 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, ratio: float) -> None:
        """Adds a ratio."""
        bisect.insort(self._sorted, ratio)
        self._logarithms += math.log(ratio)

    def remove(self, ratio: float) -> None:
        """Removes a ratio that was added."""
        del self._sorted[bisect.bisect_left(self._sorted, ratio)]
        self._logarithms -= math.log(ratio)

    @property
    def mean(self) -> float:
        """The geometric mean; 1 where there are no ratios."""
        return math.exp(self._logarithms / max(1, len(self._sorted)))

    @property
    def least(self) -> float:
        """A ratio below which no more than the share `doubt` of the ratios are, with a margin."""
        return _MARGIN * self._sorted[int(self._doubt * len(self._sorted))]

    def saving(self, us: float, bound_us: float) -> float:
        """Returns how far below a bound the products of a time with the ratios are on average,
        where those that are above it count as 0."""
        below = bisect.bisect_left(self._sorted, bound_us / us)
        return sum(bound_us - us * ratio for ratio in self._sorted[:below]) / len(self._sorted)


class _BestRatios(_Ratios):
    """The least ratio of each problem."""

    def __init__(self, doubt: float) -> None:
        super().__init__(doubt)
        self._of: dict[Problem, float] = {}

    def learn(self, problem: Problem, ratio: float) -> None:
        """Remembers a ratio if it is the least of its problem."""
        known = self._of.get(problem)
        if known is None or ratio < known:
            if known is not None:
                self.remove(known)
            self._of[problem] = ratio
            self.add(ratio)


class Estimates:
    """The estimates for candidates on one device. doubt: the share of candidates that may take less
    than the least time that is expected of them."""

    def __init__(self, device: Device, doubt: float = 0.0) -> None:
        self.device = device
        self._rates = rates_of(device)
        self._launch_us = max(self._rates.launch_us, device.queued_us)
        self._units = max(1, device.limits.compute_units)
        self._ratios: dict[tuple, _BestRatios] = defaultdict(lambda: _BestRatios(doubt))
        self._of_all_layouts: dict[tuple, _BestRatios] = defaultdict(lambda: _BestRatios(doubt))
        self._of_configs: dict[str, _Ratios] = defaultdict(lambda: _Ratios(doubt))

    def model_us(self, algorithm: Algorithm, problem: Problem, variant: Variant) -> float:
        """Returns the time that the algorithm's model with its launches, or else the floor,
        gives."""
        own = algorithm.expected_us(problem, variant, self.device)
        if own is None:
            return self.floor_us(algorithm, problem, variant)
        return max(own, 0.1) + algorithm.launch_count(variant) * self.device.queued_us

    def floor_us(self, algorithm: Algorithm, problem: Problem, variant: Variant) -> float:
        """Returns the time of a launch that computes and moves what the problem needs at nominal
        rates."""
        info = getattr(problem, "weights_info", None)
        share = 1.0 if algorithm.dense or info is None else info.density
        flops = problem.flops * share / (self._rates.flops[variant.precision] * self._units)
        return self._launch_us + max(flops, self._moved_us(*variant.inputs, *variant.outputs))

    def conversion_us(self, source: TensorSpec, target: TensorSpec) -> float:
        """Returns a time in which a value is surely converted from one format to another."""
        return self._launch_us + _CONVERSION * self._moved_us(source, target)

    def least_conversion_us(self, source: TensorSpec, target: TensorSpec) -> float:
        """Returns the time that a conversion takes at least."""
        return _UNKNOWN * (self._launch_us + self._moved_us(source, target))

    def _moved_us(self, *specs: TensorSpec) -> float:
        return sum(spec.nbytes for spec in specs) / (self._rates.nbytes * self._units)

    def expected_us(self, kind: Kind, model_us: float) -> float:
        """Returns the time that is expected of the best candidate of a kind, from its model."""
        ratios = self._ratios[kind] or self._of_all_layouts[kind[:2]]
        return model_us * ratios.mean

    def least_us(self, kind: Kind, model_us: float) -> float:
        """Returns the time that a candidate of a kind takes at least."""
        ratios, of_all_layouts = self._ratios[kind], self._of_all_layouts[kind[:2]]
        if len(ratios) >= _FEW:
            return model_us * ratios.least
        if len(of_all_layouts) >= _FEW:
            return model_us * _OTHER_LAYOUT * of_all_layouts.least
        return model_us * _UNKNOWN

    def least_us_of_config(self, algorithm: Algorithm, first_us: float) -> float:
        """Returns the time that a later config of an algorithm takes at least, from that of the
        first config with the same formats and precision."""
        ratios = self._of_configs[algorithm.name]
        return first_us * (min(ratios.least, _MARGIN) if len(ratios) >= _FEW_CONFIGS
                           else self._rates.config)

    def saving_us(self, kind: Kind, model_us: float, bound_us: float) -> float | None:
        """Returns the time that the best candidate of a kind saves on average where a bound is
        known already, from its model; None where too little is known of the kind."""
        ratios = self._ratios[kind]
        return ratios.saving(model_us, bound_us) if len(ratios) >= _FEW else None

    def saving_us_of_config(self, algorithm: Algorithm, first_us: float,
                            bound_us: float) -> float | None:
        """Returns the time that a later config of an algorithm saves on average, from the time of
        the first one; None where too little is known of the algorithm."""
        ratios = self._of_configs[algorithm.name]
        return ratios.saving(first_us, bound_us) if len(ratios) >= _FEW_CONFIGS else None

    def learn(self, kind: Kind, problem: Problem, model_us: float, time_us: float) -> None:
        """Remembers a measured time of a kind of candidates."""
        ratio = max(time_us, 1e-3) / model_us
        self._ratios[kind].learn(problem, ratio)
        self._of_all_layouts[kind[:2]].learn(problem, ratio)

    def learn_config(self, algorithm: Algorithm, first_us: float, time_us: float) -> None:
        """Remembers the times of the first and of a later config of an algorithm."""
        self._of_configs[algorithm.name].add(max(time_us, 1e-3) / max(first_us, 1e-3))


class BuildCosts:
    """The seconds for which building a candidate keeps others from being built.

    builders: number of candidates that are built at the same time.
    """

    def __init__(self, builders: int = 1) -> None:
        self._builders = builders
        self._begun: set[KernelSource] = set()
        self._seconds: dict[str, tuple[float, int]] = {}
        """The seconds of candidates that compiled a kernel, or were built by other processes,
        divided by those that are built at the same time, and their number, by the names of their
        algorithms."""

    def seconds(self, algorithm: Algorithm, variant: Variant,
                kernels: Iterable[KernelSource]) -> float:
        """Returns the seconds that are expected. kernels: those that are known before."""
        if variant.build_seconds:
            return variant.build_seconds / min(_BUILDERS, self._builders)
        new = sum(kernel not in self._begun for kernel in kernels)
        total, count = self._seconds.get(algorithm.name, (0.0, 0))
        if not count:
            return new * _COMPILE_SECONDS / self._builders
        return total / count if new or algorithm.vendor else 0.0

    def begin(self, kernels: Iterable[KernelSource]) -> bool:
        """Notes that a candidate is being built; returns whether it compiles a new kernel."""
        new = set(kernels) - self._begun
        self._begun |= new
        return bool(new)

    def learn(self, algorithm: Algorithm, seconds: float) -> None:
        """Remembers the seconds that another process took for a candidate, divided by the number of
        such processes."""
        total, count = self._seconds.get(algorithm.name, (0.0, 0))
        self._seconds[algorithm.name] = total + seconds, count + 1

    def learn_compiled(self, algorithm: Algorithm, seconds: float) -> None:
        """Remembers the seconds that a candidate took which compiled a new kernel."""
        self.learn(algorithm, seconds / self._builders)
