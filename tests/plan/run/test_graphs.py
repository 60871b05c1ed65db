"""Captured graphs and foreign inputs, on a device that records and replays like CUDA."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gossamer.plan.plan import Plan
from gossamer.plan.run.context import Context
from tests.device.helpers import read
from tests.model.onnx_models import model, runtime, weights
from tests.plan.small import assert_close, compiled, expected, images, small

pytest.importorskip("pyopencl")

from tests.plan.device_stand_ins import Addressed, GraphDevice

RESULT = 2**20
"""The address of memory for a result."""


@pytest.fixture
def graphs(pocl: Any) -> GraphDevice:
    return GraphDevice(pocl)


@pytest.fixture
def plan(graphs: GraphDevice, tmp_path: Path) -> Plan:
    return compiled(small(), graphs, tmp_path)


@pytest.fixture
def context(plan: Plan) -> Context:
    """The plan's context of two images."""
    return plan.context(2)


def foreign(context: Context, graphs: GraphDevice, source: Addressed, stream: object = None
            ) -> np.ndarray:
    """Returns the output of a context for an input at an address on the device."""
    (value,) = context.program.outputs.values()
    spec = context.program.specs[value]
    target = Addressed(graphs, RESULT, np.zeros(spec.shape, np.float32))
    context.run_on_device([source], [target], stream)
    return read(graphs, target, spec.shape)


def replayed(context: Context, graphs: GraphDevice, source: Addressed
             ) -> Callable[[], np.ndarray] | None:
    """Returns a function that returns the output of a context by a graph that reads an input at an
    address on the device."""
    (value,) = context.program.outputs.values()
    spec = context.program.specs[value]

    def new_outputs() -> tuple[tuple[Addressed], tuple[int]]:
        target = Addressed(graphs, RESULT, np.zeros(spec.shape, np.float32))
        return (target,), (target.address,)

    replay = context.replayed([source], None, new_outputs)
    return None if replay is None else lambda: read(graphs, replay([])[0], spec.shape)


def test_the_second_execution_is_captured_and_then_replayed(plan: Plan,
                                                            graphs: GraphDevice) -> None:
    for seed in range(4):
        x = images(2, seed)
        assert_close(plan(x), expected(x))
        assert graphs.captures == (seed >= 1)


@pytest.mark.slow
def test_profiles_neither_nest_graphs_nor_disturb_results(plan: Plan,
                                                          graphs: GraphDevice) -> None:
    for x in (images(2), images(2, 1)):
        report = plan.profile(2)
        assert report.end_to_end_us and all(row["median_us"] > 0 for row in report.rows)
        assert_close(plan(x), expected(x))


def test_a_graph_reads_an_address_in_place(plan: Plan, context: Context,
                                           graphs: GraphDevice) -> None:
    source = Addressed(graphs, 64, images(2))
    assert replayed(context, graphs, source) is None, "no kernel is loaded yet"
    assert_close(foreign(context, graphs, source), expected(images(2)))
    assert len(graphs.copies) == 2
    replay = replayed(context, graphs, source)
    assert replay is not None
    for seed in range(3):
        graphs.write(source, images(2, seed))
        graphs.copies.clear()
        assert_close(replay(), expected(images(2, seed)))
        # an output always costs a copy
        assert len(graphs.copies) == 1
    assert_close(context.run({"x": images(2)})[plan.outputs[0].name], expected(images(2)))


def test_an_address_between_vectors_is_always_copied(context: Context, graphs: GraphDevice) -> None:
    source = Addressed(graphs, 68, images(2))
    for _ in range(3):
        graphs.copies.clear()
        assert_close(foreign(context, graphs, source), expected(images(2)))
        assert len(graphs.copies) == 2
    assert replayed(context, graphs, source) is None


def test_streams_wait_for_each_other(plan: Plan, graphs: GraphDevice) -> None:
    context = plan.context(1)
    source = Addressed(graphs, 64, images(1))
    foreign(context, graphs, source, "first")
    foreign(context, graphs, source, "first")
    foreign(context, graphs, source, "second")
    context.run({"x": images(1)})
    context.end_to_end()
    assert graphs.waits == [("first", None), ("second", "first"), (None, "second")]


def test_the_memory_of_a_context_is_freed_with_its_last_reference(
    graphs: GraphDevice, plan: Plan
) -> None:
    context = Context(plan.graph, plan.program(1), graphs)
    source = Addressed(graphs, 64, images(1))
    for _ in range(3):
        context.run({"x": images(1)})
        foreign(context, graphs, source)
    assert replayed(context, graphs, source) is not None
    value = next(iter(plan.program(1).inputs.values()))
    task, buffer = context.ready(), weakref.ref(context.buffers.of(value))
    gc.disable()
    try:
        del context, task
        assert buffer() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("op", ["Identity", "Reshape"])
def test_an_output_that_is_an_input_is_taken_where_it_lies(
    graphs: GraphDevice, tmp_path: Path, op: str
) -> None:
    shape = {"s": np.array([-1, 2, 2])} if op == "Reshape" else {}
    proto = model([helper.make_node(op, ["x", *shape], ["y"], "same")], {"x": ["N", 4]},
                  {"y": 3 if shape else 2}, shape)
    context = compiled(proto, graphs, tmp_path).context(3)
    source = Addressed(graphs, 64, np.zeros((3, 4), np.float32))
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)
        graphs.write(source, x)
        np.testing.assert_array_equal(foreign(context, graphs, source).reshape(3, 4), x)
    replay = replayed(context, graphs, source)
    if replay is not None:
        np.testing.assert_array_equal(replay().reshape(3, 4), x)


def test_the_tuner_measures_by_graphs(graphs: GraphDevice, tmp_path: Path) -> None:
    from gossamer.plan.store.tuning_cache import TuningCache
    from gossamer.plan.tune.tuner import Tuner

    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], {"x": ["N", 6]}, {"y": 2},
                  {"w": weights(6, 4)})
    tuned = Plan(compiled(proto, graphs, tmp_path).graph, graphs, tuner=Tuner(
        graphs, "quick", cache=TuningCache(graphs, tmp_path)))
    x = images(2)[:, 0, :, 0]
    assert_close(tuned(x), runtime(proto, {"x": x})[0])
    assert graphs.captures > 3


def test_a_bound_call_copies_nothing(plan: Plan, context: Context, graphs: GraphDevice) -> None:
    source = Addressed(graphs, 64, images(2))
    target = Addressed(graphs, 128, np.zeros((2, 4), np.float32))
    replay = context.bound([source], [target], None)
    graphs.copies.clear()
    for seed in range(3):
        graphs.write(source, images(2, seed))
        replay()
        assert_close(read(graphs, target, (2, 4)), expected(images(2, seed)))
    assert not graphs.copies and graphs.captures == 1
    assert_close(plan(images(2)), expected(images(2)))


def test_bound_addresses_between_vectors_are_copied(context: Context, graphs: GraphDevice) -> None:
    source = Addressed(graphs, 68, images(2))
    target = Addressed(graphs, 132, np.zeros((2, 4), np.float32))
    context.bound([source], [target], None)()
    assert_close(read(graphs, target, (2, 4)), expected(images(2)))
    assert len(graphs.copies) == 2


def test_outputs_that_are_no_memory_of_their_own_are_copied(graphs: GraphDevice,
                                                            tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"], "relu"),
                   helper.make_node("Flatten", ["y"], ["z"], "flat"),
                   helper.make_node("Flatten", ["x"], ["w"], "same")],
                  {"x": ["N", 2, 3]}, {"y": 3, "z": 2, "w": 2})
    context = compiled(proto, graphs, tmp_path).context(2)
    x = np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32)
    targets = [Addressed(graphs, 64 * index, np.zeros(12, np.float32)) for index in (2, 3, 4)]
    context.bound([Addressed(graphs, 64, x)], targets, None)()
    for target, right in zip(targets, (np.maximum(x, 0), np.maximum(x, 0), x), strict=True):
        np.testing.assert_array_equal(read(graphs, target, 12), right.reshape(-1))
    assert len(graphs.copies) == 2


def test_an_output_that_a_network_names_twice_is_returned_twice(graphs: GraphDevice,
                                                                tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": ["N", 3]}, {"y": 2})
    proto.graph.output.append(proto.graph.output[0])
    context = compiled(proto, graphs, tmp_path).context(2)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    targets = [Addressed(graphs, 64 * index, np.zeros(6, np.float32)) for index in (2, 3)]
    source = Addressed(graphs, 64, x)
    for execute in (context.bound([source], targets, None),
                    *[partial(context.run_on_device, [source], targets, None)] * 3):
        for target in targets:
            graphs.write(target, np.zeros(6, np.float32))
        execute()
        for target in targets:
            np.testing.assert_array_equal(read(graphs, target, (2, 3)), np.maximum(x, 0))


def executed(context: Context, graphs: GraphDevice) -> Addressed:
    """Returns an input of a context whose kernels are loaded."""
    source = Addressed(graphs, 64, images(2))
    foreign(context, graphs, source)
    return source


def test_a_captured_graph_is_replayed_with_new_outputs(context: Context,
                                                       graphs: GraphDevice) -> None:
    source = executed(context, graphs)
    made = []

    def new_outputs() -> tuple[tuple[Addressed], tuple[int]]:
        made.append(Addressed(graphs, 128 + 64 * len(made), np.zeros((2, 4), np.float32)))
        return (made[-1],), (made[-1].address,)

    replay = context.replayed([source], None, new_outputs)
    assert replay is not None
    for seed in (5, 6):
        graphs.write(source, images(2, seed))
        (y,) = replay([source])
        # the memory for the next call is there already
        assert len(made) == seed - 3
        assert_close(read(graphs, y, (2, 4)), expected(images(2, seed)))


def test_memory_that_lacks_for_the_next_call_is_asked_for_again(context: Context,
                                                                graphs: GraphDevice) -> None:
    source = executed(context, graphs)
    asked = []

    def new_outputs() -> tuple[tuple[Addressed], tuple[int]]:
        asked.append(1)
        if len(asked) in (2, 3):
            # the class of torch's error
            raise RuntimeError("out of memory")
        target = Addressed(graphs, 64 + 64 * len(asked), np.zeros((2, 4), np.float32))
        return (target,), (target.address,)

    replay = context.replayed([source], None, new_outputs)
    assert replay is not None
    (y,) = replay([source])
    with pytest.raises(RuntimeError, match="out of memory"):
        replay([source])
    assert_close(read(graphs, y, (2, 4)), expected(images(2)))
    replay([source])
    assert len(asked) == 5
