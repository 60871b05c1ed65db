"""A device's peak rates, measured: what the speed of light is reckoned from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device, KernelSource
from gossamer.errors import UnsupportedError
from gossamer.measure import Task, Timing, interleave, measure
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.tensor import to_memory

GROUP_SIZE = 256
CHAINS, STEPS = 8, 16
_SOURCE = KernelSource.of(Path(__file__).with_suffix(".cl"), "multiply_add")
_MATRIX, _LARGE = 1536, 8192
_MOST_TRIED = 4


@dataclass(frozen=True)
class Peaks:
    """Of a device, by its name. flops: operations a second (a multiply-add counts as two), of
    each precision that is known. bandwidth: bytes a second of a copy, read plus written. unknown:
    for each other precision why it is not."""

    device: str
    flops: Mapping[str, float]
    bandwidth: float
    unknown: Mapping[str, str] = field(default_factory=dict)

    def speed_of_light_us(self, flops: int, nbytes: int, precision: str) -> float | None:
        """The microseconds below which no algorithm can compute and move so much here; None
        where the precision's rate is not known."""
        if precision not in self.flops:
            return None
        return max(flops / self.flops[precision], nbytes / self.bandwidth) * 1e6


def measure_peaks(device: Device, precisions: Sequence[str] = ("fp32",)) -> Peaks:
    """By a copy far larger than the caches, and by multiply-adds in registers (on the host by
    NumPy's matrix product); tf32 and fp16, which need tensor cores, by a vendor's or torch's
    product of large matrices (all ones, which draws less power than numbers do)."""
    nbytes = max(64 << 20, 16 * device.limits.cache_bytes)
    nbytes = min(nbytes, 1 << 30, device.limits.memory_bytes // 8) // 1024 * 1024
    source = device.upload(np.ones(nbytes, np.uint8), "the measurement of the copy rate")
    target = device.empty(nbytes, "the measurement of the copy rate")

    def copy(stream: Any) -> None:
        device.copy(target, source, nbytes, stream)

    flops, compute = _host_product() if not device.compiles else _multiply_adds(device)
    copied, computed = measure(device, [copy, compute], repeats=10, sample_us=2000.0)
    rates = {"fp32": _rate(flops, computed)}
    unknown = {}
    for precision in precisions:
        if precision not in rates:
            try:
                rates[precision] = _tensor_core_rate(device, precision)
            except Exception as error:  # a library may fail in any way
                unknown[precision] = next(iter(str(error).strip().splitlines()),
                                          type(error).__name__)
    return Peaks(device.name, rates, _rate(2 * nbytes, copied), unknown)


def _rate(amount: int, timing: Timing) -> float:
    return amount / (timing.p25_us * 1e-6)


def multiply_add(device: Device, result: Buffer, groups: int, rounds: int, stream: Any = None, *,
                 factor: float = 0.5, term: float = 1.0) -> int:
    """Fills `result`, one float32 a work-item; the operations that took."""
    device.launch(device.compile(_SOURCE), (groups,), (GROUP_SIZE,),
                  (result, factor, term, rounds), stream=stream)
    return 2 * groups * GROUP_SIZE * CHAINS * STEPS * rounds


def _multiply_adds(device: Device) -> tuple[int, Any]:
    groups, rounds = 32 * device.limits.compute_units, 64
    result = device.empty(4 * groups * GROUP_SIZE, "the measurement of the arithmetic rate")

    def compute(stream: Any) -> None:
        multiply_add(device, result, groups, rounds, stream)

    return multiply_add(device, result, groups, rounds), compute


def _host_product() -> tuple[int, Any]:
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    result = np.empty_like(a)

    def compute(stream: Any) -> None:
        np.matmul(a, a, out=result)

    return 2 * _MATRIX**3, compute


def _tensor_core_rate(device: Device, precision: str) -> float:
    """Raises UnsupportedError where no library computes products in that precision."""
    problem = GemmProblem(_LARGE, _LARGE, _LARGE)
    tasks: list[Task] = []
    reasons = []
    for algorithm in OPS["gemm"].algorithms:
        if algorithm.vendor:
            reason = algorithm.supports(problem, device)
            if reason is None:
                variants = (variant for variant in algorithm.variants(problem, device)
                            if variant.precision == precision)
                tasks += [Task(device, _vendor_product(algorithm, variant, problem, device))
                          for variant in islice(variants, _MOST_TRIED)]
            else:
                reasons.append(reason)
    if not tasks and device.api == "cuda" and find_spec("torch") is not None:
        from gossamer.bench.peers import torch_peers

        tasks.append(Task(device, torch_peers.product(device, precision, _LARGE), captured=False))
    if not tasks:
        raise UnsupportedError("; ".join(reasons) or f"{device.name}: nothing computes products "
                               "in it")
    timings = interleave(tasks, repeats=10, sample_us=5000.0)
    return max(_rate(problem.flops, timing) for timing in timings)


def _vendor_product(algorithm: Algorithm, variant: Variant, problem: GemmProblem,
                    device: Device) -> Callable[[Any], None]:
    ones = np.ones((_LARGE, _LARGE), np.float32)
    purpose = "the measurement of the arithmetic rate"
    state = algorithm.prepare(Weights({"weight": ones}, device), problem, variant, device)
    source = device.upload(to_memory(ones, variant.inputs[0]), purpose)
    target = device.empty(variant.outputs[0].nbytes, purpose)
    workspace = device.empty(variant.workspace, purpose) if variant.workspace else None

    def work(stream: Any) -> None:
        algorithm.launch(state, [source], [target], workspace, stream)

    return work
