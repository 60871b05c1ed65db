"""Concatenations and slices that copy nothing, as their parts lie where they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops import strided
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.registry import OPS
from gossamer.plan.in_place import (
    is_likely_in_place,
)
from gossamer.plan.program import Program
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.model.onnx_models import model, runtime, save, weights
from tests.networks.compared import several
from tests.plan.small import assert_as_runtime, compiled, reloaded

node = helper.make_node


def joined(*shapes: tuple[int, ...], axis: int = 1) -> ConcatProblem:
    return ConcatProblem(tuple(default_spec(shape, "float32") for shape in shapes), axis)


def network() -> onnx.ModelProto:
    """Returns a network in which `a` belongs into two concatenations, one of them with another
    concatenation, and a slice of it is read alone."""
    return model(
        [node("Conv", ["x", "w0"], ["a"], "first", pads=[1, 1, 1, 1]),
         node("Slice", ["a", "from", "to", "axis"], ["s"], "half"),
         node("Conv", ["s", "w1"], ["b"], "second", pads=[1, 1, 1, 1]),
         node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
         node("Concat", ["b", "c"], ["inner"], "inner", axis=1),
         node("Concat", ["a", "inner"], ["outer"], "outer", axis=1),
         node("Conv", ["outer", "w2"], ["d"], "third"),
         node("Concat", ["d", "a"], ["y"], "again", axis=1),
         node("Concat", ["x", "s"], ["z"], "input", axis=1)],
        {"x": ["N", 8, 8, 8]}, {"y": 4, "z": 4, "s": 4, "outer": 4},
        {"w0": weights(16, 8, 3, 3), "w1": weights(8, 8, 3, 3, seed=1),
         "w2": weights(8, 32, 1, 1, seed=2), "from": np.array([8]), "to": np.array([16]),
         "axis": np.array([1])})


def in_place(program: Program) -> set[str]:
    return {step.layer.name for step in program.steps if step.in_place}


def test_a_network_with_nested_parts(effort: str | None, quick_device: Device, tmp_path: Path,
                                     own_cache: Path) -> None:
    proto = network()
    plan = gossamer.compile(str(save(proto, tmp_path)), quick_device, effort=effort,
                            only="published" if quick_device.compiles else None)
    for batch in (1, 2, 1):
        x = weights(batch, 8, 8, 8, seed=batch)
        assert_as_runtime(plan, proto, x)
    assert in_place(plan.program(1)) <= {"half", "inner", "outer"}
    for report in (plan.report(1), plan.profile(1)) if effort else (plan.profile(1),):
        rows = {row["layer"]: row for row in report.rows}
        for name in in_place(plan.program(1)):
            assert (rows[name]["config"], rows[name]["median_us"]) == ("in place", 0.0)
    saved = reloaded(plan, tmp_path, quick_device)
    assert in_place(saved.program(1)) == in_place(plan.program(1))
    x = weights(1, 8, 8, 8)
    assert_as_runtime(saved, proto, x)


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    """Draws a network of element-wise layers, concatenations, slices and reshapes, of values with
    16 columns and some channels."""
    nodes, channels = [], {"x": 4}
    constants: dict[str, np.ndarray] = {"axis": np.array([1])}
    for index in range(draw(st.integers(1, 12))):
        name = f"v{index}"
        source = draw(st.sampled_from(sorted(channels)))
        kind = draw(st.sampled_from(["relu", "concat", "concat", "slice", "reshape"]))
        if kind == "concat":
            others = draw(st.lists(st.sampled_from(sorted(channels)), min_size=1, max_size=3))
            nodes.append(node("Concat", [source, *others], [name], name, axis=1))
            channels[name] = sum(channels[part] for part in (source, *others))
        elif kind == "slice":
            start = draw(st.integers(0, channels[source] - 1))
            end = draw(st.integers(start + 1, channels[source]))
            constants |= {f"{name}.from": np.array([start]), f"{name}.to": np.array([end])}
            nodes.append(node("Slice", [source, f"{name}.from", f"{name}.to", "axis"], [name],
                              name))
            channels[name] = end - start
        elif kind == "reshape":
            constants |= {f"{name}.two": np.array([0, -1, 4, 4]),
                          f"{name}.one": np.array([0, -1, 16, 1])}
            nodes += [node("Reshape", [source, f"{name}.two"], [f"{name}.image"], f"{name} image"),
                      node("Reshape", [f"{name}.image", f"{name}.one"], [name], name)]
            channels[name] = channels[source]
        else:
            nodes.append(node("Neg", [source], [name], name))
            channels[name] = channels[source]
    results = draw(st.sets(st.sampled_from(sorted(channels.keys() - {"x"})), min_size=1))
    return model(nodes, {"x": ["N", 4, 16, 1]}, dict.fromkeys(sorted(results), 4), constants)


@given(proto=networks())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_networks_of_parts(proto: onnx.ModelProto, tmp_path: Path) -> None:
    plan = compiled(proto, find("host"), tmp_path)
    for batch in (1, 3):
        x = weights(batch, 4, 16, 1, seed=batch)
        for y, reference in zip(several(plan(x)), runtime(proto, {"x": x}), strict=True):
            np.testing.assert_array_equal(y, reference)


def placed(program: Program) -> dict[str, tuple[int, int]]:
    """Returns for each step that writes a part of the channels of a larger tensor the channels
    before and after it."""
    return {step.layer.name: step.placed_variant.outputs[0].format.other_channels
            for step in program.steps if step.placed_variant is not None
            and any(step.placed_variant.outputs[0].format.other_channels)}


def test_channels_in_nhwc_are_written_where_they_belong(compiled_device: Device,
                                                        tmp_path: Path) -> None:
    """`again` joins a value that is within `outer` already, and copies it from there."""
    proto = network()
    plan = compiled(proto, compiled_device, tmp_path)
    for batch in (1,) if is_slow(compiled_device) else (1, 3, 1):
        x = weights(batch, 8, 8, 8, seed=batch)
        assert_as_runtime(plan, proto, x)
        assert in_place(plan.program(batch)) == {"half", "inner", "outer"}
        assert placed(plan.program(batch)) == {"first": (0, 16), "second": (16, 8),
                                               "pool": (24, 0)}
    saved = reloaded(plan, tmp_path, compiled_device)
    assert placed(saved.program(1)) == placed(plan.program(1))
    x = weights(1, 8, 8, 8)
    assert_as_runtime(saved, proto, x)


def test_a_dense_block_is_one_tensor(compiled_device: Device, tmp_path: Path) -> None:
    """Each layer reads what all layers before it have made, as in a DenseNet."""
    nodes = [node("Conv", ["x", "first.w"], ["first"], "first", pads=[1] * 4)]
    constants = {"first.w": weights(8, 8, 3, 3)}
    features = ["first"]
    for name in ("second", "third", "fourth"):
        before = f"before {name}"
        nodes += [node("Concat", features, [before], before, axis=1),
                  node("Relu", [before], [f"relu of {name}"], f"relu of {name}"),
                  node("Conv", [f"relu of {name}", f"{name}.w"], [name], name, pads=[1] * 4)]
        constants[f"{name}.w"] = weights(8, 8 * len(features), 3, 3)
        features.append(name)
    proto = model(nodes, {"x": ["N", 8, 6, 6]}, {"fourth": 4}, constants)
    plan = gossamer.compile(str(save(proto, tmp_path)), compiled_device, only="winograd")
    x = weights(2, 8, 6, 6)
    assert_as_runtime(plan, proto, x)
    assert in_place(plan.program(2)) == {"before third", "before fourth"}
    assert placed(plan.program(2)) == {"first": (0, 16), "second": (8, 8), "third": (16, 0)}


def test_halves_that_are_joined_again_stay_where_they_are(compiled_device: Device,
                                                          tmp_path: Path) -> None:
    """One half is read alone as well, as in the blocks of YOLOv8."""
    proto = model(
        [node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4),
         node("Split", ["a", "sizes"], ["left", "right"], "halves", axis=1),
         node("Conv", ["right", "w1"], ["b"], "second", pads=[1] * 4),
         node("Concat", ["left", "right", "b"], ["all"], "all", axis=1),
         node("Conv", ["all", "w2"], ["y"], "last", pads=[1] * 4)],
        {"x": ["N", 8, 6, 6]}, {"y": 4},
        {"w0": weights(16, 8, 3, 3), "w1": weights(8, 8, 3, 3), "w2": weights(8, 24, 3, 3),
         "sizes": np.array([8, 8])})
    plan = gossamer.compile(str(save(proto, tmp_path)), compiled_device, only="winograd")
    x = weights(2, 8, 6, 6)
    assert_as_runtime(plan, proto, x)
    assert in_place(plan.program(2)) == {"halves.1", "all"}
    assert placed(plan.program(2)) == {"first": (0, 8), "second": (16, 0)}


@pytest.mark.parametrize("taken", [8, 1])
@pytest.mark.parametrize(("size", "channels"), [(2, 64), (4, 8), (1, 16)])
def test_a_slice_of_a_reshaped_tensor(compiled_device: Device, tmp_path: Path, size: int,
                                      channels: int, taken: int,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """The reshaped tensor has other channels than the one that owns the memory. A slice may be of
    one number."""
    # of layouts that are the same for images of one pixel
    monkeypatch.setattr(strided.layout_variants, "__defaults__", (("NHWC", "NCHW", "CHWN"), ()))
    total = channels * size * size
    proto = model(
        [node("Conv", ["x", "w0"], ["a"], "first", pads=[size // 2] * 4),
         node("Reshape", ["a", "column"], ["b"], "column"),
         node("Slice", ["b", "from", "to", "axis"], ["c"], "slice"),
         node("Neg", ["c"], ["d"], "negative"),
         node("Conv", ["d", "w1"], ["y"], "last")],
        {"x": ["N", 8, size, size]}, {"y": 4},
        {"w0": weights(channels, 8, size // 2 * 2 + 1, size // 2 * 2 + 1),
         "column": np.array([0, total, 1, 1]), "from": np.array([8]), "to": np.array([8 + taken]),
         "axis": np.array([1]), "w1": weights(8, taken, 1, 1)})
    plan = gossamer.compile(str(save(proto, tmp_path)), compiled_device)
    for batch in (1, 2):
        x = weights(batch, 8, size, size)
        assert_as_runtime(plan, proto, x)
    (negative,) = [step for step in plan.program(2).steps if step.layer.name == "negative"]
    assert negative.placed_variant is not None
    assert negative.placed_variant.inputs[0].format.other_channels == (8, total - 8 - taken)


@pytest.mark.parametrize(("changed", "reason"), [
    ({"w0": weights(12, 8, 3, 3), "w1": weights(8, 4, 3, 3), "from": np.array([7]),
      "to": np.array([11]), "w2": weights(8, 28, 1, 1)}, "parts begin at odd places"),
    ({"axis": np.array([2]), "from": np.array([0]), "to": np.array([4]),
      "w1": weights(8, 16, 3, 3)}, "rows")])
def test_what_cannot_lie_within_pixels_is_copied(compiled_device: Device, tmp_path: Path,
                                                 changed: dict[str, np.ndarray],
                                                 reason: str) -> None:
    proto = network()
    if reason == "rows":
        del proto.graph.node[3:]
        del proto.graph.output[:]
        proto.graph.output.append(helper.make_tensor_value_info("b", 1, [None] * 4))
    for constant in proto.graph.initializer:
        if constant.name in changed:
            constant.CopyFrom(onnx.numpy_helper.from_array(changed[constant.name], constant.name))
    plan = compiled(proto, compiled_device, tmp_path)
    x = weights(2, 8, 8, 8)
    assert_as_runtime(plan, proto, x)
    assert "half" not in in_place(plan.program(2)), reason


def test_channels_that_are_joined_in_nhwc_are_likely_to_stay(compiled_device: Device) -> None:
    """Whether the layers beside them can write parts, only the whole program shows."""
    both = joined((2, 16, 6, 6), (2, 16, 6, 6))
    layouts = {variant.outputs[0].layout for algorithm in OPS["concat"].algorithms
               if algorithm.supports(both, compiled_device) is None
               for variant in algorithm.variants(both, compiled_device)
               if is_likely_in_place(both, variant)}
    assert layouts == {"NHWC"}


def network_of_images(seed: int) -> onnx.ModelProto:
    """Returns a random network of 3x3 convolutions, pools, element-wise layers, concatenations and
    slices of images whose channels are most often multiples of 8."""
    rng = np.random.default_rng(seed)
    nodes, channels, read = [], {"x": 8}, set()
    constants: dict[str, np.ndarray] = {"axis": np.array([1])}
    for index in range(rng.integers(5, 15)):
        name = f"v{index}"
        # those that were computed last are seldom in a concatenation already
        latest = list(channels)[-4:]
        source = str(rng.choice(latest))
        kind = str(rng.choice(["conv", "pool", "neg", "add", "slice", "concat"],
                              p=[0.35, 0.1, 0.05, 0.05, 0.15, 0.3])) if index > 1 else "conv"
        inputs, count = [source], channels[source]
        if kind == "conv":
            count = int(rng.choice([8, 8, 6, 16, 5, 12]))
            constants[f"{name}.w"] = weights(count, channels[source], 3, 3, seed=index)
            nodes.append(node("Conv", [source, f"{name}.w"], [name], name, pads=[1] * 4))
        elif kind == "pool":
            nodes.append(node("MaxPool", [source], [name], name, kernel_shape=[3, 3],
                              pads=[1, 1, 1, 1]))
        elif kind == "concat":
            inputs = list(map(str, rng.choice(latest, min(len(latest), rng.integers(2, 4)),
                                              replace=rng.random() < 0.1)))
            nodes.append(node("Concat", inputs, [name], name, axis=1))
            count = sum(channels[part] for part in inputs)
        elif kind == "slice":
            start = 8 * int(rng.integers(0, (count - 1) // 8 + 1))
            constants |= {f"{name}.from": np.array([start]), f"{name}.to": np.array([start + 8])}
            nodes.append(node("Slice", [source, f"{name}.from", f"{name}.to", "axis"], [name],
                              name))
            count = min(8, count - start)
        elif kind == "add":
            inputs.append(str(rng.choice([value for value in channels
                                          if channels[value] == count])))
            nodes.append(node("Add", inputs, [name], name))
        else:
            nodes.append(node("Neg", [source], [name], name))
        channels[name] = count
        read.update(inputs)
    results = sorted(channels.keys() - read - {"x"})
    return model(nodes, {"x": ["N", 8, 4, 4]}, dict.fromkeys(results, 4), constants)


@given(seed=st.integers(0, 2**32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_random_networks_of_images(seed: int, quick_compiled: Device, tmp_path: Path) -> None:
    proto = network_of_images(seed)
    # its tensors are NHWC
    plan = gossamer.compile(str(save(proto, tmp_path)), quick_compiled, only="winograd")
    for batch in (1, 2):
        x = weights(batch, 8, 4, 4, seed=batch)
        assert_as_runtime(plan, proto, x)
