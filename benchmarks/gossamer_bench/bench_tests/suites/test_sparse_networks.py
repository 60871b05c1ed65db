"""Tests that the pruned networks are the published ones, in every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.report.summary import summarise
from gossamer_bench.layer_tables import ConvLayer
from gossamer_bench.sparse_data import masked_resnet50
from gossamer_bench.sparse_weights import with_values
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.sparse_networks import caffenet, googlenet_v1, resnet, sparse_networks
from tests.bench.verb import tiny_folder
from tests.model.onnx_models import runtime
from tests.tolerances import normalised_error, tolerance

BUILDS: dict[str, Callable[..., Graph]] = {
    "caffenet": caffenet, "googlenet": googlenet_v1, "resnet50": resnet}
CASES = ["caffenet", "googlenet", "resnet50", "resnet50-dlmc-0.90", "resnet50-dlmc-0.98",
         "resnet50-0.80-from-dlmc-0.90", "resnet50-0.95-from-dlmc-0.90", "mobilenetv1-1x1-0.90",
         "mobilenetv2-1x1-0.90", "yolov4-tiny-0.90", "resnet50-2:4"]
SMALL = {"caffenet": 67, "googlenet": 64, "resnet50": 64}


def nothing(layer: ConvLayer) -> np.ndarray:
    return np.zeros(layer.weight_shape, np.float32)


def thin(layer: ConvLayer) -> np.ndarray:
    """Random weights of which every fourth is nonzero."""
    shape = layer.weight_shape
    mask = np.arange(np.prod(shape)).reshape(shape) % 4 == 0
    return with_values(mask, np.random.default_rng(len(layer.name)))


@pytest.mark.parametrize(("name", "parameters", "products", "layers"), [
    # the published numbers, with a bias for each channel in place of ResNet-50's batch norm
    ("caffenet", 60_965_224, 724e6, 5 + 3),
    ("googlenet", 6_998_552, 1.58e9, 57 + 1),
    ("resnet50", 25_530_472, 3.86e9, 53 + 1),
])
def test_size_and_work_are_the_published_ones(name: str, parameters: int, products: float,
                                              layers: int) -> None:
    rows = summarise(resolve(BUILDS[name](name, nothing), 1))
    assert sum(row.parameters for row in rows) == parameters
    weighted = [row for row in rows if row.density is not None]
    assert len(weighted) == layers and weighted[-1].output_shape == (1, 1000)
    assert sum(row.flops for row in weighted) / 2 == pytest.approx(products, rel=0.01)


def test_where_resnet_halves_the_image() -> None:
    """ResNet-50 halves it in the first 1x1 convolution of a block, or in the 3x3 one."""
    sizes = [{row.name: row.output_shape[2:] for row in summarise(resolve(
        resnet("resnet50", nothing, halving=halving), 1))} for halving in (1, 3)]
    assert [by_name["res3a_branch2a"] for by_name in sizes] == [(28, 28), (56, 56)]
    for name, size in (("res3a_branch1", 28), ("res3a_branch2b", 28), ("res5c_branch2c", 7)):
        assert [by_name[name] for by_name in sizes] == [(size, size)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_a_network_is_the_same_in_onnx(name: str) -> None:
    graph = BUILDS[name](name, thin, SMALL[name])
    x = np.random.default_rng(1).standard_normal((2, 3, SMALL[name], SMALL[name]), np.float32)
    expected = reference(graph, x)
    assert 0.1 < expected.std() < 100
    (from_onnx,) = runtime(to_onnx(graph), {"x": x})
    assert normalised_error(from_onnx, expected) < tolerance("network")


def test_caffenet_written_down_in_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    graph = caffenet("caffenet", thin, SMALL["caffenet"])
    w = {name: torch.from_numpy(array) for name, array in graph.constants.items()}
    x = np.random.default_rng(2).standard_normal((2, 3, 67, 67), np.float32)

    def conv(x, name, **options):
        return F.relu(F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **options))

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def pool(x):
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    def norm(x):
        return F.local_response_norm(x, 5, alpha=1e-4, beta=0.75)

    y = norm(pool(conv(torch.from_numpy(x), "conv1", stride=4)))
    y = norm(pool(conv(y, "conv2", padding=2, groups=2)))
    y = conv(conv(y, "conv3", padding=1), "conv4", padding=1, groups=2)
    y = pool(conv(y, "conv5", padding=1, groups=2)).flatten(1)
    y = linear(F.relu(linear(F.relu(linear(y, "fc6")), "fc7")), "fc8")
    assert normalised_error(y.numpy(), reference(graph, x)) < tolerance("network")


def test_published_densities_are_those_of_the_layers(shared: Path) -> None:
    networks = sparse_networks(shared / "data")
    assert list(networks) == CASES
    google = {row.name: row.density for row in summarise(resolve(networks["googlenet"]().graph, 1))}
    assert google["inception_4e/3x3"] == pytest.approx(1 - 0.986999, abs=1e-5)
    assert google["inception_4e/1x1"] == pytest.approx(1 - 0.00185695, abs=1e-5)
    assert google["classifier"] == 1
    masked = {row.name: row.density for row in summarise(resolve(
        networks["resnet50-dlmc-0.98"]().graph, 1))}
    assert all(masked[name] == pytest.approx(0.02, abs=5e-4)
               for name in ("conv1", "res4c_branch2a", "res5a_branch1", "fc1000"))


@pytest.mark.slow
def test_drawn_masks_are_of_the_published_ones(shared: Path) -> None:
    published, thinner, denser = (
        [layer.weights() != 0 for layer in masked_resnet50(shared / "data", share).values()]
        for share in ("0.90", "0.95", "0.80"))
    for mask, less, more in zip(published, thinner, denser, strict=True):
        assert np.count_nonzero(less) == round(0.05 * mask.size) and not (less & ~mask).any()
        assert np.count_nonzero(more) == round(0.2 * mask.size) and not (mask & ~more).any()


@pytest.mark.slow
def test_networks_pruned_by_magnitude(shared: Path) -> None:
    pruned = {name: make().graph for name, make in sparse_networks(shared / "data").items()
              if name in ("mobilenetv1-1x1-0.90", "resnet50-2:4")}
    rows = summarise(resolve(pruned["mobilenetv1-1x1-0.90"], 1))
    densities = [row.density for row in rows if row.density is not None]
    # a first convolution, 13 pairs of a depthwise and a 1x1 convolution, a classifier
    assert densities == [1.0, *[pytest.approx(1), pytest.approx(0.1, abs=1e-3)] * 13, 1.0]
    halves = [row.density for row in summarise(resolve(pruned["resnet50-2:4"], 1))
              if row.density is not None]
    assert halves == [1.0, *[0.5] * 53]


def test_cases_are_networks_of_the_data_and_of_files(tmp_path: Path) -> None:
    path = tmp_path / "own.onnx"
    path.write_bytes(to_onnx(tiny().graph).SerializeToString())
    with pytest.raises(InputError, match=r"suite sparse-networks: needs --data FOLDER, .* with "
                                         r"alexnet_pruned, resnet50_masks in it"):
        select(["sparse-networks"], [1])
    (alone,) = select(["sparse-networks"], [1], models=[path])
    assert (alone.suite, alone.name, alone.is_layer) == ("sparse-networks", "own", False)
    folder = tiny_folder(tmp_path)
    names = [item.name for item in select(["sparse-networks"], [1], models=[path], data=folder)]
    assert names == [*CASES, "own"]
