"""A network of node options, and the costs of its plan assignments computed from the definition."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from gossamer.plan.choose.plan_assignment import Option, PlanAssignment, minimise

LAYOUTS = ("NCHW", "NHWC", "CHWN", "packed32")


@dataclass(frozen=True)
class NodeOption:
    """One way to compute a node alone. needs, gives: the formats of its inputs and outputs."""

    cost: float
    needs: tuple[Hashable, ...]
    gives: tuple[Hashable, ...]


@dataclass(frozen=True)
class AssignmentNode:
    """A node with its options in order of preference; inputs and outputs are names of values."""

    options: tuple[NodeOption, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def all_options(self, name: str) -> list[Option]:
        """Returns the options of the node as minimise() takes them, each of a kind of its own."""
        return [Option(option.cost, (name,), tuple(
            ((name, port), *read) for port, read in enumerate(
                zip(self.inputs, option.needs, strict=True))),
            tuple(zip(self.outputs, option.gives, strict=True)), kind=str(index))
            for index, option in enumerate(self.options)]


@dataclass(frozen=True)
class Network:
    """A graph with its costs. conversions: the cost of each copy by (value, source, target)."""

    nodes: tuple[AssignmentNode, ...]
    fixed: dict[str, Hashable]
    required: dict[str, Hashable]
    conversions: dict[tuple[str, Hashable, Hashable], float]

    def conversion(self, value: str, source: Hashable, target: Hashable) -> float:
        return self.conversions[value, source, target]

    def minimise(self, slack: float = 0.02,
                 excluded: Iterable[tuple[int, ...]] = ()) -> PlanAssignment:
        """Returns the cheapest plan assignment; its options are the index of each node's option.
        excluded: assignments that are not returned."""
        of_nodes = [node.all_options(f"node {number}") for number, node in enumerate(self.nodes)]
        options = [option for of_node in of_nodes for option in of_node]
        found = minimise(options, self.fixed, self.conversion, required=self.required, slack=slack,
                         excluded=[[of_node[index].choice for of_node, index
                                 in zip(of_nodes, other, strict=True)] for other in excluded])
        first = list(itertools.accumulate((len(node.options) for node in self.nodes), initial=0))
        return replace(found, options=tuple(
            index - first[number] for number, index in enumerate(found.options)))

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
        return total + self._moved(needed, written)

    def all_costs(self) -> dict[tuple[int, ...], float]:
        """Returns every plan assignment with its cost, in lexicographic order."""
        found: dict[tuple[int, ...], float] = {}

        def extend(options: tuple[int, ...], total: float, written: dict[str, Hashable],
                   needed: frozenset[tuple[str, Hashable]]) -> None:
            if len(options) == len(self.nodes):
                found[options] = total + self._moved(self.required.items(), written)
                return
            node = self.nodes[len(options)]
            for index, option in enumerate(node.options):
                needs = {*zip(node.inputs, option.needs, strict=True)} - needed
                extend((*options, index), total + option.cost + self._moved(needs, written),
                       {**written, **dict(zip(node.outputs, option.gives, strict=True))},
                       needed | needs)

        extend((), 0.0, self.fixed, frozenset(self.required.items()))
        return found

    def _moved(self, needed: Iterable[tuple[str, Hashable]],
               written: dict[str, Hashable]) -> float:
        """Returns the cost of the conversions to the layouts that are needed of values."""
        return sum(self.conversion(value, written[value], layout)
                   for value, layout in needed if layout != written[value])

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
