"""Drawn graphs of nodes that are removed, merged and joined become what was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.model.choose_outputs import with_outputs
from gossamer.model.passes.optimise import optimise
from tests.model.graph_builder import CHANNELS
from tests.model.graph_text import graph_text
from tests.model.passes.patterns import Pattern
from tests.model.passes.test_optimise import STEPS, _random_step
from tests.model.passes.test_passes_recorded import keeps_results
from tests.recorded import Recorded, digest

KINDS = {
    "identities": ("identity", "identity", "identity", "relu", "neg", "add"),
    "equal nodes": ("relu", "neg", "pool", "split", "scaled", "join", "add", "identity"),
    "concatenations": ("join", "join", "split", "parts", "relu", "neg"),
    "chains": ("relu", "neg", "add", "mul", "mean", "channel", "round", "conv", "scalar"),
    "layers": STEPS,
}


def step(build: Pattern, rng: np.random.Generator, kind: str, values: dict[str, int]) -> None:
    """Appends a node that reads drawn values. values: the number of channels of each value."""
    names = list(values)
    x, y = (str(rng.choice(names[-6:])) for _ in range(2))
    if kind in ("relu", "neg", "round"):
        values[build.apply(kind, x)] = values[x]
    elif kind == "identity":
        values[build.add("identity", [x])] = values[x]
    elif kind in ("add", "mul") and values[x] == values[y]:
        values[build.apply(kind, x, y)] = values[x]
    elif kind == "pool":
        values[build.pool(x, kind=str(rng.choice(["max", "average"])))] = values[x]
    elif kind == "scaled":
        number = build.scalar(float(rng.integers(1, 3)), 1)
        values[build.apply("mul", x, number)] = values[x]
    elif kind == "mean":
        values[build.apply("mul", x, build.mean(x))] = values[x]
    elif kind == "channel":
        values[build.apply("add", x, build.constant(values[x], 1, 1))] = values[x]
    elif kind == "scalar":
        values[build.apply("max", build.scalar(0.5), x)] = values[x]
    elif kind == "conv":
        values[build.conv(x, into=values[x])] = CHANNELS
    elif kind == "split" and values[x] % 2 == 0:
        first = build.add("split", [x], axis=1, sizes=None)
        second = "" if rng.random() < 0.2 else f"{first}.b"
        build.graph.nodes[-1].outputs = [first, second]
        values[first] = values[x] // 2
        if second:
            values[second] = values[x] // 2
    elif kind == "parts":
        begin = int(rng.integers(0, len(names)))
        parts = names[begin:begin + int(rng.integers(1, 5))]
        values[build.add("concat", parts, axis=1)] = sum(values[part] for part in parts)
    elif kind == "join":
        parts = [str(name) for name in rng.choice(names[-5:], int(rng.integers(1, 4)))]
        values[build.add("concat", parts, axis=1)] = sum(values[part] for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_graphs(kind: str, recorded: Recorded) -> None:
    texts = {}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        build = Pattern()
        values = {"x": CHANNELS}
        for _ in range(int(rng.integers(2, 14))):
            drawn = str(rng.choice(KINDS[kind]))
            if kind == "layers":
                x, y = (str(rng.choice(list(values)[-5:])) for _ in range(2))
                values[_random_step(build, drawn, x, y)] = CHANNELS
            else:
                step(build, rng, drawn, values)
        made = list(values)[1:]
        if not made:
            continue
        outputs = [made[-1], *rng.choice(made, int(rng.integers(0, 3)))]
        for name in dict.fromkeys(map(str, outputs)):
            build.output(name)
        graph = build.build.finish()
        better = optimise(graph)
        keeps_results(graph, better)
        text = graph_text(better)
        if kind == "layers":
            # the nodes are enough to see what was fused; a long text would hide that
            ops = " ".join(node.op for node in better.nodes)
            text = f"{ops} {digest(text)}"
        one = graph_text(with_outputs(better, [better.outputs[-1].name]))
        texts[str(seed)] = f"{text}; last output alone {digest(one)}"
    recorded(f"graphs_{kind.replace(' ', '_')}", texts)
