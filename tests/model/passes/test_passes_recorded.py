"""Graphs are rewritten as it was recorded, where a rewrite finds its pattern and where one of its
conditions does not hold; and every rewrite keeps the results."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.graph_text import graph_text
from tests.model.passes import (
    patterns_of_channels,
    patterns_of_images,
    patterns_of_layers,
    patterns_of_values,
)
from tests.model.passes.patterns import graph_of
from tests.recorded import Recorded
from tests.recorded.varied import varied
from tests.tolerances import FLOAT32, normalised_error

FAMILIES = (patterns_of_layers.FAMILIES | patterns_of_values.FAMILIES
            | patterns_of_channels.FAMILIES | patterns_of_images.FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_rewrites(name: str, recorded: Recorded) -> None:
    family = FAMILIES[name]
    texts: dict[str, str] = {}
    for case, options in varied(family.options, family.drawn):
        graph = graph_of(family, options).build.finish()
        try:
            better = optimise(graph, **family.flags)
        except GossamerError as error:
            texts[case] = f"{type(error).__name__}, {error}"
            continue
        # of graphs that become the same, only the first one is shown
        texts[case] = graph_text(better)
        keeps_results(graph, better)
    first: dict[str, str] = {}
    for case, text in texts.items():
        if (same := first.setdefault(text, case)) != case:
            texts[case] = f"as {same}"
    recorded(f"passes_{name.replace(' ', '_')}", texts)


def keeps_results(graph: Graph, better: Graph) -> None:
    rng = np.random.default_rng(1)
    try:
        static = resolve(graph, 2)
    except GossamerError as error:
        refused = error
    else:
        feeds = {info.name: rng.standard_normal(static.shapes[info.name]).astype(np.float32)
                 for info in graph.inputs}
        try:
            with np.errstate(invalid="ignore"):
                expected = execute(static, feeds)
        except GossamerError:
            return  # no op computes a layer of these dtypes
        with np.errstate(invalid="ignore"):
            results = execute(resolve(better, 2), feeds)
        for info in graph.outputs:
            assert normalised_error(results[info.name], expected[info.name]) <= FLOAT32
        return
    with pytest.raises(type(refused)):
        resolve(better, 2)
