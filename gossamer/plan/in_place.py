"""Concatenations and slices that copy nothing.

In NHWC, some channels of a larger tensor (a part) can be stored in the memory of the larger tensor:
the step that computes the part writes only these channels of each pixel, and the steps that use the
part read only these channels. So the inputs of a concatenation of channels are written directly to
the memory of its output, and a slice of channels is read directly from the memory of its input.
"""

from __future__ import annotations

import math
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
from gossamer.plan.program import Program, Step
from gossamer.tensor import Format, TensorSpec

_WIDEST_ACCESS = 16
"""Maximum number of bytes of a tensor that a kernel loads, copies or stores at once."""
_T = TypeVar("_T")


def is_conversion(problem: Problem | None) -> bool:
    """Return whether a problem only converts a caller's input."""
    return isinstance(problem, ElementwiseProblem) and problem.is_conversion


@lru_cache(maxsize=1024)
def _slices(problem: Problem) -> Sequence[CopyProblem]:
    """Return the copies that extract a concatenation's inputs from its output.

    For a copy, the only item is the copy itself, whose output is the part. Other problems have no
    parts.
    """
    if isinstance(problem, ConcatProblem):
        return split(problem.outputs[0], problem.axis,
                     [part.shape[problem.axis] for part in problem.parts])
    return [problem] if isinstance(problem, CopyProblem) else []


def _whole_and_parts(problem: Problem, inputs: Sequence[_T],
                     outputs: Sequence[_T]) -> tuple[_T, Sequence[_T]]:
    """Return the values of the whole tensor and of its parts.

    For a concatenation, the whole is the output, and the parts are the inputs. For a copy, the
    whole is the input, and the only part is the output.
    """
    return (outputs[0], inputs) if isinstance(problem, ConcatProblem) else (inputs[0], outputs)


def keep_in_place(program: Program, device: Device) -> Program:
    """Mark steps that need not copy; return the program.

    These steps are conversions of inputs from the callers' formats, concatenations, and slices. A
    step is marked if its formats allow this. If a value becomes a part of another value, the steps
    that write or read the first value are changed accordingly.
    """
    steps = [step for step in program.steps if not step.layer.inserted]
    for step in steps:
        if is_conversion(step.problem) and _is_unchanged(step.variant):
            step.in_place = True
            program.aliases[step.outputs[0]] = step.inputs[0]
    channel_parts = ChannelParts(program, device)
    for step in steps:
        step.in_place = step.in_place or channel_parts.add(step)
    channel_parts.finish()
    return program


def _is_unchanged(variant: Variant) -> bool:
    """Return whether a variant of a conversion leaves memory unchanged."""
    return variant.inputs[0].same_memory(variant.outputs[0])


def is_likely_in_place(problem: Problem, variant: Variant) -> bool:
    """Return whether a problem is likely to copy nothing.

    This holds for conversions of inputs, concatenations and slices if their formats allow it.
    Whether the other layers allow it, too, is known only for a whole program.
    """
    if is_conversion(problem):
        return _is_unchanged(variant)
    return first_channels(problem, variant) is not None


def first_channels(problem: Problem, variant: Variant) -> list[int] | None:
    """Return the channel at which each part begins.

    The parts are a concatenation's inputs in its output, or a copy's output in its input. Returns
    None if the problem neither joins nor selects channels in NHWC, if a part is not aligned (see
    aligned_channels()), or if the larger tensor has 2^31 elements or more.
    """
    slices = _slices(problem)
    if not slices or not all(map(_takes_channels, slices)):
        return None
    whole, parts = _whole_and_parts(problem, variant.inputs, variant.outputs)
    firsts = [copy.starts[1] for copy in slices]
    fits = all(_is_plain(spec) and spec.dtype == whole.dtype for spec in (whole, *parts))
    if not fits or whole.size >= 2**31 or any(
            channel % aligned_channels(part) for first, part in zip(firsts, parts, strict=True)
            for channel in (first, whole.shape[1])):
        return None
    return firsts


def aligned_channels(part: TensorSpec) -> int:
    """Return the alignment of a part's channels.

    The returned number must divide the first channel of the part and the number of channels of the
    whole tensor.

    A kernel loads, copies or stores several channels at once if the number of channels of a tensor
    allows this. With the returned alignment, the same accesses are valid if the tensor is a part.
    Suppose that a tensor `p` is a part of `q`, and that `q` is a part of `r`. Then `p` is also
    aligned in `r`: the alignment of `p` divides the number of channels of `q`, and therefore also
    the first channel of `q` in `r`.
    """
    return math.gcd(_WIDEST_ACCESS // part.stored_dtype.itemsize, part.shape[1])


def _takes_channels(problem: CopyProblem) -> bool:
    """Return whether a copy only selects consecutive channels, of all pixels."""
    source, target = problem.input.shape, problem.output.shape
    return (problem.dims == (0, 1, 2, 3) and set(problem.steps) == {1}
            and (source[0], *source[2:]) == (target[0], *target[2:])
            and problem.starts[0] == problem.starts[2] == problem.starts[3] == 0)


def _is_plain(spec: TensorSpec) -> bool:
    """Return whether a tensor is nonempty NHWC without padding."""
    return spec.layout == "NHWC" and spec.size > 0 and spec.format == Format("NHWC", spec.dtype)


def may_be_part(algorithm: Algorithm, problem: Problem, variant: Variant, index: int, *,
                is_output: bool) -> bool:
    """Return whether a value may be a range of a larger tensor's channels.

    The value is an input or output of a variant.

    index: index of the value among the variant's inputs or outputs.
    is_output: whether the value is an output.
    """
    operands = getattr(problem, "epilogue", Epilogue()).tensor_count
    if isinstance(problem, ConcatProblem) and problem.axis != 1:
        return False
    if algorithm.operand_parts and operands == 1:
        operands = 0  # it lies anywhere, as the op's own inputs
    if is_output:
        return algorithm.writes_parts and not operands and _is_plain(variant.outputs[index])
    return (algorithm.reads_parts_of(problem) and index < len(variant.inputs) - operands
            and _is_plain(variant.inputs[index]))


class ChannelParts:
    """Finds values that can be stored as a range of another value's channels.

    device: the program's device; all steps that write or read parts run on it.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._device = device
        self._uses: defaultdict[str, list[tuple[Step, int, bool]]] = defaultdict(list)
        """For each value, the steps that read or write it. Each step comes with the index of the
        value among the step's inputs or outputs, and with whether the value is an output."""
        for step in program.steps:
            for values, is_output in ((step.inputs, False), (step.outputs, True)):
                for index, value in enumerate(values):
                    self._uses[program.root(value)].append((step, index, is_output))
        self._computed = {value for step in program.steps for value in step.outputs}
        self._not_parts = {program.root(value) for value in (
            *program.aliases, *program.inputs.values(), *program.outputs.values())}
        """Values that cannot be parts: inputs and outputs of the network, and values that are also
        read with another shape."""

    def add(self, step: Step) -> bool:
        """Store a step's parts in the channels of its whole tensor.

        The parts are a concatenation's inputs in its output, or a copy's output in its input.
        Returns whether this is possible. The method returns False and changes nothing if
        first_channels() returns None, if another step cannot write or read the values as parts, or
        if a step does not compute all values: the memory of the program's inputs may belong to the
        callers. A value can be a part of only one other value, and only once.
        """
        firsts = first_channels(step.problem, step.variant)
        if firsts is None:
            return False
        whole, parts = _whole_and_parts(step.problem, step.inputs, step.outputs)
        root, *roots = map(self._program.root, (whole, *parts))
        if (not self._computed.issuperset((root, *roots)) or len({root, *roots}) <= len(roots)
                or not self._program.locations.keys().isdisjoint(roots)):
            return False
        for value in self._within(roots):
            if value in self._not_parts or not all(
                    user is step or self._takes(user, index, is_output)
                    for user, index, is_output in self._uses[value]):
                return False
        spec, _ = _whole_and_parts(step.problem, step.variant.inputs, step.variant.outputs)
        for part, first in zip(roots, firsts, strict=True):
            self._put(part, root, first, spec.shape[1])
        return True

    def _put(self, part: str, whole: str, first: int, channels: int) -> None:
        """Make the value `part` a part of the value `whole`.

        Values that are already parts of `part` become parts of `whole`, too.

        first: the first channel of `part` in `whole`.
        channels: number of channels of `whole` in the concatenation or copy; other steps may use
        `whole` with another shape.
        """
        specs = self._program.specs
        behind = channels - first - specs[part].shape[1]
        outside = specs[whole].format.other_channels
        for value in self._within([part]):
            before, after = specs[value].format.other_channels
            specs[value] = replace(specs[value], format=replace(
                specs[value].format, other_channels=(outside[0] + first + before,
                                                     outside[1] + behind + after)))
        self._program.locations[part] = whole

    def _within(self, roots: Iterable[str]) -> set[str]:
        """Return the roots and all values within them."""
        found = set(roots)
        locations = self._program.locations
        while more := {name for name, whole in locations.items() if whole in found} - found:
            found |= more
        return found

    def _takes(self, step: Step, index: int, is_output: bool) -> bool:
        """Return whether a step can read or write a value that is a part."""
        return step.in_place or (step.device is self._device and may_be_part(
            step.algorithm, step.problem, step.variant, index, is_output=is_output))

    def finish(self) -> None:
        """Set the variants of the steps that use parts."""
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
