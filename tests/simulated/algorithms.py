"""Algorithms as they are on simulated devices: they offer what they really offer, take times from a
seed or from the estimates, and compute by their op's float64 reference, or what they recognise in a
fusion. NVIDIA's libraries have stand-ins, which offer what the libraries usually do."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.candidate import candidate_key
from gossamer.plan.store.keys import problem_key
from gossamer.plan.tune.cost import model_us
from gossamer.tensor import TensorSpec, default_format, logical_view, pack, unpack
from tests.simulated.device import SimulatedDevice
from tests.simulated.recognised import RECOGNISED

Times = Callable[[Algorithm, Problem, Variant, Device], float]
"""A function that returns the microseconds that a variant of an algorithm takes."""

_LIBRARY_FORMATS = (("fp32", "float32", "NCHW"), ("tf32", "float32", "NHWC"),
                    ("fp16", "float16", "NHWC"))
"""The precisions, dtypes and layouts that such a stand-in offers."""
_LIBRARY_PLANS = 3
"""Plans that a stand-in of a vendor's library offers for each precision and layout."""


def drawn_times(seed: int, spread: float = 30.0) -> Times:
    """Returns times that are drawn from a seed, between 1 us and so many."""
    def time_of(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
        key = f"{seed} {candidate_key(algorithm, variant)} {problem_key(problem)}"
        share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2**48
        return round(math.exp(share * math.log(spread)), 3)

    return time_of


def estimated_times(seed: int) -> Times:
    """Returns the times of the algorithms' own models, or of the floor, with an error of up to a
    fifth that is drawn from a seed."""
    drawn = drawn_times(seed, 1.2)

    def time_of(algorithm: Algorithm, problem: Problem, variant: Variant, device: Device) -> float:
        model = model_us(algorithm, problem, variant, device)
        return round(model * drawn(algorithm, problem, variant, device), 3)

    return time_of


class _Data(NamedTuple):
    """The weights from which a simulated candidate computes its outputs, and the time that it
    takes."""

    weights: dict[str, np.ndarray]
    time_us: float


class _Simulated(Algorithm):
    """An algorithm that is simulated on simulated devices, and is itself on others."""

    _time_of: Times

    def version(self, device: Device) -> str:
        return "simulated" if self.vendor else super().version(device)

    # nothing is built for a simulated device
    work_ahead = Algorithm.work_ahead

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        if not isinstance(device, SimulatedDevice):
            return super().prepare(weights, problem, variant, device)  # type: ignore[safe-super]
        time_us = type(self)._time_of(self, problem, variant, device)
        return State(problem, variant, device, data=_Data(dict(weights.arrays), time_us))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if not isinstance(state.device, SimulatedDevice):
            super().launch(  # type: ignore[safe-super]
                state, inputs, outputs, workspace, stream)
            return
        arrays, time_us = state.data
        if state.device.spends(time_us) or not any(spec.size for spec in state.variant.outputs):
            return
        values = [unpack(host_array(buffer, spec), spec)
                  for buffer, spec in zip(inputs, state.variant.inputs, strict=True)]
        with np.errstate(all="ignore"):
            compute = RECOGNISED.get(self.name) if self.op == "fused" else None
            results = (compute(state.problem, state.variant, values, arrays) if compute
                       else OPS[self.op].reference(state.problem, values, arrays))
            for buffer, spec, result in zip(outputs, state.variant.outputs, results, strict=True):
                _store(buffer, spec, result)


def _store(buffer: Buffer, spec: TensorSpec, result: np.ndarray) -> None:
    memory = host_array(buffer, spec)
    if any(spec.format.other_channels):
        # what lies between the channels belongs to other tensors
        logical_view(memory, spec)[...] = result
    else:
        memory[...] = pack(result, spec, check=False).reshape(memory.shape)


class _Library(_Simulated):
    """A stand-in of a vendor's library: a few plans for each precision and layout."""

    def supports(self, problem: Any, device: Device) -> str | None:
        if not device.runs_cuda_libraries:
            return "runs on NVIDIA GPUs only"
        if any(spec.dtype != "float32" for spec in (*problem.inputs, *problem.outputs)):
            return "computes floats only"
        return None

    def variants(self, problem: Any, device: Device) -> Iterator[Variant]:
        for rank in range(_LIBRARY_PLANS):
            for precision, dtype, layout in _LIBRARY_FORMATS:
                def specs(own: Sequence[TensorSpec], dtype: str = dtype,
                          layout: str = layout) -> tuple[TensorSpec, ...]:
                    return tuple(
                        replace(spec, format=replace(
                            default_format(spec.shape, dtype),
                            **({"layout": layout} if len(spec.shape) == 4 else {})))
                        for spec in own)

                yield Variant((("plan", rank),), specs(problem.inputs), specs(problem.outputs),
                              precision)

    # the library's own, which the stand-in comes before, would ask the library
    variants_in = Algorithm.variants_in
    expected_us = Algorithm.expected_us
    launch_count = Algorithm.launch_count
    kernel_sources = Algorithm.kernel_sources


def _simulated(algorithm: Algorithm, times: Times) -> Algorithm:
    kind = type(algorithm)
    base = _Library if algorithm.vendor else _Simulated
    made = copy.copy(algorithm)
    made.__class__ = type(kind.__name__, (base, kind), {
        "__module__": kind.__module__, "_time_of": staticmethod(times)})
    return made


@contextmanager
def simulated(times: Times) -> Iterator[None]:
    """Has all algorithms simulated, on simulated devices, in the body."""
    with pytest.MonkeyPatch.context() as patch:
        for name, op in list(OPS.items()):
            patch.setitem(OPS, name, replace(op, algorithms=tuple(
                _simulated(algorithm, times) for algorithm in op.algorithms)))
        yield


