"""The cheapest plan assignment of a network: the choice of one option for every node and of the
formats of every value.

A node option costs a time, requires a format of every input and states a format of every output.
Where readers require a value in other formats than its writer states, the value is converted once
to each of these formats, and all readers that require the same format share the copy. This is the
layout selection of Anderson and Gregg ("Optimal DNN primitive selection with partitioned boolean
quadratic programming", CGO 2018), with conversions shared by readers. It is solved as an integer
program by SciPy (scipy.optimize.milp, which calls HiGHS).

- Options of one node with equal formats have the same effect on other nodes. Such options are one
  state of the node. A variable of the program says whether the node has the state.
- For each reader of a value, the program has a variable for each pair of a format that is written
  and a format that the reader needs: whether the reader gets the value by this conversion.
- For each value and pair of formats, one more variable says whether the value is converted at all.
  This variable has the cost of the conversion.

Because of the variables for each reader, the linear program without integers has an integer
solution for nearly all networks, so that no search is needed.

An algorithm that computes several nodes in one step is an option of each of these nodes. The values
between these nodes have a format that only this option knows, and conversions to and from this
format cost infinity. So all of the nodes take the option, or none does. The cost of the algorithm
is the cost of the first node's option; the other nodes' options cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.measure import SLACK

_TOTAL = 1e4
"""Costs are scaled such that the options that cost least add up to this number, which lies far
above the absolute tolerances of HiGHS (1e-7 and 1e-6)."""
_PREFERRED = 1e-4
"""The scaled cost of an option grows by this number for each place in the order of preference, so
that of options that count as equal the first is taken; no real difference of times is as small."""
_UNWANTED = 100 * _TOTAL
"""The scaled cost of an option that is not wanted grows by this number."""
_MOST_SECONDS = 60.0
"""Seconds after which the best assignment so far is taken. Networks of hundreds of layers take less
than one second; random costs of values that dozens of nodes read take ten."""

_INFEASIBLE = 2
"""The status of scipy.optimize.milp where the equations cannot all be true."""

Conversion = tuple[str, Hashable, Hashable]
"""A value, the format from which it is converted, and the format to which it is converted."""

_ByFormat = dict[Hashable, list[int]]
"""For each format, the variables of the states of a node that read or write a value in it."""


class NoAssignmentError(ValueError):
    """Raised where every plan assignment costs infinity."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no plan assignment has a finite cost: {reason}")


@dataclass(frozen=True)
class NodeOption:
    """One way to compute a node.

    cost: a time in any unit, 0 or more; infinity where the option cannot be used.
    needs: the format in which the option reads each input.
    gives: the format in which the option writes each output.
    of_fusion: whether the option belongs to an algorithm that computes several nodes; the option of
    one of these nodes has the cost of all these nodes.
    is_wanted: False for an option that is taken only where the number of nodes with such options
    cannot be lower, whatever the costs are.
    """

    cost: float
    needs: tuple[Hashable, ...]
    gives: tuple[Hashable, ...]
    of_fusion: bool = False
    is_wanted: bool = True


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
    conversions: the conversions of values between these options, in the order of the network.
    cost: the total cost of the options and the conversions.
    """

    options: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: float


def minimise(nodes: Sequence[AssignmentNode], fixed: Mapping[str, Hashable],
             conversion: Callable[[str, Hashable, Hashable], float], *,
             required: Mapping[str, Hashable], slack: float = SLACK) -> PlanAssignment:
    """Returns the cheapest plan assignment, where costs that differ by little count as equal. Of
    options of a node that count as equal, the first is taken.

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
    Formats are compared by equality.

    Options that are not wanted are compared with one another only.
    Raises NoAssignmentError when every plan assignment costs infinity.
    """
    program = _Program()
    given: dict[str, _ByFormat] = {}
    needed: dict[str, list[_ByFormat]] = {}
    outside = AssignmentNode((NodeOption(0.0, tuple(required.values()), tuple(fixed.values())),),
                             tuple(required), tuple(fixed))
    option_of: dict[int, tuple[int, int]] = {}
    least = 0.0
    for number, node in enumerate((*nodes, outside)):
        states = _states(node, slack)
        if not states:
            raise NoAssignmentError(
                f"node {number} (writes {', '.join(map(repr, node.outputs))}) has no option that "
                "can be used")
        variables = [program.state(cost, index, is_wanted=node.options[index].is_wanted)
                     for index, cost in states]
        program.equal(variables, 1.0)
        # a node's cheapest option, of those that are wanted if there are any
        least += min((not node.options[index].is_wanted, cost) for index, cost in states)[1]
        option_of.update((variable, (number, index))
                         for variable, (index, _) in zip(variables, states, strict=True))
        options = [node.options[index] for index, _ in states]
        for port, value in enumerate(node.inputs):
            needed.setdefault(value, []).append(
                _by_format([option.needs[port] for option in options], variables))
        for port, value in enumerate(node.outputs):
            given[value] = _by_format([option.gives[port] for option in options], variables)
    conversion_of: dict[int, Conversion] = {}
    for value, readers in needed.items():
        conversion_of.update(_add_conversions(program, value, given[value], readers, conversion))

    values = program.solution(_TOTAL / (least or 1.0))
    taken = dict(option_of[variable] for variable in option_of if values[variable] > 0.5)
    indices = tuple(taken[number] for number in range(len(nodes)))
    conversions = tuple(each for variable, each in conversion_of.items()
                        if values[variable] > 0.5)
    cost = math.fsum([*(node.options[index].cost
                        for node, index in zip(nodes, indices, strict=True)),
                      *(conversion(*each) for each in conversions)])
    return PlanAssignment(indices, conversions, cost)


def load_solver() -> None:
    """Imports the modules of SciPy that minimise() uses, so that its first call need not."""
    from scipy import optimize, sparse  # noqa: F401


def _states(node: AssignmentNode, slack: float) -> list[tuple[int, float]]:
    """Returns the states of a node: for each combination of formats the index of the option that is
    taken, and the cost with which the option counts."""
    usable = [option for option in node.options if option.cost < math.inf]
    least = {is_wanted: min((option.cost for option in usable if not option.of_fusion
                             and option.is_wanted == is_wanted), default=math.inf)
             for is_wanted in (True, False)}
    least_alike: dict[Hashable, float] = {}
    for option in usable:
        key = option.needs, option.gives, option.of_fusion, option.is_wanted
        least_alike[key] = min(option.cost, least_alike.get(key, math.inf))
    found: dict[Hashable, tuple[int, float]] = {}
    for index, option in enumerate(node.options):
        key = option.needs, option.gives, option.of_fusion, option.is_wanted
        if option.cost > least_alike.get(key, -1.0) * (1 + slack):
            continue
        counted = least_alike[key]
        if option.of_fusion:
            counted *= 1 + slack
        elif option.cost <= least[option.is_wanted] * (1 + slack):
            counted = least[option.is_wanted]
        if key not in found or counted < found[key][1]:
            found[key] = index, counted
    return list(found.values())


def _by_format(formats: Sequence[Hashable], variables: Sequence[int]) -> _ByFormat:
    found: _ByFormat = {}
    for format_, variable in zip(formats, variables, strict=True):
        found.setdefault(format_, []).append(variable)
    return found


def _add_conversions(program: _Program, value: str, given: _ByFormat, readers: Sequence[_ByFormat],
                     conversion: Callable[[str, Hashable, Hashable], float]
                     ) -> dict[int, Conversion]:
    """Adds the conversions of a value to a program, and returns them by their variables.

    given: the states of the value's writer. readers: the states of each node that reads the value.
    """
    converted: dict[tuple[Hashable, Hashable], int] = {}
    for source in given:
        for target in dict.fromkeys(target for reader in readers for target in reader):
            cost = 0.0 if source == target else conversion(value, source, target)
            if cost < math.inf:
                converted[source, target] = program.variable(cost)
    for reader in readers:
        got = {pair: program.variable(0.0) for pair in converted if pair[1] in reader}
        if not got:
            raise NoAssignmentError(f"value {value!r} can be converted from no format that is "
                                    "given to those that are needed")
        for pair, variable in got.items():
            program.at_most(variable, converted[pair])
        for end, states in enumerate((given, reader)):
            for format_, variables in states.items():
                program.equal([variable for pair, variable in got.items() if pair[end] == format_],
                              0.0, less=variables)
    return {variable: (value, *pair) for pair, variable in converted.items() if pair[0] != pair[1]}


class _Program:
    """An integer program: variables of states and conversions with their costs, and equations and
    inequalities of sums of variables."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._extra: list[float] = []
        self._is_state: list[bool] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def state(self, cost: float, place: int, *, is_wanted: bool) -> int:
        """Returns the number of the variable of a state. place: its place in the order of
        preference."""
        variable = self.variable(cost)
        self._extra[variable] = _PREFERRED * place + (0.0 if is_wanted else _UNWANTED)
        self._is_state[variable] = True
        return variable

    def variable(self, cost: float) -> int:
        """Returns the number of a variable that is 0 or 1 where the variables of all states are."""
        self._costs.append(cost)
        self._extra.append(0.0)
        self._is_state.append(False)
        return len(self._costs) - 1

    def equal(self, variables: Sequence[int], total: float, less: Sequence[int] = ()) -> None:
        """States that the sum of variables, less other variables, is a number."""
        row = len(self._limits)
        self._limits.append((total, total))
        self._entries += [(row, variable, 1.0) for variable in variables]
        self._entries += [(row, variable, -1.0) for variable in less]

    def at_most(self, variable: int, other: int) -> None:
        """States that a variable is at most another variable."""
        row = len(self._limits)
        self._limits.append((-math.inf, 0.0))
        self._entries += [(row, variable, 1.0), (row, other, -1.0)]

    def solution(self, scale: float) -> np.ndarray:
        """Returns the values of the variables with the least total cost. Raises NoAssignmentError
        where there are none. scale: factor of the costs."""
        # importing scipy.optimize takes a few tenths of a second
        from scipy import optimize, sparse

        rows, columns, factors = zip(*self._entries, strict=True)
        # SciPy 1.13 takes no other integers as indices
        places = np.array([rows, columns], np.int32)
        matrix = sparse.csr_array((factors, (places[0], places[1])),
                                  shape=(len(self._limits), len(self._costs)))
        costs = np.array(self._costs)
        result = optimize.milp(
            costs * scale + np.array(self._extra),
            integrality=self._is_state, bounds=optimize.Bounds(0.0, 1.0),
            constraints=optimize.LinearConstraint(matrix, *zip(*self._limits, strict=True)),
            options={"mip_rel_gap": 0.0, "time_limit": _MOST_SECONDS})
        if result.x is None:
            raise NoAssignmentError(
                "the conversions that some options need rule each other out"
                if result.status == _INFEASIBLE else result.message)
        values: np.ndarray = result.x
        return values
