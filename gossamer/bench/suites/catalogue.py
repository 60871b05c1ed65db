"""The suites: what is measured. A suite names its cases at a batch size; each is made in turn."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from gossamer.bench.peers.peer import PeerNetwork
from gossamer.bench.suites.layer_tables import (
    PRODUCTS,
    ConvLayer,
    LinearLayer,
    distinct_convolutions,
)
from gossamer.bench.suites.layers import convolution, layer_case, linear
from gossamer.bench.suites.networks import network_case
from gossamer.bench.suites.sparse_layers import sparse_layers
from gossamer.bench.suites.sparse_networks import sparse_networks
from gossamer.bench.suites.training import backprop, train_many
from gossamer.bench.work import Files, Item
from gossamer.cli.show import shape_text
from gossamer.errors import InputError
from gossamer.model import zoo
from gossamer.model.readers.registry import load

_MOST_NAMED = 8


Suite = Callable[[int, Files], list[Item]]
"""The cases at a batch size. Raises InputError where a suite lacks files that it needs."""


def mobilenet(batch: int, files: Files) -> list[Item]:
    """MobileNetV2 as a whole."""
    return [Item("mobilenet", "mobilenetv2", batch, lambda setting: network_case(
        "mobilenet", _mobilenet("mobilenetv2"), batch, setting))]


def networks(batch: int, files: Files) -> list[Item]:
    """Whole networks, also by plans that force one algorithm: MobileNetV2, or those of files."""
    if not files.models:
        return [_forced("networks", "mobilenet_v2", lambda: _mobilenet("mobilenet_v2"), batch)]
    return _of_files("networks", batch, files)


def pruned_networks(batch: int, files: Files) -> list[Item]:
    """Whole networks with published sparsity, and those of files; also by forced plans. Where
    files alone are given, those alone."""
    made = {} if files.models and files.data is None else sparse_networks(files.data)
    return [*(_forced("sparse-networks", name, network, batch) for name, network in made.items()),
            *_of_files("sparse-networks", batch, files)]


def conv_layers(batch: int, files: Files) -> list[Item]:
    """The convolutions of three networks, one by one, with dense weights."""
    def item(layer: ConvLayer) -> Item:
        return Item("conv-layers", layer.name, batch, lambda setting: layer_case(
            "conv-layers", convolution(layer), batch, setting), is_layer=True)

    return [item(layer) for layer in distinct_convolutions()]


def gemm(batch: int, files: Files) -> list[Item]:
    """Matrix products: squares, which know no batch, and classifiers."""
    def item(size: int, layer: LinearLayer) -> Item:
        return Item("gemm", layer.name, size, lambda setting: layer_case(
            "gemm", linear(layer), size, setting, layer.rows), is_layer=True)

    return [item(batch if layer.rows is None else 1, layer) for layer in PRODUCTS]


def _forced(suite: str, name: str, network: Callable[[], PeerNetwork], batch: int) -> Item:
    return Item(suite, name, batch, lambda setting: network_case(
        suite, network(), batch, setting, force_each=True))


def _of_files(suite: str, batch: int, files: Files) -> list[Item]:
    return [_forced(suite, _of_file(path).name, partial(_of_file, path), batch)
            for path in files.models]


def _mobilenet(name: str) -> PeerNetwork:
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.peers.torch_networks import mobilenet_v2

        return mobilenet_v2(constants)

    return PeerNetwork(name, zoo.build("mobilenet_v2"), torch_form)


@cache
def _of_file(path: Path) -> PeerNetwork:
    """Raises InputError or ModelError for a file that is no network of one float32 input."""
    graph = load(path)
    (shape, dtype), *others = [(info.shape, info.dtype) for info in graph.inputs]
    if others or dtype != "float32" or shape[:1] != (None,) or None in shape[1:]:
        described = ", ".join(f"{info.name!r} {info.dtype} {shape_text(info.shape)}"
                              for info in graph.inputs)
        raise InputError(f"--model {path}: expected one float32 input whose batch alone is open, "
                         f"it has {described}")

    def content() -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    return PeerNetwork(_stem(path), graph, onnx=content)


def _stem(path: Path) -> str:
    """The file's name without .onnx or .onnx.gz."""
    return re.sub(r"\.onnx(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def select(names: Sequence[str], batches: Sequence[int], parts: str | None = None,
           models: Sequence[Path] = (), data: Path | None = None,
           sparsity: float | None = None) -> list[Item]:
    """The cases of the suites at the batch sizes, each once, the batch sizes of a case one after
    the other; those that `parts` names (see named).

    models: files that the suites `networks` and `sparse-networks` measure. data: the folder of
    published sparse weights. sparsity: the least of layers that `sparse-layers` measures.
    Raises InputError for a suite that is none or lacks its files, where no case has that name,
    and for files that no suite takes or that cannot be told apart.
    """
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        hint = "".join(f"; a file goes with networks --model {name}" for name in unknown
                       if re.search(r"\.onnx(\.gz)?$", name, flags=re.IGNORECASE))
        raise InputError(f"no suite {', '.join(map(repr, unknown)) or 'given'}; there are: "
                         f"{', '.join(SUITES)}{hint}")
    if models and not {"networks", "sparse-networks"} & set(names):
        raise InputError(f"--model {models[0]}: goes with the suite networks or sparse-networks")
    if data is not None and not {"sparse-layers", "sparse-networks"} & set(names):
        raise InputError(f"--data {data}: goes with the suite sparse-layers or sparse-networks")
    if sparsity is not None:
        if "sparse-layers" not in names:
            raise InputError(f"--sparsity {sparsity:g}: goes with the suite sparse-layers")
        if not 0 <= sparsity < 1:
            raise InputError(f"--sparsity {sparsity:g}: expected a share of zeros, like 0.85")
    stems = [_stem(path) for path in models]
    for path, stem in zip(models, stems, strict=True):
        if stems.count(stem) > 1:
            raise InputError(f"--model {path}: there is another file for the case {stem!r}; "
                             "rename one")
    files = Files(tuple(models), data)
    items = {(item.suite, item.name, item.batch): item
             for name in names for batch in batches for item in SUITES[name](batch, files)}
    order = list(dict.fromkeys((item.suite, item.name) for item in items.values()))
    wanted = named({item.name for item in items.values()}, parts)
    chosen = sorted((item for item in items.values() if item.name in wanted),
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
    """The cases with one of the parts, apart by commas, in their name, or of that name where one
    has it; None takes every one."""
    if parts is None:
        return set(cases)
    return {case for part in parts.split(",") if part for case in cases
            if (part == case if part in cases else part in case)}


SUITES: dict[str, Suite] = {"mobilenet": mobilenet, "conv-layers": conv_layers, "gemm": gemm,
                            "networks": networks, "sparse-layers": sparse_layers,
                            "sparse-networks": pruned_networks, "backprop": backprop,
                            "train-many": train_many}
