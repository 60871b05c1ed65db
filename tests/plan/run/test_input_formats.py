"""Inputs as callers have them: plans with an InputFormat compute what those without one compute of
the numbers that NumPy prepares."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer import InputFormat
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io.images import Preprocessing
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.metadata import ModelMetadata
from gossamer.plan.plan import Plan
from gossamer.tensor import bfloat16_bits
from tests.fixtures import is_slow
from tests.golden import Golden
from tests.model.onnx_models import model, runtime, save
from tests.networks.compared import several
from tests.tolerances import normalised_error, tolerance

SIZE = (6, 5)
CHANNELS = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.25, 0.5)}
FORMATS = [
    InputFormat(dtype, layout, **numbers) for (dtype, layout), numbers in itertools.product(
        itertools.product(("uint8", "float16", "bfloat16", "float32"), ("NCHW", "NHWC")),
        ({}, {"scale": 1 / 255, **CHANNELS}, {"mean": 0.5, "std": (2.0,)}))]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


def stem(pads: int) -> Graph:
    """Returns a network that begins with a convolution."""
    build = GraphBuilder("stem")
    x = build.input("x", (None, 3, *SIZE))
    y = build.conv2d(x, build.constant("w", weights(8, 3, 3, 3)), pads=(pads,) * 4,
                     strides=(2, 2))
    y = build.reduce(build.apply("relu", y), "mean")
    build.output(y, (None, 8, 1, 1))
    return build.finish()


def two_inputs() -> Graph:
    """Returns a network of an image and of a vector."""
    build = GraphBuilder("two")
    x, state = build.input("x", (None, 3, *SIZE)), build.input("state", (None, 4))
    seen = build.flatten(build.reduce(build.apply("relu", x), "mean"))
    y = build.gemm(build.concat([seen, state]), build.constant("w", weights(7, 5)))
    build.output(y, (None, 5))
    return build.finish()


def read_twice() -> Graph:
    """Returns a network whose input two layers read, one of which takes a part of its channels."""
    build = GraphBuilder("twice")
    x = build.input("x", (None, 3, *SIZE))
    y = build.conv2d(x, build.constant("w", weights(4, 3, 1, 1)))
    joined = build.concat([y, x, build.apply("tanh", x)])
    build.output(joined, (None, 10, *SIZE))
    return build.finish()


def returned() -> Graph:
    """Returns a network whose input is an output as well."""
    build = GraphBuilder("returned")
    x = build.input("x", (None, 3, *SIZE))
    build.output(x, (None, 3, *SIZE))
    build.output(build.apply("neg", x), (None, 3, *SIZE))
    return build.finish()


NETWORKS: dict[str, Callable[[], Graph]] = {
    "stem": lambda: stem(0), "padded stem": lambda: stem(1), "two inputs": two_inputs,
    "read twice": read_twice, "returned": returned}


def drawn(graph: Graph, given: InputFormat, batch: int) -> list[np.ndarray]:
    """Returns the inputs of a network as callers give them."""
    rng = np.random.default_rng(batch)
    shape = given.ordered((batch, 3, *SIZE))
    x = (rng.integers(0, 256, shape, np.uint8) if given.dtype == "uint8"
         else rng.standard_normal(shape).astype(np.float32))
    x = bfloat16_bits(x) if given.dtype == "bfloat16" else x.astype(given.dtype)
    return [x, *(rng.standard_normal((batch, 4)).astype(np.float32) for _ in graph.inputs[1:])]


@pytest.mark.parametrize("network", NETWORKS)
def test_formats_give_the_numbers_that_are_prepared_by_numpy(
        device: Device, network: str, effort: str | None, own_cache: Path) -> None:
    graph = NETWORKS[network]()
    plain = gossamer.compile(graph, find("host"))
    # a measured plan takes Oclgrind seconds, and one format shows the path
    for given in FORMATS if effort is None else FORMATS[1:2] if is_slow(device) else FORMATS[1::4]:
        plan = gossamer.compile(graph, device, inputs={"x": given}, effort=effort)
        for batch in (0, 1, 3):
            x, *others = drawn(graph, given, batch)
            expected = several(plain(given.as_network_takes(x), *others))
            results = several(plan(x, *others))
            assert len(results) == len(expected)
            for y, right in zip(results, expected, strict=True):
                assert (y.shape, y.dtype) == (right.shape, right.dtype), given
                if batch:
                    assert normalised_error(y, right) <= tolerance("network"), given


@pytest.mark.parametrize("network", NETWORKS)
def test_saved_plans_keep_the_formats(device: Device, network: str, tmp_path: Path) -> None:
    graph = NETWORKS[network]()
    given = InputFormat("uint8", "NHWC", scale=1 / 255, **CHANNELS)
    plan = gossamer.compile(graph, device, inputs={"x": given}, output_dtype="float16")
    inputs = drawn(graph, given, 2)
    results = several(plan(*inputs))
    plan.save(tmp_path / "net.plan")
    loaded = Plan.load(tmp_path / "net.plan", device)
    assert (loaded.inputs, loaded.outputs) == (plan.inputs, plan.outputs)
    for y, again in zip(results, several(loaded(*inputs)), strict=True):
        assert y.dtype == np.float16
        np.testing.assert_array_equal(y, again)


def test_images_in_the_order_of_the_network_are_taken_as_views(device: Device) -> None:
    plan = gossamer.compile(stem(1), device, inputs=InputFormat("uint8", "NHWC"))
    x = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3), np.uint8)
    np.testing.assert_array_equal(plan(x.transpose(0, 3, 1, 2)), plan(x))
    call = plan.bind(x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(call(), plan(x))
    pinned = plan.pinned(2)
    assert (pinned.shape, pinned.dtype) == (x.shape, x.dtype)
    pinned[...] = x
    np.testing.assert_array_equal(plan(pinned), plan(x))


def test_arrays_of_bfloat16_and_their_bits_are_taken() -> None:
    plan = gossamer.compile(stem(1), "host", inputs=InputFormat("bfloat16", "NHWC"))
    bits = drawn(stem(1), InputFormat("bfloat16", "NHWC"), 2)[0]
    y = plan(bits)
    np.testing.assert_array_equal(plan(bits.view(ml_dtypes.bfloat16)), y)
    np.testing.assert_array_equal(
        plan.bind(bits.view(ml_dtypes.bfloat16).transpose(0, 3, 1, 2))(), y)
    with pytest.raises(InputError, match="input 'x' has dtype float32, expected bfloat16"):
        plan(bits.astype(np.float32))


def test_photos_are_normalised_as_the_metadata_says() -> None:
    graph = stem(1)
    graph.metadata = ModelMetadata(preprocessing=Preprocessing(scale=1 / 255, mean=(0.5,),
                                                               std=(0.25,)))
    plan = gossamer.compile(graph, "host", inputs="photos")
    x = drawn(graph, InputFormat("uint8", "NHWC"), 2)[0]
    np.testing.assert_allclose(
        plan(x), gossamer.compile(graph, "host")(((x.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.25)
                                                 .astype(np.float32)), rtol=1e-4, atol=1e-5)


def test_calibration_takes_what_callers_give() -> None:
    given = InputFormat("uint8", "NHWC", scale=1 / 255, **CHANNELS)
    x = drawn(stem(1), given, 3)[0]
    plan = gossamer.compile(stem(1), "host", inputs=given, calibration=x)
    accuracy = plan._plan(3).accuracy
    assert accuracy is not None and accuracy.error <= tolerance("network")
    with pytest.raises(InputError, match="has shape 3x3x6x5, expected Nx6x5x3"):
        gossamer.compile(stem(1), "host", inputs=given, calibration=np.moveaxis(x, -1, 1))


@pytest.mark.parametrize("given", [InputFormat("float16", "NHWC"), InputFormat("float32", "NHWC"),
                                   InputFormat("float16")], ids=str)
def test_floats_are_read_where_they_lie_and_others_by_one_kernel(
        compiled_device: Device, given: InputFormat) -> None:
    program = gossamer.compile(stem(1), compiled_device, inputs=given).program(1)
    first = program.steps[0]
    assert first.in_place and program.root("x") == "given x"
    steps = gossamer.compile(stem(1), compiled_device, inputs=InputFormat(
        "uint8", "NHWC", **CHANNELS)).program(1).steps
    assert [step.layer.op for step in steps[:2]] == ["elementwise", "conv2d"]


def test_a_file_of_halves_takes_and_gives_halves(device: Device, tmp_path: Path) -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["a"]),
                   helper.make_node("Relu", ["a"], ["y"])], {"x": ["N", 3, *SIZE]}, {"y": 4},
                  {"w": weights(4, 3, 3, 3).astype(np.float16)},
                  types={"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT16})
    plan = gossamer.compile(str(save(proto, tmp_path)), device)
    assert [info.dtype for info in (*plan.inputs, *plan.outputs)] == ["float16", "float16"]
    assert plan.inputs[0].labels[0] == "N"
    x = np.random.default_rng(0).standard_normal((2, 3, *SIZE)).astype(np.float16)
    y = plan(x)
    assert y.dtype == np.float16
    (expected,) = runtime(proto, {"x": x})
    assert normalised_error(y, expected.astype(np.float64)) <= tolerance("network", "fp16")
    as_before = gossamer.compile(str(tmp_path / "model.onnx"), device, inputs=InputFormat(),
                                 output_dtype="float32")
    assert as_before(x.astype(np.float32)).dtype == np.float32


def test_reports_say_how_inputs_are_taken() -> None:
    given = InputFormat("uint8", "NHWC", mean=(1, 2, 3))
    plan = gossamer.compile(stem(1), "host", inputs=given, output_dtype="float16")
    assert "input 'x' is passed as Nx6x5x3 uint8 NHWC mean 1, 2, 3" in plan.report(1).notes
    assert plan.report(1).rows[0]["problem"] == "NHWC uint8 -> add 1x3x6x5 float32 NCHW"
    assert f"output {plan.outputs[0].name!r} is returned in float16" in plan.report(1).notes


def test_what_does_not_fit_the_format_is_refused(golden: Golden) -> None:
    plan = gossamer.compile(stem(1), "host", inputs=InputFormat("uint8", "NHWC"))
    turned = np.zeros((1, 3, *SIZE), np.uint8)
    golden.refusals("calls: formats", {
        "floats": lambda: plan(np.zeros((1, *SIZE, 3), np.float32)),
        "4 channels": lambda: plan(np.zeros((1, 4, *SIZE), np.uint8)),
        "in a context": lambda: plan.context(1).run({"x": turned})})
