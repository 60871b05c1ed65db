"""Tests plans whose neighbouring steps are one call of generated code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer
from gossamer.device.host import HostDevice
from gossamer.device.jobs import Job
from gossamer.device.native.threads import Jobs
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.ops.conv2d.host_direct.algorithm import HostDirect
from gossamer.ops.pool.host_direct import HostDirectPool
from gossamer.plan.run import prepared_steps
from tests.plan.small import assert_close

pytest.importorskip("llvmlite")
HOST = HostDevice()


def pruned(builder: GraphBuilder, x: str, name: str, channels: int, *, kernel: int = 3,
           seed: int = 0) -> str:
    """Appends a convolution of which 70% of the weights are zero."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((8, channels, kernel, kernel)).astype(np.float32)
    weight[rng.random(weight.shape) < 0.7] = 0
    return builder.conv2d(x, builder.constant(f"{name}.w", weight),
                          pads=(kernel // 2,) * 4, name=name)


def by_generated_code(graph: Graph, threads: int) -> gossamer.Plan:
    """Returns a plan whose convolutions and maxima are generated code."""
    layers = gossamer.compile(graph, "host").layers(1)
    return gossamer.compile(graph, "host", threads=threads, force={
        layer.name: "host_direct" for layer in layers for algorithm in (HostDirect, HostDirectPool)
        if algorithm.op == layer.op and algorithm().supports(layer.problem, HOST) is None})


@pytest.mark.parametrize("threads", [1, 2])
def test_images_are_computed_one_after_another(threads: int,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[list[int]] = []

    def recorded(jobs: Sequence[Job], threads: int) -> Jobs:
        joined.append([job.function.address for job in jobs])
        return Jobs(jobs, threads)

    monkeypatch.setattr(prepared_steps, "Jobs", recorded)
    builder = GraphBuilder("net")
    x = builder.input("x", (None, 3, 12, 21))
    y = builder.apply("relu", pruned(builder, x, "conv", 3))
    y = builder.pool(y, "max", (3, 3), strides=(2, 2), name="pool")
    builder.output(builder.pool(y, "max", (2, 2), name="last"), (None, None, None, None))
    plan = by_generated_code(builder.finish(), threads)
    plan(np.zeros((2, 3, 12, 21), np.float32))
    (functions,) = joined
    assert functions[:3] == functions[3:] and len(set(functions[:3])) == 3


@given(data=st.data(), batch=st.integers(1, 5), threads=st.sampled_from([1, 2]))
@settings(max_examples=40)
def test_any_network(data: st.DataObject, batch: int, threads: int) -> None:
    """Each layer reads values of any earlier layers; some layers are no generated code."""
    size = data.draw(st.sampled_from([(5, 7), (9, 9), (6, 17)]))
    builder = GraphBuilder("net")
    values = [pruned(builder, builder.input("x", (None, 8, *size)), "first", 8)]
    for number in range(data.draw(st.integers(1, 6))):
        x = data.draw(st.sampled_from(values))
        kind = data.draw(st.sampled_from(["conv", "pool", "sum", "concat", "sigmoid"]))
        name = f"{kind}{number}"
        if kind == "conv":
            values.append(pruned(builder, x, name, 8, kernel=data.draw(st.sampled_from([1, 3])),
                                 seed=number))
        elif kind == "pool":
            values.append(builder.pool(x, "max", (3, 3), pads=(1, 1, 1, 1), name=name))
        elif kind == "sum":
            values.append(builder.apply("add", x, data.draw(st.sampled_from(values))))
        elif kind == "concat":
            both = builder.concat([x, data.draw(st.sampled_from(values))], axis=1)
            values.append(pruned(builder, both, f"of {name}", 16, kernel=1, seed=number))
        else:
            values.append(builder.apply("sigmoid", x))
    for value in dict.fromkeys([values[-1], data.draw(st.sampled_from(values))]):
        builder.output(value, (None, 8, *size))
    graph = builder.finish()
    x = np.random.default_rng(batch).standard_normal((batch, 8, *size)).astype(np.float32)
    plan, reference = by_generated_code(graph, threads), gossamer.compile(graph, "host",
                                                                          vendors=False)
    for images in (x, -x):
        found, expected = ([results] if isinstance(results, np.ndarray) else results
                           for results in (plan(images), reference(images)))
        for y, right in zip(found, expected, strict=True):
            assert_close(y, right)
