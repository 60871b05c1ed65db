"""Choices of channels move into the weights of convolutions of single pixels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.model.graph_builder import CHANNELS, Builder, check


def chosen(build: Builder, x: str, *indices: int, axis: int = 1) -> str:
    order = build.build.constant(f"c{len(build.graph.constants)}", np.array(indices, np.int64))
    return build.add("gather", [x, order], axis=axis)


@pytest.mark.parametrize(("indices", "axis"), [((3, 1), 1), ((0, -1, 0), -3), ((2, 3, 0, 1), 1)])
def test_weights_choose(indices: tuple[int, ...], axis: int) -> None:
    build = Builder()
    part = chosen(build, build.pool("x"), *indices, axis=axis)
    build.conv(part, "y", into=len(indices), size=1)
    (_, layer) = check(build, ["pool", "conv2d"], chooses_by_weights=True)
    assert layer.inputs[0] == build.graph.nodes[0].outputs[0]


def test_all_readers_choose() -> None:
    build = Builder()
    part = chosen(build, build.pool("x"), 2, 1)
    left = build.conv(part, into=2, size=1)
    build.apply("add", build.pool(left), build.pool(build.conv(part, into=2, size=1)), output="y")
    nodes = check(build, chooses_by_weights=True)
    assert "gather" not in [node.op for node in nodes]


def test_batch_norms_fold_into_the_new_weights() -> None:
    build = Builder()
    layer = build.conv(chosen(build, build.pool("x"), 1, 3), into=2, size=1, bias=False)
    build.norm(layer, "y")
    check(build, ["pool", "conv2d"], chooses_by_weights=True)


@pytest.mark.parametrize("case", ["few", "window", "groups", "other axis", "pool", "output",
                                  "signs", "off"])
def test_other_gathers_stay(case: str) -> None:
    build = Builder(("y", "z") if case == "output" else ("y",))
    indices = {"few": (1,), "other axis": (3, 1, 0, 2, 4)}.get(case, (3, 1))
    part = chosen(build, build.pool("x"), *indices, axis=2 if case == "other axis" else 1)
    if case == "output":
        build.graph.nodes[-1].outputs[0] = part = "z"
    if case == "pool":
        build.apply("add", build.pool(part), build.conv(part, into=2, out=2, size=1), output="y")
    else:
        into = CHANNELS if case == "other axis" else len(indices)
        build.conv(part, "y", into=into, size=3 if case == "window" else 1,
                   groups=2 if case == "groups" else 1)
    if case == "signs":
        name = build.graph.nodes[-1].inputs[1]
        build.graph.constants[name] = np.sign(build.graph.constants[name]).astype(np.float32)
    nodes = check(build, chooses_by_weights=case != "off")
    assert "gather" in [node.op for node in nodes]
