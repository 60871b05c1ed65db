"""Algorithms of concatenation along an axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Variant
from gossamer.ops.concat.problem import ConcatProblem, reference
from gossamer.ops.copy.strided import ELEMENTS, widest_element
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.packed import PackedAlgorithm, formats_for
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    cannot_index_variants,
    divisor,
    groups_for,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, Format, TensorSpec

_SOURCE = Path(__file__).with_name("join.cl")
_MOST_SOURCES = 4
"""Maximum number of inputs that one launch reads."""


class NumpyConcat(HostAlgorithm):
    """Concatenation by numpy.concatenate."""

    op = "concat"
    compute = staticmethod(reference)


class SliceCopies(KernelAlgorithm):
    """Concatenation by copying each input to its slice of the output.

    All tensors have the same layout. Each launch copies up to four inputs.
    """

    op = "concat"
    name = "slices"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: ConcatProblem, device: Device) -> str | None:
        return cannot_compile(problem, device)

    def kernel_launches(self, weights: Weights, problem: ConcatProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        (target,) = variant.outputs
        order = AXES.get(target.layout, tuple(range(len(target.shape))))
        return _join_launches(device, variant.inputs, target, order.index(problem.axis))


class PackedConcat(PackedAlgorithm):
    """Concatenation by copying each input's packed words to its slice of the output.

    Along the channel axis, the channels of every input but the last must fill whole words.
    """

    op = "concat"

    def supports(self, problem: ConcatProblem, device: Device) -> str | None:
        if len(problem.outputs[0].shape) != 4:
            return "needs (N, C, H, W)"
        if problem.parts[0].dtype != "float32":
            return f"packs float32 inputs, not {problem.parts[0].dtype}"
        if not formats_for(_joined(problem)):
            return "needs values that are known to be -1, 0 or 1"
        if not self.formats(problem):
            return "needs inputs whose channels fill whole words"
        return cannot_index_variants(self.variants(problem, device), device)

    def formats(self, problem: ConcatProblem) -> list[Format]:
        # each input begins at a word boundary of the output
        channels = [part.shape[1] for part in problem.parts[:-1]] if problem.axis == 1 else []
        return [format_ for format_ in formats_for(_joined(problem))
                if all(count % (8 * format_.stored_dtype.itemsize) == 0 for count in channels)]

    def kernel_launches(self, weights: Weights, problem: ConcatProblem, variant: Variant,
                        device: Device) -> list[Launch]:
        return _join_launches(device, variant.inputs, variant.outputs[0], problem.axis)


def _joined(problem: ConcatProblem) -> ValueFacts:
    """Return the value facts that hold for every input."""
    return functools.reduce(ValueFacts.join, problem.facts) if problem.facts else REAL


@dataclass(frozen=True)
class Rows:
    """A tensor in memory, as equally spaced rows of contiguous elements.

    size: number of elements in a row.
    first: index of the first row's first element.
    pitch: distance between the starts of consecutive rows, in elements.
    """

    size: int
    first: int
    pitch: int

    @classmethod
    def of(cls, spec: TensorSpec, position: int) -> Rows:
        """Return the rows of a tensor.

        A row spans the dimensions from `position` on, in memory order.
        """
        pitch = math.prod(spec.stored_shape[position:])
        return cls(pitch - sum(spec.format.other_channels), spec.offset, pitch)

    def in_units(self, factor: int) -> Rows:
        """Return the same rows, measured in units of `factor` elements."""
        return Rows(self.size // factor, self.first // factor, self.pitch // factor)


def _join_launches(device: Device, parts: Sequence[TensorSpec], whole: TensorSpec,
                  position: int) -> list[Launch]:
    """Return the launches that concatenate tensors along an axis.

    parts, whole: specs of the inputs and of the output.
    position: position of the axis in memory order; 0 is the outermost.
    """
    itemsize, rows = whole.stored_dtype.itemsize, math.prod(whole.stored_shape[:position])
    sources, target = [Rows.of(part, position) for part in parts], Rows.of(whole, position)
    element = widest_element(itemsize, [number for tensor in (*sources, target)
                                        for number in (tensor.size, tensor.first, tensor.pitch)])
    target = target.in_units(element // itemsize)
    first, targets = target.first, []
    for index, source in enumerate(sources):
        part = source.in_units(element // itemsize)
        if part.size:
            targets.append((index, part, first))
        first += part.size
    return [_launch(device, element, rows, target.pitch, targets[start:start + _MOST_SOURCES])
            for start in range(0, len(targets) if rows else 0, _MOST_SOURCES)]


def _launch(device: Device, element: int, rows: int, pitch: int,
            parts: Sequence[tuple[int, Rows, int]]) -> Launch:
    """Return the launch that copies up to four consecutive inputs.

    element: size in bytes of the elements that the kernel copies.
    rows: number of rows, the same for every input and the output.
    pitch: pitch of the output's rows.
    parts: for each input, its index, its rows, and the index of its first element in the output.
    """
    width = sum(part.size for _, part, _ in parts)
    kernel = device.compile(KernelSource.of(
        _SOURCE, "join", {"ELEMENT": ELEMENTS[element], "SOURCES": len(parts)}))
    sources = [argument for index, part, _ in parts
               for argument in (input_buffer(index), part.size, part.first, part.pitch)]
    return Launch(kernel, groups_for(rows * width), (WORK_GROUP_SIZE,),
                  (output_buffer(0), rows * width, *divisor(width), pitch, parts[0][2], *sources))


OP = Op("concat", ConcatProblem, reference, (NumpyConcat(), SliceCopies(), PackedConcat()))
