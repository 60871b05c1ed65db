"""Algorithms of copies.

This module has the NumPy copy, and the kernels that convert from or to packed formats. strided.py
has the kernels for all other formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.facts import REAL
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.copy.problem import CopyProblem, convert, reference
from gossamer.ops.copy.strided import StridedCopy, copy_variants
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.packed import PackedParts, as_images, can_hold
from gossamer.ops.strided import WORK_GROUP_SIZE, HostAlgorithm, cannot_index, divisor, groups_for
from gossamer.ops.weights import Weights
from gossamer.tensor import AXES, PACKED_DTYPES, TensorSpec, rounded_up

_SOURCE = Path(__file__).with_name("packed.cl")
_PART_BITS = 32
_DTYPES = ("bits", "trits")
_PACK = {0: "pack", 1: "pack_position_by_vote", 32: "pack_by_vote"}
"""Name of the packing kernel for each value of `vote` in the config.

`vote` is the number of 32-bit parts of words that a warp packs with ballots. With vote=0, each
work-item packs one part without ballots.
"""
_FEW_VALUES = 2**20
"""Maximum number of values for which the variant vote=1 is listed first. The number was measured
on an H200, and affects only the order of the variants."""


class NumpyCopy(HostAlgorithm):
    """A copy of a strided NumPy view of the input."""

    op = "copy"
    compute = staticmethod(reference)

    def variants(self, problem: CopyProblem, device: Device) -> Iterable[Variant]:
        return copy_variants(problem)


class PackedCopy(Algorithm):
    """One launch that packs, unpacks or repacks a tensor.

    A word consists of 32-bit parts. A part holds 32 channels, one bit per channel.

    There are three ways to pack. With vote=0, a work-item reads the 32 channels of a part. It reads
    four channels at a time if they are contiguous. With vote=1, each of the 32 lanes of a warp
    reads one channel, and a ballot of the warp yields the part. Published kernels of binary
    convolution use this method (see conv2d/binary/popcount.py). With vote=32, a warp computes 32
    parts by ballots, one after another.

    To unpack, each work-item writes one, four or 32 channels.
    """

    op = "copy"
    name = "packed"

    def supports(self, problem: CopyProblem, device: Device) -> str | None:
        source, target = problem.input, problem.output
        if not (source.format.is_packed or target.format.is_packed):
            return "converts only from or to packed values"
        for spec in (source, target):
            if spec.format.is_packed and spec.dtype not in _DTYPES:
                return f"supports {' and '.join(_DTYPES)}, not {spec.dtype}"
        if source.shape != target.shape or problem != convert(source, target, problem.facts):
            return "changes only the format of packed values, and computes no other copies"
        if not target.format.is_packed and any(facts.nan for facts in problem.facts):
            return f"{source.dtype} values may hold NaN, which would be packed as -1"
        if not _may_pack(problem):
            known = problem.facts[0] if problem.facts else REAL
            return f"{target.dtype} cannot hold all of {known}"
        return cannot_index((source, target), device)

    def variants(self, problem: CopyProblem, device: Device) -> Iterator[Variant]:
        source, target = problem.input, problem.output
        halves = "float16" in (source.dtype, target.dtype)
        configs: list[tuple[tuple[str, int | str], ...]] = [()]
        if not source.format.is_packed:
            configs = [(("vote", count),) for count in
                       ((0, 1, 32) if source.strides[1] == 1 else (0, 1))]
            if not device.on_processors and source.size <= _FEW_VALUES:
                configs[:2] = configs[1::-1]
        elif not target.format.is_packed:
            counts = (1, _PART_BITS) if target.strides[1] == 1 else (_PART_BITS, 1)
            configs = [(("channels", count),) for count in (
                (4, *counts) if _moves_fours(target) else counts)]
        for config in configs:
            yield Variant(config, problem.inputs, problem.outputs, "fp16" if halves else "fp32")

    def prepare(self, weights: Weights, problem: CopyProblem, variant: Variant,
                device: Device) -> State:
        source, target = as_images(problem.input), as_images(problem.output)
        defines: dict[str, object] = {"HALVES": int(variant.precision == "fp16")}
        start, froms = _addresses("SOURCE", source, defines)
        _, tos = _addresses("TARGET", target, defines)
        stored: tuple[int, ...] = ()
        if not source.format.is_packed:
            defines["FOURS"] = int(_moves_fours(problem.input)
                                   and source.shape[1] % _PART_BITS == 0)
        if target.format.is_packed:
            steps = PackedParts.of(target).count
            name = "repack" if source.format.is_packed else _PACK[variant["vote"]]
        else:
            stored = (_stored_channels(target),)
            steps = -(-stored[0] // variant["channels"])
            defines["CHANNELS"] = variant["channels"]
            name = "unpack"
        sizes, names = _positions(source, target, steps)
        defines.update(names)
        count = math.prod(sizes)
        if count == 0:
            return State(problem, variant, device)
        kernel = device.compile(KernelSource.of(
            _SOURCE, name, defines))
        items = count * (_PART_BITS if name == _PACK[1] else 1)
        return State(problem, variant, device, [Launch(
            kernel, groups_for(items), (WORK_GROUP_SIZE,),
            (input_buffer(0), output_buffer(0), count,
             *(argument for size in sizes[1:] for argument in divisor(size)),
             *target.format.border[:2], *source.shape[1:], *stored, start, *froms, *tos))])


def _moves_fours(spec: TensorSpec) -> bool:
    """Return whether kernels may access four channels with one vector load or store.

    The channels must be contiguous in memory. Every group of four channels must be aligned to the
    size of four values.
    """
    if spec.strides[1] != 1:
        return False
    return not any(step % 4 for step in (spec.offset, spec.strides[0], *spec.strides[2:]))


def _stored_channels(spec: TensorSpec) -> int:
    """Return the number of stored channels of a float tensor, padding included."""
    return rounded_up(spec.shape[1], spec.format.channel_multiple)


def _may_pack(problem: CopyProblem) -> bool:
    """Return whether the target can hold all values of the source."""
    target = problem.output.format
    if any(can_hold(target, facts) for facts in problem.facts) or not target.is_packed:
        return True
    return problem.input.format.is_packed and (
        {*PACKED_DTYPES[problem.input.dtype].values} <= {*PACKED_DTYPES[target.dtype].values})


def _addresses(prefix: str, spec: TensorSpec,
               defines: dict[str, object]) -> tuple[int, tuple[int, ...]]:
    """Return a tensor's offset and strides, and add its packing macros to `defines`.

    The names of the macros begin with `prefix`.
    """
    if not spec.format.is_packed:
        defines[f"{prefix}_PLANES"] = 0
        return spec.offset, spec.strides
    packed = PackedParts.of(spec)
    defines[f"{prefix}_PLANES"], defines[f"{prefix}_PARTS"] = packed.planes, packed.parts
    return packed.start, packed.strides


def _positions(source: TensorSpec, target: TensorSpec,
               steps: int) -> tuple[list[int], dict[str, str]]:
    """Return the sizes of the axes of the index space, and macros that name the axes' indices.

    The four axes are images, groups of channels, rows and columns of the target. The axes have the
    memory order of the float tensor, so that neighbouring work-items access neighbouring floats.

    steps: number of groups of channels.
    """
    floats = source if target.format.is_packed else target
    order = AXES.get(floats.layout, AXES["NCHW"])
    n, _, height, width = target.shape
    top, left, bottom, right = target.format.border
    sizes = (n, steps, height + top + bottom, width + left + right)
    return [sizes[axis] for axis in order], {
        name: f"i{order.index(axis)}"
        for axis, name in enumerate(("IMAGE", "STEP", "ROW", "COLUMN"))}


OP = Op("copy", CopyProblem, reference, (NumpyCopy(), StridedCopy(), PackedCopy()))
