"""Rewrites of random graphs keep the results, and a pass is left out only where it would change
nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes import optimise as passes
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.graph_builder import CHANNELS, SIZE, Builder
from tests.tolerances import FLOAT32, normalised_error

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def moved(build: Builder, x: str, *moves: tuple[int, ...]) -> str:
    """Adds a transposition for each permutation, and a reshape for each shape, which ends with the
    image's."""
    for move in moves:
        is_order = sorted(move) == list(range(len(move)))
        x = build.add("transpose", [x], permutation=move) if is_order else build.add(
            "reshape", [x], shape=move)
    return x


def product(build: Builder, x: str, rows: int = CHANNELS, columns: int = CHANNELS) -> str:
    return build.add("matmul", [x, build.constant(rows, columns)])


def gate(build: Builder, x: str, y: str) -> str:
    """Multiplies an image by numbers that products compute from the means of another."""
    mean = build.add("reduce", [y], kind="mean", axes=(2, 3), keepdims=False)
    hidden = product(build, build.apply("relu", product(build, mean, columns=3)), 3)
    return build.apply("mul", x, build.apply("sigmoid", moved(build, hidden, (0, CHANNELS, 1, 1))))


def of_signs(build: Builder, x: str, y: str) -> str:
    """Adds a convolution of scaled signs by others, of which some filters may be zero."""
    result = build.conv(build.apply("mul", build.binarise(x), build.scalar(0.5)))
    name = build.graph.nodes[-1].inputs[1]
    build.graph.constants[name] = np.sign(build.graph.constants[name]).astype(np.float32)
    build.graph.constants[name][:build.random.integers(CHANNELS)] *= build.random.integers(2)
    return result


def parts(build: Builder, x: str, y: str) -> str:
    build.add("split", [x], axis=1, sizes=(1, 3))
    left = build.graph.nodes[-1].outputs[0]
    build.graph.nodes[-1].outputs.append(f"{left}.right")
    return build.add("concat", [f"{left}.right", left], axis=1)


def expanded(build: Builder, x: str, y: str) -> str:
    shape = build.add("shape", [y], start=0, end=None)
    return build.apply("add", x, build.add("expand", [build.constant(CHANNELS, 1, 1), shape]))


def transposed_conv(build: Builder, x: str, y: str) -> str:
    up = build.add("conv_transpose2d", [x, build.constant(CHANNELS, CHANNELS, 3, 3)],
                   strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), output_padding=(0, 0),
                   groups=1)
    return build.apply("add", up, build.constant(CHANNELS, 1, 1))


IMAGE, ROWS = (0, CHANNELS, SIZE, SIZE), (0, CHANNELS, SIZE * SIZE)
STEPS: dict[str, Callable[[Builder, str, str], str]] = {
    **{name: lambda b, x, y, name=name: b.apply(name, x) for name in ("relu", "sigmoid", "sign")},
    **{name: lambda b, x, y, name=name: b.apply(name, x, y) for name in ("add", "mul", "max")},
    "conv": lambda b, x, y: b.conv(x),
    "depthwise": lambda b, x, y: b.conv(x, groups=CHANNELS, bias=False),
    "branches": lambda b, x, y: b.apply("sub", b.norm(b.conv(x)), b.conv(x, size=1)),
    "signs": of_signs, "transposed": transposed_conv, "norm": lambda b, x, y: b.norm(x),
    "clip": lambda b, x, y: b.apply("clip", x, constants=(-1, 1)),
    "channel": lambda b, x, y: b.apply("mul", b.constant(CHANNELS, 1, 1), x),
    "scalar": lambda b, x, y: b.apply("sub", b.scalar(0.5, 1), x),
    "average": lambda b, x, y: b.pool(x, kind="average"),
    "binarise": lambda b, x, y: b.binarise(x),
    "estimator": lambda b, x, y: b.apply("add", b.apply("sub", b.binarise(x), y), y),
    "identity": lambda b, x, y: b.add("identity", [x]),
    "cast": lambda b, x, y: b.add("cast", [x], dtype="float32"),
    "expanded": expanded,
    "zero_pad": lambda b, x, y: b.conv(b.add("pad", [x], pads=(0, 0, 1, 1, 0, 0, 1, 1),
                                             mode="constant", value=0.0), pad=0),
    "gate": gate, "means": lambda b, x, y: b.apply("mul", x, b.apply("sigmoid", b.mean(y))),
    "concat": lambda b, x, y: b.conv(b.add("concat", [x, y], axis=1), into=2 * CHANNELS, size=1),
    "joined": lambda b, x, y: b.conv(b.apply("relu", b.add(
        "concat", [b.conv(x, out=2, size=int(b.random.choice([1, 3]))) for _ in range(2)],
        axis=1))),
    "parts": parts,
    "gather": lambda b, x, y: b.conv(b.add("gather", [x, b.build.constant(
        f"c{len(b.graph.constants)}", np.array([2, -1, 0]))], axis=1), into=3, size=1),
    "shuffle": lambda b, x, y: moved(b, x, (0, 2, 2, SIZE, SIZE), (0, 2, 1, 3, 4), IMAGE),
    "last": lambda b, x, y: moved(b, product(b, moved(b, x, LAST)), FIRST),
    "tokens": lambda b, x, y: moved(b, b.apply("exp", b.apply("clip", moved(
        b, x, ROWS, (0, 2, 1)), constants=(-1, 1))), (0, 2, 1), IMAGE),
    "rows": lambda b, x, y: b.apply("relu", moved(b, product(b, moved(
        b, x, (0, CHANNELS * SIZE, SIZE)), SIZE, SIZE), IMAGE)),
    "keys": lambda b, x, y: b.add("matmul", [x, b.apply("mul", moved(
        b, y, (0, 1, 3, 2)), b.scalar(0.35))]),
}
"""Functions that append nodes which make an image of two images."""


def drawn(seed: int) -> tuple[Graph, dict[str, bool]]:
    """Returns a random graph with two outputs at most, and flags for its rewrites."""
    rng, build, values = np.random.default_rng(seed), Builder(()), ["x"]
    for _ in range(int(rng.integers(2, 14))):
        x, y = map(str, rng.choice(values[-5:], 2))
        values.append(STEPS[str(rng.choice(list(STEPS)))](build, x, y))
    for name in {values[-1], str(rng.choice(values[1:]))}:
        build.build.output(name, ())
    return build.build.finish(), {"channels_first": bool(seed % 2),
                                  "for_gpu": bool(seed // 2 % 2)}


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_results_of_random_graphs_stay(seed: int) -> None:
    for number in range(seed, seed + 20):
        graph, flags = drawn(number)
        static = resolve(graph, 2)
        x = np.random.default_rng(1).standard_normal(static.shapes["x"]).astype(np.float32)
        expected = execute(static, {"x": x})
        results = execute(resolve(optimise(graph, **flags), 2), {"x": x})
        for info in graph.outputs:
            error = normalised_error(results[info.name], expected[info.name])
            assert error <= FLOAT32, f"{info.name} of seed {number}"


def test_a_pass_that_is_left_out_would_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        graph, flags = drawn(seed)
        kept = optimise(graph, **flags)
        with monkeypatch.context() as patch:
            patch.setattr(passes, "_rewrite", lambda rewriting, *given, **options: bool(
                rewriting(*given, **options)))
            every = optimise(graph, **flags)
        assert every.nodes == kept.nodes and every.constants.keys() == kept.constants.keys(), seed
