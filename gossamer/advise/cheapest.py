"""Chooses the layers to prune for a wanted speed-up with few zeros. The choice is greedy, and does
not always have the fewest zeros."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gossamer.advise.advice import AS_IT_IS, WAYS, Advice, LayerGroup, Way


@dataclass(frozen=True)
class Choice:
    """The sparsities of layers, and the speed-up that the network is expected to get from them.

    sparsities: the share of zeros by the name of a layer; all other layers stay as they are.
    speed_up: how many times as fast the network is expected to be.
    reached: whether speed_up is at least the speed-up that was asked for; if not, speed_up is the
    largest possible speed-up.
    """

    sparsities: dict[str, float]
    speed_up: float
    reached: bool


def cheapest(advice: Advice, speed_up: float, keep: Collection[str] = ()) -> Choice:
    """Returns the layers to prune for a speed-up, with the pattern "unstructured".

    keep: names of layers that stay as they are.

    The layers are chosen one after another. The next layer is the one that saves the most time per
    weight that becomes zero. Where pruning one more layer can reach the speed-up, the layer that
    reaches it with the fewest zeros is the last. The time of the network is expected to fall in the
    same ratio as the sum of its steps' times.
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
    """Yields each change that gives one group more zeros and saves time. A change is given by the
    microseconds saved, the number of further zeros, the group and its new way."""
    for group in groups:
        now = taken.get(group)
        us = group.us[now.name if now else AS_IT_IS]
        for way in ways:
            more = way.sparsity - (now.sparsity if now else 0.0)
            if more > 0 and (gain := us - group.us[way.name]) > 0:
                yield gain, more * group.weights, group, way
