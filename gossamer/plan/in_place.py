"""Concatenations and slices that need not copy anything.

The inputs of a concatenation are written straight into the memory of its output, and the output of
a slice is read where it lies in the input. In NHWC a part of the channels of a larger tensor lies
in the memory of the larger tensor: the step that makes the part writes only some channels of each
pixel, and the steps that use the part read only these channels.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem, split
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.plan.program import Place, Program, Step
from gossamer.tensor import Format, TensorSpec

_WIDEST_ACCESS = 16
"""The most bytes of a tensor that a kernel loads, copies or stores at once."""
_T = TypeVar("_T")


def is_conversion(problem: Problem | None) -> bool:
    """Whether a problem only changes the format in which callers give an input."""
    return isinstance(problem, ElementwiseProblem) and problem.is_conversion


@lru_cache(maxsize=1024)
def _slices(problem: Problem) -> Sequence[CopyProblem]:
    """Return the copies that would take the parts of a concatenation out of its output. A copy
    takes its output, as the only part, out of its input. Other problems have no parts."""
    if isinstance(problem, ConcatProblem):
        return split(problem.outputs[0], problem.axis,
                     [part.shape[problem.axis] for part in problem.parts])
    return [problem] if isinstance(problem, CopyProblem) else []


def _whole_and_parts(problem: Problem, inputs: Sequence[_T],
                     outputs: Sequence[_T]) -> tuple[_T, Sequence[_T]]:
    """Return the output of a concatenation and its inputs, or the input of a copy and its
    output."""
    return (outputs[0], inputs) if isinstance(problem, ConcatProblem) else (inputs[0], outputs)


def part_offsets(problem: Problem, variant: Variant, alignment: int) -> list[int] | None:
    """Return the byte of a concatenation's output at which each input begins, or the byte of a
    copy's input at which its output begins. Return None where a part alone would have another
    layout in memory than within the whole, or where a part does not begin at a multiple of the
    alignment."""
    slices = _slices(problem)
    if not slices:
        return None
    whole, parts = _whole_and_parts(problem, variant.inputs, variant.outputs)
    found = [_offset(whole, part, copy) for part, copy in zip(parts, slices, strict=True)]
    offsets = [offset for offset in found if offset is not None and offset % alignment == 0]
    return offsets if len(offsets) == len(found) else None


def _offset(whole: TensorSpec, part: TensorSpec, copy: CopyProblem) -> int | None:
    """Return the byte of a tensor at which a part of the tensor begins; None where the part alone
    has another layout in memory than within the tensor. copy: takes the part out of the tensor."""
    if whole.dtype != part.dtype or part.size == 0 or not (_is_dense(whole) and _is_dense(part)):
        return None
    for size, stride, dim, step in zip(part.shape, part.strides, copy.dims, copy.steps,
                                       strict=True):
        if size > 1 and (dim is None or stride != step * whole.strides[dim]):
            return None
    return sum(map(operator.mul, copy.starts, whole.strides)) * whole.stored_dtype.itemsize


def _is_dense(spec: TensorSpec) -> bool:
    """Whether memory holds the elements of a tensor and nothing else."""
    return not spec.format.is_packed and spec.nbytes == spec.size * spec.stored_dtype.itemsize


def keep_in_place(program: Program, device: Device) -> Program:
    """Change and return the program, so that conversions of its inputs from the format of the
    callers' arrays, concatenations and slices copy nothing where the formats allow that. Steps that
    write or read a value that is now a part of another value are changed, too."""
    steps = [step for step in program.steps if not step.layer.inserted
             and (is_conversion(step.problem) or _slices(step.problem))]
    for step in steps:
        if is_conversion(step.problem):
            step.in_place = _is_unchanged(step.variant)
            if step.in_place:
                program.aliases[step.outputs[0]] = step.inputs[0]
            continue
        offsets = part_offsets(step.problem, step.variant, device.alignment)
        if offsets is None or not _may_be_shared(program, step):
            continue
        whole, parts = _whole_and_parts(step.problem, step.inputs, step.outputs)
        program.places.update((program.root(part), Place(program.root(whole), offset))
                             for part, offset in zip(parts, offsets, strict=True))
        step.in_place = True
    channel_parts = ChannelParts(program, device)
    for step in steps:
        step.in_place = step.in_place or (
            _may_be_shared(program, step) and channel_parts.add(step))
    channel_parts.finish()
    return program


def _may_be_shared(program: Program, step: Step) -> bool:
    """Whether the parts of a step may lie within the memory of its whole. Steps have to compute all
    of them, since the memory of inputs may be the callers', and a part can lie within only one
    other value, and only once."""
    whole, parts = _whole_and_parts(step.problem, step.inputs, step.outputs)
    roots = [program.root(value) for value in (whole, *parts)]
    computed = {value for each in program.steps for value in each.outputs}
    return (computed.issuperset(roots) and len(set(roots)) == len(roots)
            and program.places.keys().isdisjoint(roots[1:]))


def _is_unchanged(variant: Variant) -> bool:
    """Whether a variant of a conversion leaves memory as it is."""
    return variant.inputs[0].same_memory(variant.outputs[0])


def is_likely_in_place(problem: Problem, variant: Variant, alignment: int) -> bool:
    """Return whether a conversion of an input, a concatenation or a slice is likely to copy
    nothing: its formats allow that, and only the whole program shows whether other layers do."""
    if is_conversion(problem):
        return _is_unchanged(variant)
    return (part_offsets(problem, variant, alignment) is not None
            or first_channels(problem, variant) is not None)


def first_channels(problem: Problem, variant: Variant) -> list[int] | None:
    """Return the channel of a concatenation's output at which each input begins, or the channel
    of a copy's input at which its output begins. Return None where the problem neither joins nor
    selects channels in NHWC, where a part is not aligned (see aligned_channels()), or where the
    larger tensor has 2^31 elements or more."""
    slices = _slices(problem)
    if not slices or not all(map(_takes_channels, slices)):
        return None
    whole, parts = _whole_and_parts(problem, variant.inputs, variant.outputs)
    firsts = [copy.starts[1] for copy in slices]
    fits = all(_is_plain(spec) and spec.dtype == whole.dtype for spec in (whole, *parts))
    if not fits or whole.size >= 2**31 or any(
            place % aligned_channels(part) for first, part in zip(firsts, parts, strict=True)
            for place in (first, whole.shape[1])):
        return None
    return firsts


def aligned_channels(part: TensorSpec) -> int:
    """Return the number of channels that has to divide the first channel of a part and the
    channels of the whole.

    Kernels choose by the channels of a tensor how many of them they load, copy or store at once.
    With this alignment their choice fits a part as it fits a tensor of its own. If tensor A is
    a part of B, and B is a part of C, A is aligned in C, too: the number divides the channels of B,
    and so it also divides the first channel of B in C.
    """
    return math.gcd(_WIDEST_ACCESS // part.stored_dtype.itemsize, part.shape[1])


def _takes_channels(problem: CopyProblem) -> bool:
    """Whether a copy only selects neighbouring channels of images, with all their pixels."""
    source, target = problem.input.shape, problem.output.shape
    return (problem.dims == (0, 1, 2, 3) and set(problem.steps) == {1}
            and (source[0], *source[2:]) == (target[0], *target[2:])
            and problem.starts[0] == problem.starts[2] == problem.starts[3] == 0)


def _is_plain(spec: TensorSpec) -> bool:
    """Whether a tensor is NHWC without paddings, and not empty."""
    return spec.layout == "NHWC" and spec.size > 0 and spec.format == Format("NHWC", spec.dtype)


def may_be_part(algorithm: Algorithm, problem: Problem, variant: Variant, index: int, *,
                is_output: bool) -> bool:
    """Whether an input or the output of a variant may be a part of the channels of a larger tensor.

    index: the index of the input or output.
    """
    operands = getattr(problem, "epilogue", Epilogue()).tensor_count
    if isinstance(problem, ConcatProblem) and problem.axis != 1:
        return False
    if is_output:
        return algorithm.writes_parts and not operands and _is_plain(variant.outputs[index])
    return (algorithm.reads_parts and index < len(variant.inputs) - operands
            and _is_plain(variant.inputs[index]))


class ChannelParts:
    """The search for the values of a program that are parts of the channels of other values.

    device: the device of the program; all steps that write or read parts run on this device.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._device = device
        self._uses: defaultdict[str, list[tuple[Step, int, bool]]] = defaultdict(list)
        """The steps that read or write each value, each with the number of the value among the
        step's inputs or outputs, and whether it is an output."""
        for step in program.steps:
            for values, is_output in ((step.inputs, False), (step.outputs, True)):
                for index, value in enumerate(values):
                    self._uses[program.root(value)].append((step, index, is_output))
        self._apart = {program.root(value) for value in (
            *program.aliases, *program.inputs.values(), *program.outputs.values(),
            *program.places, *(place.whole for place in program.places.values()))}
        """Values that cannot be parts: inputs and outputs of the network, values that are also read
        under another shape, and values that share memory with another value."""

    def add(self, step: Step) -> bool:
        """Make the values that a concatenation joins, or the value that a copy selects, parts of
        the channels of the larger value, and return True. Change nothing and return False where
        first_channels() returns None, or where another step cannot write or read these values as
        parts."""
        firsts = first_channels(step.problem, step.variant)
        if firsts is None:
            return False
        whole, parts = _whole_and_parts(step.problem, step.inputs, step.outputs)
        roots = [self._program.root(part) for part in parts]
        for value in self._within(roots):
            if value in self._apart or not all(
                    user is step or self._takes(user, index, is_output)
                    for user, index, is_output in self._uses[value]):
                return False
        spec, _ = _whole_and_parts(step.problem, step.variant.inputs, step.variant.outputs)
        for root, first in zip(roots, firsts, strict=True):
            self._put(root, self._program.root(whole), first, spec.shape[1])
        return True

    def _put(self, part: str, whole: str, first: int, channels: int) -> None:
        """Make a value, with the values that are parts of it, a part of another value.

        first: the first channel of the part in the other value.
        channels: the number of channels that the other value has in the concatenation or copy;
        other steps may use it under another shape.
        """
        specs = self._program.specs
        behind = channels - first - specs[part].shape[1]
        outside = specs[whole].format.other_channels
        for value in self._within([part]):
            before, after = specs[value].format.other_channels
            specs[value] = replace(specs[value], format=replace(
                specs[value].format, other_channels=(outside[0] + first + before,
                                                     outside[1] + behind + after)))
        self._program.places[part] = Place(whole, 0)

    def _within(self, roots: Iterable[str]) -> set[str]:
        """Return the roots and all values that are parts of these roots."""
        found = set(roots)
        places = self._program.places
        while more := {name for name, place in places.items() if place.whole in found} - found:
            found |= more
        return found

    def _takes(self, step: Step, index: int, is_output: bool) -> bool:
        """Whether a step can read or write a value as a part."""
        return step.in_place or (step.device is self._device and may_be_part(
            step.algorithm, step.problem, step.variant, index, is_output=is_output))

    def finish(self) -> None:
        """Write the variants of steps that use parts to the program."""
        program = self._program
        formats = {value: spec.format for value, spec in program.specs.items()
                   if any(spec.format.other_channels)}

        def placed(specs: Sequence[TensorSpec], values: Sequence[str]) -> tuple[TensorSpec, ...]:
            return tuple(replace(spec, format=formats.get(program.root(value), spec.format))
                         for spec, value in zip(specs, values, strict=True))

        for step in program.steps:
            variant = replace(step.variant, inputs=placed(step.variant.inputs, step.inputs),
                              outputs=placed(step.variant.outputs, step.outputs))
            if not step.in_place and variant != step.variant:
                step.placed_variant = variant
