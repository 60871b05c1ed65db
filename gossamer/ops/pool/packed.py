"""Maximum pooling of packed values. The values stay packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.device.source import KernelSource
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.host_threads import threads_of
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import WORD_TYPES, formats_for
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.pool.reference import counts_along, taps_along
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    cannot_index_variants,
    divisor,
    groups_for,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, TensorSpec

_SOURCE = Path(__file__).with_name("packed.cl")


class PackedPool(Algorithm):
    """Computes maxima by bit operations on words, which hold many channels. The value facts of the
    problem have to prove that all values are plus or minus 1, or that they are -1, 0 or 1."""

    op = "pool"
    name = "packed"

    def supports(self, problem: PoolProblem, device: Device) -> str | None:
        if problem.kind != "max":
            return "computes maxima only"
        if not formats_for(_known(problem)):
            return "needs values that are known to be -1, 0 or 1"
        inside = replace(problem, count_include_pad=False)
        if any((counts_along(inside, axis) == 0).any() for axis in range(2)):
            return "a window lies in the padding"
        return cannot_index_variants(self.variants(problem, device), device)

    def variants(self, problem: PoolProblem, device: Device) -> Iterator[Variant]:
        for format_ in formats_for(_known(problem)):
            x, y = (TensorSpec(spec.shape, format_)
                    for spec in (problem.input, problem.outputs[0]))
            yield Variant((), (x,), (y,))

    def prepare(self, weights: Weights, problem: PoolProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        (x,), (y,) = variant.inputs, variant.outputs
        planes = PACKED_DTYPES[x.dtype].planes
        count = int(np.prod(y.stored_shape[:4]))
        if not device.compiles or count == 0:
            return state
        kernel = device.compile(KernelSource.of(_SOURCE, "pool_packed", {
            "WORD": WORD_TYPES[x.stored_dtype.name], "PLANES": planes}))
        state.launches.append(Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count, *x.shape[2:],
            *divisor(problem.out_width), *divisor(problem.out_height), *problem.kernel,
            *problem.stride, *problem.pads[:2], *problem.dilation)))
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.device.compiles:
            super().launch(state, inputs, outputs, workspace, stream)
            return
        (x,), (y,) = state.variant.inputs, state.variant.outputs
        assert isinstance(state.problem, PoolProblem)
        with threads_of(state.variant):
            _pool(state.problem, host_array(inputs[0], x), host_array(outputs[0], y),
                  PACKED_DTYPES[x.dtype].planes)


def _known(problem: PoolProblem) -> ValueFacts:
    """Returns the value facts of the input."""
    return problem.facts[0] if problem.facts else REAL


def _pool(problem: PoolProblem, x: np.ndarray, y: np.ndarray, planes: int) -> None:
    """Computes the words of the output y from the words of the input x by the same bit operations
    as the kernel, one position in the window after another."""
    x, y = (words.reshape(*words.shape[:4], planes) for words in (x, y))
    positive, source = y[..., -1], x[..., -1]
    positive[...] = 0
    if planes == 2:
        y[..., 0] = np.iinfo(y.dtype).max
    for r, s in itertools.product(*map(range, problem.kernel)):
        rows, ys = taps_along(problem, 0, r)
        columns, xs = taps_along(problem, 1, s)
        positive[:, :, rows, columns] |= source[:, :, ys, xs]
        if planes == 2:
            y[:, :, rows, columns, 0] &= x[:, :, ys, xs, 0]
    if planes == 2:
        y[..., 0] |= positive
