"""Policy: what a user decides about the choice of algorithms."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gossamer.errors import InputError, closest, one_of, quoted
from gossamer.ops.algorithm import PRECISIONS, Algorithm
from gossamer.ops.host_threads import ALL, Threads
from gossamer.ops.registry import OPS
from gossamer.tensor import Format


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    configs: number of configs that are measured for each algorithm of gossamer's own; None for all.
    vendor_configs: number of configs that are measured for each algorithm of a vendor's library;
    None for all. The number is larger, because libraries compile little and order their configs
    poorly.
    samples: number of samples of each time.
    build_seconds: processor seconds; a candidate whose build is expected to take longer is left
    out.
    doubt: share of candidates that may turn out faster than the least time expected of them. With a
    larger share, more candidates are left out without a measurement.
    worth: share of the network's time that a second of measuring must be expected to save.
    replacements: number of candidates that are tried in the whole plan, each in place of another
    candidate.
    replacement_gain: share of the network's time that a candidate of `replacements` must be able to
    save.
    everything: whether all candidates are measured, also candidates that are expected to be slow.
    more_configs: number of configs that are measured for an algorithm where configs beyond the
    first configs are expected to save enough time.
    more_gain: share of the network's time that the further configs must be expected to save.
    """

    configs: int | None
    vendor_configs: int | None
    samples: int
    build_seconds: float
    doubt: float = 0.0
    worth: float = 0.0
    replacements: int = 0
    replacement_gain: float = math.inf
    everything: bool = False
    more_configs: int | None = None
    more_gain: float = math.inf

    def configs_of(self, algorithm: Algorithm) -> int | None:
        """Return the number of configs of an algorithm that are measured at first; None for all.
        """
        return self.vendor_configs if algorithm.vendor else self.configs

    def most_configs_of(self, algorithm: Algorithm) -> int | None:
        """Return the number of configs of an algorithm that are measured at most; None for all.
        The number is larger than the result of configs_of() only for dense algorithms of gossamer's
        own: a config of an algorithm that skips zeros would be compiled for one layer only."""
        is_more = self.more_configs is not None and algorithm.dense and not algorithm.vendor
        return self.more_configs if is_more else self.configs_of(algorithm)


EFFORTS = {
    "quick": Effort(2, 4, 5, 15.0, doubt=0.1, worth=0.01, more_configs=6,
                    more_gain=0.002, replacements=48, replacement_gain=0.001),
    "normal": Effort(6, 10, 10, 60.0, doubt=0.03, worth=0.003, more_configs=16,
                     more_gain=0.0003, replacements=48, replacement_gain=0.001),
    "max": Effort(None, None, 20, 240.0, everything=True, replacements=96,
                  replacement_gain=0.0003),
}
"""The efforts by the names that users give."""


@dataclass(frozen=True, eq=False)
class Policy:
    """The decisions of a user about the choice of algorithms. `gossamer.compile` describes the
    fields that are not described here.

    unfused: whether each layer is computed alone, without fusions and parts.
    force: the names of the algorithms that certain layers must take, by the layers' names.
    threads: threads of a layer on the host, a number or ALL.
    vendors: whether algorithms of vendors' libraries may compute layers that gossamer's own
    algorithms compute too.
    boundary: the format of the network's inputs and outputs of rank 4 in float32; None means NCHW
    and float32. Benchmarks measure a section of a network in the format that the layers around it
    take.

    Raises InputError for a field that is wrong, and for fields that do not go together.
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
        for field_name, number in (("budget", self.budget_s), ("tolerance", self.tolerance),
                                   ("sparse_threshold", self.sparse_threshold)):
            if number is not None and not isinstance(number, numbers.Real):
                raise InputError(f"{field_name} {quoted(number)}: expected a number")
        if self.budget_s is not None:
            if not 0 < self.budget_s < math.inf:
                raise InputError(f"budget {self.budget_s:g}: expected seconds above 0, such as 10")
            if self.effort is None:
                raise InputError("budget: without an effort nothing is measured; give one, such as "
                                 "effort='normal'")
        if self.precision != "fp32" and self.effort is None:
            raise InputError(f"precision {self.precision!r} goes with an effort, such as "
                             "effort='normal': what is less precise is taken where it measures "
                             "faster")
        is_number = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if self.threads != ALL and not (is_number and int(self.threads) >= 1):
            raise InputError(f"threads {quoted(self.threads)}: expected {ALL!r}, or a number of 1 "
                             "or more")
        if self.only is not None and self.only not in (names := _algorithms()):
            raise InputError(f"only={self.only!r}: {_no_algorithm(self.only, names)}")
        for layer, name in self.force.items():
            if name not in (names := _algorithms()):
                raise InputError(
                    f"force: {layer!r} cannot take {name!r}: {_no_algorithm(name, names)}")
        if self.sparse_threshold is not None:
            if not 0 < self.sparse_threshold < 1:
                raise InputError(f"sparse_threshold {self.sparse_threshold:g}: expected a sparsity "
                                 "between 0 and 1, such as 0.6")
            if self.only is not None:
                raise InputError("only and sparse_threshold: both say what is taken; give one of "
                                 "them")
        if self.tolerance is not None and self.calibration is None:
            raise InputError("tolerance: the error is measured on calibration inputs; give "
                             "calibration")


def _algorithms() -> set[str]:
    """Return the names of all algorithms, and import their code."""
    return {algorithm.name for op in OPS.values() for algorithm in op.algorithms}


def _no_algorithm(name: str, names: Collection[str]) -> str:
    """Return words for a message: that no algorithm has this name, and which names are similar."""
    close = closest(name, names)
    return "there is no such algorithm; " + (
        f"close to it: {', '.join(close)}" if close else
        "`gossamer compile` with --explain LAYER lists those of a layer")
