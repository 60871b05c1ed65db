"""What is measured: a case, stated without saying who does it, where it comes from, and the
setting of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from gossamer.bench.peers.peer import Alternative
from gossamer.device.base import Device
from gossamer.plan.program import Layer
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner

MOST_ERROR = {"fp32": 1e-4, "tf32": 2e-3, "fp16": 2e-3}
"""Where a contender's error is larger it did not compute in that precision: TF32 has 1e-3."""


@dataclass(frozen=True)
class Case:
    """One piece of work.

    flops, least_bytes: what nobody can do without: the arithmetic, and weights, inputs and
    outputs crossing memory once, as float32; zeros among the weights left out. density: the share
    of nonzero weights.
    expected: the output for the first images or rows, in float64.
    contenders: the alternatives of each, made when called; may raise AbsentError.
    sample_us: about how long one sample of a contender's time lasts.
    most_error: by precision, the error beyond which a result is wrong.
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

    def bytes_at(self, precision: str) -> int:
        """The least bytes where that precision is what lies in memory."""
        return self.least_bytes // 2 if precision == "fp16" else self.least_bytes


@dataclass(frozen=True)
class Setting:
    """What the cases of a run share.

    against: peers and vendors' algorithms, by name. precisions: those that each contender is
    measured in, the most precise first. tuner: that of a precision, which allows those before it.
    effort: how much is tried before gossamer's choice.
    """

    device: Device
    tuner: Callable[[str], Tuner]
    against: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    effort: str = "normal"


@dataclass(frozen=True)
class Item:
    """A case to be: make(setting) gives it its weights, input and contenders. sparsity: that of
    its weights, where it can be told beforehand."""

    suite: str
    name: str
    batch: int
    make: Callable[[Setting], Case]
    is_layer: bool = False
    is_training: bool = False
    sparsity: Callable[[], float] | None = None


@dataclass(frozen=True)
class Files:
    """What the command line gave to suites that measure files: networks, and the folder of
    published sparse weights."""

    models: tuple[Path, ...] = ()
    data: Path | None = None


def least_work(layer: Layer) -> tuple[int, int]:
    """FLOPs and bytes that a layer cannot do without: its problem's, zero weights left out."""
    assert layer.problem is not None
    flops, size = layer.problem.flops, layer.problem.least_bytes
    weight = layer.weights.get("weight")
    if weight is None or layer.op not in ("conv2d", "gemm") or not weight.size:
        return flops, size
    zeros = weight.size - int(np.count_nonzero(weight))
    uses = layer.problem.outputs[0].size // len(weight)
    return flops - 2 * zeros * uses, size - 4 * zeros


def tuners(device: Device, effort: str, note: Callable[[str], None] = lambda line: None, *,
           kept: TuningCache | None = None) -> Callable[[str], Tuner]:
    """Of each precision one tuner, all with the same measurements. They try all that vendors'
    libraries offer, whatever the effort: a peer is measured at its best."""
    stored = TuningCache(device) if kept is None else kept

    @cache
    def tuner(precision: str) -> Tuner:
        made = Tuner(device, effort, precision=precision, cache=stored, note=note)
        made.vendor_configs = None
        return made

    return tuner
