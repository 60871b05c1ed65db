"""Every rewrite keeps the results, where it finds its pattern and where one of its conditions does
not hold."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes import optimise as passes
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.graph_builder import CHANNELS, Builder
from tests.model.passes import patterns_of_channels, patterns_of_layers
from tests.model.passes.patterns import Pattern, graph_of, varied
from tests.tolerances import FLOAT32, normalised_error

FAMILIES = patterns_of_layers.FAMILIES | patterns_of_channels.FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_graphs_of_a_pattern(name: str) -> None:
    family = FAMILIES[name]
    for options in varied(family.options, family.drawn):
        graph = graph_of(family, options).build.finish()
        try:
            better = optimise(graph, **family.flags)
        except GossamerError as error:
            with pytest.raises(type(error)):
                resolve(graph, 2)
        else:
            keeps_results(graph, better, str(options))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pass_that_is_left_out_would_change_nothing(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    for options in islice(varied(family.options, family.drawn), 20):
        graph = graph_of(family, options).build.finish()
        every, kept = (_optimised(graph, family.flags, monkeypatch, all_passes)
                       for all_passes in (True, False))
        assert every == kept, str(options)


def _optimised(graph: Graph, flags: Mapping[str, bool], monkeypatch: pytest.MonkeyPatch,
               all_passes: bool) -> str:
    with monkeypatch.context() as patch:
        if all_passes:
            patch.setattr(passes, "_rewrite", lambda rewriting, *given, **options: bool(
                rewriting(*given, **options)))
        try:
            better = optimise(graph, **flags)
        except GossamerError as error:
            return str(error)
    return f"{better.nodes} {sorted(better.constants)}"


def keeps_results(graph: Graph, better: Graph, case: str) -> None:
    rng = np.random.default_rng(1)
    try:
        static = resolve(graph, 2)
    except GossamerError as error:
        with pytest.raises(type(error)):
            resolve(better, 2)
        return
    feeds = {info.name: rng.standard_normal(static.shapes[info.name]).astype(np.float32)
             for info in graph.inputs}
    with np.errstate(invalid="ignore"):
        try:
            expected = execute(static, feeds)
        except GossamerError:
            return  # no op computes a layer of these dtypes
        results = execute(resolve(better, 2), feeds)
    for info in graph.outputs:
        error = normalised_error(results[info.name], expected[info.name])
        assert error <= FLOAT32, f"{info.name} of {case}"


STEPS = ("conv", "depthwise", "norm", "relu", "sigmoid", "clip", "add", "mul", "channel", "scalar",
         "max", "average", "binarise", "sign", "identity", "zero_pad", "gate", "concat",
         "transposed")


def test_drawn_graphs() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        build, values = Pattern(), ["x"]
        for _ in range(int(rng.integers(2, 14))):
            x, y = map(str, rng.choice(values[-5:], 2))
            values.append(_random_step(build, str(rng.choice(STEPS)), x, y))
        for name in {values[-1], str(rng.choice(values[1:]))}:
            build.output(name)
        graph = build.build.finish()
        keeps_results(graph, optimise(graph), f"seed {seed}")


def _random_step(build: Builder, step: str, x: str, y: str) -> str:
    if step == "conv":
        return build.conv(x)
    if step == "depthwise":
        return build.conv(x, groups=CHANNELS, bias=False)
    if step == "norm":
        return build.norm(x)
    if step == "clip":
        return build.apply("clip", x, constants=(-1, 1))
    if step in ("add", "mul", "max"):
        return build.apply(step, x, y)
    if step == "channel":
        return build.apply("mul", build.constant(CHANNELS, 1, 1), x)
    if step == "scalar":
        return build.apply("sub", build.scalar(0.5, 1), x)
    if step == "average":
        return build.pool(x, kind="average")
    if step == "binarise":
        return build.binarise(x)
    if step == "identity":
        return build.add("identity", [x])
    if step == "zero_pad":
        padded = build.add("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="constant", value=0.0)
        return build.conv(padded, pad=0)
    if step == "gate":
        return build.apply("mul", x, build.apply("sigmoid", build.mean(y)))
    if step == "concat":
        return build.conv(build.add("concat", [x, y], axis=1), into=2 * CHANNELS, size=1)
    if step == "transposed":
        up = build.add("conv_transpose2d", [x, build.constant(CHANNELS, CHANNELS, 3, 3)],
                       strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), output_padding=(0, 0),
                       groups=1)
        return build.apply("add", up, build.constant(CHANNELS, 1, 1))
    return build.apply(step, x)
