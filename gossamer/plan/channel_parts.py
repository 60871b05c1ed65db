"""Finds concatenations and slices of channels that need not copy anything in NHWC.

A tensor that is a part of the channels of a larger tensor lies in the memory of the larger tensor.
The step that makes the part writes only some channels of each pixel, and the steps that use the
part read only these channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.plan.program import Place, Program, Step
from gossamer.tensor import Format, TensorSpec

_WIDEST_ACCESS = 16
"""The most bytes of a tensor that a kernel loads, copies or stores at once."""


@dataclass(frozen=True)
class _Use:
    """A value as an input or an output of a step.

    index: the number of the value among the step's inputs or outputs.
    """

    step: Step
    index: int
    is_output: bool


@dataclass(frozen=True)
class _Part:
    """The place of a value that is a part of the channels of a larger value.

    whole: the name of the larger value.
    first: the first channel of the part in the larger value.
    channels: the number of channels that the larger value has in the concatenation or copy; other
    steps may use the larger value under another shape.
    """

    whole: str
    first: int
    channels: int


def first_channels(problem: Problem, variant: Variant) -> list[int] | None:
    """Returns the channel of a concatenation's output at which each input begins, or the channel
    of a copy's input at which its output begins. Returns None where the problem neither joins nor
    selects channels in NHWC, where a part is not aligned (see aligned_channels()), or where the
    larger tensor has 2^31 elements or more."""
    if isinstance(problem, ConcatProblem):
        (whole,), parts = variant.outputs, variant.inputs
        if problem.axis != 1:
            return None
        firsts = [sum(part.shape[1] for part in parts[:index]) for index in range(len(parts))]
    elif isinstance(problem, CopyProblem):
        (whole,), parts = variant.inputs, variant.outputs
        if not _takes_channels(problem):
            return None
        firsts = [problem.starts[1]]
    else:
        return None
    fits = all(_is_plain(spec) and spec.dtype == whole.dtype for spec in (whole, *parts))
    if not fits or whole.size >= 2**31 or any(
            place % aligned_channels(part) for first, part in zip(firsts, parts, strict=True)
            for place in (first, whole.shape[1])):
        return None
    return firsts


def aligned_channels(part: TensorSpec) -> int:
    """Returns the number of channels that has to divide the first channel of a part and the
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
        self._parts: dict[str, _Part] = {}
        self._uses: dict[str, list[_Use]] = {}
        for step in program.steps:
            for values, is_output in ((step.inputs, False), (step.outputs, True)):
                for index, value in enumerate(values):
                    self._uses.setdefault(program.root(value), []).append(
                        _Use(step, index, is_output))
        self._apart = {program.root(value) for value in (
            *program.aliases, *program.inputs.values(), *program.outputs.values(),
            *program.places, *(place.whole for place in program.places.values()))}
        """Values that cannot be parts: inputs and outputs of the network, values that are also read
        under another shape, and values that share memory with another value."""

    def add(self, step: Step) -> bool:
        """Makes the values that a concatenation joins, or the value that a copy selects, parts of
        the channels of the larger value, and returns True. Changes nothing and returns False where
        first_channels() returns None, or where another step cannot write or read these values as
        parts."""
        firsts = first_channels(step.problem, step.variant)
        if firsts is None:
            return False
        joins = isinstance(step.problem, ConcatProblem)
        wholes, parts = (step.outputs, step.inputs) if joins else (step.inputs, step.outputs)
        roots = [self._program.root(part) for part in parts]
        for value in self._within(roots):
            if value in self._apart or not all(
                    use.step is step or self._takes(use) for use in self._uses[value]):
                return False
        (spec,) = step.variant.outputs if joins else step.variant.inputs
        whole = self._program.root(wholes[0])
        self._parts.update((root, _Part(whole, first, spec.shape[1]))
                           for root, first in zip(roots, firsts, strict=True))
        return True

    def _within(self, roots: Iterable[str]) -> set[str]:
        """Returns the roots and all values that are parts of these roots."""
        found = set(roots)
        while more := {name for name, part in self._parts.items() if part.whole in found} - found:
            found |= more
        return found

    def _takes(self, use: _Use) -> bool:
        step = use.step
        return step.in_place or (step.device is self._device and may_be_part(
            step.algorithm, step.problem, step.variant, use.index, is_output=use.is_output))

    def finish(self) -> None:
        """Writes the places of all parts, and the variants of steps that use parts, to the
        program."""
        formats = {part: self._format(part) for part in self._parts}
        for name, part in self._parts.items():
            self._program.places[name] = Place(part.whole, 0)
            self._program.specs[name] = replace(self._program.specs[name], format=formats[name])
        for step in self._program.steps:
            if not step.in_place:
                inputs, outputs = (self._with_formats(specs, values, formats) for specs, values in (
                    (step.variant.inputs, step.inputs), (step.variant.outputs, step.outputs)))
                if (inputs, outputs) != (step.variant.inputs, step.variant.outputs):
                    step.placed_variant = replace(step.variant, inputs=inputs, outputs=outputs)

    def _format(self, name: str) -> Format:
        """Returns the format of a part within the tensor that owns the memory."""
        spec, part = self._program.specs[name], self._parts[name]
        before = part.first
        while part.whole in self._parts:
            part = self._parts[part.whole]
            before += part.first
        after = part.channels - before - spec.shape[1]
        return replace(spec.format, other_channels=(before, after))

    def _with_formats(self, specs: tuple[TensorSpec, ...], values: list[str],
                      formats: Mapping[str, Format]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, format=formats[root])
            if (root := self._program.root(value)) in formats else spec
            for spec, value in zip(specs, values, strict=True))
