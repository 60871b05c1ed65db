"""Finds the fusions of a network, and makes each fusion one layer. A fusion is several layers that
one algorithm may compute in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from gossamer.model.readers.onnx.order import stable_order
from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, Source, entry
from gossamer.ops.part.problem import PartProblem
from gossamer.ops.registry import OPS
from gossamer.plan.program import Layer


def fusion_algorithms() -> list[FusionAlgorithm]:
    """Returns the algorithms that compute several layers in one step."""
    return [algorithm for algorithm in OPS["fused"].algorithms
            if isinstance(algorithm, FusionAlgorithm)]


def find_fusions(layers: Sequence[Layer], outputs: Collection[str]) -> list[Layer]:
    """Returns the fusions of a network, each as one layer. The ops of a fusion's layers are a
    pattern of an algorithm that recognises the fusion. Layers that match several patterns count as
    one fusion.

    outputs: the names of the network's outputs.
    """
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        for name in dict.fromkeys(layer.inputs):
            readers.setdefault(name, []).append(index)
    patterns = dict.fromkeys(pattern for algorithm in fusion_algorithms()
                             for pattern in algorithm.patterns)
    found: dict[tuple[int, ...], None] = {}
    for start in range(len(layers)):
        for pattern in patterns:
            found.update(dict.fromkeys(_chains(layers, readers, pattern, (start,))))
    fusions = (_fusion_of([layers[index] for index in indices], _read_elsewhere(
        layers, readers, indices, outputs)) for indices in found
        if not _is_read_too_early(layers, readers, indices))
    return [fusion for fusion in fusions if fusion is not None and recognising(fusion)]


def recognising(fusion: Layer) -> Sequence[Algorithm]:
    """Returns the algorithms that recognise a fusion, or for a part all algorithms for parts."""
    problem = fusion.problem
    if isinstance(problem, PartProblem):
        return OPS[problem.op].algorithms
    assert isinstance(problem, FusionProblem)
    ops = tuple(part.op for part in problem.parts)
    return [algorithm for algorithm in fusion_algorithms()
            if ops in algorithm.patterns and algorithm.recognises(problem)]


def _is_read_too_early(layers: Sequence[Layer], readers: dict[str, list[int]],
                       indices: tuple[int, ...]) -> bool:
    """Returns whether another layer reads an output of a fusion and comes before the fusion in the
    order of computation. indices: the fusion's layers."""
    place = indices[_place([layers[index] for index in indices])]
    return any(reader < place and reader not in indices for index in indices
               for name in layers[index].outputs for reader in readers.get(name, ()))


def _place(layers: Sequence[Layer]) -> int:
    """Returns the index, within a fusion, of the layer in whose position the fusion is computed:
    the last layer that is the first reader of a value from outside the fusion. All values that the
    fusion reads are computed before this layer."""
    known = {name for layer in layers for name in layer.outputs}
    place = 0
    for index, layer in enumerate(layers):
        if not known.issuperset(layer.inputs):
            place = index
            known.update(layer.inputs)
    return place


def _chains(layers: Sequence[Layer], readers: dict[str, list[int]], pattern: Sequence[str],
            chain: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields the indices of each chain of layers whose ops match a pattern. A chain begins with the
    layers of `chain`, and each of its layers reads an output of the layer before."""
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
    """Returns the outputs of a fusion's layers that other layers or the network's user read."""
    return {name for index in indices for name in layers[index].outputs
            if name in outputs or not set(indices).issuperset(readers.get(name, ()))}


def _fusion_of(layers: Sequence[Layer], read_elsewhere: Collection[str]) -> Layer | None:
    """Returns layers as one layer with a FusionProblem. The arguments and None are as in
    joined()."""
    return joined(layers, read_elsewhere, FusionProblem,
                  " + ".join(layer.name for layer in layers), density=_density(layers),
                  source=" and ".join(layer.source or layer.name for layer in layers))


def joined(layers: Sequence[Layer], read_elsewhere: Collection[str],
           make: Callable[..., Problem], name: str, **others: Any) -> Layer | None:
    """Returns layers as one layer, which covers them; None where they read no value from outside,
    or where no value that they write is read outside.

    read_elsewhere: the values that other layers, or the network's user, read.
    make: makes the problem of the parts, their sources and the exits, as FusionProblem does.
    name: the name of the layer. others: further fields of the layer.
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
    """Returns the share of nonzero weights of all layers; None where no layer has weights."""
    sizes = [(layer.density, layer.weights["weight"].size) for layer in layers
             if layer.density is not None and "weight" in layer.weights]
    total = sum(size for _, size in sizes)
    return sum(density * size for density, size in sizes) / total if total else None


def with_fusions(layers: Sequence[Layer], fusions: Sequence[Layer]) -> list[Layer]:
    """Returns the layers with fusions in place of the layers that they cover. Each fusion comes
    after the layers that compute its inputs."""
    by_name = {layer.name: layer for layer in layers}
    at_place = {fusion.covers[_place([by_name[name] for name in fusion.covers])]: fusion
                for fusion in fusions}
    covered = {name for fusion in fusions for name in fusion.covers}
    mixed = [at_place.get(layer.name, layer) for layer in layers
             if layer.name in at_place or layer.name not in covered]
    # a layer that comes before a part may read an output of the part, so the layers are sorted
    # again
    makers = {name: index for index, layer in enumerate(mixed) for name in layer.outputs}
    return [mixed[index] for index in stable_order(
        [{makers[name] for name in layer.inputs if name in makers} for layer in mixed],
        range(len(mixed)))]
