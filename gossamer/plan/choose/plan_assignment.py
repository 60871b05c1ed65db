"""The cheapest plan assignment of a network: one choice a node, with the layout changes they force.

A option is a choice of a node: it costs a time, needs a layout of every input and gives one of
every output. A value that some reader needs in another layout than its writer gives is converted
once for that layout, however many readers share the copy. This is the layout selection of
Anderson and Gregg ("Optimal DNN primitive selection with partitioned boolean quadratic
programming", 2018), with conversions shared by readers, solved exactly by Dechter's bucket
elimination ("Bucket elimination: a unifying framework for reasoning", 1999).

- Labels of one node with equal layouts act alike on the others: they are one state, a signature.
- The layouts in which a value is needed are a set, gathered reader by reader, last reader first,
  in variables of their own: a value with many readers makes no large table, and values read by
  the same nodes (all that a dense block concatenates) share these variables.
- elimination.py finds the best total, and the best that is left after each node that is fixed.

Time and memory grow with the largest table: the product of the numbers of states in a bucket,
exponential in the graph's width alone and linear in its length. Chains, residual, inception and
dense blocks have widths of 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.plan.choose.elimination import BucketTree, Elimination, Table, check_size

SLACK = 0.02
"""By how much of themselves times may differ and count as equal."""


@dataclass(frozen=True)
class NodeOption:
    """What a option costs, the layout it needs of each input and the layout of each output.

    cost is a time in any unit, 0 or more; infinity where the choice cannot be used.
    """

    cost: float
    needs: tuple[Hashable, ...]
    gives: tuple[Hashable, ...]


@dataclass(frozen=True)
class OptionNode:
    """Choices in order of preference; inputs and outputs are names of values."""

    choices: tuple[NodeOption, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PlanAssignment:
    """The index of the choice taken for each node, what they cost in all, conversions included,
    and the least total that there is."""

    options: tuple[int, ...]
    cost: float
    best: float


def minimise(nodes: Sequence[OptionNode], fixed: Mapping[str, Hashable],
             conversion: Callable[[str, Hashable, Hashable], float], *,
             required: Mapping[str, Hashable], slack: float = SLACK) -> PlanAssignment:
    """The cheapest plan assignment, where costs that differ by little count as equal; of equal ones the
    first: the one whose first node has the earliest choice, then whose second node has, and so on.

    A choice that costs at most (1 + slack) times the cheapest of its node counts as much as that;
    any other that costs at most (1 + slack) times the cheapest of its node with the same layouts
    counts as much as that one. So the whole costs at most (1 + slack) times the least, and for no
    node there is a choice of the same layouts that is cheaper by more than the slack.

    fixed: the layouts of the values that no node writes. required: the layouts in which the
    network's outputs must be. conversion(value, given, needed): the cost of making the copy of a
    value in another layout, 0 or more, infinity where there is no way; it is asked once for each
    pair of unequal layouts that can meet. Layouts are told apart by equality.

    Raises ValueError when every plan assignment costs infinity, when the graph is too entangled
    (a table would pass LARGEST_TABLE entries; the message has its width), and for malformed
    nodes and costs.
    """
    if not 0 <= slack < math.inf:
        raise ValueError(f"slack must be 0 or more, got {slack}")
    model = _Model(nodes, fixed, conversion, required)
    tree = BucketTree(model.sizes, [scope for scope, _ in model.tables])
    estimate = Elimination(tree, model.floors, model.tables).total()
    if estimate == math.inf:
        raise ValueError(f"no plan assignment has a finite cost: {model.conflict()}")

    # in whole grains sums are exact, so that equal totals compare equal in whatever order
    limit = estimate * (1 + slack) * (1 + 1e-9)
    grain = math.ldexp(1, math.frexp(limit)[1] - 52)

    def in_grains(costs: np.ndarray) -> np.ndarray:
        return np.round(np.where(costs > limit, np.inf, costs) / grain)

    tables = [(scope, in_grains(table)) for scope, table in model.tables]
    best = Elimination(tree, [in_grains(floors) for floors in model.floors], tables).total()
    elimination = Elimination(tree, [in_grains(_counted(floors, floors, slack))
                                     for floors in model.floors], tables)
    least = spent = elimination.total()
    options = []
    for variable in range(len(nodes)):
        group, costs = model.groups[variable], model.costs[variable]
        floors = np.append(model.floors[variable], np.inf)[group]
        counted = in_grains(_counted(costs, floors, slack))
        totals = elimination.others(variable)[group] + counted
        option = int(np.flatnonzero(totals <= least)[0])
        elimination.fix(group[option], counted[option])
        options.append(option)
        spent += float(in_grains(costs)[option] - counted[option])
    return PlanAssignment(tuple(options), spent * grain, best * grain)


def _counted(costs: np.ndarray, floors: np.ndarray, slack: float) -> np.ndarray:
    """What a node's choices count as. floors: for each the cheapest with the same layouts."""
    alike = np.where(costs <= floors * (1 + slack), floors, costs)
    return np.where(costs <= floors.min() * (1 + slack), floors.min(), alike)


class _Model:
    """The network as variables and tables of costs.

    Variables are the nodes (their states are signatures), one node more with a single state that
    stands for the world outside, and the gathered sets of needed layouts. A table is a scope of
    variables and the costs of all their states.
    """

    def __init__(self, nodes: Sequence[OptionNode], fixed: Mapping[str, Hashable],
                 conversion: Callable[[str, Hashable, Hashable], float],
                 required: Mapping[str, Hashable]) -> None:
        outside = OptionNode((NodeOption(0.0, tuple(required.values()), tuple(fixed.values())),),
                       tuple(required), tuple(fixed))
        self.nodes = (*nodes, outside)
        self.conversion = conversion
        self.costs: list[np.ndarray] = []
        self.groups: list[list[int]] = []
        self.signatures: list[list[NodeOption]] = []
        self.floors: list[np.ndarray] = []
        for index in range(len(self.nodes)):
            self._add_node(index)
        self.sizes = [len(signatures) for signatures in self.signatures]
        self.tables: list[Table] = []
        self._values: list[str] = []
        self._gathered: dict[tuple, tuple[int, tuple[int, ...]]] = {}

        written = [value for node in self.nodes for value in node.outputs]
        readers: dict[str, list[int]] = {value: [] for value in written}
        if len(readers) < len(written):
            twice = next(value for value in written if written.count(value) > 1)
            raise ValueError(f"value {twice!r} is written twice, or both fixed and written")
        for index, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                if value not in readers:
                    raise ValueError(f"{self._name(index)} reads {value!r}, which is neither "
                                     "fixed nor written by a node")
                readers[value].append(index)
        for index, node in enumerate(self.nodes):
            for port, value in enumerate(node.outputs):
                self._add_value(value, index, port, readers[value])

    def _name(self, index: int) -> str:
        if index == len(self.nodes) - 1:
            return "the world outside"
        return f"node {index} (writes {', '.join(map(repr, self.nodes[index].outputs))})"

    def _add_node(self, index: int) -> None:
        node = self.nodes[index]
        groups: dict[tuple, int] = {}
        group: list[int] = []
        signatures: list[NodeOption] = []
        for choice in node.choices:
            if (len(choice.needs), len(choice.gives)) != (len(node.inputs), len(node.outputs)):
                raise ValueError(f"{self._name(index)}: a choice needs {len(choice.needs)} and "
                                 f"gives {len(choice.gives)} layouts, the node has "
                                 f"{len(node.inputs)} inputs and {len(node.outputs)} outputs")
            if not choice.cost >= 0:
                raise ValueError(f"{self._name(index)}: a choice costs {choice.cost}, expected 0 "
                                 "or more")
            if choice.cost == math.inf:
                group.append(-1)
                continue
            group.append(groups.setdefault((choice.needs, choice.gives), len(groups)))
            if len(groups) > len(signatures):
                signatures.append(choice)
        if not signatures:
            raise ValueError(f"no plan assignment has a finite cost: {self._name(index)} has no choice "
                             "that can be used")
        costs = np.array([choice.cost for choice in node.choices], float)
        floors = np.full(len(signatures) + 1, np.inf)
        np.minimum.at(floors, group, costs)
        self.costs.append(costs)
        self.groups.append(group)
        self.signatures.append(signatures)
        self.floors.append(floors[:-1])

    def _add_value(self, value: str, writer: int, port: int, readers: list[int]) -> None:
        """The table of a value's conversions, over its writer and the set of layouts needed."""
        if writer in readers and len(self.signatures[writer]) > 1:
            raise ValueError(f"{self._name(writer)} reads its own output {value!r}")
        numbers: dict[Hashable, int] = {}
        variable = len(self.nodes) - 1
        masks: tuple[int, ...] = (0,)
        for reader in reversed(readers):
            ports = [i for i, name in enumerate(self.nodes[reader].inputs) if name == value]
            needs = tuple(
                sum({1 << numbers.setdefault(choice.needs[i], len(numbers)) for i in ports})
                for choice in self.signatures[reader])
            variable, masks = self._gather(variable, masks, reader, needs)

        given = [choice.gives[port] for choice in self.signatures[writer]]
        copies = {layout: np.array([self._conversion(value, layout, needed)
                                    for needed in numbers]) for layout in dict.fromkeys(given)}
        table = np.array([[sum(copies[layout][i] for i in range(len(numbers)) if mask >> i & 1)
                           for mask in masks] for layout in given], float)
        self._add_table((writer, variable), table, value)

    def _conversion(self, value: str, given: Hashable, needed: Hashable) -> float:
        if given == needed:
            return 0.0
        cost = self.conversion(value, given, needed)
        if not cost >= 0:
            raise ValueError(f"the conversion of {value!r} from {given} to {needed} costs {cost}, "
                             "expected 0 or more")
        return cost

    def _gather(self, variable: int, masks: tuple[int, ...], reader: int,
                needs: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The variable whose states are the sets `masks` joined with what one more reader needs."""
        if len(set(needs)) == 1:
            return variable, tuple(mask | needs[0] for mask in masks)
        if len(masks) == 1:
            return reader, tuple(masks[0] | need for need in needs)
        key = (variable, masks, reader, needs)
        if key not in self._gathered:
            joined = [[mask | need for need in needs] for mask in masks]
            sets = sorted({union for row in joined for union in row})
            check_size(len(masks) * len(needs) * len(sets), 3)
            target = len(self.sizes)
            self.sizes.append(len(sets))
            self.floors.append(np.zeros(len(sets)))
            table = np.where(np.array(joined)[..., None] == np.array(sets), 0.0, np.inf)
            self._add_table((variable, reader, target), table, "")
            self._gathered[key] = target, tuple(sets)
        return self._gathered[key]

    def _add_table(self, scope: Iterable[int], table: np.ndarray, value: str) -> None:
        several = tuple(v for v, size in zip(scope, table.shape, strict=True) if size > 1)
        self.tables.append((several or (len(self.nodes) - 1,), table.squeeze()))
        self._values.append(value)

    def conflict(self) -> str:
        """Why no plan assignment is possible, as far as a single value shows it."""
        for value, (_, table) in zip(self._values, self.tables, strict=True):
            if np.isinf(table).all():
                return (f"value {value!r} can be converted from no layout that is given to those "
                        "that are needed")
        return "the conversions that some choices need rule each other out"
