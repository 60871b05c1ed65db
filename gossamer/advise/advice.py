"""Measure the speed-up from pruning, and choose the layers to prune."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import onnx

from gossamer.errors import InputError
from gossamer.io.charts import as_png, new_figure
from gossamer.io.text import duration_text
from gossamer.measure import SLACK, interleave
from gossamer.model.infer.resolve import check_open_dimensions, default_batch
from gossamer.model.load import load
from gossamer.model.prune import PrunedLayer, prune
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan import api
from gossamer.plan.plan import Plan
from gossamer.plan.report.report import Report


@dataclass(frozen=True)
class Way:
    """A way to prune a network: a sparsity pattern and a sparsity.

    name: a short name, such as "90%".
    pattern: one of gossamer.model.prune.PATTERNS.
    sparsity: the share of each layer's weights that become zero.
    """

    name: str
    pattern: str
    sparsity: float


WAYS = (Way("80%", "unstructured", 0.8), Way("90%", "unstructured", 0.9),
        Way("95%", "unstructured", 0.95), Way("98%", "unstructured", 0.98), Way("2:4", "2:4", 0.5),
        Way("half the channels", "channels", 0.5))
"""The ways that are measured by default."""
AS_IT_IS = "as it is"
"""The key of the unchanged network in mappings of times; the other keys are names of ways."""
_ROUNDS = 3
"""Maximum number of times that layers are chosen and measured to reach a requested speed-up."""


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Layers whose total time is known in every plan.

    A group is one layer, or several layers that a step of at least one plan computes together, so
    that they cannot be timed separately.

    layers: the names of the layers.
    pruned: the names of the layers that can be pruned.
    weights: the number of weights of the pruned layers.
    us: microseconds of the layers, by the name of the way or AS_IT_IS. Each step is timed alone.
    """

    layers: tuple[str, ...]
    pruned: tuple[str, ...]
    weights: int
    us: Mapping[str, float]

    @property
    def pays_from(self) -> Way | None:
        """The unstructured way from which on pruning pays, or None.

        This way and all sparser ones pay. A way pays if it makes the layers faster; times within
        SLACK count as equal. None means that the sparsest way does not pay.
        """
        lowest = None
        for way in reversed([way for way in WAYS
                             if way.pattern == "unstructured" and way.name in self.us]):
            if self.us[way.name] >= (1 - SLACK) * self.us[AS_IT_IS]:
                break
            lowest = way
        return lowest


@dataclass(frozen=True)
class Choice:
    """The sparsities of layers, and the speed-up that the network gets from them.

    sparsities: the share of zeros in each pruned layer, by name; all other layers stay unchanged.
    speed_up: how many times as fast the network is.
    reached: whether speed_up is at least the requested speed-up. If not, no choice of layers is
    expected to reach it, or the last measured choice was still too slow.
    """

    sparsities: dict[str, float]
    speed_up: float
    reached: bool


@dataclass(frozen=True)
class Advice:
    """The times of a network on a device, unchanged and pruned.

    device: the name of the device.
    description: the description of the device.
    batch: images per execution.
    groups: the layers that can be pruned, in the network's order.
    others_us: microseconds of all other steps, by the name of the way or AS_IT_IS.
    network_us: microseconds of an execution, by the name of the way or AS_IT_IS.
    absent: for each way that was not measured, the reason, by the name of the way.
    warnings: sentences about possible disturbances of the measurement.
    choice: the layers to prune for the requested speed-up, measured together; None if no speed-up
    was requested.
    """

    device: str
    description: str
    batch: int
    groups: tuple[LayerGroup, ...]
    others_us: Mapping[str, float]
    network_us: Mapping[str, float]
    absent: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    choice: Choice | None = None

    def speed(self, way: str) -> float:
        """Return the speed of the pruned network relative to the unchanged one."""
        return self.network_us[AS_IT_IS] / self.network_us[way]


def check_speed_up(value: float) -> str | None:
    """Return why a target speed-up is invalid; None for a valid one."""
    return None if 1 < value < 1000 else "expected a number above 1, such as 2"


def advise(model: Callable[[], onnx.ModelProto], *, device: str | None = None,
           batch: int | None = None, precision: str = "fp32", effort: str = "quick",
           threads: Threads = ALL, ways: Sequence[Way] = WAYS, speed_up: float | None = None,
           keep: Collection[str] = (), note: Callable[[str], None] = lambda text: None) -> Advice:
    """Time a network unchanged, and pruned in each of the ways.

    The weights of smallest magnitude become zero; in an untrained network their positions are
    random. The unchanged and the pruned networks are timed in turn.

    model: function that returns a new copy of the network.
    device, precision, effort, threads: see `gossamer.compile`.
    batch: images per execution; by default 1, or the file's batch size if the network does not run
    at 1.
    ways: the ways to prune.
    speed_up: the speed-up for which layers are chosen. The network is pruned in the chosen layers
    and measured. If it is too slow, layers are chosen again with more zeros; there are at most
    three measurements.
    keep: names of layers that stay unchanged.
    note: function that is called before each measurement with a one-line description of it.
    Raises InputError if the network has no weights to prune, and the errors of `gossamer.compile`.
    """
    graph = load(model())
    check_open_dimensions(graph)
    if batch is None:
        batch = default_batch(graph)
    planned = partial(api.compile, effort=effort, precision=precision, threads=threads)
    with ExitStack() as stack:
        dense = stack.enter_context(closing(planned(graph, device)))
        sizes = {layer.name: layer.size for layer in prune(model(), 0.5) if not layer.kept}
        if not sizes:
            raise InputError("the network has no weights to prune: expected a convolution or a "
                             "matrix product with constant weights")
        note(f"measuring the network {AS_IT_IS}")
        plans, reports = {AS_IT_IS: dense}, {AS_IT_IS: dense.profile(batch)}
        absent: dict[str, str] = {}
        for way in ways:
            network = model()
            if reason := _why_absent(prune(network, way.sparsity, pattern=way.pattern,
                                           scope="layer")):
                absent[way.name] = reason
                continue
            note(f"measuring with {way.name} of zeros" if way.pattern == "unstructured" else
                 f"measuring with {way.name}")
            plans[way.name] = stack.enter_context(closing(planned(load(network), dense.device)))
            reports[way.name] = plans[way.name].profile(batch)
        times = {name: _step_times(report) for name, report in reports.items()}
        groups = tuple(_groups(times, sizes))
        grouped = {layer for group in groups for layer in group.layers}
        others = {name: sum(us for layers, us in steps if grouped.isdisjoint(layers))
                  for name, steps in times.items()}
        network_us = dict(zip(plans, _network_us(list(plans.values()), batch), strict=True))
        warnings = dict.fromkeys(line for report in reports.values() for line in report.warnings)
        advice = Advice(dense.device.name, dense.device.description, batch, groups, others,
                        network_us, absent, tuple(warnings))

        def measured(choice: Choice) -> float:
            """Return the speed-up of the network with the chosen zeros."""
            network = model()
            prune(network, None, choice.sparsities)
            note(f"measuring with zeros in {len(choice.sparsities)} layers")
            with closing(planned(load(network), dense.device)) as plan:
                before, after = _network_us([dense, plan], batch)
            return before / after

        return advice if speed_up is None else replace(
            advice, choice=_choice(advice, speed_up, keep, measured))


def _network_us(plans: Sequence[Plan], batch: int) -> list[float]:
    """Return microseconds of an execution of each plan; the plans are sampled in turn."""
    timings = interleave([plan.calls("be timed").first_context(batch).ready() for plan in plans],
                         repeats=20, sample_us=2e4, budget_us=1e7, isolated=True)
    return [timing.median_us for timing in timings]


def _choice(advice: Advice, speed_up: float, keep: Collection[str],
            measured: Callable[[Choice], float]) -> Choice:
    """Return the layers to prune for a speed-up, with the speed-up that was measured."""
    wanted = speed_up
    for _ in range(_ROUNDS):
        expected = cheapest(advice, wanted, keep)
        if not expected.sparsities:
            return expected
        found = measured(expected)
        choice = replace(expected, speed_up=found, reached=found >= (1 - SLACK) * speed_up)
        if choice.reached or not expected.reached:
            break
        wanted *= speed_up / found
    return choice


def _why_absent(layers: Sequence[PrunedLayer]) -> str:
    """Return why a way of pruning changed no layer; "" if at least one layer was pruned."""
    reasons = dict.fromkeys(layer.kept for layer in layers)
    return "" if "" in reasons else f"applies to no layer: {'; '.join(reasons)}"


def _step_times(report: Report) -> list[tuple[tuple[str, ...], float]]:
    """Return the layers and microseconds of each step."""
    return [(tuple(row["layers"]), row["median_us"] or 0.0) for row in report.rows]


def _groups(times: Mapping[str, Sequence[tuple[tuple[str, ...], float]]],
            sizes: Mapping[str, int]) -> Iterable[LayerGroup]:
    """Yield the smallest groups of layers for which no step computes layers of two groups.

    Groups without a layer that can be pruned are omitted.

    times: the layers and microseconds of each step, by the name of the way or AS_IT_IS.
    sizes: the number of weights of each layer that can be pruned.
    """
    group_of: dict[str, set[str]] = {}
    order: dict[str, None] = {}
    for steps in times.values():
        for layers, _ in steps:
            order.update(dict.fromkeys(layers))
            together = set(layers).union(*(group_of.get(layer, set()) for layer in layers))
            group_of.update(dict.fromkeys(together, together))
    seen: set[str] = set()
    for layer in order:
        group = group_of[layer]
        pruned = tuple(name for name in order if name in group and name in sizes)
        if layer in seen or not pruned:
            continue
        seen |= group
        yield LayerGroup(tuple(name for name in order if name in group), pruned,
                         sum(sizes[name] for name in pruned),
                         {name: sum(us for layers, us in steps if not group.isdisjoint(layers))
                          for name, steps in times.items()})


def cheapest(advice: Advice, speed_up: float, keep: Collection[str] = ()) -> Choice:
    """Return the layers to prune for a speed-up, and the expected speed-up.

    The pattern is "unstructured". If no choice of layers is expected to reach the speed-up, the
    choice that makes the network fastest is returned.

    Layers are chosen greedily by the time saved per new zero weight. If any
    single further change would reach the speed-up, the one with the fewest new zeros is made, and
    the search ends. The network's time is assumed to be proportional to the sum of its steps'
    times.

    keep: names of layers that stay unchanged.
    """
    total = advice.others_us[AS_IT_IS] + sum(group.us[AS_IT_IS] for group in advice.groups)
    groups = [group for group in advice.groups if not set(group.pruned).intersection(keep)]
    ways = [way for way in WAYS if way.pattern == "unstructured" and way.name in advice.network_us]
    taken: dict[LayerGroup, Way] = {}
    saved = 0.0

    def expected() -> float:
        return total / (total - saved)

    while expected() < speed_up:
        steps = list(_steps(groups, ways, taken))
        if not steps:
            break
        enough = [step for step in steps if total >= speed_up * (total - saved - step[0])]
        gain, _, group, way = (min(enough, key=lambda step: step[1]) if enough else
                               max(steps, key=lambda step: step[0] / step[1]))
        saved += gain
        taken[group] = way
    return Choice({layer: way.sparsity for group, way in taken.items() for layer in group.pruned},
                  expected(), expected() >= speed_up)


def _steps(groups: Sequence[LayerGroup], ways: list[Way],
           taken: dict[LayerGroup, Way]) -> Iterator[tuple[float, float, LayerGroup, Way]]:
    """Yield each change that adds zeros to a group and saves time.

    A change is a tuple: the microseconds saved, the number of new zeros, the group, and its new
    way.
    """
    for group in groups:
        now = taken.get(group)
        us = group.us[now.name if now else AS_IT_IS]
        for way in ways:
            more = way.sparsity - (now.sparsity if now else 0.0)
            if more > 0 and (gain := us - group.us[way.name]) > 0:
                yield gain, more * group.weights, group, way


def chart(advice: Advice, title: str) -> bytes:
    """Return a PNG chart of the network's speed against the share of zero weights.

    The speed is relative to the unchanged network, with a horizontal line at 1.
    """
    figure = new_figure(7.0, 4.5, 110)
    axis = figure.subplots()
    measured = [way for way in WAYS if way.name in advice.network_us]
    curve = [(0.0, 1.0), *((way.sparsity, advice.speed(way.name)) for way in measured
                           if way.pattern == "unstructured")]
    axis.plot([100 * sparsity for sparsity, _ in curve], [speed for _, speed in curve], marker="o",
              label="any weights")
    for way in measured:
        if way.pattern != "unstructured":
            axis.plot(100 * way.sparsity, advice.speed(way.name), marker="s", linestyle="none",
                      label=f"pattern {way.name}" if way.pattern == way.name else way.name)
    axis.axhline(1.0, linewidth=0.8, color="0.3")
    axis.annotate(f"{AS_IT_IS}: {duration_text(advice.network_us[AS_IT_IS])}", (0, 1.0),
                  xytext=(4, -12), textcoords="offset points", fontsize=8)
    axis.set_xlabel("zeros among the weights, %")
    axis.set_ylabel("times as fast")
    axis.set_ylim(bottom=0)
    axis.set_title(f"{title}, batch {advice.batch}, {advice.description}", fontsize=10)
    axis.legend(fontsize=8)
    axis.grid(linewidth=0.3)
    return as_png(figure)
