"""Depthwise convolutions one after another become one, and the results stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gossamer.model.graph import Node
from tests.model.graph_builder import CHANNELS, Builder, check


def depthwise(build: Builder, x: str, kernel: Sequence[int], pads: Sequence[int],
              strides: Sequence[int] = (1, 1), bias: bool = True) -> str:
    return build.build.conv2d(x, build.constant(CHANNELS, 1, *kernel),
                              build.constant(CHANNELS) if bias else "", pads=(*pads, *pads),
                              strides=tuple(strides), groups=CHANNELS, **build._names(""))


def resized(build: Builder, x: str, output: str = "y") -> str:
    return build.add("resize", [x], output, sizes=None, scales=(2.0, 2.0), axes=(2, 3),
                     mode="nearest", coordinates="asymmetric", nearest_mode="floor")


def merged(build: Builder) -> list[Node]:
    return check(build, for_gpu=True)


@pytest.mark.parametrize("seed", range(60))
def test_random_pairs(seed: int) -> None:
    random, build = np.random.default_rng(seed), Builder()
    kernels = random.choice([1, 1, 2, 3], (2, 2))
    pads = random.integers(3, size=(2, 2)) * random.integers(2, size=(2, 2))
    strides = random.integers(1, 3, size=2)
    biases = random.integers(2, size=2)
    x = depthwise(build, build.apply("relu", "x"), kernels[0], pads[0], bias=bool(biases[0]))
    x = depthwise(build, x, kernels[1], pads[1], strides, bool(biases[1]))
    ends_in_resize = bool(random.integers(2))
    x = build.apply("sigmoid", x, output="" if ends_in_resize else "y")
    if ends_in_resize:
        resized(build, x)
    nodes = merged(build)
    fits = all(not pads[1][axis] or (kernels[0][axis] == 1 and not pads[0][axis])
               for axis in range(2))
    count = sum(node.op == "conv2d" for node in nodes)
    if not fits:
        assert count == 2
    elif ends_in_resize or not biases[0] or not pads[1].any():
        assert count == 1


def test_large_windows_stay() -> None:
    build = Builder()
    x = depthwise(build, build.apply("relu", "x"), (5, 5), (2, 2))
    build.apply("relu", depthwise(build, x, (3, 3), (0, 0)), output="y")
    assert sum(node.op == "conv2d" for node in merged(build)) == 2


def test_results_that_are_read_elsewhere_stay() -> None:
    build = Builder(("y", "z"))
    x = depthwise(build, build.apply("relu", "x"), (1, 3), (0, 1))
    build.apply("neg", x, output="z")
    build.apply("relu", depthwise(build, x, (3, 1), (1, 0), bias=False), output="y")
    assert sum(node.op == "conv2d" for node in merged(build)) == 2
