"""Padding of packed values with a constant. The values stay packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.device.source import KernelSource
from gossamer.facts import REAL, point
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.host_threads import threads_of
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import WORD_TYPES, constant_words, formats_for
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    cannot_index_variants,
    divisor,
    groups_for,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec

_SOURCE = Path(__file__).with_name("packed.cl")


class PackedPad(Algorithm):
    """Puts words of the constant around the rows and columns; negative pads crop. The constant and
    all values that the problem's value facts allow have to fit bits (-1, 1) or trits (-1, 0, 1)."""

    op = "pad"
    name = "packed"

    def supports(self, problem: PadProblem, device: Device) -> str | None:
        if len(problem.input.shape) != 4 or any(problem.low[:2]) or any(problem.high[:2]):
            return "pads rows and columns of (N, C, H, W) only"
        if problem.mode != "constant":
            return "adds a constant only"
        if problem.input.dtype != "float32":
            return f"packs float32, not {problem.input.dtype}"
        if not _formats(problem):
            return "needs values and a constant that are known to be -1, 0 or 1"
        return cannot_index_variants(self.variants(problem, device), device)

    def variants(self, problem: PadProblem, device: Device) -> Iterator[Variant]:
        for format_ in _formats(problem):
            x, y = (TensorSpec(spec.shape, format_)
                    for spec in (problem.input, problem.outputs[0]))
            yield Variant((), (x,), (y,))

    def prepare(self, weights: Weights, problem: PadProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        (x,), (y,) = variant.inputs, variant.outputs
        count = int(np.prod(y.stored_shape[:4]))
        if not device.compiles or count == 0:
            return state
        _, words, height, width = y.stored_shape[:4]
        kernel = device.compile(KernelSource.of(_SOURCE, "pad_packed", {
            "WORD": WORD_TYPES[x.stored_dtype.name], "WORD_BITS": 8 * x.stored_dtype.itemsize,
            "PLANES": PACKED_DTYPES[x.dtype].planes, "POSITIVE": int(problem.value > 0),
            "NONZERO": int(problem.value != 0)}))
        state.launches.append(Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count, *x.shape[1:], *divisor(width),
            *divisor(height), *divisor(words), *problem.low[2:])))
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.device.compiles:
            super().launch(state, inputs, outputs, workspace, stream)
            return
        (x,), (y,) = state.variant.inputs, state.variant.outputs
        assert isinstance(state.problem, PadProblem)
        with threads_of(state.variant):
            _pad(state.problem, host_array(inputs[0], x), host_array(outputs[0], y), x)


def _formats(problem: PadProblem) -> list[Format]:
    """Returns the packed formats that can hold both the input and the constant."""
    known = problem.facts[0] if problem.facts else REAL
    return formats_for(known.join(point(problem.value)))


def _pad(problem: PadProblem, x: np.ndarray, y: np.ndarray, spec: TensorSpec) -> None:
    """Pads the words of the input x, and writes the result to the words of the output y. spec: spec
    of x."""
    words = constant_words(problem.value, spec)
    y.reshape(*y.shape[:4], words.shape[1])[...] = words[:, None, None, :]
    of_x, of_y = zip(*map(
        _common, problem.input.shape[2:], problem.low[2:], problem.high[2:]), strict=True)
    y[:, :, *of_y] = x[:, :, *of_x]


def _common(size: int, low: int, high: int) -> tuple[slice, slice]:
    """Returns the part of an input dimension that is not cropped, and the slice of the output that
    this part fills.

    size: size of the input dimension.
    low, high: numbers of elements that are added before and after the input; negative numbers crop.
    """
    first, end = max(0, -low), size + min(0, high)
    return slice(first, end), slice(first + low, end + low)
