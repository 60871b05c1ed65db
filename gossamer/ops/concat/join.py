"""Launches that write tensors side by side, several in one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.copy.strided import ELEMENTS, widest_element
from gossamer.ops.early_begin import BEGINS_EARLY
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, divisor, groups_for

_SOURCE = Path(__file__).with_name("join.cl")
_MOST_SOURCES = 4
"""Inputs that one launch reads at most."""


def join_launches(device: Device, itemsize: int, axis: int,
                  shapes: Sequence[Sequence[int]]) -> list[Launch]:
    """Returns the launches that concatenate inputs along an axis.

    itemsize: bytes of an element. shapes: the sizes of each input in the order of memory, which has
    no gaps; they differ along the axis alone.
    """
    rows = math.prod(shapes[0][:axis])
    sizes = [math.prod(shape[axis:]) for shape in shapes]
    element = widest_element(itemsize, sizes)
    sizes = [size * itemsize // element for size in sizes]
    firsts = itertools.accumulate(sizes, initial=0)
    parts = [part for part in zip(range(len(sizes)), sizes, firsts, strict=False) if part[1]]
    return [_launch(device, element, rows, sum(sizes), parts[start:start + _MOST_SOURCES])
            for start in range(0, len(parts) if rows else 0, _MOST_SOURCES)]


def _launch(device: Device, element: int, rows: int, pitch: int,
            parts: Sequence[tuple[int, int, int]]) -> Launch:
    """Returns the launch for some neighbouring inputs: the index, the size in a row and the place
    in a row of each."""
    width = sum(size for _, size, _ in parts)
    kernel = device.compile(KernelSource.of(
        _SOURCE, "join", {"ELEMENT": ELEMENTS[element], "SOURCES": len(parts)}, **BEGINS_EARLY))
    sources = [argument for index, size, _ in parts for argument in (input_buffer(index), size)]
    return Launch(kernel, groups_for(rows * width), (WORK_GROUP_SIZE,),
                  (output_buffer(0), rows * width, *divisor(width), pitch, parts[0][2], *sources))
