"""Memory of a plan: reused buffers, shared weights, the number of contexts, running out."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from gossamer.device.base import Buffer, Device
from gossamer.device.checks import out_of_memory
from gossamer.device.registry import find
from gossamer.errors import OutOfMemoryError
from gossamer.plan.run import contexts
from gossamer.plan.run.prepared_steps import Lifetime, allocate
from tests.model.onnx_models import model, weights
from tests.plan.small import assert_close, compiled, expected, images, small


@st.composite
def lifetimes(draw: st.DrawFn) -> dict[str, Lifetime]:
    values = {}
    for index in range(draw(st.integers(0, 12))):
        first = draw(st.integers(-1, 8))
        values[f"v{index}"] = Lifetime(draw(st.integers(1, 2000)), first,
                                       draw(st.integers(first, 9)))
    return values


def _together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


@given(lifetimes(), st.sampled_from([1, 64, 256]))
def test_values_alive_together_never_overlap(values: dict[str, Lifetime],
                                             alignment: int) -> None:
    offsets, total = allocate(values, alignment)
    assert offsets.keys() == values.keys()
    for name, value in values.items():
        assert offsets[name] % alignment == 0
        assert 0 <= offsets[name] <= offsets[name] + value.nbytes <= total
    for a, b in itertools.combinations(values, 2):
        if _together(values[a], values[b]):
            low, high = sorted((a, b), key=offsets.__getitem__)
            assert offsets[low] + values[low].nbytes <= offsets[high]


@given(lifetimes())
def test_the_arena_holds_no_more_than_all_values(values: dict[str, Lifetime]) -> None:
    _, total = allocate(values, 1)
    steps = range(-1, 10)
    alive = [sum(v.nbytes for v in values.values() if v.first <= step <= v.last)
             for step in steps]
    assert max(alive) <= total <= sum(v.nbytes for v in values.values())


def test_a_chain_takes_the_room_of_its_two_largest_neighbours() -> None:
    sizes = [100, 300, 200, 300, 100]
    values = {f"v{i}": Lifetime(size, i - 1, i) for i, size in enumerate(sizes)}
    assert allocate(values, 1)[1] == 500


def test_values_never_alive_together_share_memory() -> None:
    values = {"a": Lifetime(100, 0, 1), "b": Lifetime(90, 2, 3), "c": Lifetime(10, 1, 2)}
    offsets, total = allocate(values, 1)
    assert offsets == {"a": 0, "b": 0, "c": 100}
    assert total == 110


def test_activations_of_a_deep_network_take_the_room_of_a_few(device: Device,
                                                            tmp_path: Path) -> None:
    depth = 12
    nodes = [helper.make_node("MaxPool", [f"v{i}"], [f"v{i + 1}"], kernel_shape=[3, 3],
                              pads=[1, 1, 1, 1]) for i in range(depth)]
    proto = model(nodes, {"v0": ["N", 4, 8, 8]}, {f"v{depth}": 4})
    plan = compiled(proto, device, tmp_path)
    plan(np.zeros((2, 4, 8, 8), np.float32))
    value = 4 * 2 * 4 * 8 * 8
    assert 2 * value <= plan.memory["activations"] <= 3 * value


def test_a_closed_plan_has_no_memory(quick_device: Device, tmp_path: Path) -> None:
    with compiled(small(), quick_device, tmp_path) as plan:
        plan(images(2))
        assert plan.memory["activations"] > 0
    assert plan.memory == {"weights": 0, "activations": 0, "workspace": 0}


def test_weights_are_shared_between_batches_and_contexts(quick_device: Device,
                                                         tmp_path: Path) -> None:
    plan = compiled(small(), quick_device, tmp_path)
    assert plan.memory == {"weights": 0, "activations": 0, "workspace": 0}
    # some algorithms pack weights in a form of their own for few rows
    plan(images(2)), plan(images(5))
    used = plan.memory
    assert (used["weights"] > 0) == quick_device.compiles
    contexts = [plan.context(6), plan.context(5)]
    plan(images(6)), plan(images(7))
    assert plan.memory["weights"] == used["weights"]
    assert plan.memory["activations"] > used["activations"]
    assert_close(contexts[1].run({"x": images(5)})["y"], expected(images(5)))


def test_programs_of_all_batches_read_the_same_constants(tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    layers = [[step.layer for step in plan.program(batch).steps] for batch in (1, 2)]
    shared = 0
    for one, two in zip(*layers, strict=True):
        for name, array in one.weights.items():
            assert np.shares_memory(array, two.weights[name]), f"{name} of {one.name}"
            shared += 1
    assert shared >= 5


def test_batches_keep_their_buffers_within_a_share_of_the_memory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    made: list[int] = []
    make = plan._calls.contexts.make

    def counted(batch: int, stream: Any = None) -> Any:
        made.append(batch)
        return make(batch, stream)

    monkeypatch.setattr(plan._calls.contexts, "make", counted)
    batches = range(1, 41)
    for batch in (*batches, *batches):
        plan(images(batch))
    assert made == [*batches], "a context that fits was made again"
    kept = plan.memory["activations"]
    monkeypatch.setattr(contexts, "_bytes", lambda context: context.buffers.activation_bytes)
    monkeypatch.setattr(contexts, "_SHARE", plan.device.limits.memory_bytes // (kept // 2))
    plan(images(41))
    assert kept / 4 < plan.memory["activations"] <= kept / 2
    made.clear()
    for batch in (41, 40, 1):
        assert_close(plan(images(batch)), expected(images(batch)))
    assert made == [1], "the batch used longest ago went first"


@pytest.mark.parametrize("purpose", ["activations of test at batch 3", "workspace of test",
                                     "weights of second"])
def test_out_of_memory_names_bytes_and_purpose_and_leaves_the_plan_working(
    purpose: str, quick_device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if purpose.startswith("weights") and not quick_device.compiles:
        purpose = "activations"
    plan = compiled(small(), quick_device, tmp_path)
    if purpose.startswith("workspace") and not any(
            step.variant.workspace for step in plan.program(3).steps):
        purpose = "activations"
    allocate = type(quick_device).empty

    def full(self: Device, nbytes: int, use: str, stream: Any = None) -> Buffer:
        if use.startswith(purpose):
            raise out_of_memory(self, nbytes, use)
        return allocate(self, nbytes, use, stream)

    x = images(3)
    with monkeypatch.context() as patch:
        patch.setattr(type(quick_device), "empty", full)
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match=rf"{purpose}.*smaller batch") as caught:
                plan(x)
            assert "\n" not in str(caught.value)
            assert f"{quick_device.name} cannot allocate " in str(caught.value)
        assert plan.memory["activations"] == plan.memory["workspace"] == 0
    assert_close(plan(x), expected(x))


def test_a_batch_larger_than_any_memory(quick_device: Device, tmp_path: Path) -> None:
    plan = compiled(small(), quick_device, tmp_path)
    with pytest.raises(OutOfMemoryError, match=r"[0-9]{16} bytes \(activations of test at batch"):
        plan.context(10**13)
    assert_close(plan(images(2)), expected(images(2)))


def test_contexts_on_the_host_copy_no_weights(tmp_path: Path) -> None:
    node = helper.make_node
    proto = model([node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
                   node("Conv", ["a", "d"], ["b"], group=256, pads=[1, 1, 1, 1]),
                   node("Flatten", ["b"], ["c"]), node("Gemm", ["c", "g"], ["y"], transB=1)],
                  {"x": ["N", 256, 2, 2]}, {"y": 2},
                  {"w": weights(256, 256, 3, 3), "d": weights(256, 1, 3, 3),
                   "g": weights(512, 1024)})
    plan = compiled(proto, find("host"), tmp_path)
    first = plan.context(2)
    largest = min(array.nbytes for array in (weights(256, 256, 3, 3), weights(512, 1024)))
    tracemalloc.start()
    try:
        second = plan.context(2)
        assert tracemalloc.get_traced_memory()[0] < largest / 4
    finally:
        tracemalloc.stop()
    x = {"x": weights(2, 256, 2, 2, seed=1)}
    np.testing.assert_array_equal(first.run(x)["y"], second.run(x)["y"])
