"""A graph to label, and what its labellings cost, straight from the definition."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, replace

from gossamer.plan.choose.plan_assignment import NodeOption, OptionNode, PlanAssignment, minimise

LAYOUTS = ("NCHW", "NHWC", "CHWN", "packed32")


@dataclass(frozen=True)
class Network:
    """A graph with its costs; conversions are those of (value, given, needed)."""

    nodes: tuple[OptionNode, ...]
    fixed: dict[str, Hashable]
    required: dict[str, Hashable]
    conversions: dict[tuple[str, Hashable, Hashable], float]

    def conversion(self, value: str, given: Hashable, needed: Hashable) -> float:
        return self.conversions[value, given, needed]

    def minimise(self, slack: float = 0.02) -> PlanAssignment:
        return minimise(self.nodes, self.fixed, self.conversion, required=self.required,
                        slack=slack)

    def cost(self, labels: tuple[int, ...]) -> float:
        """The cost of one labelling, straight from the definition."""
        given = dict(self.fixed)
        needed = set(self.required.items())
        total = 0.0
        for node, label in zip(self.nodes, labels, strict=True):
            choice = node.choices[label]
            total += choice.cost
            given.update(zip(node.outputs, choice.gives, strict=True))
            needed |= set(zip(node.inputs, choice.needs, strict=True))
        return total + sum(self.conversion(value, given[value], layout)
                           for value, layout in needed if layout != given[value])

    def all_costs(self) -> dict[tuple[int, ...], float]:
        """Every labelling with its cost, in lexicographic order."""
        return {labels: self.cost(labels) for labels in itertools.product(
            *(range(len(node.choices)) for node in self.nodes))}

    def counted(self, slack: float) -> Network:
        """The same with the costs that choices count as, straight from the definition."""
        return replace(self, nodes=tuple(replace(node, choices=tuple(
            replace(choice, cost=counts_as(choice, node, slack)) for choice in node.choices))
            for node in self.nodes))

    def first(self, slack: float) -> tuple[int, ...]:
        """The first of the labellings that count as the cheapest."""
        costs = self.counted(slack).all_costs()
        least = min(costs.values())
        return next(labels for labels, cost in costs.items() if cost == least)


def counts_as(choice: NodeOption, node: OptionNode, slack: float) -> float:
    """The cost that a choice of the node counts as."""
    alike = [other.cost for other in node.choices
             if (other.needs, other.gives) == (choice.needs, choice.gives)]
    for others in ([each.cost for each in node.choices], alike):
        if choice.cost <= min(others) * (1 + slack):
            return min(others)
    return choice.cost
