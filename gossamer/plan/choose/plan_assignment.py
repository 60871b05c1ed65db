"""The cheapest plan assignment of a network: the choice of the options that compute the nodes, and
of the formats of every value.

An option computes one node, or as a fusion several nodes in one step. It costs a time, requires a
format of every value that it reads and states a format of every value that it writes. Where readers
require a value in other formats than its writer states, the value is converted once to each of
these formats, and all readers that require the same format share the copy. This is the layout
selection of Anderson and Gregg ("Optimal DNN primitive selection with partitioned boolean quadratic
programming", CGO 2018), with conversions shared by readers and with fusions. It is solved as an
integer program by SciPy (scipy.optimize.milp, which calls HiGHS).

- Options of the same nodes with equal formats have the same effect on other nodes. Such options are
  one state. A variable of the program says whether the state is taken. Of the states that compute a
  node, exactly one is taken.
- For each reader of a value, the program has a variable for each pair of a format that is written
  and a format that the reader needs: whether the reader gets the value by this conversion.
- For each value and pair of formats, one more variable says whether the value is converted at all.
  This variable has the cost of the conversion.

Because of the variables for each reader, the linear program without integers has an integer
solution for nearly all networks, so that no search is needed.
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
"""Costs are scaled such that the options that cost least add up to this number, which lies far
above the absolute tolerances of HiGHS (1e-7 and 1e-6)."""
_PREFERRED = 1e-4
"""The scaled cost of an option grows by this number for each place in the order of preference, so
that of options that count as equal the first is taken; no real difference of times is as small."""
_UNWANTED = 100 * _TOTAL
"""The scaled cost of an option grows by this number for each node that another option should
compute."""
_MOST_SECONDS = 60.0
"""Seconds after which the best assignment so far is taken. Networks of hundreds of layers take less
than one second; random costs of values that dozens of nodes read take ten."""

_INFEASIBLE = 2
"""The status of scipy.optimize.milp where the equations cannot all be true."""

Conversion = tuple[str, Any, Any]
"""A value, the format from which it is converted, and the format to which it is converted."""

Port = tuple[str, int]
"""A place where a node reads a value: the name of the node and the number of the input."""

_ByFormat = dict[Any, list[int]]
"""For each format, the variables of the states that read or write a value in it."""


class NoAssignmentError(ValueError):
    """Raised where every plan assignment costs infinity."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no plan assignment has a finite cost: {reason}")


@dataclass(frozen=True)
class Option:
    """One way to compute a node, or several nodes in one step.

    cost: a time in any unit, 0 or more; infinity where the option cannot be used.
    nodes: the names of the nodes that the option computes.
    reads: the values that the option reads from other options: for each a place where one of its
    nodes reads the value, the value, and the format in which the option reads it.
    writes: the values that the option writes for other options, each with its format.
    of_fusion: whether the option belongs to an algorithm that may compute several nodes.
    kind: the name by which assignments that are to differ are told apart.
    unwanted: how many of its nodes another option should compute. The sum of these numbers is as
    low as it can be, whatever the costs are.
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
        """What assignments that are to differ must not all have in common."""
        return self.effect, self.kind

    @cached_property
    def effect(self) -> Hashable:
        """An effect is all of an option but its cost: other options see nothing else of it."""
        return self.nodes, self.reads, self.writes, self.of_fusion, self.unwanted


@dataclass(frozen=True)
class PlanAssignment:
    """Options that compute each node once.

    options: the indices of the options that are taken, in ascending order.
    conversions: the conversions of values between these options.
    cost: the total cost of the options and the conversions.
    """

    options: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: float


def minimise(options: Sequence[Option], fixed: Mapping[str, Any],
             conversion: Callable[[str, Any, Any], float], *,
             required: Mapping[str, Any], slack: float = SLACK,
             apart: Sequence[Collection[Hashable]] = ()) -> PlanAssignment:
    """Return the cheapest plan assignment, where costs that differ by little count as equal. Of
    options of a node that count as equal, the first is taken.

    An option that costs at most (1 + slack) times the cheapest option of its node counts with the
    cost of the cheapest. Any other option is compared with the cheapest option of its node that has
    the same formats: where its cost is at most (1 + slack) times the cost of that cheapest option,
    it counts with the cost of that cheapest option. So the total is at most (1 + slack) times the
    least total. Among the options with the same formats as the option that a node takes, none is
    cheaper by more than the slack.

    An option of a fusion is not compared with the options that compute its nodes alone. Such an
    option counts with (1 + slack) times its cost. So a fusion is taken only where computing its
    nodes one by one costs more than that product. The total is then at most (1 + slack)^2 times the
    least total.

    options: the options of all nodes; of options of the same nodes, those that are preferred come
    first.
    fixed: the formats of the values that no node writes.
    required: the formats in which the network's outputs must be.
    conversion: a function of a value and two unequal formats. It returns the cost of copying the
    value from the first format to the second: 0 or more, and infinity where no copy is possible.
    Formats are compared by equality.
    apart: assignments that are not returned, each as the choices of its options.

    Options are compared only with options that are wanted for as many nodes.
    Raises NoAssignmentError when every plan assignment costs infinity.
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
    key_of = (lambda option: option.choice) if apart else (lambda option: option.effect)
    for index, place, cost in _states(everything, slack, key_of):
        option = everything[index]
        variable = program.variable(cost, _PREFERRED * place + _UNWANTED * option.unwanted,
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
            raise NoAssignmentError(f"{node!r} has no option that can be used")
        program.limit(states, 1.0, 1.0)
        least += min((option.unwanted, option.cost / len(option.nodes))
                     for option in states.values())[1]
    conversion_of: dict[int, Conversion] = {}
    for value, readers in needed.items():
        conversion_of.update(
            _add_conversions(program, value, given[value], readers.values(), conversion))

    for choices in apart:
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
    """Yield the states: for each effect, or what key_of() returns, the index of the option that is
    taken, its place among the options of its nodes, and the cost with which the option counts."""
    least: defaultdict[Hashable, float] = defaultdict(lambda: math.inf)
    for option in options:
        key = key_of(option)
        least[key] = min(option.cost, least[key])
        if not option.of_fusion:
            alone = option.nodes, option.unwanted
            least[alone] = min(option.cost, least[alone])
    found: dict[Hashable, tuple[int, int, float]] = {}
    places: Counter[tuple[str, ...]] = Counter()
    for index, option in enumerate(options):
        place, key = places[option.nodes], key_of(option)
        places[option.nodes] += 1
        if option.cost == math.inf or option.cost > least[key] * (1 + slack):
            continue
        counted = least[key]
        if option.of_fusion:
            counted *= 1 + slack
        elif option.cost <= least[option.nodes, option.unwanted] * (1 + slack):
            counted = least[option.nodes, option.unwanted]
        if key not in found or counted < found[key][2]:
            found[key] = index, place, counted
    yield from found.values()


def _add_conversions(program: _Program, value: str, given: _ByFormat, readers: Iterable[_ByFormat],
                     conversion: Callable[[str, Any, Any], float]
                     ) -> dict[int, Conversion]:
    """Add the conversions of a value to a program, and return them by their variables.

    given: the states that write the value. readers: for each place where the value is read, the
    states that read it there.
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
        # a state that reads gets the value once, and a state that does not write gives it to nobody
        for end, states_of, low in ((1, reader, 0.0), (0, given, -math.inf)):
            for format_, states in states_of.items():
                program.limit([variable for pair, variable in got.items() if pair[end] == format_],
                              low, 0.0, less=states)
    return {variable: (value, *pair) for pair, variable in converted.items() if pair[0] != pair[1]}


class _Program:
    """An integer program: variables of states and conversions with their costs, and limits of sums
    of variables."""

    def __init__(self) -> None:
        self._variables: list[tuple[float, float, bool]] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def variable(self, cost: float, extra: float = 0.0, *, is_state: bool = False) -> int:
        """Return the number of a variable. It is 0 or 1 where it is that of a state, and where the
        variables of all states are. extra: a cost that is not scaled."""
        self._variables.append((cost, extra, is_state))
        return len(self._variables) - 1

    def limit(self, variables: Iterable[int], low: float, high: float,
              less: Iterable[int] = ()) -> None:
        """State the least and the largest value of the sum of variables, less other variables."""
        row = len(self._limits)
        self._limits.append((low, high))
        self._entries += [(row, variable, 1.0) for variable in variables]
        self._entries += [(row, variable, -1.0) for variable in less]

    def solution(self, scale: float) -> np.ndarray:
        """Return the values of the variables with the least total cost. Raises NoAssignmentError
        where there are none. scale: factor of the costs."""
        # importing scipy.optimize takes a few tenths of a second
        from scipy import optimize, sparse

        rows, columns, factors = zip(*self._entries, strict=True)
        # SciPy 1.13 takes no other integers as indices
        places = np.array([rows, columns], np.int32)
        matrix = sparse.csr_array((factors, (places[0], places[1])),
                                  shape=(len(self._limits), len(self._variables)))
        costs, extra, is_state = np.array(self._variables).T
        result = optimize.milp(
            costs * scale + extra, integrality=is_state, bounds=optimize.Bounds(0.0, 1.0),
            constraints=optimize.LinearConstraint(matrix, *zip(*self._limits, strict=True)),
            options={"mip_rel_gap": 0.0, "time_limit": _MOST_SECONDS})
        if result.x is None:
            raise NoAssignmentError(
                "the conversions that some options need rule each other out"
                if result.status == _INFEASIBLE else result.message)
        values: np.ndarray = result.x
        return values
