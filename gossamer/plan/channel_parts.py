"""Concatenations and slices of channels that copy nothing in NHWC, where the parts of a tensor lie
between one another: the steps beside them write and read some channels of each pixel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.ops.algorithm import PART_BYTES, Algorithm, Epilogue, Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.plan.program import Place, Program, Step
from gossamer.tensor import Format, TensorSpec


@dataclass(frozen=True)
class _Use:
    """A value as an input or an output of a step.

    index: which of these it is.
    """

    step: Step
    index: int
    is_output: bool


@dataclass(frozen=True)
class _Part:
    """Where a part lies: the name of the value of which it is one, its first channel there, and the
    channels of that value, as the step sees them that joins or takes the part. The value may have
    another shape elsewhere."""

    whole: str
    first: int
    channels: int


def first_channels(problem: Problem, variant: Variant) -> list[int] | None:
    """Returns at which channel of a concatenation's output each input lies, or at which channel of
    a copy's input its output lies; None where these are no parts of the channels in NHWC, or begin
    at no multiple of PART_BYTES."""
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
    itemsize = whole.stored_dtype.itemsize
    if not fits or whole.size >= 2**31 or any(
            channel * itemsize % PART_BYTES for channel in (*firsts, whole.shape[1])):
        return None
    return firsts


def _takes_channels(problem: CopyProblem) -> bool:
    """Whether a copy takes some neighbouring channels of images as they are."""
    source, target = problem.input.shape, problem.output.shape
    return (problem.dims == (0, 1, 2, 3) and set(problem.steps) == {1}
            and (source[0], *source[2:]) == (target[0], *target[2:])
            and problem.starts[0] == problem.starts[2] == problem.starts[3] == 0)


def _is_plain(spec: TensorSpec) -> bool:
    """Whether a tensor is NHWC without paddings, and not empty."""
    return len(spec.shape) == 4 and spec.size > 0 and spec.format == Format("NHWC", spec.dtype)


def may_be_part(algorithm: Algorithm, problem: Problem, variant: Variant, index: int, *,
                is_output: bool) -> bool:
    """Whether an input or the output of a variant may be a part of the channels of a larger tensor.

    index: which of the inputs or outputs.
    """
    operands = getattr(problem, "epilogue", Epilogue()).tensor_count
    if isinstance(problem, ConcatProblem) and problem.axis != 1:
        return False
    if is_output:
        return algorithm.writes_parts and not operands and _is_plain(variant.outputs[index])
    return (algorithm.reads_parts and index < len(variant.inputs) - operands
            and _is_plain(variant.inputs[index]))


class ChannelParts:
    """The values of a program that are parts of the channels of others, while they are found.

    device: that of the program, on which all steps run that write or read parts.
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
        """Values that are read under another shape or from outside, or are in memory of another
        value as they are, or have such values in theirs."""

    def add(self, step: Step) -> bool:
        """Returns whether a concatenation or a copy of channels copies nothing from now on. That is
        so where all steps beside it can write and read parts."""
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
        """Returns values with all that are parts of them."""
        found = set(roots)
        while more := {name for name, part in self._parts.items() if part.whole in found} - found:
            found |= more
        return found

    def _takes(self, use: _Use) -> bool:
        step = use.step
        return step.in_place or (step.device is self._device and may_be_part(
            step.algorithm, step.problem, step.variant, use.index, is_output=use.is_output))

    def finish(self) -> None:
        """Writes to the program where the parts lie, and with which variants its steps run."""
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
