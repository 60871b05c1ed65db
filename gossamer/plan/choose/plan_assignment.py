"""The cheapest plan assignment of a network.

An assignment chooses the options that compute the nodes, and the formats of every value. An option
computes one node or, if it is a fusion, several nodes in one step. The cost of an option is its
time. An option requires one format of each value that it reads, and determines the format of each
value that it writes. If readers require a value in other formats than that of its writer, the value
is converted once to each of these formats. All readers that require the same format share the copy.
This problem is the layout selection of Anderson and Gregg ("Optimal DNN primitive selection
with partitioned boolean quadratic programming", CGO 2018), extended by fusions and by conversions
that readers share. SciPy solves the problem as an integer program (scipy.optimize.milp, which calls
HiGHS).

- Options of the same nodes with equal formats have the same effect on other nodes. Such options are
merged into one state. A binary variable says whether the state is taken. Exactly one of the states
that compute a node is taken.
- A conversion leads from a format in which a value may be written to a format that a reader may
require. For each conversion of a value and each reader, a binary variable says whether the reader
gets the value by this conversion.
- For each conversion of a value, one more variable says whether any reader uses the conversion. The
objective has the cost of the conversion times this variable.

Because of the variables for each reader, the linear relaxation has an integer solution for nearly
all networks, so no branching is needed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gossamer.measure import SLACK

_TOTAL = 1e4
"""Costs are scaled such that the cheapest options add up to this number, which is far above the
absolute tolerances of HiGHS (1e-7 and 1e-6)."""
_PREFERRED = 1e-4
"""Penalty added to an option's scaled cost per position in the order of preference, so that the
first of several options of equal cost is taken. The penalty is smaller than any real difference of
times."""
_UNWANTED = 100 * _TOTAL
"""Penalty added to an option's scaled cost for each of its `unwanted` nodes."""
_MOST_SECONDS = 60.0
"""Time limit of the solver in seconds, after which the best assignment so far is taken. Networks of
hundreds of layers take less than one second; random costs take ten seconds if dozens of nodes read
a value."""

_INFEASIBLE = 2
"""Status of scipy.optimize.milp if the constraints cannot all be satisfied."""

Conversion = tuple[str, Any, Any]
"""A value, the format from which it is converted, and the format to which it is converted."""

Port = tuple[str, int]
"""An input of a node: the name of the node and the number of the input."""

_ByFormat = dict[Any, list[int]]
"""For each format, the variables of the states that read or write a value in this format."""


class NoAssignmentError(ValueError):
    """Raised if every plan assignment has infinite cost."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no plan assignment has a finite cost: {reason}")


@dataclass(frozen=True)
class Option:
    """One way to compute one or several nodes.

    cost: a time in any unit, 0 or more; infinity if the option cannot be used.
    nodes: names of the nodes that the option computes.
    reads: the values that the option reads from other options. Each item has the input of the
    option's node that reads the value, the value's name, and the format that the option requires.
    writes: the values that the option writes for other options, each with its format.
    of_fusion: whether the option belongs to an algorithm that may compute several nodes.
    kind: the name that distinguishes options with the same effect when assignments are excluded.
    unwanted: number of the option's nodes that another option should compute if possible. The sum
    of these numbers over an assignment is minimised first, and the cost second.
    """

    cost: float
    nodes: tuple[str, ...]
    reads: tuple[tuple[Port, str, Any], ...]
    writes: tuple[tuple[str, Any], ...]
    of_fusion: bool = False
    unwanted: int = 0
    kind: str = ""

    @property
    def choice(self) -> Hashable:
        """The key of the option in an assignment that is excluded.

        `minimise` returns no assignment that takes options with all keys of an excluded one.
        """
        return self.effect, self.kind

    @cached_property
    def effect(self) -> Hashable:
        """All fields except `cost` and `kind`: those that other options depend on."""
        return self.nodes, self.reads, self.writes, self.of_fusion, self.unwanted


@dataclass(frozen=True)
class PlanAssignment:
    """Options that compute each node once.

    options: indices of the options that are taken, in ascending order.
    conversions: the conversions of values between these options.
    cost: total cost of the options and the conversions.
    """

    options: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: float


def minimise(options: Sequence[Option], fixed: Mapping[str, Any],
             conversion: Callable[[str, Any, Any], float], *,
             required: Mapping[str, Any], slack: float = SLACK,
             excluded: Sequence[Collection[Hashable]] = ()) -> PlanAssignment:
    """Return the cheapest plan assignment within a slack.

    Nearly equal costs are treated as equal, because measured times scatter. An option whose cost is
    at most (1 + slack) times that of its node's cheapest option gets the cost of the latter. Any
    other option is compared likewise with the cheapest option of the same node and formats; if it
    costs more than (1 + slack) times as much, it is never taken. Of options with equal costs, the
    first is taken. Therefore the total is at most (1 + slack) times the minimum.

    An option of a fusion is not compared with the options that compute the nodes unfused. Instead,
    the cost of the fusion is multiplied by (1 + slack), so that the fusion is taken only if
    computing its nodes one by one costs more than this product. The total is then at most
    (1 + slack)^2 times the minimum.

    Options are compared only with options that have the same number of unwanted nodes.

    options: the options of all nodes. Among options of the same nodes, preferred ones come first.
    fixed: formats of the values that no node writes, by name.
    required: formats that the network's outputs must have, by name.
    conversion: a function of a value and two unequal formats. It returns the cost of copying the
    value from the first format to the second: 0 or more, and infinity if no copy is possible.
    Formats are compared by equality.
    excluded: assignments that are not returned, each as the keys (`Option.choice`) of its options.

    Raises NoAssignmentError if every plan assignment has infinite cost.
    """
    outside = Option(0.0, ("",), tuple((("", 0), *output) for output in required.items()),
                     tuple(fixed.items()))
    everything = (*options, outside)
    program = _Program()
    computing: dict[str, dict[int, Option]] = {
        node: {} for option in everything for node in option.nodes}
    given: defaultdict[str, _ByFormat] = defaultdict(lambda: defaultdict(list))
    needed: defaultdict[str, defaultdict[Port, _ByFormat]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list)))
    index_of: dict[int, int] = {}
    variable_of: dict[Hashable, int] = {}
    key_of = (lambda option: option.choice) if excluded else (lambda option: option.effect)
    for index, rank, cost in _states(everything, slack, key_of):
        option = everything[index]
        variable = program.variable(cost, _PREFERRED * rank + _UNWANTED * option.unwanted,
                                    is_state=True)
        index_of[variable] = index
        variable_of[key_of(option)] = variable
        for node in option.nodes:
            computing[node][variable] = option
        for value, format_ in option.writes:
            given[value][format_].append(variable)
        for port, value, format_ in option.reads:
            needed[value][port][format_].append(variable)
    least = 0.0
    for node, states in computing.items():
        if not states:
            raise NoAssignmentError(f"{node!r} has no usable option")
        program.limit(states, 1.0, 1.0)
        least += min((option.unwanted, option.cost / len(option.nodes))
                     for option in states.values())[1]
    conversion_of: dict[int, Conversion] = {}
    for value, readers in needed.items():
        conversion_of.update(
            _add_conversions(program, value, given[value], readers.values(), conversion))

    for choices in excluded:
        program.limit([variable_of[choice] for choice in choices if choice in variable_of],
                      -math.inf, len(choices) - 1.0)

    values = program.solution(_TOTAL / (least or 1.0))
    taken = [index for variable, index in index_of.items()
             if values[variable] > 0.5 and index < len(options)]
    conversions = tuple(each for variable, each in conversion_of.items()
                        if values[variable] > 0.5)
    cost = math.fsum([*(options[index].cost for index in taken),
                      *(conversion(*each) for each in conversions)])
    return PlanAssignment(tuple(taken), conversions, cost)


def _states(options: Sequence[Option], slack: float, key_of: Callable[[Option], Hashable]
            ) -> Iterator[tuple[int, int, float]]:
    """Yield one state for each group of options: the option to take, its rank, and its cost.

    The items of a state are the index of an option, its position among the options of the same
    nodes, and the cost that is used for it.

    key_of: function that returns the key by which options are grouped, such as their effect.
    """
    least: defaultdict[Hashable, float] = defaultdict(lambda: math.inf)
    for option in options:
        key = key_of(option)
        least[key] = min(option.cost, least[key])
        if not option.of_fusion:
            alone = option.nodes, option.unwanted
            least[alone] = min(option.cost, least[alone])
    found: dict[Hashable, tuple[int, int, float]] = {}
    ranks: Counter[tuple[str, ...]] = Counter()
    for index, option in enumerate(options):
        rank, key = ranks[option.nodes], key_of(option)
        ranks[option.nodes] += 1
        if option.cost == math.inf or option.cost > least[key] * (1 + slack):
            continue
        counted = least[key]
        if option.of_fusion:
            counted *= 1 + slack
        elif option.cost <= least[option.nodes, option.unwanted] * (1 + slack):
            counted = least[option.nodes, option.unwanted]
        if key not in found or counted < found[key][2]:
            found[key] = index, rank, counted
    yield from found.values()


def _add_conversions(program: _Program, value: str, given: _ByFormat, readers: Iterable[_ByFormat],
                     conversion: Callable[[str, Any, Any], float]
                     ) -> dict[int, Conversion]:
    """Add a value's conversions, and return the conversions by variable.

    given: the states that write the value.
    readers: for each input of a node that reads the value, the states that read the value there.
    """
    converted: dict[tuple[Any, Any], int] = {}
    for source in given:
        for target in dict.fromkeys(target for reader in readers for target in reader):
            cost = 0.0 if source == target else conversion(value, source, target)
            if cost < math.inf:
                converted[source, target] = program.variable(cost)
    for reader in readers:
        got = {pair: program.variable(0.0) for pair in converted if pair[1] in reader}
        for pair, variable in got.items():
            program.limit([variable], -math.inf, 0.0, less=[converted[pair]])
        # each reading state that is taken gets the value exactly once, and from a writing state
        # that is taken
        for end, states_of, low in ((1, reader, 0.0), (0, given, -math.inf)):
            for format_, states in states_of.items():
                program.limit([variable for pair, variable in got.items() if pair[end] == format_],
                              low, 0.0, less=states)
    return {variable: (value, *pair) for pair, variable in converted.items() if pair[0] != pair[1]}


class _Program:
    """An integer program: variables with costs, and linear constraints."""

    def __init__(self) -> None:
        self._variables: list[tuple[float, float, bool]] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def variable(self, cost: float, extra: float = 0.0, *, is_state: bool = False) -> int:
        """Add a variable between 0 and 1, and return its index.

        Variables of states are declared as integers. If these variables are 0 or 1, the other
        variables of an optimal solution are also 0 or 1.

        cost: a cost that solution() scales.
        extra: a cost that is not scaled.
        """
        self._variables.append((cost, extra, is_state))
        return len(self._variables) - 1

    def limit(self, variables: Iterable[int], low: float, high: float,
              less: Iterable[int] = ()) -> None:
        """Add the constraint low <= sum of `variables` - sum of `less` <= high."""
        row = len(self._limits)
        self._limits.append((low, high))
        self._entries += [(row, variable, 1.0) for variable in variables]
        self._entries += [(row, variable, -1.0) for variable in less]

    def solution(self, scale: float) -> np.ndarray:
        """Return the variables' values at minimum total cost.

        Raises NoAssignmentError if there is no solution.

        scale: factor by which costs are multiplied.
        """
        # importing scipy.optimize takes a few tenths of a second
        from scipy import optimize, sparse

        rows, columns, factors = zip(*self._entries, strict=True)
        # SciPy 1.13 accepts no other integers as indices
        indices = np.array([rows, columns], np.int32)
        matrix = sparse.csr_array((factors, (indices[0], indices[1])),
                                  shape=(len(self._limits), len(self._variables)))
        costs, extra, is_state = np.array(self._variables).T
        result = optimize.milp(
            costs * scale + extra, integrality=is_state, bounds=optimize.Bounds(0.0, 1.0),
            constraints=optimize.LinearConstraint(matrix, *zip(*self._limits, strict=True)),
            options={"mip_rel_gap": 0.0, "time_limit": _MOST_SECONDS})
        if result.x is None:
            raise NoAssignmentError(
                "some options need conversions that exclude each other"
                if result.status == _INFEASIBLE else result.message)
        values: np.ndarray = result.x
        return values
