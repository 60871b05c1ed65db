"""The choice of a labelling: brute force and an integer program agree with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from gossamer.plan import elimination
from gossamer.plan.labelling import Choice, Labelling, Node, minimise

Wiring = list[tuple[tuple[str, ...], str]]
"""The values that each node reads, and the one it writes."""

LAYOUTS = ("NCHW", "NHWC", "CHWN", "packed32")


@dataclass(frozen=True)
class Network:
    """A graph with its costs; conversions are those of (value, given, needed)."""

    nodes: tuple[Node, ...]
    fixed: dict[str, Hashable]
    required: dict[str, Hashable]
    conversions: dict[tuple[str, Hashable, Hashable], float]

    def conversion(self, value: str, given: Hashable, needed: Hashable) -> float:
        return self.conversions[value, given, needed]

    def minimise(self, slack: float = 0.02) -> Labelling:
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
            replace(choice, cost=_counted(choice, node, slack)) for choice in node.choices))
            for node in self.nodes))

    def first(self, slack: float) -> tuple[int, ...]:
        """The first of the labellings that count as the cheapest."""
        costs = self.counted(slack).all_costs()
        least = min(costs.values())
        return next(labels for labels, cost in costs.items() if cost == least)


def _counted(choice: Choice, node: Node, slack: float) -> float:
    alike = [other.cost for other in node.choices
             if (other.needs, other.gives) == (choice.needs, choice.gives)]
    for others in ([each.cost for each in node.choices], alike):
        if choice.cost <= min(others) * (1 + slack):
            return min(others)
    return choice.cost


whole_costs = st.integers(0, 60).map(float)
may_be_infinite = st.one_of(whole_costs, whole_costs, whole_costs, st.just(math.inf))


@st.composite
def networks(draw: st.DrawFn, costs: st.SearchStrategy[float] = may_be_infinite) -> Network:
    """Up to 6 nodes of up to 4 choices: forks, joins, values read twice or never, two outputs."""
    fixed: dict[str, Hashable] = {f"in{i}": draw(st.sampled_from(LAYOUTS))
                                  for i in range(draw(st.integers(1, 2)))}
    values = list(fixed)
    layouts = st.sampled_from(LAYOUTS[:draw(st.integers(2, 4))])
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        inputs = tuple(draw(st.lists(st.sampled_from(values), max_size=3)))
        outputs = tuple(f"v{index}.{i}" for i in range(draw(st.integers(1, 2))))
        choices = draw(st.lists(st.builds(
            Choice, costs, st.tuples(*[layouts] * len(inputs)),
            st.tuples(*[layouts] * len(outputs))), min_size=1, max_size=4))
        nodes.append(Node(tuple(choices), inputs, outputs))
        values += outputs
    required: dict[str, Hashable] = {
        value: draw(layouts) for value in draw(st.lists(st.sampled_from(values), max_size=3))}
    conversions: dict[tuple[str, Hashable, Hashable], float] = {
        (value, a, b): draw(costs)
        for value in values for a, b in itertools.permutations(LAYOUTS, 2)}
    return Network(tuple(nodes), fixed, required, conversions)


@given(networks(), st.sampled_from([0.0, 0.02, 0.25]))
@settings(max_examples=400)
def test_the_labelling_is_the_one_that_brute_force_finds(network: Network, slack: float) -> None:
    costs = network.all_costs()
    best = min(costs.values())
    if best == math.inf:
        with pytest.raises(ValueError, match="no labelling has a finite cost"):
            network.minimise(slack)
        return
    found = network.minimise(slack)
    assert found.labels == network.first(slack)
    assert (found.cost, found.best) == (costs[found.labels], best)
    assert found.cost <= best * (1 + slack)


@given(networks(st.floats(1.0, 2.0)), st.sampled_from([0.0, 0.02, 0.25]))
@settings(max_examples=100)
def test_no_node_has_a_choice_of_the_same_layouts_that_is_cheaper_by_more(network: Network,
                                                                         slack: float) -> None:
    for node, label in zip(network.nodes, network.minimise(slack).labels, strict=True):
        taken = node.choices[label]
        assert all(taken.cost <= choice.cost * (1 + slack) for choice in node.choices
                   if (choice.needs, choice.gives) == (taken.needs, taken.gives))


@given(networks(st.floats(0.01, 100.0)))
@settings(max_examples=100)
def test_costs_that_are_no_whole_numbers(network: Network) -> None:
    costs = network.all_costs()
    best = min(costs.values())
    # sums that differ by rounding alone
    counted = network.counted(0.02).all_costs().values()
    assume(not any(0 < cost / min(counted) - 1 < 1e-9 for cost in counted))
    found = network.minimise()
    assert found.labels == network.first(0.02)
    assert found.cost == pytest.approx(costs[found.labels], rel=1e-12)
    assert found.best == pytest.approx(best, rel=1e-12)
    assert found.best <= found.cost <= found.best * 1.02 * (1 + 1e-12)


@given(networks())
def test_two_runs_choose_alike(network: Network) -> None:
    assume(min(network.all_costs().values()) < math.inf)
    found = network.minimise()
    assert network.minimise() == found
    backwards = replace(network, fixed=dict(reversed(network.fixed.items())),
                        required=dict(reversed(network.required.items())))
    assert backwards.minimise() == found


@given(networks(st.integers(1, 60).map(float)), st.data())
@settings(max_examples=100)
def test_noise_below_the_slack_keeps_the_choice(network: Network, data: st.DataObject) -> None:
    noise, slack = 0.002, 0.02
    # noise may decide only where a cost lies that close to the threshold, or where totals do to
    # the least that are not equal for the slack's sake
    assume(all(abs(choice.cost / other.cost - (1 + slack)) > 3 * noise
               for node in network.nodes for choice in node.choices for other in node.choices))
    taken = network.first(slack)
    least = network.counted(slack).cost(taken)
    assume(all(labels >= taken or cost > least * (1 + 3 * noise)
               for labels, cost in network.counted(slack).all_costs().items()))
    assume(all(_alike(network, labels, taken, slack) for labels, cost in
               network.counted(slack).all_costs().items() if cost <= least * (1 + 3 * noise)))
    factor = st.floats(1 - noise, 1 + noise)
    noisy = replace(
        network,
        nodes=tuple(replace(node, choices=tuple(
            replace(choice, cost=choice.cost * data.draw(factor)) for choice in node.choices))
            for node in network.nodes),
        conversions={key: cost * data.draw(factor) for key, cost in network.conversions.items()})
    assert noisy.minimise(slack).labels == network.minimise(slack).labels


def _alike(network: Network, one: tuple[int, ...], other: tuple[int, ...], slack: float) -> bool:
    """Whether two labellings convert the same, and each node's choices count as the same."""
    for node, pair in zip(network.nodes, zip(one, other, strict=True), strict=True):
        a, b = (node.choices[label] for label in pair)
        if (a.needs, a.gives, _counted(a, node, slack)) != (b.needs, b.gives,
                                                            _counted(b, node, slack)):
            return False
    return True


def _line(*costs: float) -> Network:
    """One node whose choices, all of one layout, have these costs."""
    choices = tuple(Choice(cost, ("NCHW",), ("NCHW",)) for cost in costs)
    return Network((Node(choices, ("x",), ("y",)),), {"x": "NCHW"}, {"y": "NCHW"}, {})


@pytest.mark.parametrize(("costs", "slack", "label"), [
    ((102.0, 100.0), 0.02, 0),
    ((103.0, 101.0, 100.0), 0.02, 1),
    ((102.0, 100.0), 0.0, 1),
    ((100.0, 100.0), 0.0, 0),
    ((math.inf, 0.0, 0.0), 0.02, 1),
    ((1e30, 1.0, math.inf), 0.02, 1),
])
def test_the_first_choice_within_the_slack_is_taken(costs: tuple[float, ...], slack: float,
                                                    label: int) -> None:
    assert _line(*costs).minimise(slack).labels == (label,)


def test_the_slack_is_each_nodes_own() -> None:
    """A small node takes no choice that is slow for it, however little that is of the whole."""
    def node(index: int, *costs: float) -> Node:
        return Node(tuple(Choice(cost, ("NCHW",), ("NCHW",)) for cost in costs),
                    (f"v{index}",), (f"v{index + 1}",))

    network = Network((node(0, 3.0, 2.0), node(1, 51.0, 50.0), node(2, 5001.0, 5000.0)),
                      {"v0": "NCHW"}, {}, {})
    assert network.minimise() == Labelling((1, 0, 0), 5054.0, 5052.0)


@pytest.mark.parametrize(("conversion", "label"), [(0.0, 0), (0.5, 1), (20.0, 1)])
def test_layouts_that_are_converted_are_no_equal_of_others(conversion: float, label: int) -> None:
    nodes = (Node((Choice(101.0, ("NHWC",), ("NCHW",)), Choice(100.0, ("NCHW",), ("NCHW",))),
                  ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): conversion})
    assert network.minimise().labels == (label,)


def test_a_slower_choice_is_taken_for_the_conversions_that_it_saves() -> None:
    nodes = (Node((Choice(100.0, ("NHWC",), ("NCHW",)), Choice(110.0, ("NCHW",), ("NCHW",)),
                   Choice(109.0, ("NCHW",), ("NCHW",))), ("x",), ("y",)),)
    network = Network(nodes, {"x": "NCHW"}, {"y": "NCHW"}, {("x", "NCHW", "NHWC"): 20.0})
    assert network.minimise() == Labelling((1,), 110.0, 109.0)


def test_readers_share_one_conversion() -> None:
    nodes = (Node((Choice(1.0, (), ("NCHW",)),), (), ("x",)),
             *(Node((Choice(4.0, ("NCHW",), ()), Choice(1.0, ("NHWC",), ())), ("x",), ())
               for _ in range(3)))
    network = Network(nodes, {}, {}, {("x", "NCHW", "NHWC"): 5.0})
    assert network.minimise() == Labelling((0, 1, 1, 1), 9.0, 9.0)


def test_an_empty_network_converts_its_inputs() -> None:
    network = Network((), {"x": "NCHW"}, {"x": "NHWC"}, {("x", "NCHW", "NHWC"): 3.0})
    assert network.minimise() == Labelling((), 3.0, 3.0)


def _random_network(wiring: Wiring, labels: int, seed: int,
                    same: Callable[[int], bool] = lambda node: False) -> Network:
    """Costs and layouts at random for nodes that read and write those values; `same` nodes
    (joins) have one choice a layout, in and out."""
    random = np.random.default_rng(seed)
    layouts = LAYOUTS[:3]
    nodes = []
    for index, (inputs, output) in enumerate(wiring):
        if same(index):
            choices = [Choice(float(random.integers(1, 20)), (layout,) * len(inputs), (layout,))
                       for layout in layouts]
        else:
            choices = [Choice(float(random.integers(50, 200)),
                              tuple(str(random.choice(layouts)) for _ in inputs),
                              (str(random.choice(layouts)),)) for _ in range(labels)]
        nodes.append(Node(tuple(choices), inputs, (output,)))
    values = ["x", *(output for _, output in wiring)]
    conversions: dict[tuple[str, Hashable, Hashable], float] = {
        (value, a, b): float(random.integers(1, 60))
        for value in values for a, b in itertools.permutations(layouts, 2)}
    return Network(tuple(nodes), {"x": "NCHW"}, {values[-1]: "NCHW"}, conversions)


def _chain(length: int) -> Wiring:
    return [((f"v{i}" if i else "x",), f"v{i + 1}") for i in range(length)]


def _residual(blocks: int) -> Wiring:
    wiring: Wiring = [(("x",), "r0")]
    for i in range(blocks):
        wiring += [((f"r{i}",), f"a{i}"), ((f"a{i}",), f"b{i}"),
                   ((f"b{i}", f"r{i}"), f"r{i + 1}")]
    return wiring


def _inception(blocks: int) -> Wiring:
    wiring: Wiring = []
    source = "x"
    for i in range(blocks):
        wiring += [((source,), f"a{i}"), ((source,), f"b{i}"), ((f"b{i}",), f"c{i}"),
                   ((source,), f"d{i}"), ((f"d{i}",), f"e{i}"), ((source,), f"f{i}"),
                   ((f"f{i}",), f"g{i}"), ((f"a{i}", f"c{i}", f"e{i}", f"g{i}"), f"j{i}")]
        source = f"j{i}"
    return wiring


def _dense(layers: int) -> Wiring:
    """Every layer joins all values before it."""
    wiring: Wiring = [(("x",), "v0")]
    for i in range(layers):
        wiring += [(tuple(f"v{j}" for j in range(i + 1)), f"j{i}"), ((f"j{i}",), f"v{i + 1}")]
    return wiring


def _integer_program(network: Network) -> float:
    """The least cost by SciPy's solver of mixed-integer programs."""
    columns: list[tuple[float, bool]] = []
    rows: list[tuple[dict[int, float], float, float]] = []

    def column(cost: float, whole: bool) -> int:
        columns.append((cost, whole))
        return len(columns) - 1

    picks = [[column(choice.cost, True) for choice in node.choices] for node in network.nodes]
    rows += [(dict.fromkeys(pick, 1.0), 1.0, 1.0) for pick in picks]
    always = column(0.0, True)
    rows.append(({always: 1.0}, 1.0, 1.0))
    gives: dict[str, list[tuple[int, Hashable]]] = {
        value: [(always, layout)] for value, layout in network.fixed.items()}
    needs = [(value, always, layout) for value, layout in network.required.items()]
    for node, pick in zip(network.nodes, picks, strict=True):
        for variable, choice in zip(pick, node.choices, strict=True):
            for value, layout in zip(node.outputs, choice.gives, strict=True):
                gives.setdefault(value, []).append((variable, layout))
            needs += [(value, variable, layout)
                      for value, layout in zip(node.inputs, choice.needs, strict=True)]
    copies: dict[tuple[int, str, Hashable], int] = {}
    for value, reader, layout in needs:
        for writer, given_layout in gives[value]:
            if given_layout != layout:
                key = (writer, value, layout)
                if key not in copies:
                    copies[key] = column(network.conversion(value, given_layout, layout), False)
                rows.append(({copies[key]: 1.0, writer: -1.0, reader: -1.0}, -1.0, np.inf))
    matrix = np.zeros((len(rows), len(columns)))
    for i, (terms, _, _) in enumerate(rows):
        for j, factor in terms.items():
            matrix[i, j] += factor
    result = milp(np.array([cost for cost, _ in columns]),
                  integrality=np.array([whole for _, whole in columns], int),
                  constraints=LinearConstraint(matrix, [low for _, low, _ in rows],
                                               [high for _, _, high in rows]))
    assert result.success
    return float(result.fun)


@pytest.mark.parametrize("wiring", [_residual(4), _inception(2), _dense(5)],
                         ids=["residual", "inception", "dense"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_least_cost_is_that_of_an_integer_program(wiring: Wiring, seed: int) -> None:
    network = _random_network(wiring, 4, seed, lambda node: len(wiring[node][0]) > 1)
    found = network.minimise(0.0)
    assert found.cost == found.best == network.cost(found.labels)
    assert found.best == pytest.approx(_integer_program(network), rel=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_dense_blocks_as_brute_force_finds(seed: int) -> None:
    wiring = _dense(3)
    network = _random_network(wiring, 3, seed, lambda node: len(wiring[node][0]) > 1)
    found = network.minimise()
    assert found.labels == network.first(0.02)
    assert found.best == min(network.all_costs().values())


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_values_with_the_same_readers_that_need_them_otherwise(seed: int) -> None:
    wiring: Wiring = [((), "a"), ((), "b"), *((("a", "b"), name) for name in "cde")]
    network = _random_network(wiring, 4, seed, lambda node: node == 4)
    best = min(network.all_costs().values())
    assert network.minimise(0.0) == Labelling(network.first(0.0), best, best)


@pytest.mark.parametrize(("wiring", "labels"), [
    (_chain(200), 30),
    (_residual(60), 30),
    (_inception(30), 30),
    (_dense(24), 20),
], ids=["chain", "residual", "inception", "dense"])
def test_networks_of_hundreds_of_layers(wiring: Wiring, labels: int) -> None:
    network = _random_network(wiring, labels, 7, lambda node: len(wiring[node][0]) > 1)
    least = network.minimise(0.0)
    assert least.cost == least.best == network.cost(least.labels)
    chosen = network.minimise()
    assert chosen.best == least.best
    assert chosen.cost == network.cost(chosen.labels) <= 1.02 * least.best


def test_a_chain_is_what_dynamic_programming_finds() -> None:
    network = _random_network(_chain(200), 30, 11)

    def moved(value: str, given_layout: Hashable, needed: Hashable) -> float:
        return 0.0 if given_layout == needed else network.conversion(value, given_layout, needed)

    reached: dict[Hashable, float] = {"NCHW": 0.0}
    for node in network.nodes:
        totals: dict[Hashable, float] = {}
        for choice in node.choices:
            total = choice.cost + min(cost + moved(node.inputs[0], layout, choice.needs[0])
                                      for layout, cost in reached.items())
            totals[choice.gives[0]] = min(total, totals.get(choice.gives[0], math.inf))
        reached = totals
    assert network.minimise().best == min(
        cost + moved("v200", layout, "NCHW") for layout, cost in reached.items())


def _pair(cost: float, conversion: float) -> Network:
    nodes = (Node((Choice(cost, ("NCHW",), ("NCHW",)),), ("x",), ("y",)),
             Node((Choice(1.0, ("NHWC",), ("NHWC",)),), ("y",), ("z",)))
    return Network(nodes, {"x": "NCHW"}, {}, {("y", "NCHW", "NHWC"): conversion})


@pytest.mark.parametrize(("network", "message"), [
    (_pair(math.inf, 1.0), r"finite cost: node 0 \(writes 'y'\) has no choice that can be used"),
    (_pair(1.0, math.inf), "finite cost: value 'y' can be converted from no layout"),
    (_pair(-1.0, 1.0), r"node 0 \(writes 'y'\): a choice costs -1.0, expected 0 or more"),
    (_pair(math.nan, 1.0), "a choice costs nan"),
    (_pair(1.0, -2.0), "conversion of 'y' from NCHW to NHWC costs -2.0"),
    (replace(_pair(1.0, 1.0), fixed={}), r"node 0 \(writes 'y'\) reads 'x', which is neither"),
    (replace(_pair(1.0, 1.0), required={"w": "NCHW"}), "world outside reads 'w'"),
    (replace(_pair(1.0, 1.0), fixed={"x": "NCHW", "y": "NCHW"}), "'y' is written twice"),
    (Network((Node((Choice(1.0, (), ("NCHW",)),), ("x",), ("y",)),), {"x": "NCHW"}, {}, {}),
     "needs 0 and gives 1 layouts, the node has 1 inputs and 1 outputs"),
    (Network((Node((), (), ("y",)),), {}, {}, {}), "node 0 .* has no choice"),
    (Network((Node((Choice(1.0, ("NCHW",), ("NCHW",)), Choice(1.0, ("NHWC",), ("NCHW",))),
                   ("y",), ("y",)),), {}, {}, {}), "reads its own output 'y'"),
])
def test_what_cannot_be_labelled_is_named(network: Network, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network.minimise()


def test_choices_that_rule_each_other_out() -> None:
    alike = tuple(Choice(1.0, (), (layout, layout)) for layout in ("NCHW", "NHWC"))
    unlike = (Choice(1.0, ("NCHW", "NHWC"), ()), Choice(1.0, ("NHWC", "NCHW"), ()))
    network = Network((Node(alike, (), ("a", "b")), Node(unlike, ("a", "b"), ())), {}, {}, {
        (value, *pair): math.inf
        for value in "ab" for pair in (("NCHW", "NHWC"), ("NHWC", "NCHW"))})
    with pytest.raises(ValueError, match="rule each other out"):
        network.minimise()


@pytest.mark.parametrize("slack", [-0.1, math.nan, math.inf])
def test_a_slack_that_is_none(slack: float) -> None:
    with pytest.raises(ValueError, match="slack must be 0 or more"):
        _line(1.0).minimise(slack)


def test_a_graph_too_entangled_is_refused_with_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "LARGEST_TABLE", 1000)
    wiring: Wiring = [((), f"v{i}") for i in range(8)]
    wiring += [((f"v{i}", f"v{j}"), f"w{i}{j}") for i, j in itertools.combinations(range(8), 2)]
    network = _random_network(wiring, 9, 5)
    with pytest.raises(ValueError, match=r"a table over \d+ variables has \d+ entries, at most"):
        network.minimise()
