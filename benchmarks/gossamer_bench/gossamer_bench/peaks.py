"""Measures a device's peak rates of arithmetic and copies, which bound the time of any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.measure import Task, Timing, interleave, measure
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.program import build
from gossamer.tensor import pack
from gossamer_bench.multiply_adds import multiply_adds

_PURPOSE = "the measurement of peak rates"
_MATRIX, _LARGE = 1536, 8192
"""Side of the matrices that the host multiplies, and of the matrices that tensor cores multiply."""
_MOST_TRIED = 4
"""Most variants of each vendor's algorithm that are timed."""


@dataclass(frozen=True)
class Peaks:
    """The peak rates of a device.

    device: name of the device.
    flops: operations per second, by precision; a multiply-add counts as two operations.
    bandwidth: bytes per second of a copy; each byte counts twice, as it is read and as it is
    written.
    unknown: for each precision whose rate could not be measured, the reason.
    cache_bytes: size of the device's cache, 0 where it is not known.
    """

    device: str
    flops: Mapping[str, float]
    bandwidth: float
    unknown: Mapping[str, str] = field(default_factory=dict)
    cache_bytes: int = 0

    def speed_of_light_us(self, flops: int, nbytes: int, precision: str) -> float | None:
        """Returns the least microseconds in which the device can do `flops` operations and move
        `nbytes` bytes. Returns None where the precision's rate is not known. Returns None, too,
        where moving the bytes would take longer than the operations, but the bytes fit the cache:
        the rate of the cache is not measured."""
        if precision not in self.flops:
            return None
        computing, moving = flops / self.flops[precision], nbytes / self.bandwidth
        if moving > computing and nbytes <= self.cache_bytes:
            return None
        return max(computing, moving) * 1e6


def measure_peaks(device: Device, precisions: Sequence[str] = ("fp32",)) -> Peaks:
    """Measures the peak rates of a device.

    The bandwidth is measured with a copy that is far larger than the caches. The rate of float32 is
    measured with multiply-adds in registers, and on the host with NumPy's matrix product. The rates
    of tf32 and fp16, which need tensor cores, are measured with a large matrix product of a
    vendor's library or of torch. All elements of these matrices are ones, because products of ones
    draw less power than products of random numbers.
    """
    nbytes = max(64 << 20, 16 * device.limits.cache_bytes)
    nbytes = min(nbytes, 1 << 30, device.limits.memory_bytes // 8) // 1024 * 1024
    source = device.upload(np.ones(nbytes, np.uint8), _PURPOSE)
    target = device.empty(nbytes, _PURPOSE)

    def copy(stream: Any) -> None:
        device.copy(target, source, nbytes, stream)

    flops, compute = multiply_adds(device, _PURPOSE) if device.compiles else _host_product()
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
    """Returns the amount per second, by the first quartile of the times."""
    return amount / (timing.p25_us * 1e-6)


def _host_product() -> tuple[int, Any]:
    """Returns the number of operations of a matrix product, and the work that computes this product
    with NumPy."""
    a = np.ones((_MATRIX, _MATRIX), np.float32)
    result = np.empty_like(a)

    def compute(stream: Any) -> None:
        np.matmul(a, a, out=result)

    return 2 * _MATRIX**3, compute


def _tensor_core_rate(device: Device, precision: str) -> float:
    """Returns the number of operations per second in the matrix product of the fastest library.
    Raises UnsupportedError where no library computes products in this precision."""
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
        from gossamer_bench.peers import torch_peers

        tasks.append(Task(device, torch_peers.product(device, precision, _LARGE), captured=False))
    if not tasks:
        raise UnsupportedError("; ".join(reasons) or f"{device.name}: nothing computes products "
                               "in it")
    timings = interleave(tasks, repeats=10, sample_us=5000.0)
    return max(_rate(problem.flops, timing) for timing in timings)


def _vendor_product(algorithm: Algorithm, variant: Variant, problem: GemmProblem,
                    device: Device) -> Callable[[Any], None]:
    """Returns the product of two matrices of ones, as work to be timed."""
    ones = np.ones((_LARGE, _LARGE), np.float32)
    state = build(algorithm, Weights({"weight": ones}, device), problem, variant, device)
    source = device.upload(pack(ones, variant.inputs[0]), _PURPOSE)
    target = device.empty(variant.outputs[0].nbytes, _PURPOSE)
    workspace = device.empty(variant.workspace, _PURPOSE) if variant.workspace else None

    def work(stream: Any) -> None:
        algorithm.launch(state, [source], [target], workspace, stream)

    return work
