"""Finds the parts of a network that a library for whole networks may compute, and makes each part
one layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from gossamer import host_library
from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, UnsupportedError
from gossamer.model.graph import Graph
from gossamer.model.readers.onnx.order import Clusters
from gossamer.ops.onnx_part.host import session_of
from gossamer.ops.onnx_part.problem import OnnxPartProblem
from gossamer.ops.onnx_part.session import ComputingError
from gossamer.ops.part.model import part_of_node
from gossamer.ops.part.problem import PartProblem
from gossamer.ops.registry import OPS
from gossamer.plan.fusion import joined
from gossamer.plan.measurement import counted
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program

WHOLE = "whole network"
"""The name of the part that is all layers of a network."""


def is_part(layer: Layer) -> bool:
    """Returns whether a layer is a part of the network."""
    return isinstance(layer.problem, PartProblem)


def is_one_part(program: Program) -> bool:
    """Returns whether the only step of a program is a part of the network."""
    return len(program.steps) == 1 and is_part(program.steps[0].layer)


def may_have_parts(policy: Policy) -> bool:
    """Returns whether a policy lets libraries for whole networks compute parts."""
    return policy.vendors and not policy.unfused and policy.sparse_threshold is None


def has_library(device: Device) -> bool:
    """Returns whether a library that computes parts is installed for a device."""
    try:
        return not device.compiles and any(
            algorithm.version(device) for algorithm in OPS[PartProblem.op].algorithms)
    except ImportError:
        # a library that this Python cannot import counts as not installed
        return False


def find_parts(layers: Sequence[Layer], outputs: Collection[str], device: Device,
               left_out: Collection[str] = ()) -> list[Layer]:
    """Returns the parts of a network, as few and as large as possible, since each one has its own
    session and threads. The parts consist of the layers that an algorithm for parts can compute on
    the device, without the layers that are left out.

    outputs: the names of the network's outputs.
    left_out: names of layers that are in no part.
    """
    if not has_library(device):
        return []
    left_out = set(left_out)
    while True:
        clusters = _clusters(layers, left_out)
        parts = [(group, part) for group in clusters.groups()
                 if (part := _part_of(layers, group, outputs))]
        refused = {member.name for _, part in parts if _refusal(part, device)
                   for member in part.members if _refusal_alone(layers, member, outputs, device)}
        if not refused:
            break
        left_out |= refused
    parts = [(group, part) for group, part in parts if not _refusal(part, device)]
    found = []
    for numbers in clusters.independent([group for group, _ in parts]):
        together = _part_of(layers, sorted(index for number in numbers
                                           for index in parts[number][0]), outputs)
        # together they may have more constants than a model can
        found += [together] if together and not _refusal(together, device) else [
            parts[number][1] for number in numbers]
    return found


def part_of(layers: Sequence[Layer], members: Sequence[Layer],
            outputs: Collection[str]) -> Layer | None:
    """Returns some of a network's layers as one layer with a PartProblem; None where these layers
    read no value from outside, where no value that they write is read outside, or where all of them
    are reshapes."""
    count = sum(not layer.is_reshape for layer in members)
    whole = len(members) == len(layers)
    name = WHOLE if whole else (
        f"{members[0].name} to {members[-1].name}, {counted(count, 'layer')}")
    inside = {layer.name for layer in members}
    read = {value for layer in layers if layer.name not in inside for value in layer.inputs}
    return joined(members, read.union(outputs), partial(PartProblem, whole=whole), name,
                  source=name, members=tuple(members)) if count else None


def source_of(layer: Layer, error: InputError) -> str:
    """Returns the words by which messages name a layer that fails to compute its outputs. For a
    part, the words name one member of the part if the error says which member fails."""
    number = part_of_node(error.node) if isinstance(error, ComputingError) else None
    if number is not None and number < len(layer.members):
        layer = layer.members[number]
    return layer.source or layer.name


def check_library_layers(graph: Graph, layers: Callable[[int], Sequence[Layer]]) -> None:
    """Raises UnsupportedError where ONNX Runtime refuses a part of a network that only ONNX Runtime
    can compute. The error names the nodes. So the user sees the error before the plan is first
    called.

    layers: returns the layers at a batch size. Errors that this function raises are ignored here,
    because calls of the plan raise them again.
    """
    if not host_library.is_installed() or all(
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
                # other batch sizes may have shapes that fit
                if not _runs_in_other_shapes(layer.problem, layer.weights):
                    raise UnsupportedError(f"{graph.file or graph.name}: {layer.source}: {error}"
                                           ) from None


def _runs_in_other_shapes(problem: OnnxPartProblem, weights: Mapping[str, np.ndarray]) -> bool:
    try:
        session_of(problem, weights, optimised=False, shaped=False)
    except UnsupportedError:
        return False
    return True


def _refusal(part: Layer, device: Device) -> str | None:
    """Returns why no algorithm computes a part; None where an algorithm does."""
    reasons = [algorithm.supports(part.problem, device)
               for algorithm in OPS[PartProblem.op].algorithms]
    return None if None in reasons else next(iter(reasons), "nothing computes parts")


def _refusal_alone(layers: Sequence[Layer], member: Layer, outputs: Collection[str],
                   device: Device) -> str | None:
    alone = part_of(layers, [member], outputs)
    return "is no part" if alone is None else _refusal(alone, device)


def _part_of(layers: Sequence[Layer], indices: Sequence[int],
             outputs: Collection[str]) -> Layer | None:
    return part_of(layers, [layers[index] for index in indices], outputs)


def _clusters(layers: Sequence[Layer], left_out: Collection[str]) -> Clusters:
    """Returns the groups of connected layers that may be parts: no path leads from a group through
    other layers back to it."""
    clusters = Clusters()
    for layer in layers:
        step = clusters.add(layer.inputs, layer.outputs)
        if layer.name not in left_out:
            clusters.join(step)
    return clusters
