"""A network of node options, and the costs of its plan assignments computed from the definition."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, replace

from gossamer.plan.choose.plan_assignment import (
    AssignmentNode,
    NodeOption,
    PlanAssignment,
    minimise,
)

LAYOUTS = ("NCHW", "NHWC", "CHWN", "packed32")


@dataclass(frozen=True)
class Network:
    """A graph with its costs. conversions: the cost of each copy by (value, source, target)."""

    nodes: tuple[AssignmentNode, ...]
    fixed: dict[str, Hashable]
    required: dict[str, Hashable]
    conversions: dict[tuple[str, Hashable, Hashable], float]

    def conversion(self, value: str, source: Hashable, target: Hashable) -> float:
        return self.conversions[value, source, target]

    def minimise(self, slack: float = 0.02) -> PlanAssignment:
        return minimise(self.nodes, self.fixed, self.conversion, required=self.required,
                        slack=slack)

    def cost(self, options: tuple[int, ...]) -> float:
        """Returns the cost of one plan assignment, computed from the definition."""
        written = dict(self.fixed)
        needed = set(self.required.items())
        total = 0.0
        for node, index in zip(self.nodes, options, strict=True):
            option = node.options[index]
            total += option.cost
            written.update(zip(node.outputs, option.gives, strict=True))
            needed |= set(zip(node.inputs, option.needs, strict=True))
        return total + sum(self.conversion(value, written[value], layout)
                           for value, layout in needed if layout != written[value])

    def all_costs(self) -> dict[tuple[int, ...], float]:
        """Returns every plan assignment with its cost, in lexicographic order."""
        return {options: self.cost(options) for options in itertools.product(
            *(range(len(node.options)) for node in self.nodes))}

    def counted(self, slack: float) -> Network:
        """Returns the network with the costs that options count as, from the definition."""
        return replace(self, nodes=tuple(replace(node, options=tuple(
            replace(option, cost=counts_as(option, node, slack)) for option in node.options))
            for node in self.nodes))

    def cheapest(self, slack: float) -> list[tuple[int, ...]]:
        """Returns the plan assignments that count as the cheapest, in lexicographic order."""
        costs = self.counted(slack).all_costs()
        least = min(costs.values())
        return [options for options, cost in costs.items() if cost == least]

    def preferred(self, slack: float) -> list[tuple[int, ...]]:
        """Returns those of the cheapest plan assignments of which no other one takes options that
        come earlier, added up over the nodes."""
        cheapest = self.cheapest(slack)
        least = min(map(sum, cheapest))
        return [options for options in cheapest if sum(options) == least]


def counts_as(option: NodeOption, node: AssignmentNode, slack: float) -> float:
    """Returns the cost that an option of the node counts as."""
    same_layouts = [other.cost for other in node.options
                    if (other.needs, other.gives) == (option.needs, option.gives)]
    for costs in ([other.cost for other in node.options], same_layouts):
        if option.cost <= min(costs) * (1 + slack):
            return min(costs)
    return option.cost
