"""The catalogue of suites. A suite names its cases at a batch size; the cases are made one after
another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.bench.call_times import Load
from gossamer.bench.calls import LATENCY, THROUGHPUT
from gossamer.bench.networks import file_network, in_torch, network_at
from gossamer.bench.work import PeerNetwork, Setting
from gossamer.errors import InputError, did_you_mean
from gossamer.model import zoo
from gossamer.model.graph import Graph
from gossamer.model.readers import registry
from gossamer_bench.ladder.rungs import SUITE as LADDER
from gossamer_bench.layer_tables import (
    BINARY,
    POINTWISE,
    PRODUCTS,
    ConvLayer,
    InvertedResidual,
    LinearLayer,
    distinct_convolutions,
    mobilenet_v2_blocks,
    pointwise_convolutions,
    yolo,
)
from gossamer_bench.suites.binary_layers import binary_case as binary_layer
from gossamer_bench.suites.binary_networks import SUITE as BINARY_NETWORKS
from gossamer_bench.suites.binary_networks import binary_case, binary_networks
from gossamer_bench.suites.calls import latency_items, throughput_items
from gossamer_bench.suites.ladder import ladder_case
from gossamer_bench.suites.layers import convolution, layer_case, linear
from gossamer_bench.suites.mlperf_tiny import MLPERF_TINY_NETWORKS
from gossamer_bench.suites.mlperf_tiny import SUITE as MLPERF_TINY
from gossamer_bench.suites.mobile_networks import MOBILE_NETWORKS, inverted_residual
from gossamer_bench.suites.networks import network_case
from gossamer_bench.suites.published import published
from gossamer_bench.suites.sparse_layers import sparse_layers
from gossamer_bench.suites.sparse_networks import dense_resnet50, dlmc_networks, sparse_networks
from gossamer_bench.suites.torch_modules import SUITE as TORCH_MODULES
from gossamer_bench.suites.torch_modules import torch_modules
from gossamer_bench.suites.training import backprop, train_many
from gossamer_bench.suites.tuning import EFFORTS, tuning_case
from gossamer_bench.work import Case, Files, Item

_MOST_NAMED = 8
"""The most cases that an error message names."""

Suite = Callable[[int, Files], list[Item]]
"""Function that returns a suite's cases at a batch size. Raises InputError where the suite lacks
files that it needs."""


def mobilenet(batch: int, files: Files) -> list[Item]:
    """Returns MobileNetV2 with trained weights, and similar networks with random weights."""
    trained = Item("mobilenet", "mobilenetv2", batch, lambda setting: network_case(
        "mobilenet", _mobilenet("mobilenetv2"), batch, setting))
    return [trained, *_drawn("mobilenet", MOBILE_NETWORKS, batch)]


def mlperf_tiny(batch: int, files: Files) -> list[Item]:
    """Returns the networks of MLPerf Tiny with random weights."""
    return _drawn(MLPERF_TINY, MLPERF_TINY_NETWORKS, batch)


def _drawn(suite: str, graphs: Mapping[str, Callable[[], Graph]], batch: int) -> list[Item]:
    """Returns networks with random weights. graphs: functions that build them, by name."""
    def item(name: str, graph: Callable[[], Graph]) -> Item:
        return Item(suite, name, batch, lambda setting: network_case(
            suite, in_torch(name, graph(), batch), batch, setting))

    return [item(name, graph) for name, graph in graphs.items()]


def mobilenet_blocks(batch: int, files: Files) -> list[Item]:
    """Returns the inverted residual blocks of MobileNetV2 that expand their channels, each as a
    network of its own. The best plan without fusions is measured too. float16 plans read and write
    float16 NHWC, the format between the layers of a network."""
    def item(block: InvertedResidual) -> Item:
        return Item("mobilenet-blocks", block.name, batch, lambda setting: network_case(
            "mobilenet-blocks", in_torch(block.name, inverted_residual(block), batch), batch,
            setting, unfused_too=True, between_layers=True))

    return [item(block) for block in mobilenet_v2_blocks() if block.hidden > block.channels]


def ladder(batch: int, files: Files) -> list[Item]:
    """Returns the case in which the rungs of the published ladder compute MobileNetV2, one image at
    a time."""
    return [Item(LADDER, "mobilenetv2", 1, lambda setting: ladder_case(
        _mobilenet("mobilenetv2"), 1, setting), is_ladder=True)]


def networks(batch: int, files: Files) -> list[Item]:
    """Returns the networks of the files, or MobileNetV2 where no files are given. Plans that force
    one algorithm are measured too."""
    makers: dict[str, Callable[[], PeerNetwork]]
    if not files.models:
        makers = {"mobilenet_v2": lambda: _mobilenet("mobilenet_v2")}
    else:
        makers = _file_networks(files)

    def item(name: str, network: Callable[[], PeerNetwork]) -> Item:
        return Item("networks", name, batch, lambda setting: network_case(
            "networks", network(), batch, setting, force_each=True))

    return [item(name, network) for name, network in makers.items()]


def pruned_networks(batch: int, files: Files) -> list[Item]:
    """Returns whole pruned networks and the networks of the files. Where files are given without a
    folder of data, returns only the networks of the files. Plans that force one algorithm, and a
    plan of the same network with dense weights, are measured too."""
    makers = {} if files.models and files.data is None else dict(sparse_networks(files.data))
    makers |= _file_networks(files)

    def item(name: str, make: Callable[[], PeerNetwork]) -> Item:
        def network() -> PeerNetwork:
            made = make()
            return replace(in_torch(name, made.graph, batch), onnx=made.onnx)

        return Item("sparse-networks", name, batch, lambda setting: network_case(
            "sparse-networks", network(), batch, setting, force_each=True, dense_too=True))

    return [item(name, make) for name, make in makers.items()]


def binary(batch: int, files: Files) -> list[Item]:
    """Returns binary networks with the shapes of the literature, and the networks of the files.
    Plans that force one algorithm are measured too."""
    makers: dict[str, Callable[[], PeerNetwork]] = dict(binary_networks())
    makers |= _file_networks(files)
    return [Item(BINARY_NETWORKS, name, batch, partial(binary_case, make, batch))
            for name, make in makers.items()]


def tuning(batch: int, files: Files) -> list[Item]:
    """Returns networks that are planned with each effort: MobileNetV2, dense ResNet-50, pruned
    ResNet-50 where a folder of data is given, and the networks of the files. Where files are given
    without a folder of data, only the networks of the files are planned."""
    makers: dict[str, Callable[[], PeerNetwork]] = {}
    if files.data is not None or not files.models:
        makers |= {"mobilenetv2": lambda: _mobilenet("mobilenetv2"), "resnet50": dense_resnet50}
    if files.data is not None:
        makers |= dlmc_networks("tuning", files.data)
    makers |= _file_networks(files)
    return [Item("tuning", f"{name}/{effort}", batch, partial(_tuning_case, make, effort, batch),
                 is_tuning=True)
            for name, make in makers.items() for effort in files.efforts or EFFORTS]


def _tuning_case(make: Callable[[], PeerNetwork], effort: str, batch: int,
                 setting: Setting) -> Case:
    return tuning_case(make(), effort, batch, setting)


def conv_layers(batch: int, files: Files) -> list[Item]:
    """Returns the convolutions of three networks, one by one, with dense weights."""
    return _dense("conv-layers", distinct_convolutions(), batch)


def pointwise_layers(batch: int, files: Files) -> list[Item]:
    """Returns the 1x1 convolutions of two networks, one by one, with dense weights."""
    return _dense(POINTWISE, pointwise_convolutions(), batch)


def _dense(suite: str, layers: Iterable[ConvLayer], batch: int) -> list[Item]:
    """Returns convolutions with dense weights, one by one."""
    def item(layer: ConvLayer) -> Item:
        return Item(suite, layer.name, batch, lambda setting: layer_case(
            suite, convolution(layer), batch, setting), is_layer=True)

    return [item(layer) for layer in layers]


def gemm(batch: int, files: Files) -> list[Item]:
    """Returns matrix products. Classifiers have a row for each image of the batch; the other
    products have a fixed number of rows."""
    def item(size: int, layer: LinearLayer) -> Item:
        return Item("gemm", layer.name, size, lambda setting: layer_case(
            "gemm", linear(layer), size, setting, layer.rows), is_layer=True)

    return [item(batch if layer.rows is None else 1, layer) for layer in PRODUCTS]


def darknet(batch: int, files: Files) -> list[Item]:
    """Returns the detectors of the zoo as whole networks. A plan that forces the algorithm
    `published`, which is the published convolution in OpenCL, is measured too."""
    def item(name: str) -> Item:
        return Item("darknet", name, batch, lambda setting: network_case(
            "darknet", in_torch(name, zoo.build(name), batch), batch, setting,
            forced_too=("published",)))

    return [item(name) for name in ("yolov4-tiny", "yolov2-tiny")]


def darknet_layers(batch: int, files: Files) -> list[Item]:
    """Returns the convolutions of the zoo's detectors, one by one, with dense weights."""
    return _dense("darknet-layers", yolo(), batch)


def binary_layers(batch: int, files: Files) -> list[Item]:
    """Returns the convolutions of binary networks, one by one."""
    def item(layer: ConvLayer) -> Item:
        return Item("binary-layers", layer.name, batch, lambda setting: binary_layer(
            "binary-layers", layer, batch, setting), is_layer=True)

    return [item(layer) for layer in BINARY]


def latency(batch: int, files: Files) -> list[Item]:
    """Returns cases that measure the time from a call to its result. The networks are the networks
    of the files, or MobileNetV2 where no files are given."""
    return [item for name, make in _called_networks(files)
            for item in latency_items(name, make, batch, files)]


def throughput(batch: int, files: Files) -> list[Item]:
    """Returns cases that measure the time of many batches, transfers included. The networks are the
    networks of the files, or MobileNetV2 where no files are given."""
    return [item for name, make in _called_networks(files)
            for item in throughput_items(name, make, batch, files)]


def _called_networks(files: Files) -> list[tuple[str, Callable[[int], PeerNetwork]]]:
    """Returns the name of each network, and a function that makes the network and its torch module
    for a batch size."""
    def make(path: Path, batch: int) -> PeerNetwork:
        if str(path) == "mobilenet_v2":
            return _mobilenet(str(path))
        return network_at(path, batch)

    return [(registry.stem(path), partial(make, path))
            for path in files.models or (Path("mobilenet_v2"),)]


def _file_networks(files: Files) -> dict[str, Callable[[], PeerNetwork]]:
    """Returns functions that make the networks of the model files, by the networks' names."""
    return {file_network(path).name: partial(file_network, path) for path in files.models}


def _mobilenet(name: str) -> PeerNetwork:
    """Returns MobileNetV2 with trained weights, under this name."""
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer_bench.peers.torch_networks import mobilenet_v2

        return mobilenet_v2(constants)

    return PeerNetwork(name, zoo.build("mobilenet_v2"), torch_form)


def select(names: Sequence[str], batches: Sequence[int], parts: str | None = None,
           models: Sequence[Path] = (), data: Path | None = None,
           sparsity: float | None = None, effort: str | None = None,
           loads: Sequence[Load] = (Load(),), images: Path | None = None,
           modules: str | None = None) -> list[Item]:
    """Returns the cases of the suites at the batch sizes, each once; the batch sizes of a case
    follow one another.

    parts: comma-separated parts of the names of the cases to return; see named().
    models: files that the suites of networks and of calls measure.
    data: folder of published sparse weights.
    sparsity: least sparsity of the layers that `sparse-layers` measures.
    effort: the effort that `tuning` measures; None for the suite's own efforts.
    loads: numbers of threads, rates and durations of the calls that `latency` measures.
    images: folder of pictures that `throughput` runs.
    modules: patterns of the names of networks that `torch-modules` measures.
    Raises InputError for an unknown suite, a suite with missing files, parts that no case has in
    its name, files that no suite takes, and files with cases of the same name.
    """
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        hint = "".join(f"; a file goes with networks --model {name}" for name in unknown
                       if registry.reader_of(name))
        raise InputError(f"no suite {', '.join(map(repr, unknown)) or 'given'}; there are: "
                         f"{', '.join(SUITES)}"
                         f"{hint or ''.join(did_you_mean(name, SUITES) for name in unknown)}")
    if models and not {"networks", "sparse-networks", BINARY_NETWORKS, "tuning", LATENCY,
                       THROUGHPUT} & set(names):
        raise InputError(f"--model {models[0]}: goes with the suite networks, sparse-networks, "
                         f"{BINARY_NETWORKS}, tuning, {LATENCY} or {THROUGHPUT}")
    if images is not None and THROUGHPUT not in names:
        raise InputError(f"--images {images}: goes with the suite {THROUGHPUT}")
    if modules is not None and TORCH_MODULES not in names:
        raise InputError(f"--models {modules}: goes with the suites {TORCH_MODULES} and timm")
    if data is not None and not {"sparse-layers", "sparse-networks", "tuning"} & set(names):
        raise InputError(f"--data {data}: goes with the suite sparse-layers, sparse-networks or "
                         "tuning")
    if sparsity is not None:
        if "sparse-layers" not in names:
            raise InputError(f"--sparsity {sparsity:g}: goes with the suite sparse-layers")
        if not 0 <= sparsity < 1:
            raise InputError(f"--sparsity {sparsity:g}: expected a share of zeros, like 0.85")
    stems = [registry.stem(path) for path in models]
    for path, stem in zip(models, stems, strict=True):
        if stems.count(stem) > 1:
            raise InputError(f"--model {path}: there is another file for the case {stem!r}; "
                             "rename one")
    files = Files(tuple(models), data, () if effort is None else (effort,), tuple(loads), images,
                  modules)
    items = {(item.suite, item.name, item.batch): item
             for name in names for batch in batches for item in SUITES[name](batch, files)}
    order = list(dict.fromkeys((item.suite, item.name) for item in items.values()))
    selected = named({item.name for item in items.values()}, parts)
    chosen = sorted((item for item in items.values() if item.name in selected),
                    key=lambda item: order.index((item.suite, item.name)))
    if not chosen:
        known = list(dict.fromkeys(item.name for item in items.values()))
        more = len(known) - _MOST_NAMED
        raise InputError(f"--case {parts}: no case of {', '.join(names)} has that in its name; "
                         f"there are: {', '.join(known[:_MOST_NAMED])}"
                         + (f" and {more} more" if more > 0 else ""))
    if sparsity is not None:
        chosen = [item for item in chosen if not item.sparsity or item.sparsity() >= sparsity]
        if not any(item.sparsity for item in chosen):
            raise InputError(f"--sparsity {sparsity:g}: no layer has so many zeros")
    return chosen


def named(cases: Collection[str], parts: str | None) -> set[str]:
    """Returns the cases whose names contain one of the comma-separated parts; a part that is itself
    the name of a case selects that case alone. None selects all cases."""
    if parts is None:
        return set(cases)
    return {case for part in parts.split(",") if part for case in cases
            if (part == case if part in cases else part in case)}


SUITES: dict[str, Suite] = {"mobilenet": mobilenet, "mobilenet-blocks": mobilenet_blocks,
                            MLPERF_TINY: mlperf_tiny, LADDER: ladder, "conv-layers": conv_layers,
                            POINTWISE: pointwise_layers, "gemm": gemm,
                            "darknet": darknet, "darknet-layers": darknet_layers,
                            "published": published, "binary-layers": binary_layers,
                            "networks": networks, "sparse-layers": sparse_layers,
                            "sparse-networks": pruned_networks, BINARY_NETWORKS: binary,
                            "tuning": tuning, LATENCY: latency, THROUGHPUT: throughput,
                            "backprop": backprop, "train-many": train_many,
                            TORCH_MODULES: torch_modules}
