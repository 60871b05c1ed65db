"""Plans of networks whose inputs leave sizes besides the batch open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer import InputFormat
from gossamer.device.base import Device
from gossamer.errors import InputError, ModelError
from gossamer.plan.open_plan import OpenPlan
from gossamer.plan.plan import Plan
from tests.golden import Golden
from tests.model.onnx_models import model, runtime, weights
from tests.plan.caches import empty_cache
from tests.plan.small import assert_close, reloaded

SIZES = [(6, 5), (7, 9), (16, 16), (4, 30), (5, 5), (33, 8), (12, 12), (9, 9), (10, 20), (21, 3)]


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    with empty_cache():
        yield


def segmentation() -> onnx.ModelProto:
    """Returns a network that halves pictures and makes them as large again as they were."""
    node = helper.make_node
    return model(
        [node("Conv", ["x", "w0"], ["a"], "first", pads=[1, 1, 1, 1], strides=[2, 2]),
         node("Relu", ["a"], ["b"], "relu"),
         node("Conv", ["b", "w1"], ["c"], "second", pads=[1, 1, 1, 1]),
         node("Shape", ["x"], ["s"], "shape"),
         node("Slice", ["s", "two", "four"], ["size"], "size"),
         node("Slice", ["s", "zero", "one"], ["batch"], "batch"),
         node("Concat", ["batch", "classes", "size"], ["sizes"], "sizes", axis=0),
         node("Resize", ["c", "", "", "sizes"], ["y"], "up", mode="linear")],
        {"x": ["N", 3, "H", "W"]}, {"y": 4},
        {"w0": weights(8, 3, 3, 3), "w1": weights(4, 8, 3, 3, seed=1),
         "two": np.array([2]), "four": np.array([4]), "zero": np.array([0]),
         "one": np.array([1]), "classes": np.array([4])})


def picture(height: int, width: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(height).standard_normal((batch, 3, height, width), np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    return runtime(segmentation(), {"x": x})[0]


def check_sizes(plan: OpenPlan, sizes: Sequence[tuple[int, int]]) -> None:
    for height, width in sizes:
        for batch in (1, 2):
            x = picture(height, width, batch)
            y = plan(x)
            assert y.shape == (batch, 4, height, width)
            assert_close(y, expected(x))


def test_pictures_of_many_sizes(device: Device) -> None:
    check_sizes(gossamer.compile(segmentation(), device),
                SIZES[:3] if device.is_simulator else SIZES)


@pytest.mark.library_parts
def test_pictures_of_many_sizes_with_onnxruntime(effort: str | None) -> None:
    plan = gossamer.compile(segmentation(), "host", effort=effort)
    check_sizes(plan, SIZES)
    assert {step.algorithm.name for step in plan.at(picture(9, 9)).program(1).steps} >= {
        "onnxruntime"}


def test_one_size_is_measured_and_the_others_take_its_choices(tmp_path: Path) -> None:
    plan = gossamer.compile(segmentation(), "host", effort="quick", budget=3.0)
    plan(picture(6, 5))
    assert plan.at(picture(6, 5)).tuner is not None
    x = picture(8, 6)
    assert_close(plan(x), expected(x))
    assert plan.at(x).tuner is None
    assert_close(reloaded(plan.at(x), tmp_path)(x), expected(x))
    assert any("not measured: the choices are those of batch 1 of x of 3x6x5" in note
               for note in plan.report().notes)


def test_inputs_that_only_the_end_of_the_network_reads() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["r"], "relu"),
                   helper.make_node("NonZero", ["z"], ["y"], "places")],
                  {"z": ("M", "K"), "x": ("N", "W")}, {"y": 2, "r": 2},
                  types={"y": TensorProto.INT64})
    plan = gossamer.compile(proto, "host")
    for width in (3, 5):
        z, x = np.eye(4, width, dtype=np.float32), picture(width, width)[0, 0]
        for got, right in zip(plan(z, x), runtime(proto, {"x": x, "z": z}), strict=True):
            np.testing.assert_array_equal(got, right)


def test_plans_are_kept_by_size_and_no_more_than_some() -> None:
    plan = gossamer.compile(segmentation(), "host")
    first = plan.at(picture(6, 5))
    assert plan.at(x=picture(6, 5, 3)) is first
    for height in range(1, 17):
        plan.at(picture(height, 7))
    assert plan.at(picture(6, 5)) is not first
    assert len(plan._plans) == 16


def test_other_ways_to_call(tmp_path: Path) -> None:
    plan = gossamer.compile(segmentation(), "host")
    x = picture(7, 6, 2)
    right = expected(x)
    out = np.empty_like(right)
    assert plan(x=x, out=out) is not None
    assert_close(out, right)
    assert_close(asyncio.run(plan.run_async(x)), right)
    assert_close(plan.bind(x)(), right)
    assert_close(reloaded(plan.at(x), tmp_path)(x), right)
    assert [info.shape for info in (*plan.inputs, *plan.outputs)] == [
        (None, 3, None, None), (None, None, None, None)]
    assert plan.profile().rows
    with plan:
        pass
    with pytest.raises(InputError, match="is closed"):
        plan(x)


def test_bytes_in_nhwc() -> None:
    plan = gossamer.compile(segmentation(), "host", inputs=InputFormat("uint8", "NHWC", scale=0.1))
    for height, width in SIZES[:4]:
        x = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), np.uint8)
        numbers = (x.transpose(0, 3, 1, 2) * np.float32(0.1)).astype(np.float32)
        assert_close(plan(x), expected(numbers))


def test_sizes_that_are_set_make_a_plan_as_ever() -> None:
    plan = gossamer.compile(segmentation(), "host", shapes={"x": (3, 6, 5)})
    assert isinstance(plan, Plan)
    with pytest.raises(InputError, match="has shape 1x3x7x9, expected Nx3x6x5"):
        plan(picture(7, 9))


def test_hints_about_open_sizes_are_python_that_works() -> None:
    for shapes in ([["N", "L"]], [["N", 3, "L"]], [[2, "L"], [3, "L"]]):
        inputs = {f"x{index}": shape for index, shape in enumerate(shapes)}
        proto = model([helper.make_node("Relu", [x], [f"y{x}"]) for x in inputs], inputs,
                      {f"y{x}": len(shape) for x, shape in inputs.items()})
        given: dict[str, Any] = {}
        while len(given) < len(inputs):
            with pytest.raises(InputError, match="leaves dimension") as caught:
                gossamer.compile(proto, ["host", "host"], shapes=given)
            (hint,) = re.findall(r"shapes=(\{.*\})\)", str(caught.value))
            given |= eval(hint, {"SIZE": 5})
        assert isinstance(gossamer.compile(proto, "host", shapes=given), Plan)
    for bad in ({"x": 5}, {"x": "5"}, {"x": (3, 5.0, 5)}, (3, 5, 5)):
        with pytest.raises(InputError, match=r"shapes.*expected .*\(3, 224, 224\)"):
            gossamer.compile(segmentation(), "host", shapes=cast(Any, bad))


def test_what_an_open_plan_cannot_take(golden: Golden) -> None:
    plan = gossamer.compile(segmentation(), "host")
    golden.refusals("calls: open plans", {
        "a report": plan.report, "none": plan,
        "4 channels": lambda: plan(np.zeros((1, 4, 6, 5), np.float32)),
        "no batch": lambda: plan(np.zeros((3, 6, 5), np.float32)),
        "two devices": lambda: gossamer.compile(segmentation(), ["host", "host"])})


def test_a_size_that_the_network_cannot_take_names_the_node() -> None:
    node = helper.make_node
    proto = model([node("Conv", ["x", "w"], ["a"], "halves", strides=[2, 2]),
                   node("Flatten", ["a"], ["b"], "flat"),
                   node("Gemm", ["b", "v"], ["y"], "classes")],
                  {"x": ["N", 3, "H", "W"]}, {"y": 2},
                  {"w": weights(2, 3, 2, 2), "v": weights(2 * 3 * 3, 4)})
    plan = gossamer.compile(proto, "host")
    assert plan(picture(6, 6)).shape == (1, 4)
    with pytest.raises(InputError, match=r"does not accept x of 3x8x6: .*Gemm 'classes'"):
        plan(picture(8, 6))


def test_an_input_that_only_the_end_of_the_network_reads() -> None:
    proto = model([helper.make_node("Neg", ["x"], ["a"]),
                   helper.make_node("Reshape", ["a", "s"], ["y"])],
                  {"x": ["N", "L"], "s": [2]}, {"y": 2}, types={"s": onnx.TensorProto.INT64})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(gossamer.compile(proto, "host")(x, np.array([3, 2])),
                                  -x.reshape(3, 2))


def test_a_node_that_is_wrong_at_every_size_is_refused_by_compile() -> None:
    for shape in (["N"], ["N", "L"], [5]):
        proto = model([helper.make_node("CumSum", ["x", "two"], ["y"], "n")], {"x": shape},
                      {"y": None}, {"two": np.array(2)})
        with pytest.raises(ModelError, match="CumSum 'n': has no axis 2"):
            gossamer.compile(proto, "host")
