"""Plans of random networks on simulated GPUs are right; faults that are planted are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.model.input_format import InputFormat
from gossamer.model.load import load
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.fused.problem import FusionProblem
from gossamer.plan.api import with_weights
from gossamer.plan.choose.program_builder import Network, ProgramBuilder
from gossamer.plan.choose.table import Table
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.rows import LayerCandidates
from gossamer.plan.tune.tuner import Promising, Tuner
from gossamer.tensor import Format, TensorSpec
from tests.model.onnx_models import model
from tests.simulated.algorithms import Times, drawn_times, estimated_times, simulated
from tests.simulated.binary import binary_network, pruned_network
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.networks import random_network
from tests.simulated.plans import Case, check

PLANS = 60
"""Random networks that are planned. Some of them show each fault that is planted below."""
AT_ONCE = 10


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))


@pytest.mark.parametrize("first", range(0, PLANS, AT_ONCE))
def test_plans_of_random_networks_are_right(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        case = Case.of(seed)
        try:
            check(case)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_pruned_networks_are_right(seed: int) -> None:
    check(replace(Case.of(seed), effort="quick"), pruned_network)


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_networks_of_signs_are_right(seed: int) -> None:
    check(replace(Case.of(seed), batch=(0, 1, 2)[seed % 3]), binary_network)


def _passed_through(seed: int) -> onnx.ModelProto:
    """Returns a network that also returns its input and a constant as they are."""
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", 2, 3, 3)},
                 {"y": 4, "x": 4, "k": 2}, {"k": np.arange(6, dtype=np.float32).reshape(2, 3)})


@pytest.mark.parametrize("hardware", HARDWARE)
def test_conversions_of_inputs_and_constants_to_outputs_have_a_cost(hardware: str) -> None:
    check(replace(Case.of(0), hardware=hardware, given=InputFormat(), output_dtype="float16",
                  restriction={}), _passed_through)


def _mobile() -> Graph:
    """Returns the first layers of a mobile network."""
    build, rng = GraphBuilder("mobile"), np.random.default_rng(0)

    def convolved(x: str, *shape: int, stride: int = 1, groups: int = 1) -> str:
        weight = build.constant("w", rng.standard_normal(shape).astype(np.float32) / 4)
        return build.conv2d(x, weight, pads=(shape[2] // 2,) * 4, strides=(stride, stride),
                            groups=groups)

    y = build.apply("relu", convolved(build.input("x", (None, 3, 32, 32)), 16, 3, 3, 3, stride=2))
    y = convolved(build.apply("relu", convolved(y, 16, 1, 3, 3, groups=16)), 8, 16, 1, 1)
    build.output(y, (None, 8, 16, 16))
    return build.finish()


def _program(given: InputFormat, precision: str, times: Times, folder: Path) -> Program:
    """Returns the program of the first layers of a mobile network on a simulated H200."""
    return _program_of(with_formats(_mobile(), given, None), precision, times, folder)


def _program_of(graph: Graph, precision: str, times: Times, folder: Path) -> Program:
    """Returns the program of a network on a simulated H200."""
    with simulated(times):
        device = SimulatedDevice(HARDWARE["h200"], side_by_side=False)
        tuner = Tuner(device, "quick", precision=precision, cache=TuningCache(device, folder))
        return Plan(graph, device, Policy("quick", precision), tuner=tuner).program(1)


@pytest.mark.parametrize("given", [
    InputFormat("uint8", "NHWC", scale=1 / 64, mean=(1, 2, 3)), InputFormat("uint8"),
    InputFormat("float16", "NHWC")], ids=str)
def test_the_kernel_of_the_first_layers_makes_the_image(given: InputFormat,
                                                        tmp_path: Path) -> None:
    estimated = estimated_times(0)

    def times(algorithm: Algorithm, *others: Any) -> float:
        """Returns times with which this kernel is the fastest."""
        return estimated(algorithm, *others) / (10 if algorithm.name == "stem_mma" else 1)

    first = _program(given, "fp16", times, tmp_path).steps[0]
    assert first.algorithm.name == "stem_mma" and "input x" in first.layer.covers
    assert first.variant.inputs[0].format == given.format(4)


def test_layers_of_zeros_are_measured_with_the_algorithm_for_zeros_only(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a time of another algorithm, all candidates of that one could be left out as slow."""
    asked: dict[str, set[str]] = {}
    measure_all = Tuner.measure_all

    def measured(tuner: Tuner, nodes: Iterable[LayerCandidates],
                 promising: Promising | None = None) -> None:
        nodes = [*nodes]
        for node in nodes:
            asked.setdefault(node.layer.op, set()).update(
                algorithm.name for algorithm in node.algorithms)
        measure_all(tuner, nodes, promising)

    monkeypatch.setattr(Tuner, "measure_all", measured)
    build = GraphBuilder("layers of zeros")
    y = build.input("x", (None, 8, 6, 6))
    for _ in range(2):
        weight = build.constant("w", np.zeros((8, 8, 3, 3), np.float32))
        y = build.apply("relu", build.conv2d(y, weight, pads=(1, 1, 1, 1)))
    build.output(y, (None, 8, 6, 6))
    _program_of(build.finish(), "fp16", estimated_times(0), tmp_path)
    assert asked["conv2d"] == {"zero_weights"}


def test_layers_of_halves_are_computed_in_the_precision_allowed(tmp_path: Path) -> None:
    """The precision of what callers give says nothing of that of the layers that read it."""
    for seed in range(6):
        steps = _program(InputFormat("float16", "NHWC"), "fp32", drawn_times(seed),
                         tmp_path / str(seed)).steps
        assert {step.variant.precision for step in steps if step.layer.covers
                or "conv2d" in step.layer.name} == {"fp32"}, seed


def found(seeds: int = 20) -> bool:
    """Returns whether one of the first seeds, planned with one thread, is not right."""
    for seed in range(seeds):
        try:
            check(replace(Case.of(seed), side_by_side=False, effort="quick"))
        except Exception:  # whatever a fault leads to is its discovery
            return True
    return False


@pytest.fixture
def planted() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_a_conversion_that_is_left_out_is_found(planted: pytest.MonkeyPatch) -> None:
    converted = ProgramBuilder.converted

    def left_out(self: ProgramBuilder, name: str, spec: TensorSpec) -> str:
        if self.specs[name].nbytes == spec.nbytes and self.specs[name].layout != spec.layout:
            return name
        return converted(self, name, spec)

    planted.setattr(ProgramBuilder, "converted", left_out)
    assert found()


def test_a_format_that_is_mislabelled_is_found(planted: pytest.MonkeyPatch) -> None:
    add = ProgramBuilder.add

    def mislabelled(self: ProgramBuilder, layer: Layer) -> None:
        add(self, layer)
        for name in layer.outputs:
            spec = self.specs[name]
            if spec.layout == "NHWC" and not any(spec.format.other_channels):
                self.specs[name] = replace(spec, format=Format(
                    "NCHW", spec.dtype, spec.format.channel_multiple, spec.format.border))

    planted.setattr(ProgramBuilder, "add", mislabelled)
    assert found()


def test_a_fusion_that_covers_one_layer_too_many_is_found(planted: pytest.MonkeyPatch) -> None:
    program = Network.program

    def too_many(self: Network, device: Device, decide: Any, fusions: Sequence[Layer] = (),
                 reshapes: Mapping[str, Format] | None = None) -> Program:
        wider = []
        for fusion in fusions:
            assert isinstance(fusion.problem, FusionProblem)
            after = [layer for layer in self.layers
                     if fusion.outputs[0] in layer.inputs and layer.name not in fusion.covers]
            covers = (*fusion.covers, *(layer.name for layer in after[:1]))
            wider.append(replace(fusion, covers=covers))
        return program(self, device, decide, wider, reshapes)

    planted.setattr(Network, "program", too_many)
    assert found(PLANS)


def test_a_wrong_price_is_found(planted: pytest.MonkeyPatch) -> None:
    price = Table.conversion_us
    planted.setattr(Table, "conversion_us", lambda self, *conversion: (
        0.5 * price(self, *conversion)))
    assert found()


def with_scales(model: onnx.ModelProto) -> onnx.ModelProto:
    """Multiplies the network's input by numbers that are computed from its height and width, as
    exporters write the scale of attention. Such numbers are inputs of a part."""
    graph = model.graph
    graph.initializer.extend(numpy_helper.from_array(np.array([number]), str(number))
                             for number in (2, 3, 4))
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    scaled = "x"
    for first, end in ("23", "34"):
        nodes += [helper.make_node("Slice", ["shape", first, end], ["size" + first]),
                  helper.make_node("Cast", ["size" + first], ["real" + first],
                                   to=TensorProto.FLOAT),
                  helper.make_node("Sqrt", ["real" + first], ["root" + first]),
                  helper.make_node("Mul", [scaled, "root" + first], ["scaled" + first])]
        scaled = "scaled" + first
    for node in graph.node:
        node.input[:] = [scaled if name == "x" else name for name in node.input]
    following = list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes + following)
    return model


@pytest.mark.library_parts
@pytest.mark.parametrize("seed", range(8))
def test_no_candidate_computes_wrong_numbers(seed: int, tmp_path: Path) -> None:
    host, path = find("host"), tmp_path / "network.onnx"
    path.write_bytes(with_scales(random_network(seed)).SerializeToString())
    tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
    program = Plan(load(str(path)), host, Policy("quick"), tuner=tuner).program(1 + seed % 3)
    measured = [candidate.measured for node in program.measured for candidate in node.candidates]
    assert any(each.failure is None for each in measured)
    assert not [each for each in measured if each.wrong_numbers]


def test_weights_of_padded_channels_are_replaced(tmp_path: Path) -> None:
    graphs = []
    for seed in range(2):
        random, build = np.random.default_rng(seed), GraphBuilder("odd")
        build.input("x", (None, 19, 14, 14))
        build.output("y", ())
        x = "x"
        for index, shape in enumerate([(37, 19, 3, 3), (37, 37, 3, 3), (5, 37, 1, 1)]):
            weight = build.constant(f"w{index}", random.standard_normal(shape, np.float32))
            x = build.conv2d(x, weight, "", pads=(shape[2] // 2,) * 4, name=f"conv{index}",
                             output="y" if index == 2 else f"v{index}")
        graphs.append(build.finish())
    device = SimulatedDevice(HARDWARE["h200"])
    with simulated(estimated_times(0)):
        tuner = Tuner(device, "quick", precision="fp16", cache=TuningCache(device, tmp_path))
        plan = Plan(graphs[0], device, Policy("quick", "fp16"), tuner=tuner)
        assert any("40x14x14 -> 40x14x14" in row["problem"] for row in plan.report(2).rows)
        for _ in range(2):
            other = with_weights(plan, graphs[1])
            assert [row["algorithm"] for row in other.report(2).rows] == [
                row["algorithm"] for row in plan.report(2).rows]
            plan = other
