"""Channels are padded to a multiple of eight, and the results stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.passes.optimise import optimise
from tests.model.executor import execute
from tests.model.graph_builder import SIZE, Builder
from tests.tolerances import FLOAT32, normalised_error

IMAGES = 4
"""Number of channels of the input."""


def squeeze_excite(build: Builder, x: str, channels: int) -> str:
    squeezed = build.apply("relu", build.conv(build.mean(x), into=channels, out=20, size=1))
    return build.apply("mul", x, build.apply(
        "sigmoid", build.conv(squeezed, into=20, out=channels, size=1)))


def channel_gate(build: Builder, means: str, channels: int) -> str:
    """The gate of ECA-Net: a convolution along the channels."""
    row = build.add("reshape", [means], shape=(0, 1, 1, channels))
    row = build.build.conv2d(row, build.constant(1, 1, 1, 3), "", pads=(0, 1, 0, 1),
                             **build._names(""))
    return build.apply("sigmoid", build.add("reshape", [row], shape=(0, channels, 1, 1)))


def product_excite(build: Builder, x: str, channels: int) -> str:
    """Squeeze and excite with matrix products."""
    mean = build.add("reduce", [x], kind="mean", axes=(2, 3), keepdims=False)
    squeezed = build.apply("relu", build.add("matmul", [mean, build.constant(channels, 24)]))
    gate = build.apply("sigmoid", build.add("matmul", [squeezed, build.constant(24, channels)]))
    return build.apply("mul", x, build.add("reshape", [gate], shape=(0, channels, 1, 1)))


LAYERS: dict[str, Callable[[Builder, str, int], str]] = {
    "relu": lambda b, x, c: b.apply("relu", x),
    "shifted": lambda b, x, c: b.apply("add", b.constant(c, 1, 1), x),
    "depthwise": lambda b, x, c: b.conv(x, into=c, out=c, groups=c),
    "pool": lambda b, x, c: b.pool(x), "average": lambda b, x, c: b.pool(x, kind="average"),
    "residual": lambda b, x, c: b.apply("relu", b.apply("add", x, b.conv(x, into=c, out=c))),
    "squeeze_excite": squeeze_excite,
    "along": lambda b, x, c: b.apply("mul", x, channel_gate(b, b.mean(x), c)),
    "product_excite": product_excite}
OTHERS: dict[str, Callable[[Builder, str, int], str]] = {
    "joined": lambda b, x, c: b.add("concat", [x, x], axis=2),
    "reciprocal": lambda b, x, c: b.apply("div", b.scalar(1.0), b.apply(
        "add", b.apply("abs", x), b.constant(c, 1, 1, positive=True))),
    "average of ones": lambda b, x, c: b.pool(b.apply("exp", b.apply("tanh", x)), kind="average"),
    "signs": lambda b, x, c: b.binarise(x),
    "one mask": lambda b, x, c: b.apply("mul", x, b.apply("sigmoid", b.conv(x, into=c, out=1)))}
"""Layers before and behind which images keep their channels."""


def padded(build: Builder) -> Graph:
    """Returns the padded graph, after asserting that its results are the same and finite."""
    graph = build.build.finish()
    better = optimise(graph, pads_channels=True)
    for batch in (0, 2):
        feeds = {"x": build.random.standard_normal((batch, IMAGES, SIZE, SIZE)).astype(np.float32)}
        expected, found = (execute(resolve(each, batch), feeds)["y"] for each in (graph, better))
        assert np.isfinite(expected).all() and normalised_error(found, expected) <= FLOAT32
    return better


def widths(layers: Sequence[Callable[[Builder, str, int], str]], channels: int) -> list[int]:
    """Returns the number of channels that each 3x3 convolution of the padded graph reads."""
    build = Builder()
    x = build.apply("relu", build.conv("x", into=IMAGES, out=channels))
    for layer in layers:
        x = layer(build, x, channels)
    build.conv(x, into=channels, out=5, output="y")
    better = padded(build)
    weights = [better.constants[node.inputs[1]] for node in better.nodes if node.op == "conv2d"]
    return [weight.shape[1] for weight in weights[1:] if weight.shape[1:3] > (1, 1)]


@pytest.mark.parametrize("seed", range(40))
def test_layers_that_keep_channels_lie_between(seed: int) -> None:
    random = np.random.default_rng(seed)
    channels = int(random.choice([*range(33, 70), 17, 18, 19, 22, 31]))
    layers = [LAYERS[name] for name in random.choice(list(LAYERS), random.integers(5))]
    assert widths(layers, channels)[-1] == -(-channels // 8) * 8


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("channels", (19, 32))
def test_other_layers_lie_between(name: str, channels: int) -> None:
    assert widths([LAYERS["residual"], OTHERS[name]], channels)[-1] == channels


def test_numbers_of_means_that_are_read_elsewhere_count() -> None:
    build = Builder()
    x = build.apply("relu", build.conv("x", into=IMAGES, out=19))
    mean = build.apply("cos", build.mean(x))
    gate = channel_gate(build, mean, 19)
    rest = build.apply("add", build.apply("sub", build.scalar(1.0), mean), build.constant(
        19, 1, 1, positive=True))
    build.conv(build.apply("mul", build.apply("div", x, rest), gate), into=19, out=5, output="y")
    padded(build)


@pytest.mark.parametrize("reshape", [
    ("reshape", {"shape": (0, 19)}), ("flatten", {"axis": 1}), ("squeeze", {"axes": (2, 3)})])
def test_a_classifier_reads_padded_means(reshape: tuple[str, dict[str, object]]) -> None:
    build, (op, attributes) = Builder(), reshape
    x = build.apply("relu", build.conv("x", into=IMAGES, out=19))
    build.add("matmul", [build.add(op, [build.mean(x)], **attributes), build.constant(19, 5)], "y")
    better = padded(build)
    assert [node.op for node in better.nodes] == ["conv2d", "reduce", "flatten", "gemm"]
    assert "channels of 3 values are padded" in better.notes[0]
    assert better.constants[better.nodes[-1].inputs[1]].shape == (24, 5)


@pytest.mark.parametrize("channels", [13, 20, 28])
def test_few_channels_stay(channels: int) -> None:
    assert widths([LAYERS["residual"]], channels)[-1] == channels
