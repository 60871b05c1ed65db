"""Finds concatenations and slices that need not copy anything. The inputs of a concatenation are
written straight into the memory of its output, and the output of a slice is read where it lies in
the input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.plan.candidate import Candidate
from gossamer.plan.channel_parts import ChannelParts, first_channels, may_be_part
from gossamer.plan.program import Layer, MeasuredLayer, Place, Program, Step
from gossamer.tensor import Format, TensorSpec


def layers_in_place(layers: Sequence[Layer]) -> frozenset[str]:
    """Returns the names of the layers that copy nothing where the formats allow that. Such layers
    are conversions of the network's inputs from the format of the callers' arrays, and
    concatenations and slices of values that layers compute. A value can lie within only one other
    value: where two concatenations read the same value, the second one copies all its inputs."""
    roots: dict[str, str] = {}
    within: set[str] = set()
    names = []
    for layer in layers:
        if layer.is_reshape:
            if layer.inputs[0] in roots:
                roots[layer.outputs[0]] = roots[layer.inputs[0]]
            continue
        if is_conversion(layer.problem):
            # the output may be the callers' memory, so that it cannot be a part of another value
            names.append(layer.name)
            continue
        sources = [roots.get(name) for name in layer.inputs]
        if isinstance(layer.problem, ConcatProblem):
            parts = [name for name in sources if name is not None]
            if len(set(parts)) == len(sources) and within.isdisjoint(parts):
                within.update(parts)
                names.append(layer.name)
        elif isinstance(layer.problem, CopyProblem) and sources[0] is not None:
            within.update(layer.outputs)
            names.append(layer.name)
        roots.update((name, name) for name in layer.outputs)
    return frozenset(names)


def is_conversion(problem: Problem | None) -> bool:
    """Whether a problem only changes the format in which callers give an input."""
    return isinstance(problem, ElementwiseProblem) and problem.is_conversion


def part_offsets(problem: Problem, variant: Variant, alignment: int) -> list[int] | None:
    """Returns the byte of a concatenation's output at which each input begins, or the byte of a
    copy's input at which its output begins. Returns None where a part alone would have another
    layout in memory than within the whole, or where a part does not begin at a multiple of the
    alignment."""
    if isinstance(problem, ConcatProblem):
        (whole,), parts = variant.outputs, variant.inputs
        starts, position = [], 0
        for part in parts:
            starts.append({problem.axis: position})
            position += part.shape[problem.axis]
        dims: Sequence[int | None] = range(len(whole.shape))
        steps: Sequence[int] = [1] * len(whole.shape)
    elif isinstance(problem, CopyProblem):
        (whole,), parts = variant.inputs, variant.outputs
        starts, dims, steps = [dict(enumerate(problem.starts))], problem.dims, problem.steps
    else:
        return None
    offsets = [_offset(whole, start, part, dims, steps)
               for start, part in zip(starts, parts, strict=True)]
    if any(offset is None or offset % alignment for offset in offsets):
        return None
    return [offset for offset in offsets if offset is not None]


def _offset(whole: TensorSpec, start: Mapping[int, int], part: TensorSpec,
            dims: Sequence[int | None], steps: Sequence[int]) -> int | None:
    """Returns the byte of a tensor at which a part of the tensor begins; None where the part alone
    has another layout in memory than within the tensor.

    start: where the part begins along the tensor's dimensions.
    dims, steps: as in CopyProblem.
    """
    if whole.dtype != part.dtype or part.size == 0 or not (_is_dense(whole) and _is_dense(part)):
        return None
    for size, stride, dim, step in zip(part.shape, part.strides, dims, steps, strict=True):
        if size > 1 and (dim is None or stride != step * whole.strides[dim]):
            return None
    elements = sum(position * whole.strides[dim] for dim, position in start.items())
    return elements * whole.stored_dtype.itemsize


def _is_dense(spec: TensorSpec) -> bool:
    """Whether memory holds the elements of a tensor and nothing else."""
    return not spec.format.is_packed and spec.nbytes == spec.size * spec.stored_dtype.itemsize


def keep_in_place(program: Program, layers: Sequence[Layer], device: Device) -> Program:
    """Changes and returns the program, so that the layers from layers_in_place() copy nothing where
    their formats allow that. Steps that write or read a value that is now a part of another value
    are changed, too."""
    names = layers_in_place(layers)
    steps = [step for step in program.steps if step.layer.name in names]
    for step in steps:
        if is_conversion(step.problem):
            step.in_place = _is_unchanged(step.variant)
            if step.in_place:
                program.aliases[step.outputs[0]] = step.inputs[0]
            continue
        offsets = part_offsets(step.problem, step.variant, device.alignment)
        if offsets is None:
            continue
        joins = isinstance(step.problem, ConcatProblem)
        whole, parts = ((step.outputs[0], step.inputs) if joins
                        else (step.inputs[0], step.outputs))
        program.places.update((program.root(part), Place(program.root(whole), offset))
                             for part, offset in zip(parts, offsets, strict=True))
        step.in_place = True
    channel_parts = ChannelParts(program, device)
    for step in steps:
        step.in_place = step.in_place or channel_parts.add(step)
        # in_place_candidates() could only guess whether other steps write or read parts
        step.candidates = [_as_found(candidate, step) for candidate in step.candidates]
    channel_parts.finish()
    return program


def _is_unchanged(variant: Variant) -> bool:
    """Whether a variant of a conversion leaves memory as it is."""
    return variant.inputs[0].same_memory(variant.outputs[0])


def _as_found(candidate: Candidate, step: Step) -> Candidate:
    """Returns a candidate of a step with the time that it takes: zero for the taken candidate of a
    step that copies nothing."""
    if not step.in_place:
        return candidate.in_its_time()
    is_taken = (candidate.algorithm, candidate.variant) == (step.algorithm, step.variant)
    return candidate.in_no_time() if is_taken else candidate


def in_place_candidates(node: MeasuredLayer, names: Collection[str],
                        nodes: Iterable[MeasuredLayer], device: Device) -> list[Candidate]:
    """Returns the candidates of a layer that layers_in_place() names, with zero time for the
    candidates that have nothing to copy.

    A conversion of an input has nothing to copy where it leaves memory as it is. A concatenation or
    slice has nothing to copy in two cases: part_offsets() returns offsets for it, or it joins or
    selects channels in NHWC and each layer that writes or reads a part is likely to do so in place.
    _takes_part() says which layers are likely to do so.

    names: the names that layers_in_place() returns.
    nodes: all layers.
    """
    problem = node.layer.problem
    if is_conversion(problem):
        return [candidate.in_no_time() if _is_unchanged(candidate.variant) else candidate
                for candidate in map(Candidate.in_its_time, node.candidates)]
    joins = isinstance(problem, ConcatProblem)
    parts = node.layer.inputs if joins else node.layer.outputs
    beside = [(other, value, value in other.layer.outputs) for value in parts for other in nodes
              if other is not node and value in (*other.layer.inputs, *other.layer.outputs)]

    def is_free(variant: Variant) -> bool:
        if part_offsets(problem, variant, device.alignment) is not None:
            return True
        return first_channels(problem, variant) is not None and all(
            _takes_part(other, value, variant.outputs[0].dtype, names, is_output=is_output)
            for other, value, is_output in beside)

    return [candidate.in_no_time() if is_free(candidate.variant) else candidate
            for candidate in map(Candidate.in_its_time, node.candidates)]


def _takes_part(node: MeasuredLayer, value: str, dtype: str, names: Collection[str], *,
                is_output: bool) -> bool:
    """Whether a layer is likely to write or read a value as a part of the channels of another
    value. A layer is likely to do so if it has candidates with the value in NHWC, and if the
    fastest of these candidates can do so or `names` contains the layer, too."""
    index = (node.layer.outputs if is_output else node.layer.inputs).index(value)
    fitting = [candidate for candidate in node.candidates if candidate.is_usable and (
        candidate.variant.outputs if is_output else candidate.variant.inputs
    )[index].format == Format("NHWC", dtype)]
    if not fitting:
        return False
    fastest = min(fitting, key=lambda candidate: candidate.cost)
    return node.layer.name in names or may_be_part(
        fastest.algorithm, node.layer.problem, fastest.variant, index, is_output=is_output)
