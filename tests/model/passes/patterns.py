"""Graphs in which a rewrite finds its pattern or does not find it, as options say.

Each function here appends layers to a graph and makes its output "y". The first value of each
option is the one with which the rewrite finds its pattern.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gossamer.model.graph import ValueInfo
from tests.model.graph_builder import CHANNELS, SIZE, Builder

Options = dict[str, Any]
READERS = ("alone", "output", "second")
"""A value is also read by no other node, by the network's caller, or by another node."""


class Pattern(Builder):
    """A graph whose constants are multiples of 1/8, so that sums of them are not rounded."""

    def __init__(self) -> None:
        super().__init__(())

    def constant(self, *shape: int, positive: bool = False) -> str:
        array = self.random.integers(-16, 17, shape) / 8
        return self.numbers(np.abs(array) + 0.5 if positive else array)

    def numbers(self, array: Any) -> str:
        return self.build.constant(f"c{len(self.graph.constants)}", np.asarray(array))

    def output(self, name: str) -> None:
        self.build.output(name, ())

    def also_read(self, name: str, how: str) -> None:
        """Adds another reader of a value, as READERS has them."""
        if how == "output":
            self.output(name)
        elif how == "second":
            self.output(self.apply("neg", name))

    def then(self, name: str, how: str) -> str:
        """Appends what follows a value: nodes before a sign, or a sign at once, or none."""
        if how == "none":
            return name
        if how == "reshape":
            name = self.add("reshape", [name], shape=(0, -1))
        elif how == "pool":
            name = self.pool(name)
        elif how == "conv":
            name = self.conv(name)
        elif how in ("relu", "exp", "round", "floor"):
            return self.apply(how, name)
        return self.apply("sign", name)


Make = Callable[[Pattern, Options], None]


@dataclass(frozen=True)
class Family:
    """Graphs around one pattern: a function that makes them, its options, and how many graphs are
    drawn that differ from the first one in several options."""

    make: Make
    options: dict[str, Sequence[Any]]
    drawn: int = 12
    flags: dict[str, bool] = field(default_factory=dict)


def weights(build: Pattern, kind: str, *shape: int) -> str:
    """Adds weights (M, ...): any, signs, signs times one number a row, one row of zeros, small or
    large signs, or integers."""
    signs = np.where(build.random.integers(0, 2, shape), 1.0, -1.0)
    rows = (np.arange(shape[0]) + 1).reshape(-1, *[1] * (len(shape) - 1)) / 8
    if kind == "any":
        return build.constant(*shape)
    if kind == "zero row":
        return build.numbers(signs * rows * (rows != rows.flat[-1]) * 1.5 + (
            rows != rows.flat[-1]) * build.random.integers(-8, 9, shape) / 8)
    factor = {"signs": 1.0, "scaled signs": rows, "one differs": np.where(
        np.arange(signs.size).reshape(shape) == signs.size - 1, 0.75, 1.0),
        "tiny signs": np.float32(1e-38), "huge signs": np.float32(3e38), "integers": 3 * signs,
        "one is zero": np.arange(signs.size).reshape(shape) != signs.size - 1,
        "zeros": 0.0, "infinite": np.inf}[kind]
    return build.numbers(signs * factor)


def layer_of(build: Pattern, kind: str, x: str, weight: str = "any", bias: bool = True,
             **names: Any) -> str:
    """Appends a layer of 4 channels to an image (N, 4, 5, 5) or its flattened form."""
    if kind in ("relu", "pool"):
        return build.apply("relu", x) if kind == "relu" else build.pool(x)
    groups = {"groups": 2, "depthwise": CHANNELS, "transpose groups": 2}.get(kind, 1)
    if kind.startswith("transpose"):
        inputs = [x, weights(build, weight, CHANNELS, CHANNELS // groups, 3, 3)]
        inputs += [build.constant(CHANNELS)] if bias else []
        return build.add("conv_transpose2d", inputs, strides=(1, 1), pads=(1,) * 4,
                         dilations=(1, 1), output_padding=(0, 0), groups=groups)
    if kind.startswith("gemm"):
        rank = 3 if "rank 3" in kind else 2
        depth = SIZE * SIZE if "square" in kind else SIZE if rank == 3 else CHANNELS * SIZE**2
        rows = CHANNELS
        x = build.add("reshape", [x], shape=(0, -1, depth) if rank == 3 else (0, -1))
        name = weights(build, weight, rows, depth)
        if "plain" in kind:
            build.graph.constants[name] = np.ascontiguousarray(build.graph.constants[name].T)
        return build.build.gemm(x, name, build.constant(rows) if bias else "",
                                trans_b="plain" not in kind, **build._names(""))
    name = weights(build, weight, CHANNELS, CHANNELS // groups, 3, 3)
    return build.build.conv2d(x, name, build.constant(CHANNELS) if bias else "", pads=(1,) * 4,
                              groups=groups, **build._names(""), **names)


LAYERS = ("conv", "groups", "depthwise", "transpose", "transpose groups", "gemm", "gemm plain",
          "gemm rank 3", "gemm plain rank 3", "gemm rank 3 square", "relu", "pool")


def graph_of(family: Family, options: Options) -> Pattern:
    build = Pattern()
    family.make(build, options)
    outputs = build.graph.outputs
    build.graph.outputs = [ValueInfo(name, ()) for name in dict.fromkeys(
        info.name for info in outputs)]
    return build


def varied(options: Mapping[str, Sequence[Any]], drawn: int) -> Iterator[Options]:
    """Yields the first value of every option, each other value alone, and `drawn` times other
    values of two options: each condition of a rewrite is met and is not met."""
    first = {name: values[0] for name, values in options.items()}
    yield first
    for name, values in options.items():
        yield from (first | {name: value} for value in values[1:])
    rng = random.Random(0)
    several = [name for name, values in options.items() if len(values) > 1]
    for _ in range(drawn):
        yield first | {name: rng.choice(options[name][1:])
                       for name in sorted(rng.sample(several, min(2, len(several))))}
