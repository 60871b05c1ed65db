"""Tests of the suites' cases, and of cases of one layer with every contender."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, setting
from bench_tests.networks import LAYERS, PRODUCTS
from gossamer.bench.networks import reference
from gossamer.bench.rows import Stamp
from gossamer.bench.work import KINDS, AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.model import zoo
from gossamer.model.infer.resolve import resolve
from gossamer.model.onnx_writer import to_onnx
from gossamer_bench import contest, layer_tables
from gossamer_bench.layer_tables import distinct_convolutions
from gossamer_bench.modules import names_of
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.suites.catalogue import SUITES, named, select
from gossamer_bench.suites.layers import convolution, layer_case, linear
from gossamer_bench.suites.mobile_networks import MOBILE_NETWORKS
from gossamer_bench.suites.training import BACKPROP, MANY
from gossamer_bench.work import Case
from tests.fixtures import is_slow
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error, tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")
NETWORKS = [convolution(layer) for layer in LAYERS] + [linear(layer) for layer in PRODUCTS]


def layer(number: int, device: Device, folder: Path, against: Sequence[str] = (),
          precisions: Sequence[str] = ("fp32",)) -> Case:
    rows = PRODUCTS[0].rows if number == len(LAYERS) else None
    return layer_case("suite", NETWORKS[number], 1 if rows else 3,
                      setting(device, folder, against, precisions), rows)


def test_tables_are_the_published_networks(shared: Path) -> None:
    with open(shared / "data" / "alexnet_pruned" / "skimcaffe_layers.csv") as file:
        published = {tuple(int(row[key]) for key in ("C", "Hin", "M", "K", "stride", "pad",
                                                     "groups")): int(row["Hout"])
                     for row in csv.DictReader(file) if not row["layer"].startswith("loss")}
    ours = {(layer.channels, layer.size, layer.out_channels, layer.kernel, layer.stride,
             layer.pad, layer.groups): layer for layer in distinct_convolutions()}
    assert ours.keys() == published.keys()
    for key, layer in ours.items():
        assert (layer.size + 2 * layer.pad - layer.kernel) // layer.stride + 1 == published[key]


def test_cases_are_distinct_and_squares_have_no_batch_size() -> None:
    suites = [name for name in SUITES if not name.startswith("sparse-")]
    items = select(suites, [1, 64])
    assert len({(item.suite, item.name, item.batch) for item in items}) == len(items)
    convolutions = distinct_convolutions()
    assert len({layer.name for layer in convolutions}) == len(convolutions)
    layers = list(layer_tables.yolo())
    # what goes into [yolo] and [region] has neither batch norm nor a rectifier
    normalised = [layer for layer in layers if layer.out_channels not in (255, 425)]
    count = {name: sum(item.suite == name for item in items) for name in suites}
    products = layer_tables.PRODUCTS
    squares = sum(product.rows is not None for product in products)
    assert count == {"mobilenet": 2 * (1 + len(MOBILE_NETWORKS)), "ladder": 1, "networks": 2,
                     "mobilenet-blocks": 2 * 16, "mlperf-tiny": 2 * 4, "darknet": 4,
                     "pointwise-layers": 2 * len(layer_tables.pointwise_convolutions()),
                     "conv-layers": 2 * len(convolutions),
                     "gemm": 2 * len(products) - squares, "tuning": 8, "binary-networks": 8,
                     "darknet-layers": 2 * len(layers), "published": 2 * 6 * len(normalised),
                     "binary-layers": 2 * len(layer_tables.BINARY),
                     "latency": 2 * len(KINDS), "throughput": 4,
                     "torch-modules": 2 * len(names_of(None)),
                     "backprop": len(BACKPROP), "train-many": len(MANY)}


def test_pointwise_layers_are_those_of_the_networks() -> None:
    layers = layer_tables.pointwise_convolutions()
    assert all((layer.kernel, layer.pad, layer.groups) == (1, 0, 1) for layer in layers)
    of_mobilenet = {(layer.channels, layer.size, layer.out_channels, layer.stride)
                    for layer in layers if layer.name.startswith("mobilenetv2/")}
    shapes = resolve(zoo.build("mobilenet_v2"), 1)
    assert of_mobilenet == {
        (weight[1], shapes.shapes[node.inputs[0]][2], weight[0], node.attributes["strides"][0])
        for node in shapes.graph.nodes if node.op == "conv2d"
        if (weight := shapes.shapes[node.inputs[1]])[2:] == (1, 1)
        and node.attributes["groups"] == 1}
    of_resnet = [layer for layer in layers if layer.name.startswith("resnet50/")]
    assert len(layers) == len(of_mobilenet) + len(of_resnet)
    assert set(of_resnet) < set(distinct_convolutions())
    assert {layer.stride for layer in of_resnet} == {1, 2}


def test_a_file_is_no_suite() -> None:
    with pytest.raises(InputError, match=r"no suite 'a\.onnx\.gz'; .*networks --model a\.onnx\.gz"):
        select(["a.onnx.gz"], [1])


def test_cases_are_filtered_by_name() -> None:
    names = [item.name for item in select(["gemm", "conv-layers"], [1], "caffenet")]
    assert names == [*(f"caffenet/fc{number}" for number in (6, 7, 8)),
                     *(f"caffenet/conv{number}" for number in range(1, 6))]
    names = [item.name for item in select(["backprop"], [1], "1024-32-10/10000,784-128-10,40")]
    assert names == ["1024-32-10/10000", "1024-32-10/40000", "784-128-10"]
    assert named({"resnet50", "resnet50-dlmc-0.90"}, "resnet50") == {"resnet50"}
    with pytest.raises(InputError, match=r"--case bert: no case of gemm has that in its name; "
                                         r"there are: 512, .* and \d+ more"):
        select(["gemm"], [1], "bert")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_a_layer_has_every_contender(number: int, tmp_path: Path) -> None:
    host = find("host")
    case = layer(number, host, tmp_path, list(PEERS))
    result = contest.run(case, PEAKS, STAMP)
    rows = {row.contender: row for row in result.rows}
    assert not result.failed
    forced = {name.removeprefix("gossamer:") for name in rows if name.startswith("gossamer:")}
    algorithm, _, _ = rows["gossamer"].config.partition(" ")
    assert algorithm in forced
    for name, package in (("onnxruntime", "onnxruntime"), ("torch-eager", "torch")):
        assert (name in rows) == bool(find_spec(package))
    assert all(0 < row.error < tolerance("network") for row in result.rows)
    assert {row.batch for row in result.rows} == {1 if number == len(LAYERS) else 3}


@pytest.mark.slow
def test_the_forced_depthwise_algorithm_takes_its_layer_alone(tmp_path: Path) -> None:
    for number in range(len(LAYERS)):
        names = {row.contender for row in contest.run(
            layer(number, find("host"), tmp_path), PEAKS, STAMP).rows}
        assert ("gossamer:host_depthwise" in names) == LAYERS[number].name.endswith("depthwise")


def test_the_layers_work_is_counted_by_hand(tmp_path: Path) -> None:
    case = layer(0, find("host"), tmp_path)
    products = 2 * 3 * 5 * 9 * 4 * 9
    assert case.flops == products + 2 * 3 * 5 * 9
    assert case.least_bytes == 4 * (5 * 4 * 9 + 5 + 3 * 4 * 36 + 3 * 5 * 9)
    assert case.density == 1.0
    assert len(case.expected) == 2
    square = layer(len(LAYERS), find("host"), tmp_path)
    assert (square.flops, square.least_bytes, square.batch) == (2 * 8**3, 4 * 3 * 64, 1)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_a_layer_is_the_same_in_every_form(network: PeerNetwork) -> None:
    x = np.random.default_rng(1).standard_normal(
        (2, *network.graph.inputs[0].shape[1:])).astype(np.float32)
    expected = reference(network.graph, x)
    (from_onnx,) = runtime(to_onnx(network.graph), {"x": x})
    assert normalised_error(from_onnx, expected) < tolerance("network")
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        from_torch = network.torch(network.graph.constants)(torch.from_numpy(x.copy())).numpy()
    assert normalised_error(from_torch, expected) < tolerance("network")


def test_layers_on_every_device(device: Device, tmp_path: Path) -> None:
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    for number in (0, len(LAYERS)):
        case = layer(number, device, tmp_path)
        chosen, *_ = case.contenders["gossamer"]()
        ready = chosen.make()
        ready.work(None)
        device.synchronize()
        assert normalised_error(ready.output(len(case.expected)),
                                case.expected) < tolerance("network")


def test_an_algorithm_that_cannot_is_absent_with_its_reason(tmp_path: Path) -> None:
    case = layer(0, find("host"), tmp_path)
    with pytest.raises(AbsentError, match="compiles no kernels"):
        case.contenders["gossamer:im2col_gemm"]()
