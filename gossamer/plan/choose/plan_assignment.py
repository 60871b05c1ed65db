"""The cheapest plan assignment of a network: the exact choice of one option for every node and of
the formats of every value.

A node option costs a time, requires a format of every input and states a format of every output.
Where readers require a value in other formats than its writer states, the value is converted once
to each of these formats, and all readers that require the same format share the copy. This is the
layout selection of Anderson and Gregg ("Optimal DNN primitive selection with partitioned boolean
quadratic programming", CGO 2018), with conversions shared by readers, solved exactly by Dechter's
bucket elimination ("Bucket elimination: a unifying framework for reasoning", Artificial
Intelligence, 1999).

- Options of one node with equal formats have the same effect on other nodes. Such options are one
  state of the node.
- The formats in which a value is needed are a set. Extra variables gather this set reader by
  reader, the last reader first, so that a value with many readers makes no large table. Values
  that the same nodes read (all inputs of a concatenation) share these variables.
- elimination.py finds the least total cost, and the least total that is still possible after each
  node is fixed.

Time and memory grow with the largest table. The table of a bucket has an entry for each combination
of states of the bucket's variables. Time and memory grow exponentially with the graph's treewidth,
but only linearly with its length. Chains, residual, inception and dense blocks have treewidths of 2
to 4.

An algorithm that computes several nodes in one step is an option of each of these nodes. The values
between these nodes have a format that only this option knows, and conversions to and from this
format cost infinity. So all of the nodes take the option, or none does. The cost of the algorithm
is the cost of the first node's option; the other nodes' options cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.measure import SLACK
from gossamer.plan.choose.elimination import BucketTree, Elimination, Table, check_size


class NoAssignmentError(ValueError):
    """Raised where every plan assignment costs infinity."""


@dataclass(frozen=True)
class NodeOption:
    """One way to compute a node.

    cost: a time in any unit, 0 or more; infinity where the option cannot be used.
    needs: the format in which the option reads each input.
    gives: the format in which the option writes each output.
    of_fusion: whether the option belongs to an algorithm that computes several nodes; the option of
    one of these nodes has the cost of all these nodes.
    """

    cost: float
    needs: tuple[Hashable, ...]
    gives: tuple[Hashable, ...]
    of_fusion: bool = False


@dataclass(frozen=True)
class AssignmentNode:
    """A node with its options in order of preference; inputs and outputs are names of values."""

    options: tuple[NodeOption, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PlanAssignment:
    """An option for every node.

    options: the index of the option of each node.
    cost: the total cost of these options and of the conversions between them.
    best: the least total cost of any plan assignment.
    """

    options: tuple[int, ...]
    cost: float
    best: float


def minimise(nodes: Sequence[AssignmentNode], fixed: Mapping[str, Hashable],
             conversion: Callable[[str, Hashable, Hashable], float], *,
             required: Mapping[str, Hashable], slack: float = SLACK) -> PlanAssignment:
    """Returns the cheapest plan assignment, where costs that differ by little count as equal. Among
    several cheapest plan assignments, the first in the lexicographic order of the options' indices
    is returned.

    An option that costs at most (1 + slack) times the cheapest option of its node counts with the
    cost of the cheapest. Any other option is compared with the cheapest option of its node that has
    the same formats: where its cost is at most (1 + slack) times the cost of that cheapest option,
    it counts with the cost of that cheapest option. So the total is at most (1 + slack) times the
    least total. Among the options with the same formats as the option that a node takes, none is
    cheaper by more than the slack.

    An option of a fusion is not compared with the options that compute its node alone. Such an
    option counts with (1 + slack) times its cost. So a fusion is taken only where computing its
    nodes one by one costs more than that product. The total is then at most (1 + slack)^2 times the
    least total.

    fixed: the formats of the values that no node writes.
    required: the formats in which the network's outputs must be.
    conversion: a function of a value and two unequal formats. It returns the cost of copying the
    value from the first format to the second: 0 or more, and infinity where no copy is possible.
    The function is called once for each pair of a format in which an option may write the value and
    a format in which an option may read the value. Formats are compared by equality.

    Raises NoAssignmentError when every plan assignment costs infinity, and GraphTooWideError when
    the graph is too entangled (a table would exceed LARGEST_TABLE entries; the message states the
    table's width).
    """
    model = _Model(nodes, fixed, conversion, required)
    tree = BucketTree(model.sizes, [scope for scope, _ in model.tables])
    estimate = Elimination(tree, model.least_costs, model.tables).total()
    if estimate == math.inf:
        raise NoAssignmentError(f"no plan assignment has a finite cost: {model.conflict()}")

    # costs are rounded to multiples of a power of two, whose sums are exact in any order, so that
    # equal totals compare equal
    limit = estimate * (1 + slack) * (1 + 1e-9)
    unit = math.ldexp(1, math.frexp(limit)[1] - 52)

    def in_units(costs: np.ndarray) -> np.ndarray:
        return np.round(np.where(costs > limit, np.inf, costs) / unit)

    tables = [(scope, in_units(table)) for scope, table in model.tables]
    best = Elimination(tree, [in_units(costs) for costs in model.least_costs], tables).total()
    elimination = Elimination(
        tree, [in_units(_counted(least_costs, least_costs, of_fusion, slack))
               for least_costs, of_fusion in zip(model.least_costs, model.states_of_fusions,
                                                 strict=True)], tables)
    least = total = elimination.total()
    options = []
    for variable in range(len(nodes)):
        states, costs = model.states[variable], model.costs[variable]
        least_costs = np.append(model.least_costs[variable], np.inf)[states]
        of_fusion = np.append(model.states_of_fusions[variable], False)[states]
        counted = in_units(_counted(costs, least_costs, of_fusion, slack))
        totals = elimination.others(variable)[states] + counted
        option = int(np.flatnonzero(totals <= least)[0])
        elimination.fix(states[option], counted[option])
        options.append(option)
        total += float(in_units(costs)[option] - counted[option])
    return PlanAssignment(tuple(options), total * unit, best * unit)


def _counted(costs: np.ndarray, least_costs: np.ndarray, of_fusion: np.ndarray,
             slack: float) -> np.ndarray:
    """Returns the costs with which a node's options count. least_costs: for each option, the cost
    of the cheapest option with the same formats. of_fusion: for each option, whether it belongs to
    an algorithm that computes several nodes."""
    least = np.min(least_costs, initial=np.inf, where=~of_fusion)
    same_formats = np.where(costs <= least_costs * (1 + slack), least_costs, costs)
    alone = np.where(costs <= least * (1 + slack), least, same_formats)
    return np.where(of_fusion, costs * (1 + slack), alone)


class _Model:
    """The network as variables and tables of costs.

    There are three kinds of variables: the nodes, each with a state for each combination of formats
    of its options; one more node with a single state, which stands for everything outside the
    network; and the sets of formats in which a value is needed. A table consists of some variables
    and the cost of each combination of their states.
    """

    def __init__(self, nodes: Sequence[AssignmentNode], fixed: Mapping[str, Hashable],
                 conversion: Callable[[str, Hashable, Hashable], float],
                 required: Mapping[str, Hashable]) -> None:
        outside = AssignmentNode(
            (NodeOption(0.0, tuple(required.values()), tuple(fixed.values())),),
            tuple(required), tuple(fixed))
        self.nodes = (*nodes, outside)
        self.conversion = conversion
        self.costs: list[np.ndarray] = []
        self.states: list[list[int]] = []
        self.distinct_options: list[list[NodeOption]] = []
        self.least_costs: list[np.ndarray] = []
        self.states_of_fusions: list[np.ndarray] = []
        for index in range(len(self.nodes)):
            self._add_node(index)
        self.sizes = [len(options) for options in self.distinct_options]
        self.tables: list[Table] = []
        self._values: list[str] = []
        self._needed_sets: dict[tuple, tuple[int, tuple[int, ...]]] = {}

        readers: dict[str, list[int]] = {value: [] for node in self.nodes for value in node.outputs}
        for index, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                readers[value].append(index)
        for index, node in enumerate(self.nodes):
            for port, value in enumerate(node.outputs):
                self._add_value(value, index, port, readers[value])

    def _add_node(self, index: int) -> None:
        node = self.nodes[index]
        numbers: dict[tuple, int] = {}
        states: list[int] = []
        distinct: list[NodeOption] = []
        for option in node.options:
            assert option.cost >= 0 and (len(option.needs), len(option.gives)) == (
                len(node.inputs), len(node.outputs)), f"{option} of node {index}"
            if option.cost == math.inf:
                states.append(-1)
                continue
            key = (option.needs, option.gives, option.of_fusion)
            states.append(numbers.setdefault(key, len(numbers)))
            if len(numbers) > len(distinct):
                distinct.append(option)
        if not distinct:
            raise NoAssignmentError(
                f"no plan assignment has a finite cost: node {index} (writes "
                f"{', '.join(map(repr, node.outputs))}) has no option that can be used")
        costs = np.array([option.cost for option in node.options], float)
        least_costs = np.full(len(distinct) + 1, np.inf)
        np.minimum.at(least_costs, states, costs)
        self.costs.append(costs)
        self.states.append(states)
        self.distinct_options.append(distinct)
        self.least_costs.append(least_costs[:-1])
        self.states_of_fusions.append(np.array([option.of_fusion for option in distinct]))

    def _add_value(self, value: str, writer: int, port: int, readers: list[int]) -> None:
        """Adds the table of a value's conversions, over the states of the value's writer and the
        sets of formats in which the value is needed."""
        numbers: dict[Hashable, int] = {}
        variable = len(self.nodes) - 1
        masks: tuple[int, ...] = (0,)
        for reader in reversed(readers):
            ports = [i for i, name in enumerate(self.nodes[reader].inputs) if name == value]
            needs = tuple(
                sum({1 << numbers.setdefault(option.needs[i], len(numbers)) for i in ports})
                for option in self.distinct_options[reader])
            variable, masks = self._add_needs(variable, masks, reader, needs)

        sources = [option.gives[port] for option in self.distinct_options[writer]]
        copies = {source: np.array([
            0.0 if source == target else self.conversion(value, source, target)
            for target in numbers]) for source in dict.fromkeys(sources)}
        table = np.array([[sum(copies[source][i] for i in range(len(numbers)) if mask >> i & 1)
                           for mask in masks] for source in sources], float)
        self._add_table((writer, variable), table, value)

    def _add_needs(self, variable: int, masks: tuple[int, ...], reader: int,
                   needs: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Returns a variable, and the sets of formats that are its states: each set of `masks`
        joined with each set of formats that one more reader may need. A set of formats is a mask of
        bits."""
        if len(set(needs)) == 1:
            return variable, tuple(mask | needs[0] for mask in masks)
        if len(masks) == 1:
            return reader, tuple(masks[0] | need for need in needs)
        key = (variable, masks, reader, needs)
        if key not in self._needed_sets:
            joined = [[mask | need for need in needs] for mask in masks]
            sets = sorted({union for row in joined for union in row})
            check_size(len(masks) * len(needs) * len(sets), 3)
            target = len(self.sizes)
            self.sizes.append(len(sets))
            self.least_costs.append(np.zeros(len(sets)))
            self.states_of_fusions.append(np.zeros(len(sets), bool))
            table = np.where(np.array(joined)[..., None] == np.array(sets), 0.0, np.inf)
            self._add_table((variable, reader, target), table, "")
            self._needed_sets[key] = target, tuple(sets)
        return self._needed_sets[key]

    def _add_table(self, scope: Iterable[int], table: np.ndarray, value: str) -> None:
        variables = tuple(v for v, size in zip(scope, table.shape, strict=True) if size > 1)
        self.tables.append((variables or (len(self.nodes) - 1,), table.squeeze()))
        self._values.append(value)

    def conflict(self) -> str:
        """Returns the reason why no plan assignment is possible; it names a value where this value
        alone is the cause."""
        for value, (_, table) in zip(self._values, self.tables, strict=True):
            if np.isinf(table).all():
                return (f"value {value!r} can be converted from no format that is given to those "
                        "that are needed")
        return "the conversions that some options need rule each other out"
