"""Channels without effect are removed, and the results stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.dead_channels import less_work
from gossamer.model.passes.optimise import optimise
from gossamer.plan.report.summary import summarise
from tests.model.executor import execute
from tests.model.onnx_models import model, runtime
from tests.tolerances import normalised_error

CHANNELS = 24


class Network:
    """A convolution of 24 channels, what lies between, and a layer of 5 channels."""

    def __init__(self, seed: int, bias: str = "random") -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}
        self.nodes = []
        self.last = "x"
        self.first = self.conv(3, CHANNELS, bias=bias)

    def conv(self, inputs: int, outputs: int, kernel: int = 3, pad: int = 1, groups: int = 1,
             bias: str = "random") -> str:
        """Adds a convolution, and returns the name of its weights."""
        name = f"w{len(self.nodes)}"
        self.arrays[name] = self.rng.standard_normal(
            (outputs, inputs // groups, kernel, kernel)).astype(np.float32)
        values = np.abs(self.rng.standard_normal(outputs)).astype(np.float32)
        self.arrays[f"{name}.b"] = {"random": values, "negative": -values,
                                    "zero": np.zeros_like(values)}[bias]
        self.add("Conv", f"{name}", f"{name}.b", pads=[pad] * 4, group=groups)
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> None:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *inputs], [output], name=output,
                                           **attributes))
        self.last = output

    def zero(self, name: str, *index: object) -> None:
        self.arrays[name][index] = 0

    def graph(self) -> Graph:
        self.nodes[-1].output[0] = "y"
        return load(model(self.nodes, {"x": ["N", 3, 7, 9]}, {"y": 4}, self.arrays))


def optimised(graph: Graph, values: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Returns the optimised graph, whose results are those of the graph. values: the inputs; random
    images where there are none."""
    result = optimise(graph)
    x = values or {"x": np.random.default_rng(1).standard_normal((2, 3, 7, 9)).astype(np.float32)}
    expected, found = (execute(resolve(each, len(x["x"])), x) for each in (graph, result))
    assert normalised_error(found["y"], expected["y"]) < 1e-6
    return result


def channels(graph: Graph) -> list[int]:
    """Returns the number of output channels of each convolution or product with constants."""
    return [graph.constants[node.inputs[1]].shape[
        1 if node.op == "gemm" and not node.attributes["trans_b"] else 0]
        for node in graph.nodes if node.op in ("conv2d", "gemm")]


DEAD = list(range(3, 19))


@pytest.mark.parametrize("bias, pad, count", [
    ("negative", 1, 8), ("zero", 1, 8), ("random", 0, 8), ("random", 1, CHANNELS)])
def test_filters_of_zeros(bias: str, pad: int, count: int) -> None:
    network = Network(0, bias)
    network.zero(network.first, DEAD)
    network.add("Relu")
    network.conv(CHANNELS, 5, pad=pad)
    result = optimised(network.graph())
    assert channels(result) == [count, 5]
    if count < CHANNELS:
        before, after = (sum(row.flops for row in summarise(resolve(graph, 1)))
                         for graph in (network.graph(), result))
        ((removed, less),) = [less_work(result.notes)]
        assert removed == "16" and float(less) == pytest.approx(before / after, rel=0.05)
    else:
        assert not result.notes, "at the borders it is another number"


@pytest.mark.parametrize("seed", range(40))
def test_pools_means_and_vectors_between(seed: int) -> None:
    rng, size, counts_zeros = np.random.default_rng(seed), np.array([7, 9]), False
    network = Network(seed, bias := rng.choice(["random", "negative"]))
    network.zero(network.first, DEAD)
    network.add("Relu")
    for _ in range(rng.integers(3)):
        pad, ceil, count = rng.integers(2, size=3).tolist()
        average = {"count_include_pad": count} if rng.integers(2) else {}
        network.add("AveragePool" if average else "MaxPool", kernel_shape=[3, 3], strides=[2, 2],
                    pads=[pad] * 4, ceil_mode=ceil, **average)
        counts_zeros |= bool(average and count and (pad or ceil))
        size = (size + 2 * pad - 3 + ceil) // 2 + 1
    if end := rng.choice(["GlobalAveragePool", "GlobalMaxPool", "ReduceMean", ""]):
        network.add(end, **({"axes": [2, 3], "keepdims": 0} if end == "ReduceMean" else {}))
        size = np.array(1)
    network.add(*(["Reshape", "shape"] if rng.integers(2) else ["Flatten"]))
    network.add("MatMul", "last")
    network.arrays |= {"shape": np.array([0, -1]), "last": rng.standard_normal(
        (CHANNELS * size.prod(), 5), np.float32)}
    proto = model(network.nodes, {"x": ["N", 3, 7, 9]}, {network.last: 2}, network.arrays)
    result, x = optimise(load(proto)), {"x": rng.standard_normal((2, 3, 7, 9), np.float32)}
    expected, = runtime(proto, x)
    assert normalised_error(execute(resolve(result, 2), x)[network.last], expected) < 1e-6
    assert channels(result)[0] == (CHANNELS if counts_zeros and bias == "random" else 8)


def test_channels_that_nobody_reads() -> None:
    network = Network(1)
    network.add("Relu")
    network.zero(network.conv(CHANNELS, 5), slice(None), DEAD)
    assert channels(optimised(network.graph())) == [8, 5]


@pytest.mark.parametrize("bias", ["negative", "random"])
def test_depthwise_convolutions_between(bias: str) -> None:
    network = Network(2, bias)
    network.zero(network.first, DEAD)
    network.add("Relu")
    network.conv(CHANNELS, CHANNELS, pad=1 if bias == "negative" else 0, groups=CHANNELS)
    network.add("Relu")
    network.conv(CHANNELS, 5, 1, 0)
    result = optimised(network.graph())
    assert channels(result) == [8, 8, 5]
    assert [node.attributes["groups"] for node in result.nodes] == [1, 8, 1]


def test_a_layer_that_loses_its_readers_goes_on_losing_channels() -> None:
    network = Network(3)
    network.add("Relu")
    middle = network.conv(CHANNELS, CHANNELS)
    network.add("Relu")
    network.zero(network.conv(CHANNELS, 5), slice(None), DEAD)
    # only channels of the second layer that nobody reads read these of the first
    alive = [index for index in range(CHANNELS) if index not in DEAD]
    network.zero(middle, *np.ix_(alive, DEAD))
    result = optimised(network.graph())
    assert channels(result) == [8, 8, 5]
    assert result.notes[0].startswith(
        "32 channels without effect are left out: 16 of v2, 16 of v0; ")


@pytest.mark.parametrize(("dead", "bias", "pad", "count"), [
    (3, "zero", 1, CHANNELS), (23, "zero", 1, 8), (CHANNELS, "zero", 1, 8),
    (CHANNELS, "random", 0, 8)])
def test_as_many_stay_as_a_multiple_takes(dead: int, bias: str, pad: int, count: int) -> None:
    network = Network(4, bias)
    network.zero(network.first, list(range(dead)))
    network.conv(CHANNELS, 5, pad=pad)
    assert channels(optimised(network.graph())) == [count, 5]


def test_channels_that_something_else_reads_stay() -> None:
    for other in ("residual", "output", "pool"):
        network = Network(7, "zero")
        network.zero(network.first, DEAD)
        first = network.last
        network.conv(CHANNELS, CHANNELS)
        if other == "pool":
            network.nodes.append(helper.make_node("GlobalAveragePool", [first], ["p"]))
            network.add("Add", "p")
        else:
            network.add("Relu")
            network.add("Add", first)
        result = optimised(network.graph())
        assert channels(result) == [CHANNELS, CHANNELS], other


def conv(output: str, value: str, weight: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", [value, weight], [output], name=output, **attributes)


STAYS: dict[str, list[onnx.NodeProto]] = {
    "a reader of two groups": [conv("a", "x", "first"), conv("y", "a", "halves", group=2)],
    "a reader that makes two channels of one": [
        conv("a", "x", "first"), conv("b", "a", "doubled", group=24), conv("y", "b", "of 48")],
    "a reader of pairs of channels": [
        conv("a", "x", "first of 48"), conv("b", "a", "pairs", group=24), conv("y", "b", "last")],
    "a depthwise reader beside another reader": [
        conv("a", "x", "first"), conv("b", "a", "depthwise", group=24), conv("c", "a", "last"),
        conv("d", "b", "last"), helper.make_node("Add", ["c", "d"], ["y"])],
    "a reader beside a depthwise reader": [
        conv("a", "x", "first"), conv("c", "a", "last"), conv("b", "a", "depthwise", group=24),
        conv("d", "b", "last"), helper.make_node("Add", ["c", "d"], ["y"])],
    "a reader with weights of the run": [conv("a", "x", "first"), conv("y", "a", "given")],
    "weights of the run": [conv("a", "x", "given first"), conv("y", "a", "last")],
    "a sum with a value of the run": [
        conv("a", "x", "first"), helper.make_node("Add", ["a", "z"], ["b"]),
        conv("y", "b", "last")],
    "a product along the columns": [
        conv("a", "x", "first"), helper.make_node("MatMul", ["a", "columns"], ["y"])],
}
"""Networks in which DEAD channels would be removed, but for what each network is named after. The
filters of these channels are zero, and no weight of a later layer is."""


@pytest.mark.parametrize("case", STAYS)
def test_what_keeps_all_channels(case: str) -> None:
    rng = np.random.default_rng(12)
    shapes = {"first": (24, 3, 1, 1), "first of 48": (48, 3, 1, 1), "last": (5, 24, 1, 1),
              "halves": (6, 12, 1, 1), "doubled": (48, 1, 1, 1), "of 48": (5, 48, 1, 1),
              "pairs": (24, 2, 1, 1), "depthwise": (24, 1, 1, 1), "columns": (24, 5),
              "given": (5, 24, 1, 1), "given first": (24, 3, 1, 1)}
    read = {name for node in STAYS[case] for name in node.input}
    arrays = {name: rng.standard_normal(shape).astype(np.float32)
              for name, shape in shapes.items() if name in read}
    for name in arrays:
        if name.startswith("first"):
            arrays[name][DEAD] = 0
    # filters that are zero in one run have an effect in another
    values = {"x": rng.standard_normal((2, 3, 4, 24)).astype(np.float32),
              "z": rng.standard_normal((2, 24, 4, 24)).astype(np.float32),
              **{name: arrays.pop(name) for name in list(arrays) if name.startswith("given")}}
    values = {name: array for name, array in values.items() if name in read}
    graph = load(model(STAYS[case], {
        name: [*(("N",) if name in "xz" else array.shape[:1]), *array.shape[1:]]
        for name, array in values.items()}, {"y": 4}, arrays))
    assert not optimised(graph, values).notes


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_transposed_operand_keeps_its_columns(transposed: int) -> None:
    rng = np.random.default_rng(13)
    first, last = rng.standard_normal((2, 24, 24)).astype(np.float32)
    first[:, DEAD] = 0
    nodes = [helper.make_node("Gemm", ["x", "first"], ["a"], name="a"),
             helper.make_node("Gemm", ["a", "last"], ["y"], name="y", transA=transposed)]
    graph = load(model(nodes, {"x": [24, 24]}, {"y": 2}, {"first": first, "last": last}))
    x = {"x": rng.standard_normal((24, 24)).astype(np.float32)}
    assert channels(optimised(graph, x)) == [24 if transposed else 8, 24]


@pytest.mark.parametrize(("layers", "more"), [(3, ""), (4, " and 1 more layer"),
                                              (5, " and 2 more layers")])
def test_a_note_names_three_layers(layers: int, more: str) -> None:
    network = Network(14, "zero")
    weights = [network.first]
    for _ in range(layers - 1):
        network.add("Relu")
        weights.append(network.conv(CHANNELS, CHANNELS, 1, 0, bias="zero"))
    network.conv(CHANNELS, 5, 1, 0)
    for name in weights:
        network.zero(name, DEAD)
    (note,) = optimised(network.graph()).notes
    named = [f"16 of v{2 * index}" for index in reversed(range(layers))][:3]
    assert note.startswith(f"{16 * layers} channels without effect are left out: "
                           f"{', '.join(named)}{more}; ")


@pytest.mark.parametrize("between", ["", "MaxPool"])
@pytest.mark.parametrize("jump", ["Sign", "Floor"])
def test_a_sign_behind_keeps_its_sums(jump: str, between: str) -> None:
    network = Network(8)
    network.zero(network.first, DEAD)
    network.add("Relu")
    network.conv(CHANNELS, 5, pad=0)
    if between:
        network.add(between, kernel_shape=[2, 2])
    network.add(jump)
    assert channels(optimised(network.graph())) == [CHANNELS, 5]


@pytest.mark.parametrize(("how", "count"), [
    ("SAME_UPPER", CHANNELS), ("SAME_LOWER", CHANNELS), ("VALID", 8)])
def test_pads_that_the_size_decides(how: str, count: int) -> None:
    network = Network(15)
    network.zero(network.first, DEAD)
    network.arrays["last"] = network.rng.standard_normal((5, CHANNELS, 3, 3)).astype(np.float32)
    network.add("Conv", "last", auto_pad=how)
    assert channels(optimised(network.graph())) == [count, 5]


@pytest.mark.parametrize("transposed", [0, 1])
def test_products(transposed: int) -> None:
    rng = np.random.default_rng(9)
    first, second = rng.standard_normal((2, 24, 24)).astype(np.float32)
    first[(DEAD, slice(None)) if transposed else (slice(None), DEAD)] = 0
    bias = rng.standard_normal(24).astype(np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["f"]),
             helper.make_node("Gemm", ["f", "in"], ["a"]),
             helper.make_node("Gemm", ["a", "first", "bias"], ["b"], transB=transposed),
             helper.make_node("Sigmoid", ["b"], ["c"]),
             helper.make_node("Gemm", ["c", "second", "bias"], ["y"], transB=transposed)]
    graph = load(model(nodes, {"x": ["N", 3, 7, 9]}, {"y": 2}, {
        "in": rng.standard_normal((189, 24)).astype(np.float32), "first": first,
        "second": second, "bias": bias}))
    assert channels(optimised(graph)) == [24, 8, 24]


@pytest.mark.parametrize("seed", range(20))
def test_random_zeros(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = Network(seed, str(rng.choice(["random", "negative", "zero"])))
    sizes = [CHANNELS]
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.7:
            network.add(str(rng.choice(["Relu", "Sigmoid", "Tanh"])))
        if rng.random() < 0.3:
            network.conv(sizes[-1], sizes[-1], groups=sizes[-1], pad=int(rng.integers(2)))
        else:
            sizes.append(int(rng.choice([1, 7, 8, 16])))
            network.conv(sizes[-2], sizes[-1], *((1, 0) if rng.random() < 0.5 else (3, 1)))
    for array in network.arrays.values():
        if array.ndim == 4:
            array[rng.random(array.shape[0]) < 0.5] = 0
            array[:, rng.random(array.shape[1]) < 0.3] = 0
    optimised(network.graph())
