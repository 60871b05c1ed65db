"""Graphs of one op, or of a few, with which the translations into PyTorch and JAX are tested."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph


def image(channels: int = 4, height: int = 7, width: int = 6) -> tuple[GraphBuilder, str]:
    """Returns a network under construction, and the name of its input."""
    build = GraphBuilder("image")
    return build, build.input("x", (None, channels, height, width))


def finished(build: GraphBuilder, y: str, *shape: int | None) -> Graph:
    build.output(y, (None, *shape))
    return build.finish()


def constant(build: GraphBuilder, name: str, *shape: int) -> str:
    """Returns the name of a constant, whose values are the same whichever tests run."""
    random = np.random.default_rng(list(name.encode()))
    return build.constant(name, random.uniform(-1, 1, shape).astype(np.float32))


CONVOLUTIONS = [
    (1, (1, 1), (0, 0, 0, 0), (1, 1)), (4, (2, 1), (1, 1, 1, 1), (1, 1)),
    (2, (1, 2), (2, 0, 1, 3), (2, 1)), (1, (1, 1), (1, 2, 1, 2), (1, 2)),
    (1, (1, 1), (1, 0, 1, 2), (1, 1)), (2, (1, 1), (0, 1, 2, 1), (1, 1))]
"""Groups, strides, pads and dilations of convolutions."""
POOLS = [
    ((3, 2), (2, 2), (0, 0, 0, 0), False, False), ((3, 2), (2, 2), (0, 0, 0, 0), True, False),
    ((3, 2), (2, 2), (1, 1, 1, 1), True, True), ((3, 2), (2, 2), (0, 1, 2, 1), False, True),
    ((3, 2), (2, 2), (1, 0, 0, 1), True, False), ((3, 2), (1, 1), (0, 0, 0, 0), False, True),
    ((3, 2), (1, 1), (1, 1, 1, 1), False, False), ((4, 3), (1, 3), (2, 1, 2, 1), False, False),
    ((4, 3), (3, 1), (2, 1, 2, 1), False, True), ((2, 3), (1, 2), (1, 1, 1, 1), False, True),
    ((1, 1), (1, 1), (0, 0, 0, 0), False, True), ((8, 7), (1, 1), (0, 0, 0, 0), False, True)]
"""Kernel, strides, pads, ceil_mode and count_include_pad of pools."""
REDUCTIONS = [
    ((2, 3), True, (4, 1, 1)), ((2, 3), False, (4,)), ((2,), False, (4, 6)), ((1,), False, (7, 6)),
    ((1, 3), True, (1, 7, 1))]
"""Axes, keepdims and the shape of the result without the batch."""
MOVES: dict[str, Callable[[GraphBuilder, str], str]] = {
    "flatten": lambda build, x: build.flatten(x),
    "reshape": lambda build, x: build.reshape(x, (0, 2, 2, 42)),
    "five axes": lambda build, x: build.reshape(
        build.apply("abs", build.reshape(x, (0, 2, 2, 7, 6))), (0, 2, 14, 6)),
    "transpose": lambda build, x: build.add("transpose", [x], permutation=(0, 3, 1, 2)),
    "expand": lambda build, x: build.add(
        "expand", [build.reduce(x, "max", (2,), keepdims=True)], shape=(1, 4, 7, 6)),
    "backwards": lambda build, x: build.add(
        "slice", [x], starts=(6, 1), ends=(-9, 5), axes=(2, 3), steps=(-1, 2)),
    "split": lambda build, x: build.concat([build.add(
        "split", [x], ["front", "back"], axis=2, sizes=(3, 4)), "back", "front"], 2),
    "pad": lambda build, x: build.add(
        "pad", [x], pads=(0, 1, 2, 0, 0, 0, -1, 3), mode="constant", value=0.25),
    "larger": lambda build, x: build.resize(x, (1, 1, 2, 3)),
    "other size": lambda build, x: build.resize(
        x, sizes=(2, 4, 5, 11), coordinates="half_pixel", nearest_mode="round_prefer_floor"),
    "softmax": lambda build, x: build.softmax(x, 1),
    "log softmax": lambda build, x: build.softmax(x, 3, log=True),
    "row": lambda build, x: build.apply("mul", x, constant(build, "row", 6)),
    "channels": lambda build, x: build.apply("add", x, constant(build, "channels", 4, 1, 1)),
    "one image": lambda build, x: build.apply("add", x, constant(build, "image", 1, 4, 7, 6)),
    "vector": lambda build, x: build.apply("add", x, build.reduce(x, "sum", (0, 1, 2),
                                                                  keepdims=False)),
}
"""Functions that add nodes to a graph, most of which only move numbers."""


def detector() -> Graph:
    """Returns a network from 4x8x8 to two heads, with a route of half of the channels, pooling and
    upsampling, as in YOLOv4-tiny."""
    random = np.random.default_rng(12)
    build = GraphBuilder("detector")

    def conv(x: str, channels: int, into: int, size: int) -> str:
        name = f"{channels}x{into}x{size}x{size}"
        weight = random.uniform(-1, 1, (channels, into, size, size)).astype(np.float32)
        return build.conv2d(x, build.constant(name, weight), pads=(size // 2,) * 4)

    y = build.apply("leaky_relu", conv(build.input("x", (None, 4, 8, 8)), 8, 4, 3),
                    constants=(0.1,))
    half = build.add("slice", [y], starts=(4,), ends=(8,), axes=(1,), steps=(1,))
    low = conv(build.pool(build.concat([y, half]), "max", (2, 2), strides=(2, 2)), 6, 12, 1)
    high = conv(build.concat([build.resize(low, (1, 1, 2, 2)), y]), 5, 14, 1)
    build.output(high, (None, 5, 8, 8))
    build.output(low, (None, 6, 4, 4))
    return build.finish()
