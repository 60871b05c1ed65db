"""The cases that are measured, the items that make cases, and the settings that all cases of a run
share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from gossamer.bench.call_times import Load
from gossamer.bench.contender import OWN, Alternative
from gossamer.device.base import Device
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner

MOST_ERROR = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 2e-3, "fp16": 2e-3, "int8": 0.0,
              "b1": 0.0}
"""Largest normalised error by precision: a contender whose error is larger did not compute in that
precision. TF32 rounds to about 1e-3; integers are exact."""
_BITS = {"fp64": 64, "fp16": 16, "int8": 8, "b1": 1}
"""Bits of a number in memory, for precisions whose numbers do not have 32 bits."""


@dataclass(frozen=True)
class Case:
    """One piece of work that all contenders do.

    flops: least number of floating-point operations that the work takes, without operations on zero
    weights.
    least_bytes: bytes of nonzero weights, inputs and outputs when each of these float32 numbers is
    read or written once.
    density: share of nonzero weights.
    expected: output for the first images or rows, in float64.
    contenders: for the name of each contender, a function that makes the contender's alternatives,
    or raises AbsentError.
    sample_us: approximate duration of one sample of a contender's time, in microseconds.
    most_error: for each precision, the normalised error beyond which a result is wrong.
    beside: functions that make similar cases with other weights. The key of a function is the name
    of the contender in the case that the function makes. These contenders are measured in the same
    run.
    """

    suite: str
    name: str
    batch: int
    flops: int
    least_bytes: int
    density: float
    expected: np.ndarray
    contenders: dict[str, Callable[[], list[Alternative]]]
    notes: tuple[str, ...] = ()
    sample_us: float = 20_000.0
    most_error: Mapping[str, float] = field(default_factory=lambda: MOST_ERROR)
    beside: Mapping[str, Callable[[], Case]] = field(default_factory=dict)

    def bytes_at(self, precision: str) -> int:
        """Returns the least bytes when the data in memory have this precision."""
        return self.least_bytes * _BITS.get(precision, 32) // 32

    def with_forced(self, names: Collection[str]) -> Case:
        """Returns the case with fewer plans of gossamer. A contender `gossamer:NAME` or
        `gossamer:NAME/FORM` stays if NAME is in `names`. NAME is an algorithm or one of
        OTHER_PLANS. FORM is a value of `variant` in the algorithm's configs, or a precision.
        gossamer's choice and the peers always stay."""
        def stays(contender: str) -> bool:
            return (not contender.startswith(f"{OWN}:")
                    or contender.removeprefix(f"{OWN}:").split("/")[0] in names)

        return replace(self, contenders={name: make for name, make in self.contenders.items()
                                         if stays(name)},
                       beside={name: make for name, make in self.beside.items() if stays(name)})


@dataclass(frozen=True)
class Setting:
    """The settings that all cases of a run share.

    against: names of the peers and vendors' algorithms to compare with.
    precisions: precisions that each contender is measured in, the most precise first.
    tuner: function from a precision to the tuner of candidates in this precision or more precise
    ones.
    effort: how many candidates gossamer measures before it chooses.
    """

    device: Device
    tuner: Callable[[str], Tuner]
    against: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    effort: str = "normal"


@dataclass(frozen=True)
class Item:
    """A case that is not prepared yet.

    make: function from the run's settings to the case, with weights, input and contenders.
    sparsity: function that returns the share of zeros among the weights. Where the share is not
    known before the case is made, there is no function (None).
    is_tuning: whether the time of planning is measured, with the effort in the item's name.
    is_ladder: whether the case has the rungs of the published ladder. Peers take part in such a
    case only where the command line names them.
    is_called: whether whole calls are timed on the host, from the call to its result
    (call_times.py).
    is_module: whether the peers are ways in which torch calls a module.
    """

    suite: str
    name: str
    batch: int
    make: Callable[[Setting], Case]
    is_layer: bool = False
    is_training: bool = False
    sparsity: Callable[[], float] | None = None
    is_tuning: bool = False
    is_ladder: bool = False
    is_called: bool = False
    is_module: bool = False


@dataclass(frozen=True)
class Files:
    """Options of the command line that only some suites use.

    models: files of networks, or names of networks in the zoo.
    data: folder of published sparse weights.
    efforts: efforts whose planning is timed; empty for the suite's own efforts.
    loads: the loads under which calls are timed. Each has a number of threads, a rate and a
    duration.
    images: folder of pictures that are run.
    modules: patterns of names of torch's modules; None for the suite's own modules.
    """

    models: tuple[Path, ...] = ()
    data: Path | None = None
    efforts: tuple[str, ...] = ()
    loads: tuple[Load, ...] = (Load(),)
    images: Path | None = None
    modules: str | None = None


def least_work(layer: Layer) -> tuple[int, int]:
    """Returns the least FLOPs and the least bytes of a layer: the numbers that its problem states,
    minus the operations and the bytes of the zero weights."""
    flops, size = layer.problem.flops, layer.problem.least_bytes
    weight = layer.weights.get("weight")
    if weight is None or layer.op not in ("conv2d", "gemm") or not weight.size:
        return flops, size
    zeros = weight.size - int(np.count_nonzero(weight))
    uses = layer.problem.outputs[0].size // len(weight)
    return flops - 2 * zeros * uses, size - 4 * zeros


def tuners(device: Device, effort: str, note: Callable[[str], None] = lambda line: None, *,
           kept: TuningCache | None = None, choice_only: bool = False,
          budget_s: float | None = None) -> Callable[[str], Tuner]:
    """Returns a function from a precision to its tuner; all tuners share one tuning cache.

    The tuners measure every configuration that vendors' libraries offer, whatever the effort, so
    that each peer is measured at its best. With `choice_only` they measure no more candidates than
    `compile` does.

    choice_only: whether the plan that gossamer chooses is gossamer's only contender.
    budget_s: seconds for the candidates of each plan; None for no limit.
    """
    stored = TuningCache(device) if kept is None else kept

    @cache
    def tuner(precision: str) -> Tuner:
        return Tuner(device, effort, precision=precision, cache=stored, note=note,
                     all_vendor_configs=not choice_only, budget_s=budget_s)

    return tuner
