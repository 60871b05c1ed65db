"""Searches for the layers of fusions that are no chains of fixed ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from gossamer.ops.fused.gather_expression import may_gather
from gossamer.ops.fused.row_expression import REDUCTIONS, is_gathering, may_belong
from gossamer.ops.fused.views import moves, reorders
from gossamer.plan.program import Layer

_FARTHEST = 100
"""Maximum distance, in layers, between a reduction and the layers after it that are considered."""


def row_groups(layers: Sequence[Layer], readers: Mapping[str, Sequence[int]],
               producers: Mapping[str, int], start: int, outputs: Collection[str],
               taken: Collection[int] = ()) -> Iterator[Sequence[tuple[int, ...]]]:
    """Yield groups of layers that may form a row expression, the largest first.

    A group is a tuple of indices in ascending order. Each group has the reduction, layers that
    depend on it, and layers whose results only the group reads. Only the result of the group's last
    dependent layer is read outside of the group. Groups that differ in the copies of their inputs
    are yielded together: reading through a copy may take longer than the copy.

    readers: for each value, the indices of the layers that read it.
    producers: for each value that a layer computes, the index of the layer.
    start: index of the reduction.
    outputs: names of the network's outputs.
    taken: indices of layers that precede the reduction and belong to other groups.
    """
    def may_be_read(index: int) -> bool:
        return (index not in taken and layers[index].op not in REDUCTIONS
                and may_belong(layers[index].problem))

    def may_be_computed(index: int) -> bool:
        return may_be_read(index) and not is_gathering(layers[index].problem)

    following = _following(layers, readers, start)
    for last in sorted(following, reverse=True):
        group = _ancestors(layers, producers, following, last)
        if start not in group:
            continue
        (result,) = layers[last].outputs
        inner = {name for index in group for name in layers[index].outputs} - {result}
        if inner.isdisjoint(outputs) and all(
                group.issuperset(readers.get(name, ())) for name in inner):
            groups = [group | _preceding(layers, readers, producers, group, outputs, may_precede)
                      for may_precede in (may_be_read, may_be_computed)]
            yield [tuple(sorted(group)) for group in dict.fromkeys(map(frozenset, groups))
                   if len(group) > 1]


def _following(layers: Sequence[Layer], readers: Mapping[str, Sequence[int]],
               start: int) -> set[int]:
    """Return a reduction and the layers after it that may belong to its row expression.

    A layer that depends on the reduction by way of a layer that does not belong to it does not
    belong to it either.
    """
    source = layers[start].problem
    sizes = {source.inputs[0].size, source.outputs[0].size}
    found, inner, outer = {start}, set(layers[start].outputs), set[str]()
    pending = {index for name in layers[start].outputs for index in readers.get(name, ())}
    while pending:
        index = min(pending)
        pending.remove(index)
        layer = layers[index]
        if index > start + _FARTHEST:
            break
        may_belong = outer.isdisjoint(layer.inputs) and _may_belong(layer, sizes)
        if may_belong:
            found.add(index)
        (inner if may_belong else outer).update(layer.outputs)
        pending.update(reader for name in layer.outputs for reader in readers.get(name, ()))
    return found


def _may_belong(layer: Layer, sizes: Collection[int]) -> bool:
    if layer.op == "reduce":
        return layer.problem.inputs[0].size == max(sizes) and (
            layer.problem.outputs[0].size == min(sizes))
    return may_belong(layer.problem) and len(layer.outputs) == 1 and (
        layer.problem.outputs[0].size in sizes)


def _ancestors(layers: Sequence[Layer], producers: Mapping[str, int], among: Collection[int],
               last: int) -> set[int]:
    """Return a layer and those of other layers on whose results it depends."""
    found, pending = set[int](), [last]
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending += [producers[name] for name in layers[index].inputs
                        if producers.get(name) in among]
    return found


def _preceding(layers: Sequence[Layer], readers: Mapping[str, Sequence[int]],
               producers: Mapping[str, int], group: Collection[int],
               outputs: Collection[str], may_precede: Callable[[int], bool]) -> set[int]:
    """Return the layers that may precede a group and whose results only the group reads."""
    found, pending = set[int](), [name for index in group for name in layers[index].inputs]
    while pending:
        index = producers.get(pending.pop())
        if index is None or index in found or index in group or not may_precede(index):
            continue
        names = layers[index].outputs
        if not any(name in outputs for name in names) and all(
                reader in group or reader in found
                for name in names for reader in readers.get(name, ())):
            found.add(index)
            pending += layers[index].inputs
    return found


def gather_groups(layers: Sequence[Layer], readers: Mapping[str, Sequence[int]],
                  producers: Mapping[str, int], outputs: Collection[str]
                  ) -> Iterator[tuple[int, ...]]:
    """Yield groups of layers that may form a gather expression.

    A group has a layer whose result other layers than those of gather expressions read, or several
    layers, and all layers before it whose results only the group reads. Another group ends before
    the moves at the end, which the next fusion may take.
    """
    fitting = [may_gather(layer.problem) for layer in layers]
    for index, layer in enumerate(layers):
        following = readers.get(layer.outputs[0], ())
        if not fitting[index] or (layer.outputs[0] not in outputs and len(following) == 1
                                  and fitting[following[0]]):
            continue
        last = index
        while moves(layers[last].problem) and (
                before := producers.get(layers[last].inputs[0])) is not None and fitting[before]:
            last = before
        for end in dict.fromkeys((index, last)):
            group = _preceding(layers, readers, producers, {end}, outputs, fitting.__getitem__)
            if group:
                yield tuple(sorted(group | {end}))


def with_moves(layers: Sequence[Layer], readers: Mapping[str, Sequence[int]],
               producers: Mapping[str, int], chain: tuple[int, ...],
               outputs: Collection[str]) -> tuple[int, ...]:
    """Return a chain with the layers around it that only move or scale values.

    A layer before the chain is added if its results are read only by the layers of the fusion.
    """
    inside = set(chain)
    value = layers[chain[-1]].outputs[0]
    while value not in outputs and len(following := readers.get(value, [])) == 1 and (
            reorders(layers[following[0]].problem)):
        inside.add(following[0])
        value = layers[following[0]].outputs[0]
    inside |= _preceding(layers, readers, producers, inside, outputs,
                         lambda index: moves(layers[index].problem))
    return tuple(sorted(inside))
