"""Readers that name one memory by several formats share what is converted for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.graph import ValueInfo
from gossamer.plan.choose.network import LayerChoice, ProgramBuilder
from gossamer.plan.choose.planner import Planner
from gossamer.plan.eligibility import eligibility, first_in_order
from gossamer.plan.program import Layer, Program
from gossamer.plan.run.context import Context
from gossamer.tensor import AXES, Format, TensorSpec, default_spec, memory_format
from tests.plan.choose.formats.toy import ToyConv, images, two_layers

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
            algorithm, variants = first_in_order(layer, eligibility(layer, device)[0], device)
            return LayerChoice(algorithm, variants[0], device)
        toy = (ToyConv("writer", writes=Format("NHWC")) if layer.name == "conv0"
               else ToyConv("reader", reads=Format(layouts[layer.name])))
        return LayerChoice(toy, next(iter(toy.variants(layer.problem, device))), device)

    builder = ProgramBuilder(1, {"x": default_spec(SHAPE)}, {}, decide)
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
    results = Context("toy", program, device).run({"x": images(1)})
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
