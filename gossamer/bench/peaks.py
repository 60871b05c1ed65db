"""Measures a device's peak rates of arithmetic and copies, which bound the time of any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.errors import UnsupportedError
from gossamer.measure import Task, Timing, interleave, measure
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.prepare import build
from gossamer.tensor import pack

WORK_GROUP_SIZE = 256
CHAINS, STEPS, WIDE_CHAINS = 8, 16, 12
"""Independent chains of multiply-adds of a work-item, and unrolled steps: as in peaks.cl."""
_SOURCE = KernelSource.of(Path(__file__).with_suffix(".cl"), "multiply_add")
_WIDE_SOURCE = KernelSource.of(Path(__file__).with_suffix(".cl"), "multiply_add_wide")
_MATRIX, _LARGE = 1536, 8192
"""Side of the matrices on the host, and of those that tensor cores multiply."""
_MOST_TRIED = 4
"""Variants of each vendor's algorithm that are timed."""


@dataclass(frozen=True)
class Peaks:
    """The peak rates of a device.

    device: name of the device. flops: operations a second (a multiply-add counts as two) by
    precision. bandwidth: bytes a second of a copy, read plus written. unknown: reason for each
    precision whose rate could not be measured. cache_bytes: size of its cache, 0 where that is not
    known.
    """

    device: str
    flops: Mapping[str, float]
    bandwidth: float
    unknown: Mapping[str, str] = field(default_factory=dict)
    cache_bytes: int = 0

    def speed_of_light_us(self, flops: int, nbytes: int, precision: str) -> float | None:
        """Returns the least microseconds in which the device can do so many operations and move so
        many bytes; None where the precision's rate is not known, or where the bytes fit its cache,
        whose rate is not measured, and would take longer than the operations."""
        if precision not in self.flops:
            return None
        computing, moving = flops / self.flops[precision], nbytes / self.bandwidth
        if moving > computing and nbytes <= self.cache_bytes:
            return None
        return max(computing, moving) * 1e6


def measure_peaks(device: Device, precisions: Sequence[str] = ("fp32",)) -> Peaks:
    """Measures the peak rates of a device.

    The copy is far larger than the caches. The rate of float32 is that of multiply-adds in
    registers, on the host that of NumPy's matrix product. The rates of tf32 and fp16, which need
    tensor cores, are those of a vendor's or torch's product of large matrices; these are all ones,
    which draws less power than random numbers do.
    """
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
            except Exception as error:  # a library may raise any exception
                unknown[precision] = next(iter(str(error).strip().splitlines()),
                                          type(error).__name__)
    return Peaks(device.name, rates, _rate(2 * nbytes, copied), unknown,
                 device.limits.cache_bytes)


def _rate(amount: int, timing: Timing) -> float:
    """The amount a second, by the first quartile of the times."""
    return amount / (timing.p25_us * 1e-6)


def multiply_add(device: Device, result: Buffer, work_groups: int, rounds: int,
                 stream: Any = None, *, factor: float = 0.5, term: float = 1.0) -> int:
    """Fills `result`, one float32 for each work-item, and returns the number of operations."""
    device.launch(device.compile(_SOURCE), (work_groups,), (WORK_GROUP_SIZE,),
                  (result, factor, term, rounds), stream=stream)
    return 2 * work_groups * WORK_GROUP_SIZE * CHAINS * STEPS * rounds


def _multiply_adds(device: Device) -> tuple[int, Any]:
    """The number of operations, and the work that does them in registers."""
    if device.on_processors:
        return _wide_multiply_adds(device)
    work_groups, rounds = 32 * device.limits.compute_units, 64
    result = device.empty(4 * work_groups * WORK_GROUP_SIZE,
                          "the measurement of the arithmetic rate")

    def compute(stream: Any) -> None:
        multiply_add(device, result, work_groups, rounds, stream)

    return multiply_add(device, result, work_groups, rounds), compute


def _wide_multiply_adds(device: Device) -> tuple[int, Any]:
    """The same in vector registers, as processors have them."""
    work_groups, rounds = 32 * device.limits.compute_units, 1024
    kernel = device.compile(_WIDE_SOURCE)
    result = device.empty(4 * 16 * work_groups, "the measurement of the arithmetic rate")

    def compute(stream: Any) -> None:
        device.launch(kernel, (work_groups,), (1,), (result, 0.5, 1.0, rounds), stream=stream)

    return 2 * work_groups * 16 * WIDE_CHAINS * STEPS * rounds, compute


def _host_product() -> tuple[int, Any]:
    """The number of operations, and the work that does them in NumPy's matrix product."""
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    result = np.empty_like(a)

    def compute(stream: Any) -> None:
        np.matmul(a, a, out=result)

    return 2 * _MATRIX**3, compute


def _tensor_core_rate(device: Device, precision: str) -> float:
    """Returns the operations a second of the fastest library's product. Raises UnsupportedError
    where no library computes products in this precision."""
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
    if not tasks and device.runs_cuda_libraries and find_spec("torch") is not None:
        from gossamer.bench.peers import torch_peers

        tasks.append(Task(device, torch_peers.product(device, precision, _LARGE), captured=False))
    if not tasks:
        raise UnsupportedError("; ".join(reasons) or f"{device.name}: nothing computes products "
                               "in it")
    timings = interleave(tasks, repeats=10, sample_us=5000.0)
    return max(_rate(problem.flops, timing) for timing in timings)


def _vendor_product(algorithm: Algorithm, variant: Variant, problem: GemmProblem,
                    device: Device) -> Callable[[Any], None]:
    """The product of two matrices of ones as work to be timed."""
    ones = np.ones((_LARGE, _LARGE), np.float32)
    purpose = "the measurement of the arithmetic rate"
    state, _ = build(algorithm, Weights({"weight": ones}, device), problem, variant, device)
    source = device.upload(pack(ones, variant.inputs[0]), purpose)
    target = device.empty(variant.outputs[0].nbytes, purpose)
    workspace = device.empty(variant.workspace, purpose) if variant.workspace else None

    def work(stream: Any) -> None:
        algorithm.launch(state, [source], [target], workspace, stream)

    return work
