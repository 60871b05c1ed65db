"""The cheapest plan assignment with fusions agrees with that of a search over all."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Sequence

import pytest

from gossamer.plan.choose.plan_assignment import Option, PlanAssignment, minimise

LAYOUTS = ("NCHW", "NHWC", "CHWN")


def _network(seed: int) -> tuple[list[Option], dict[tuple[str, Hashable, Hashable], float]]:
    """Returns options of five nodes, alone and in fusions, and the costs of conversions. The value
    that a node writes has the node's name, and each node but the first reads up to two values of
    nodes before it."""
    rng = random.Random(seed)
    nodes = "abcde"
    reads: dict[str, list[str]] = {node: rng.choices(nodes[:index], k=rng.randint(1, 2))
                                   if index else ["x"] for index, node in enumerate(nodes)}
    options = []
    members = [node for node in nodes for _ in range(rng.randint(1, 3))]
    members += [nodes[first:first + rng.randint(2, 3)] for first in
                (rng.randrange(4) for _ in range(rng.randint(2, 6)))]
    for covered in members:
        format_of = {value: rng.choice(LAYOUTS) for node in covered for value in reads[node]}
        entries = tuple(((node, port), value, format_of[value]) for node in covered
                        for port, value in enumerate(reads[node]) if value not in covered)
        # a value that only nodes of the fusion read need not be written for others
        exits = [node for node in covered if node == "e" or rng.random() < 0.3 or any(
            node in reads[other] for other in nodes if other not in covered)]
        options.append(Option(float(rng.randint(1, 60) * len(covered)) if rng.random() < 0.95
                              else math.inf, tuple(covered), entries,
                              tuple((node, rng.choice(LAYOUTS)) for node in exits),
                              len(covered) > 1))
    conversions = {(value, *pair): float(rng.randint(1, 60)) if rng.random() < 0.9 else math.inf
                   for value in "x" + nodes for pair in itertools.permutations(LAYOUTS, 2)}
    return options, conversions


def _costs(options: Sequence[Option], conversions: dict[tuple[str, Hashable, Hashable], float]
           ) -> dict[tuple[int, ...], float]:
    """Returns the cost of each choice of options that computes each node once, by definition."""
    costs: dict[tuple[int, ...], float] = {}

    def extend(taken: tuple[int, ...], left: frozenset[str]) -> None:
        if not left:
            written = {"x": "NCHW", **{value: format_ for index in taken
                                       for value, format_ in options[index].writes}}
            needed = {(value, format_) for index in taken
                      for _, value, format_ in options[index].reads} | {("e", "NCHW")}
            costs[tuple(sorted(taken))] = sum(options[index].cost for index in taken) + sum(
                math.inf if value not in written else conversions[value, written[value], format_]
                for value, format_ in needed if written.get(value) != format_)
            return
        node = min(left)
        for index, option in enumerate(options):
            if node in option.nodes and left.issuperset(option.nodes):
                extend((*taken, index), left - set(option.nodes))

    extend((), frozenset("abcde"))
    return costs


def _minimised(options: Sequence[Option],
               conversions: dict[tuple[str, Hashable, Hashable], float]) -> PlanAssignment:
    return minimise(options, {"x": "NCHW"}, lambda *each: conversions[each],
                    required={"e": "NCHW"}, slack=0.0)


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_fusions_are_taken_as_brute_force_takes_them(first: int) -> None:
    fused = 0
    for seed in range(first, first + 40):
        options, conversions = _network(seed)
        costs = _costs(options, conversions)
        least = min(costs.values(), default=math.inf)
        if least == math.inf:
            with pytest.raises(ValueError, match="no plan assignment has a finite cost"):
                _minimised(options, conversions)
            continue
        found = _minimised(options, conversions)
        assert costs[found.options] == found.cost == least, seed
        fused += any(options[index].of_fusion for index in found.options)
    assert fused > 10
