"""Launches that write tensors side by side, up to four tensors in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.copy.strided import ELEMENTS, widest_element
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, divisor, groups_for
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("join.cl")
_MOST_SOURCES = 4
"""The most inputs that one launch reads."""


@dataclass(frozen=True)
class Rows:
    """How the rows of a tensor lie in memory.

    size: number of elements of a row, which are contiguous.
    first: element at which the first row begins.
    pitch: number of elements from the beginning of a row to the beginning of the next row.
    """

    size: int
    first: int
    pitch: int

    @classmethod
    def of(cls, spec: TensorSpec, position: int) -> Rows:
        """Returns the rows of a tensor. A row spans the dimensions from `position` on, in the order
        of memory."""
        pitch = math.prod(spec.stored_shape[position:])
        return cls(pitch - sum(spec.format.other_channels), spec.offset, pitch)

    def in_units(self, factor: int) -> Rows:
        """Returns these rows, counted in units of `factor` elements."""
        return Rows(self.size // factor, self.first // factor, self.pitch // factor)


def join_launches(device: Device, parts: Sequence[TensorSpec], whole: TensorSpec,
                  position: int) -> list[Launch]:
    """Returns the launches that concatenate tensors along an axis.

    parts, whole: specs of the inputs and of the output.
    position: position of the axis among the axes in the order of memory, from 0 (the outermost).
    """
    itemsize, rows = whole.stored_dtype.itemsize, math.prod(whole.stored_shape[:position])
    sources, target = [Rows.of(part, position) for part in parts], Rows.of(whole, position)
    element = widest_element(itemsize, [number for tensor in (*sources, target)
                                        for number in (tensor.size, tensor.first, tensor.pitch)])
    target = target.in_units(element // itemsize)
    first, places = target.first, []
    for index, source in enumerate(sources):
        part = source.in_units(element // itemsize)
        if part.size:
            places.append((index, part, first))
        first += part.size
    return [_launch(device, element, rows, target.pitch, places[start:start + _MOST_SOURCES])
            for start in range(0, len(places) if rows else 0, _MOST_SOURCES)]


def _launch(device: Device, element: int, rows: int, pitch: int,
            parts: Sequence[tuple[int, Rows, int]]) -> Launch:
    """Returns the launch that copies up to four neighbouring inputs.

    element: number of bytes of an element that the kernel copies.
    rows: number of rows of every input and of the target.
    pitch: pitch of the target's rows.
    parts: for each input, its index, its rows, and the element of the target to which the first
    element of the input is copied.
    """
    width = sum(part.size for _, part, _ in parts)
    kernel = device.compile(KernelSource.of(
        _SOURCE, "join", {"ELEMENT": ELEMENTS[element], "SOURCES": len(parts)}))
    sources = [argument for index, part, _ in parts
               for argument in (input_buffer(index), part.size, part.first, part.pitch)]
    return Launch(kernel, groups_for(rows * width), (WORK_GROUP_SIZE,),
                  (output_buffer(0), rows * width, *divisor(width), pitch, parts[0][2], *sources))
