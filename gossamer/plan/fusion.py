"""Combination of layers that are computed in one step.

A fusion consists of several layers that one algorithm may compute. A part consists of layers that a
library for whole networks may compute together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gossamer import onnx_model
from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, UnsupportedError
from gossamer.model.graph import Graph
from gossamer.model.readers.onnx.order import Clusters, stable_order
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, PartProblem, Source, entry
from gossamer.ops.fused.row_expression import REDUCTIONS
from gossamer.ops.onnx_part.host import session_of
from gossamer.ops.onnx_part.problem import OnnxPartProblem
from gossamer.ops.onnx_part.session import ComputingError
from gossamer.ops.part.host import part_of_node
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import counted
from gossamer.plan.layer_groups import gather_groups, row_groups, with_moves
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program

WHOLE = "whole network"
"""Name of the part that consists of all layers of a network."""


def fusion_algorithms() -> list[FusionAlgorithm]:
    """Return the algorithms that compute several layers in one step."""
    return [algorithm for algorithm in OPS["fused"].algorithms
            if isinstance(algorithm, FusionAlgorithm)]


def find_fusions(layers: Sequence[Layer], outputs: Collection[str]) -> list[Layer]:
    """Return the fusions of a network, each as one layer.

    The ops of a fusion's layers match a pattern of an algorithm, or the layers form a row or gather
    expression. In all cases, an algorithm recognises the fusion. Layers that match several
    patterns are returned once.

    outputs: names of the network's outputs.
    """
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        for name in dict.fromkeys(layer.inputs):
            readers.setdefault(name, []).append(index)
    producers = {name: index for index, layer in enumerate(layers) for name in layer.outputs}
    patterns = dict.fromkeys((pattern, algorithm.takes_moves)
                             for algorithm in fusion_algorithms()
                             for pattern in algorithm.patterns)
    found: dict[tuple[int, ...], None] = {}
    for start in range(len(layers)):
        for pattern, takes_moves in patterns:
            for chain in _chains(layers, readers, pattern, (start,)):
                found[with_moves(layers, readers, producers, chain, outputs)
                      if takes_moves else chain] = None
    found.update(dict.fromkeys(gather_groups(layers, readers, producers, outputs)))
    fusions = [_fusion(layers, readers, indices, outputs) for indices in found]
    recognised = [fusion for fusion in fusions if fusion is not None and recognising(fusion)]
    return recognised + _row_expressions(layers, readers, producers, outputs)


def _fusion(layers: Sequence[Layer], readers: dict[str, list[int]], indices: tuple[int, ...],
            outputs: Collection[str]) -> Layer | None:
    """Return the fusion of the layers with the given indices; None if they cannot be one step."""
    if _is_read_too_early(layers, readers, indices):
        return None
    covered = [layers[index] for index in indices]
    return joined(covered, _read_elsewhere(layers, readers, indices, outputs), FusionProblem,
                  " + ".join(layer.name for layer in covered), density=_density(covered),
                  source=" and ".join(layer.source or layer.name for layer in covered))


def _row_expressions(layers: Sequence[Layer], readers: dict[str, list[int]],
                     producers: dict[str, int], outputs: Collection[str]) -> list[Layer]:
    """Return the fusions that are row expressions, which end in one layer for each reduction.

    Of the layers that may follow a reduction in its row expression, as many are taken as form one.
    """
    fusions: list[Layer] = []
    covered: set[int] = set()
    for start, layer in enumerate(layers):
        if layer.op not in REDUCTIONS or start in covered:
            continue
        for groups in row_groups(layers, readers, producers, start, outputs, covered):
            found = [(fusion, indices) for indices in groups
                     if (fusion := _fusion(layers, readers, indices, outputs)) is not None
                     and recognising(fusion)]
            if found:
                fusions += [fusion for fusion, _ in found]
                covered.update(found[0][1])
                break
    return fusions


def recognising(fusion: Layer) -> Sequence[Algorithm]:
    """Return the algorithms that recognise a fusion or part.

    For a part, these are all algorithms for parts.
    """
    problem = fusion.problem
    if isinstance(problem, PartProblem):
        return OPS[problem.op].algorithms
    assert isinstance(problem, FusionProblem)
    ops = tuple(part.op for part in problem.parts)
    return [algorithm for algorithm in fusion_algorithms()
            if algorithm.matches(ops) and algorithm.recognises(problem)]


def _is_read_too_early(layers: Sequence[Layer], readers: dict[str, list[int]],
                       indices: tuple[int, ...]) -> bool:
    """Return whether an output of a fusion is read before the fusion runs.

    indices: indices of the fusion's layers.
    """
    position = indices[_position([layers[index] for index in indices])]
    return any(reader < position and reader not in indices for index in indices
               for name in layers[index].outputs for reader in readers.get(name, ()))


def _position(layers: Sequence[Layer]) -> int:
    """Return the index of the layer whose place in the network a fusion takes.

    For each value that the fusion reads from outside, one layer of the fusion is the first to read
    the value. The last of these layers is the one whose place is taken. All values that the fusion
    reads are computed before this layer.
    """
    known = {name for layer in layers for name in layer.outputs}
    position = 0
    for index, layer in enumerate(layers):
        if not known.issuperset(layer.inputs):
            position = index
            known.update(layer.inputs)
    return position


def _chains(layers: Sequence[Layer], readers: dict[str, list[int]], pattern: Sequence[str],
            chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the chains of layers whose ops match a pattern.

    A chain is a tuple of indices. It begins with the layers of `chain`, and each further layer
    reads an output of the layer before it.
    """
    last = layers[chain[-1]]
    if last.op != pattern[len(chain) - 1]:
        return
    if len(chain) == len(pattern):
        yield chain
        return
    following = {index for name in last.outputs for index in readers.get(name, ())}
    for index in sorted(following):
        yield from _chains(layers, readers, pattern, (*chain, index))


def _read_elsewhere(layers: Sequence[Layer], readers: dict[str, list[int]],
                    indices: tuple[int, ...], outputs: Collection[str]) -> set[str]:
    """Return a fusion's values that are read outside of it."""
    return {name for index in indices for name in layers[index].outputs
            if name in outputs or not set(indices).issuperset(readers.get(name, ()))}


def joined(layers: Sequence[Layer], read_elsewhere: Collection[str],
           make: Callable[..., Problem], name: str, **others: Any) -> Layer | None:
    """Return one layer that covers several layers.

    Returns None if the layers read no value from outside, or if no value that they write is read
    outside.

    read_elsewhere: the values that other layers, or the network's user, read.
    make: function that returns a problem for parts, sources and exits, such as FusionProblem.
    name: name of the layer.
    others: further fields of the layer.
    """
    sources: dict[str, Source] = {
        value: (index, output) for index, layer in enumerate(layers)
        for output, value in enumerate(layer.outputs)}
    entries = list(dict.fromkeys(value for layer in layers for value in layer.inputs
                                 if value not in sources))
    exits = [value for value in sources if value in read_elsewhere]
    if not entries or not exits:
        return None
    sources.update({value: entry(number) for number, value in enumerate(entries)})
    problem = make(tuple(layer.problem for layer in layers),
                   tuple(tuple(sources[value] for value in layer.inputs) for layer in layers),
                   tuple(sources[value] for value in exits))
    return Layer(name, entries, exits, problem, {
        f"{index}.{key}": array for index, layer in enumerate(layers)
        for key, array in layer.weights.items()},
        covers=tuple(layer.name for layer in layers), facts={
            value: facts for layer in layers for value, facts in layer.facts.items()
            if value in exits}, store=layers[0].store, **others)


def _density(layers: Sequence[Layer]) -> float | None:
    """Return the share of nonzero weights of all layers; None if there are no weights."""
    sizes = [(layer.density, layer.weights["weight"].size) for layer in layers
             if layer.density is not None and "weight" in layer.weights]
    total = sum(size for _, size in sizes)
    return sum(density * size for density, size in sizes) / total if total else None


def with_fusions(layers: Sequence[Layer], fusions: Sequence[Layer]) -> list[Layer]:
    """Return the layers with fusions in place of the layers that they cover.

    Each fusion comes after the layers that compute its inputs.
    """
    by_name = {layer.name: layer for layer in layers}
    at_position = {fusion.covers[_position([by_name[name] for name in fusion.covers])]: fusion
                   for fusion in fusions}
    covered = {name for fusion in fusions for name in fusion.covers}
    mixed = [at_position.get(layer.name, layer) for layer in layers
             if layer.name in at_position or layer.name not in covered]
    # a layer before a part may read an output of the part, so the layers are sorted again
    makers = {name: index for index, layer in enumerate(mixed) for name in layer.outputs}
    return [mixed[index] for index in stable_order(
        [{makers[name] for name in layer.inputs if name in makers} for layer in mixed],
        range(len(mixed)))]


def is_part(layer: Layer) -> bool:
    """Return whether a layer is a part of the network."""
    return isinstance(layer.problem, PartProblem)


def is_one_part(program: Program) -> bool:
    """Return whether a program consists of a single part."""
    return len(program.steps) == 1 and is_part(program.steps[0].layer)


def may_have_parts(policy: Policy) -> bool:
    """Return whether a policy permits parts.

    Parts are computed by libraries for whole networks.
    """
    return policy.vendors and not policy.unfused and policy.sparse_threshold is None


def has_library(device: Device) -> bool:
    """Return whether a library for a device's parts is installed."""
    try:
        return not device.compiles and any(
            algorithm.version(device) for algorithm in OPS[PartProblem.op].algorithms)
    except ImportError:
        # a library that this Python cannot import counts as not installed
        return False


def find_parts(layers: Sequence[Layer], outputs: Collection[str], device: Device,
               left_out: Collection[str] = ()) -> list[Layer]:
    """Return a network's parts, as few and large as possible.

    Few parts are better, because each part has its own session and threads. Parts consist of the
    layers that an algorithm for parts can compute on the device.

    outputs: names of the network's outputs.
    left_out: names of layers that are in no part.
    """
    if not has_library(device):
        return []
    left_out = set(left_out)
    while True:
        clusters = _clusters(layers, left_out)
        parts = [(group, part) for group in clusters.groups()
                 if (part := part_of(layers, [layers[index] for index in group], outputs))]
        refused = {member.name for _, part in parts if not _is_computed(part, device)
                   for member in part.members
                   if not _is_computed(part_of(layers, [member], outputs), device)}
        if not refused:
            break
        left_out |= refused
    parts = [(group, part) for group, part in parts if _is_computed(part, device)]
    found = []
    for numbers in clusters.independent([group for group, _ in parts]):
        together = part_of(layers, [layers[index] for index in sorted(
            index for number in numbers for index in parts[number][0])], outputs)
        # the merged part may have more constants than a model can hold
        found += [together] if together and _is_computed(together, device) else [
            parts[number][1] for number in numbers]
    return found


def part_of(layers: Sequence[Layer], members: Sequence[Layer],
            outputs: Collection[str]) -> Layer | None:
    """Return one layer with a PartProblem that covers several layers.

    Returns None if these layers read no value from outside, if no value that they write is read
    outside, or if all of them are reshapes.

    members: the layers of the part.
    """
    count = sum(not layer.is_reshape for layer in members)
    whole = len(members) == len(layers)
    name = WHOLE if whole else (
        f"{members[0].name} to {members[-1].name}, {counted(count, 'layer')}")
    inside = {layer.name for layer in members}
    read = {value for layer in layers if layer.name not in inside for value in layer.inputs}
    return joined(members, read.union(outputs), partial(PartProblem, whole=whole), name,
                  source=name, members=tuple(members)) if count else None


def source_of(layer: Layer, error: InputError) -> str:
    """Return a failing layer's name for messages.

    For a part, the name is that of the failing member if the error states which member fails.
    """
    number = part_of_node(error.node) if isinstance(error, ComputingError) else None
    if number is not None and number < len(layer.members):
        layer = layer.members[number]
    return layer.source or layer.name


def check_library_layers(graph: Graph, layers: Callable[[int], Sequence[Layer]]) -> None:
    """Raise UnsupportedError for nodes that ONNX Runtime refuses.

    Only nodes that nothing but ONNX Runtime can compute are checked. The error names the node, and
    the user sees it before the plan is first called.

    layers: function that returns the layers at a batch size. Errors of `layers` itself are ignored,
    because calls of the plan raise them again.
    """
    if not onnx_model.has_runtime() or all(
            node.op != OnnxPartProblem.op for node in graph.nodes):
        return
    try:
        tried = layers(graph.batch_or(1))
    except GossamerError:
        return
    for layer in tried:
        if isinstance(layer.problem, OnnxPartProblem):
            try:
                session_of(layer.problem, layer.weights, optimised=False)
            except UnsupportedError as error:
                # shapes of other batch sizes may be supported
                if not _runs_in_other_shapes(layer.problem, layer.weights):
                    raise UnsupportedError(f"{graph.file or graph.name}: {layer.source}: {error}"
                                           ) from None


def _runs_in_other_shapes(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray]) -> bool:
    try:
        session_of(problem, weights, optimised=False, shaped=False)
    except UnsupportedError:
        return False
    return True


def _is_computed(part: Layer | None, device: Device) -> bool:
    """Return whether an algorithm computes a part on a device; False for None."""
    return part is not None and any(algorithm.supports(part.problem, device) is None
                                    for algorithm in OPS[PartProblem.op].algorithms)


def _clusters(layers: Sequence[Layer], left_out: Collection[str]) -> Clusters:
    """Return the groups of connected layers that may be parts.

    No path leads from a group through other layers back to the same group.
    """
    clusters = Clusters()
    for layer in layers:
        step = clusters.add(layer.inputs, layer.outputs)
        if layer.name not in left_out:
            clusters.join(step)
    return clusters
