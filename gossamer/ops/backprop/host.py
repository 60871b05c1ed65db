"""Back-propagation on the host in NumPy, with SciPy's BLAS for updates in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.strided import HostAlgorithm

_SMALL = 1 << 24
"""If the forward pass of an update has at most this many multiply-adds, BLAS uses one thread. In
small updates several threads gain little, and wait for each other on a busy machine. The number is
a rule of thumb for all CPUs."""


class NumpyBackprop(HostAlgorithm):
    """Training on the host, one update at a time, in float32."""

    op = "backprop"

    def variants(self, problem: BackpropProblem, device: Device) -> Iterable[Variant]:
        return [Variant((), problem.inputs, problem.outputs)]

    def compute(self, problem: BackpropProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        products = sum(units * before for units, before in problem.layer_shapes)
        online = problem.batch == 1 and not problem.adam and not problem.weighted
        # imported here, because importing SciPy is slow and most processes never train
        from gossamer.ops.backprop.host_updates import in_batches, one_by_one

        with np.errstate(all="ignore"), _threads_for(problem.batch * products):
            return (one_by_one if online else in_batches)(problem, inputs)


def _threads_for(multiply_adds: int) -> AbstractContextManager[None]:
    """Return a context that limits BLAS to one thread for small updates."""
    return nullcontext() if multiply_adds > _SMALL else blas.limited(1)
