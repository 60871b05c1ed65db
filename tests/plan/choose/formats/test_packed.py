"""Packed and converted values: what is computed on bits, and inputs that stay in one memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import Expression, ExpressionStep
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph, ValueInfo
from gossamer.ops.fused.problem import ReshapeProblem
from gossamer.plan.choose.first_choices import FirstChoices
from gossamer.plan.choose.planner import Planner
from gossamer.plan.choose.program_builder import LayerChoice, Network, ProgramBuilder
from gossamer.plan.plan import Plan
from gossamer.plan.policy import eligibility
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.plan.tune.space import Space
from gossamer.tensor import AXES, Format, TensorSpec, default_spec, memory_format
from tests.plan.choose.formats.toy import PLUS_OR_MINUS, ToyConv, images, two_layers
from tests.plan.choose.fusions.toy import make_plan
from tests.plan.small import reloaded

SIGNS = (35, 9, 7)
SIGN_OR_0 = Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater", (0, 1)),
    ExpressionStep("less", (0, 1)), ExpressionStep("sub", (2, 3))))


def signs_and_pools(kind: str) -> Graph:
    """Returns two pools of signs, which may be 0 where kind is "trits", but never NaN."""
    build = GraphBuilder(f"pools of {kind}")
    x = build.input("x", (None, *SIGNS))
    signs = build.elementwise(SIGN_OR_0 if kind == "trits" else PLUS_OR_MINUS, x, name="signs")
    first = build.pool(signs, "max", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), name="first")
    second = build.pool(first, "max", (2, 2), name="second")
    build.output(second, (None, 35, 4, 3))
    return build.finish()


def sign_images() -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 2, (2, *SIGNS)).astype(np.float32)


def algorithms(plan: Plan) -> dict[str, str]:
    """Returns the algorithm of each step by the step's name."""
    return {step.layer.name: step.algorithm.name for step in plan.program(2).steps}


@pytest.mark.parametrize("kind", ["bits", "trits"])
def test_pools_stay_packed_where_they_are_forced(quick_compiled: Device, kind: str,
                                                 tmp_path: Path) -> None:
    plan = make_plan(signs_and_pools(kind), tmp_path, quick_compiled.name, only="packed")
    taken = algorithms(plan)
    assert taken["signs"] == taken["first"] == taken["second"] == "packed"
    assert {step.variant.outputs[0].dtype for step in plan.program(2).steps
            if step.algorithm.op == "pool"} == {kind}
    x = sign_images()
    signs = np.sign(x) if kind == "trits" else np.where(x < 0, -1, 1)
    padded = np.pad(signs, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    first = windows.max(axis=(4, 5))
    second = np.lib.stride_tricks.sliding_window_view(first, (2, 2), (2, 3)).max(axis=(4, 5))
    np.testing.assert_array_equal(plan(x), second)
    np.testing.assert_array_equal(reloaded(plan, tmp_path)(x), second)


def test_layers_of_signs_are_computed_on_bits_without_measurements(
        compiled_device: Device) -> None:
    rng = np.random.default_rng(0)
    build = GraphBuilder("signs")
    y = build.input("x", (None, 64, 7, 7))
    for _ in range(3):
        weight = rng.choice(np.array([-1, 1], np.float32), (64, 64, 3, 3))
        y = build.conv2d(build.apply("sign", y), build.constant("w", weight))
    build.output(y, (None, 64, 1, 1))
    graph = build.finish()
    steps = [step for step in gossamer.compile(graph, compiled_device).program(1).steps
             if step.layer.op == "conv2d"]
    assert len(steps) == 3 and all(step.algorithm.exact for step in steps)


def test_values_of_which_nothing_is_known_are_pooled_as_floats(tmp_path: Path) -> None:
    build = GraphBuilder("pool of reals")
    x = build.input("x", (None, *SIGNS))
    build.output(build.pool(x, "max", (3, 3), name="first"), (None, 35, 7, 5))
    plan = make_plan(build.finish(), tmp_path, only="packed")
    row = next(row for row in plan.report(2).rows if row["layer"] == "first")
    assert row["algorithm"] in ("numpy", "host_direct")
    assert row["rejected"]["packed"] == "needs values that are known to be -1, 0 or 1"


def test_a_matrix_of_single_pixels_stays_packed(quick_device: Device, tmp_path: Path) -> None:
    """The single pixel that a convolution leaves of an image is packed like a row of a matrix."""
    rng = np.random.default_rng(0)
    build = GraphBuilder("convolution and product")
    x = build.elementwise(PLUS_OR_MINUS, build.input("x", (None, 5, 3, 3)))
    weights = [build.constant(name, rng.choice(np.float32([-1, 1]), shape))
               for name, shape in (("first", (70, 5, 3, 3)), ("second", (70, 9)))]
    pixel = build.conv2d(x, weights[0], name="pixel")
    row = build.flatten(build.elementwise(PLUS_OR_MINUS, pixel))
    build.output(build.gemm(row, weights[1], name="product"), (None, 9))
    only = "popcount" if quick_device.compiles else "host_direct_popcount"
    graph = build.finish()
    plan = make_plan(graph, tmp_path, quick_device.name, only=only)
    images = rng.standard_normal((2, 5, 3, 3), dtype=np.float32)
    np.testing.assert_array_equal(plan(images), gossamer.compile(graph, "host")(images))
    taken = algorithms(plan)
    assert taken["pixel"] == taken["product"] == only
    if quick_device.compiles:
        product = next(s for s in plan.program(2).steps if s.layer.name == "product")
        assert product.variant.inputs[0].format.is_packed


@pytest.mark.parametrize(("shape", "target", "words"), [
    ((2, 35, 1, 1), (2, 35), True), ((2, 35), (2, 35, 1, 1), True), ((2, 5, 7, 1), (2, 35), False),
    ((2, 36, 1, 1), (4, 18), False)])
def test_which_reshapes_leave_words_as_they_are(shape: tuple[int, ...], target: tuple[int, ...],
                                                words: bool) -> None:
    bits, floats = TensorSpec(shape, Format("packed32", "bits")), default_spec(target)
    facts = {"x": PLUS_MINUS_ONE, "y": PLUS_MINUS_ONE}
    network = Network([], 2, {"x": bits}, {}, {})
    builder = ProgramBuilder(network, FirstChoices(network, find("host")).choice)
    builder.add(Layer("reshape", ["x"], ["y"], ReshapeProblem(default_spec(shape), target),
                      facts=facts))
    assert builder.specs["y"] == (TensorSpec(target, bits.format) if words else floats)
    assert len(builder.program.steps) == (0 if words else 1)


SHAPE = (1, 5, 6, 6)


@pytest.fixture
def layers() -> list[Layer]:
    """Returns a convolution, and two equal ones that read what it writes."""
    graph = two_layers("real")
    graph.nodes.append(replace(graph.nodes[1], name="conv2", outputs=["z"]))
    graph.outputs.append(ValueInfo("z", (None, 5, 6, 6)))
    return list(Planner(graph, find("host")).network(1).layers)


def program_of(layers: list[Layer], device: Device, **layouts: str) -> Program:
    """Returns a program whose first convolution writes NHWC, while the others read the layouts
    that are given by their names."""
    def decide(builder: ProgramBuilder, layer: Layer) -> LayerChoice:
        if layer.inserted:
            space = Space.unmeasured()
            algorithm = eligibility(layer, device, space.refusal_reason)[0][0]
            return LayerChoice(algorithm, space.within_effort(algorithm, layer.problem, device)[0],
                               device)
        toy = (ToyConv("writer", writes=Format("NHWC")) if layer.name == "conv0"
               else ToyConv("reader", reads=Format(layouts[layer.name])))
        return LayerChoice(toy, next(iter(toy.variants(layer.problem, device))), device)

    builder = ProgramBuilder(Network(layers, 1, {"x": default_spec(SHAPE)}, {}, {}), decide)
    for layer in layers:
        builder.add(layer)
    return builder.finish({name: default_spec(SHAPE) for name in ("y", "z")})


def conversions(program: Program) -> list[str]:
    return [step.layer.name for step in program.steps if step.layer.inserted]


def test_one_conversion_serves_readers_that_name_the_memory_differently(
        layers: list[Layer]) -> None:
    device = find("host")
    program = program_of(layers, device, conv1="NCHW", conv2="CHWN")
    assert conversions(program) == ["middle as NCHW"]
    graph = Graph("toy", [ValueInfo("x", SHAPE)], [ValueInfo(name, SHAPE) for name in "yz"], [], {})
    results = Context(graph, program, device).run({"x": images(1)})
    np.testing.assert_array_equal(results["y"], results["z"])


@pytest.mark.parametrize("shape", [(1, 5, 6, 6), (4, 5, 1, 1), (1, 16, 1, 1), (3, 1, 2, 2),
                                   (2, 5, 6, 6), (1, 5, 0, 6)])
def test_formats_have_one_name_where_they_are_one_memory(shape: tuple[int, ...]) -> None:
    specs = [TensorSpec(shape, Format(layout, "float32", multiple, border))
             for layout in AXES for multiple in (1, 4, 8, 16, 32)
             for border in ((0, 0, 0, 0), (1, 1, 1, 1))]
    for one in specs:
        assert one.same_memory(TensorSpec(shape, memory_format(one)))
        for other in specs:
            assert one.same_memory(other) == (memory_format(one) == memory_format(other))
