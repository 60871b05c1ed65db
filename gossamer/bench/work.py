"""The cases that are measured, and the settings that all cases of a run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from gossamer.device.base import Device
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner

MOST_ERROR = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 2e-3, "fp16": 2e-3, "int8": 0.0,
              "b1": 0.0}
"""Largest normalised error by precision: a contender whose error is larger did not compute in that
precision. TF32 rounds to about 1e-3; integers are exact."""


@dataclass(frozen=True)
class Case:
    """One piece of work that all contenders do.

    flops: least number of floating-point operations that the work takes, without operations on zero
    weights.
    least_bytes: bytes of nonzero weights, inputs and outputs when each of these float32 numbers is
    read or written once.
    density: share of nonzero weights.
    expected: output for the first images or rows, in float64.
    most_error: for each precision, the normalised error beyond which a result is wrong.
    """

    suite: str
    name: str
    batch: int
    flops: int
    least_bytes: int
    density: float
    expected: np.ndarray
    notes: tuple[str, ...] = ()
    most_error: Mapping[str, float] = field(default_factory=lambda: MOST_ERROR)


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
