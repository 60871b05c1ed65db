"""Strided copies on a device, for the copy op and other ops that move data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    cannot_compile,
    divisor,
    groups_for,
    in_layout,
    layout_variants,
    merge,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, ROW_MAJOR, TensorSpec, rounded_up

_SOURCE = Path(__file__).with_name("strided.cl")
ELEMENTS = {1: "uchar", 2: "unsigned short", 4: "int", 8: "INT64", 16: "int4"}
"""For each size of an element in bytes, the C type that kernels use to copy the element."""
_FOURS = {1: "uchar4", 2: "ushort4", 4: "int4"}
"""For each size of an element in bytes, the C type of four elements."""
_TILE = 32
_LEAST_TILE = 8
"""Minimum size of each of the two tiled dimensions, in elements (a rule of thumb). If one of them
is smaller, tiles would be mostly empty, and a copy without tiles is faster."""


@dataclass(frozen=True)
class StridedLoops:
    """A nest of loops that copies a source to a target.

    sizes: number of iterations along each dimension.
    source_strides, target_strides: strides along each dimension, in elements.
    source_offset, target_offset: offsets of the first elements, in elements.
    bounds: (low, high) for each dimension; None means (0, size). An element is copied if
    low <= index < high in all dimensions; otherwise zero is written. The element whose index is
    `low` in all dimensions is read at `source_offset`.
    """

    sizes: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_offset: int = 0
    target_offset: int = 0
    bounds: tuple[tuple[int, int], ...] | None = None


def copy_launches(device: Device, itemsize: int, walk: StridedLoops,
                  source: Argument | Callable[..., Argument],
                  target: Argument | Callable[..., Argument], into: str = "") -> list[Launch]:
    """Return the launches (none or one) that execute the loops.

    itemsize: size of an element in bytes.
    source, target: the kernel's arguments for the two tensors.
    into: "float16" to convert from float32, "float32" to convert from float16, "" to copy bytes.

    Raises ValueError for more than six dimensions that cannot be merged.
    """
    if 0 in walk.sizes:
        return []
    bounds = walk.bounds or tuple((0, size) for size in walk.sizes)
    start = walk.source_offset - sum(
        low * stride for (low, _), stride in zip(bounds, walk.source_strides, strict=True))
    cuts = [None if bound == (0, size) else bound
            for bound, size in zip(bounds, walk.sizes, strict=True)]
    order = sorted(range(len(walk.sizes)), key=lambda dim: -walk.target_strides[dim])
    sizes, (froms, tos), cuts_left = merge(
        [walk.sizes[dim] for dim in order],
        [[strides[dim] for dim in order] for strides in (walk.source_strides,
                                                         walk.target_strides)],
        [cuts[dim] for dim in order])
    if len(sizes) > 6:
        raise ValueError(f"a copy has {len(sizes)} dimensions that cannot be merged; at most 6 are "
                         "supported")
    loops = [_Loop(size, s, t, cut or (0, size)) for size, s, t, cut
             in zip(sizes, froms, tos, cuts_left, strict=True)]
    offsets = (start, walk.target_offset)
    kernel = "copy_strided"
    defines: dict[str, object] = {"INTO_" + into.upper(): 1} if into else {}
    bounded = any(cut is not None for cut in cuts_left)
    if _move_tiles_last(loops):
        kernel, defines["TILE"] = "copy_tiled", _TILE
    elif not bounded and itemsize in _FOURS and _interleaves(offsets, loops):
        kernel, defines["CHANNELS"] = "copy_interleaved", loops[-1].size
        defines["FOUR"] = "float4" if into else _FOURS[itemsize]
        loops[-2] = loops[-2].in_fours()
    elif not bounded and into and _copies_fours(offsets, loops):
        defines["FOUR"] = "float4"
        loops[-1] = loops[-1].in_fours()
    elif not (bounded or into):
        itemsize, offsets, loops = _widen(itemsize, offsets, loops)
    if not into:
        defines["ELEMENT"] = ELEMENTS[itemsize]
    if bounded:
        defines["BOUNDED"] = 1
    return [_launch(device, kernel, defines, offsets, loops, (source, target))]


@dataclass(frozen=True)
class _Loop:
    """One loop of a copy.

    size: number of iterations.
    source, target: strides in source and target, in elements.
    bounds: (low, high); elements with low <= index < high are copied.
    """

    size: int
    source: int
    target: int
    bounds: tuple[int, int]

    def in_fours(self) -> _Loop:
        """Return the loop with four elements in each iteration."""
        return _Loop(self.size // 4, 4 * self.source, 4 * self.target, (0, self.size // 4))


def _move_tiles_last(loops: list[_Loop]) -> bool:
    """Return whether the copy uses tiles; if so, reorder the loops in place.

    Tiles are used if source and target have different contiguous dimensions, and if both dimensions
    have at least _LEAST_TILE elements. The loop along the source's contiguous dimension is then
    moved to the second-to-last position.
    """
    if len(loops) < 2 or loops[-1].target != 1 or loops[-1].source in (0, 1):
        return False
    for index, loop in enumerate(loops[:-1]):
        if loop.source == 1 and min(loop.size, loops[-1].size) >= _LEAST_TILE:
            loops.insert(-1, loops.pop(index))
            return True
    return False


def _are_fours(offsets: tuple[int, int], loops: Iterable[_Loop]) -> bool:
    """Return whether the offsets and strides of a copy are multiples of four elements."""
    return not any(number % 4 for number in (
        *offsets, *(stride for loop in loops for stride in (loop.source, loop.target))))


def _copies_fours(offsets: tuple[int, int], loops: Sequence[_Loop]) -> bool:
    """Return whether a copy consists of aligned groups of four contiguous elements."""
    return (bool(loops) and loops[-1].source == loops[-1].target == 1 and loops[-1].size % 4 == 0
            and _are_fours(offsets, loops[:-1]))


def _interleaves(offsets: tuple[int, int], loops: Sequence[_Loop]) -> bool:
    """Return whether a copy makes pixels of 2 to 4 channels of planes, four pixels at a time."""
    if len(loops) < 2:
        return False
    pixels, channels = loops[-2:]
    return (2 <= channels.size <= 4 and channels.target == 1
            and pixels.source == 1 and pixels.target == channels.size and pixels.size % 4 == 0
            and channels.source % 4 == 0 and _are_fours(offsets, loops[:-2]))


def _widen(itemsize: int, offsets: tuple[int, int],
           loops: list[_Loop]) -> tuple[int, tuple[int, int], list[_Loop]]:
    """Merge contiguous elements into elements of up to 16 bytes.

    The merged elements are as wide as all sizes, strides and offsets allow. Returns the itemsize,
    the offsets and the loops for the merged elements.
    """
    if not loops or loops[-1].source != 1 or loops[-1].target != 1:
        return itemsize, offsets, loops
    strides = [stride for loop in loops[:-1] for stride in (loop.source, loop.target)]
    factor = widest_element(itemsize, (loops[-1].size, *offsets, *strides)) // itemsize
    outer = [_Loop(loop.size, loop.source // factor, loop.target // factor, (0, loop.size))
             for loop in loops[:-1]]
    size = loops[-1].size // factor
    return (itemsize * factor, (offsets[0] // factor, offsets[1] // factor),
            [*outer, _Loop(size, 1, 1, (0, size))])


def widest_element(itemsize: int, counts: Iterable[int]) -> int:
    """Return the size in bytes of the widest usable C type in ELEMENTS.

    The type may hold several elements of the tensors, so that one access copies all of them. If
    sizes, strides and offsets are given in bytes, the size of the type divides all of them.

    itemsize: size in bytes of an element of the tensors.
    counts: sizes, strides and offsets, in elements of the tensors.
    """
    common = math.gcd(*counts) * itemsize
    return max(nbytes for nbytes in ELEMENTS if nbytes >= itemsize and common % nbytes == 0)


def _launch(device: Device, name: str, defines: Mapping[str, object], offsets: tuple[int, int],
            loops: list[_Loop], ends: tuple[Argument | Callable[..., Argument], ...]) -> Launch:
    """Return the launch that executes merged loops.

    ends: the kernel's arguments for source and target.
    """
    rank, bounded = next(rank for rank in (2, 4, 6) if rank >= len(loops)), "BOUNDED" in defines
    arguments: list[Argument | Callable[..., Argument]] = [*ends]
    if "TILE" in defines:
        tiles = math.prod(-(-loop.size // _TILE) for loop in loops[-2:])
        groups: tuple[int, ...] = (math.prod(loop.size for loop in loops[:-2]) * tiles,)
    else:
        # a work-item that interleaves copies all channels
        count = math.prod(loop.size for loop in (loops[:-1] if "CHANNELS" in defines else loops))
        groups = groups_for(count)
        arguments.append(count)
    kernel = device.compile(KernelSource.of(_SOURCE, name, {**defines, "RANK": rank}))
    arguments += [*offsets, *([0] if bounded else [])]
    for loop in [_Loop(1, 0, 0, (0, 1))] * (rank - len(loops)) + loops:
        arguments += [*divisor(loop.size), loop.source, loop.target]
        arguments += loop.bounds if bounded else ()
    return Launch(kernel, groups, (WORK_GROUP_SIZE,), tuple(arguments))


def copy_variants(problem: CopyProblem) -> list[Variant]:
    """Return the variants of a copy.

    A copy has one variant if it converts the dtype, or if one of its specs is not in the default
    format. All other copies have a variant for each layout and precision. A transpose of images
    also has variants that keep the order of the elements in memory.
    """
    if not problem.is_free_of_format:
        halves = "float16" in (problem.input.dtype, problem.output.dtype)
        return [Variant((), problem.inputs, problem.outputs, "fp16" if halves else "fp32")]
    variants = layout_variants(problem) + _unmoved_variants(problem)
    if problem.input.dtype == "float32":
        variants += [variant.as_fp16 for variant in variants]
    return variants


def _unmoved_variants(problem: CopyProblem) -> list[Variant]:
    """Return the variants of a rank-4 transpose that keep the order of elements in memory.

    In these variants the output is the same memory in another layout. An example is the transpose
    from (N, C, H, W) to (N, H, W, C) if the input is stored as NHWC and the output is row-major.
    """
    if sorted(dim for dim in problem.dims if dim is not None) != list(range(len(AXES["NCHW"]))):
        return []
    orders: dict[tuple[int, ...], str] = {axes: layout for layout, axes in AXES.items()}
    found = [(layout, orders.get(tuple(problem.dims.index(axis) for axis in axes)))
             for layout, axes in AXES.items()]
    return [Variant((), (in_layout(problem.input, layout),), (in_layout(problem.output, other),))
            for layout, other in found if other is not None and other != layout]


def copy_walk(problem: CopyProblem, source: TensorSpec, target: TensorSpec) -> StridedLoops:
    """Return the loops over all stored elements of the target, including padding."""
    strides = source.strides
    froms = [0 if dim is None else step * strides[dim]
             for dim, step in zip(problem.dims, problem.steps, strict=True)]
    offset = source.offset + sum(
        start * stride for start, stride in zip(problem.starts, strides, strict=True))
    sizes, bounds = list(target.shape), [(0, size) for size in target.shape]
    if target.layout != ROW_MAJOR:
        _, channels, height, width = target.shape
        top, left, bottom, right = target.format.border
        sizes[1:] = [rounded_up(channels, target.format.channel_multiple), height + top + bottom,
                     width + left + right]
        bounds[2:] = [(top, top + height), (left, left + width)]
    return StridedLoops(tuple(sizes), tuple(froms), target.strides, offset,
                        target.format.other_channels[0], tuple(bounds))


class StridedCopy(Algorithm):
    """One launch that copies elements.

    The kernel uses tiles in shared memory if source and target have different contiguous
    dimensions.
    """

    op = "copy"
    name = "strided"
    reads_parts = True
    writes_parts = True

    def supports(self, problem: CopyProblem, device: Device) -> str | None:
        if problem.input.format.is_packed or problem.output.format.is_packed:
            return "does not convert packed values"
        if problem.input.stored_dtype.itemsize not in ELEMENTS:
            return f"does not copy elements of {problem.input.stored_dtype.itemsize} bytes"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if len(problem.dims) > 6:
            return f"copies to at most 6 dimensions, not {len(problem.dims)}"
        return None

    def variants(self, problem: CopyProblem, device: Device) -> Iterable[Variant]:
        return copy_variants(problem)

    def prepare(self, weights: Weights, problem: CopyProblem, variant: Variant,
                device: Device) -> State:
        walk = copy_walk(problem, variant.inputs[0], variant.outputs[0])
        itemsize = variant.inputs[0].stored_dtype.itemsize
        into = problem.output.dtype if problem.converts else ""
        launches = copy_launches(device, itemsize, walk, input_buffer(0), output_buffer(0), into)
        return State(problem, variant, device, launches)
