"""Which layers of a network are computed as one part."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import hypothesis
import hypothesis.strategies as st
import pytest

from gossamer.plan.fusion import _clusters


@dataclass(frozen=True)
class _Layer:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def chain(*texts: str) -> list[_Layer]:
    """Returns layers, each given as "name: inputs", which write the value of their own name."""
    return [_Layer(name, tuple(inputs.split()), (name,))
            for name, _, inputs in (text.partition(": ") for text in texts)]


def groups(layers: list[_Layer], left_out: Collection[str] = ()) -> list[list[str]]:
    """Returns the names of the layers of each part."""
    return sorted([layers[index].name for index in group]
                  for group in _clusters(layers, left_out).groups())  # type: ignore[arg-type]


def components(names: Iterable[str], layers: Iterable[_Layer]) -> list[list[str]]:
    """Returns some of the layers, in sets that the values between these layers connect."""
    sets = [{name} for name in sorted(names)]
    for layer in layers:
        for name in layer.inputs:
            touched = [one for one in sets if layer.name in one or name in one]
            if sum(map(len, touched)) > 1 and {layer.name, name} <= set().union(*touched):
                sets = [one for one in sets if one not in touched] + [set().union(*touched)]
    return sorted(map(sorted, sets))


@pytest.mark.parametrize(("layers", "expected"), [
    (chain("a: x", "b: a", "c: b"), [["a", "b", "c"]]),
    (chain("a: x", "b: y", "c: a", "d: b"), [["a", "c"], ["b", "d"]]),
    # an input of the network that both read connects no layers
    (chain("a: x", "b: x"), [["a"], ["b"]]),
    (chain("a: x", "b: x", "c: a b"), [["a", "b", "c"]]),
    (chain("a: x", "b: a", "c: a"), [["a", "b", "c"]]),
    (chain("a: x"), [["a"]]), ([], [])])
def test_a_network_is_one_part_where_it_is_connected(layers: list[_Layer],
                                                     expected: list[list[str]]) -> None:
    assert groups(layers) == expected


@pytest.mark.parametrize(("layers", "left_out", "expected"), [
    (chain("a: x", "b: a", "c: a b"), ["b"], [["a"], ["c"]]),
    (chain("a: x", "b: a", "c: b", "d: c", "e: a d"), ["b", "c", "d"], [["a"], ["e"]]),
    # b leads to d, and d and e are one part, from which f leads to g
    (chain("a: x", "b: a", "c: y", "d: c b", "e: c", "f: e", "g: a f"), ["b", "f"],
     [["a"], ["c", "d", "e"], ["g"]]),
    (chain("a: x", "b: y", "c: a b"), ["b"], [["a", "c"]])])
def test_no_path_through_other_layers_leads_from_a_part_back_to_it(
        layers: list[_Layer], left_out: list[str], expected: list[list[str]]) -> None:
    assert groups(layers, left_out) == expected


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=100)
def test_parts_are_connected_and_can_be_computed_one_after_another(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8), "layers")
    layers = [_Layer(f"{index}", tuple(data.draw(st.lists(
        st.sampled_from(["x", "y", *map(str, range(index))]), min_size=1, max_size=3, unique=True),
        "inputs")), (f"{index}",)) for index in range(count)]
    names = [layer.name for layer in layers]
    assert groups(layers) == components(names, layers)
    left_out = data.draw(st.sets(st.sampled_from(names)), "left out")
    found = groups(layers, left_out)
    assert sorted(name for group in found for name in group) == sorted({*names} - left_out)
    part_of = {name: min(group) for group in found for name in group}
    for group in found:
        assert components(group, layers) == [group]
    # parts and layers that are left out are computed as soon as all that they read is there
    waiting = {part_of.get(name, name) for name in names}
    reads = {one: {part_of.get(name, name) for layer in layers
                   if part_of.get(layer.name, layer.name) == one
                   for name in layer.inputs if name in names} - {one} for one in waiting}
    while ready := {one for one in waiting if not reads[one] & waiting}:
        waiting -= ready
    assert not waiting
