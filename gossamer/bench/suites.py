"""The suites: what is measured. A suite names its cases at a batch size; each is made in turn."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from gossamer.bench.layer_tables import PRODUCTS, ConvLayer, LinearLayer, distinct_convolutions
from gossamer.bench.layers import convolution, layer_case, linear
from gossamer.bench.networks import network_case
from gossamer.bench.peers import Network
from gossamer.bench.work import Case, Setting
from gossamer.errors import InputError
from gossamer.model import load, zoo
from gossamer.show import shape_text

_MOST_NAMED = 8


@dataclass(frozen=True)
class Item:
    """A case to be: make(setting) gives it its weights, input and contenders."""

    suite: str
    name: str
    batch: int
    make: Callable[[Setting], Case]
    is_layer: bool = False


Suite = Callable[[int, Sequence[Path]], list[Item]]
"""The cases at a batch size, given model files, which only one of them takes."""


def mobilenet(batch: int, models: Sequence[Path] = ()) -> list[Item]:
    """MobileNetV2 as a whole."""
    return [Item("mobilenet", "mobilenetv2", batch, lambda setting: network_case(
        "mobilenet", _mobilenet("mobilenetv2"), batch, setting))]


def networks(batch: int, models: Sequence[Path] = ()) -> list[Item]:
    """Whole networks, also by plans that force one algorithm: MobileNetV2, or those of files."""
    def item(name: str, network: Callable[[], Network]) -> Item:
        return Item("networks", name, batch, lambda setting: network_case(
            "networks", network(), batch, setting, families=True))

    if not models:
        return [item("mobilenet_v2", lambda: _mobilenet("mobilenet_v2"))]
    return [item(_of_file(path).name, partial(_of_file, path)) for path in models]


def conv_layers(batch: int, models: Sequence[Path] = ()) -> list[Item]:
    """The convolutions of three networks, one by one, with dense weights."""
    def item(layer: ConvLayer) -> Item:
        return Item("conv-layers", layer.name, batch, lambda setting: layer_case(
            "conv-layers", convolution(layer), batch, setting), is_layer=True)

    return [item(layer) for layer in distinct_convolutions()]


def gemm(batch: int, models: Sequence[Path] = ()) -> list[Item]:
    """Matrix products: squares, which know no batch, and classifiers."""
    def item(size: int, layer: LinearLayer) -> Item:
        return Item("gemm", layer.name, size, lambda setting: layer_case(
            "gemm", linear(layer), size, setting, layer.rows), is_layer=True)

    return [item(batch if layer.rows is None else 1, layer) for layer in PRODUCTS]


def _mobilenet(name: str) -> Network:
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.torch_networks import mobilenet_v2

        return mobilenet_v2(constants)

    return Network(name, zoo.build("mobilenet_v2"), torch_form)


@cache
def _of_file(path: Path) -> Network:
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

    return Network(_stem(path), graph, onnx=content)


def _stem(path: Path) -> str:
    """The file's name without .onnx or .onnx.gz."""
    return re.sub(r"\.onnx(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def select(names: Sequence[str], batches: Sequence[int], part: str | None = None,
           models: Sequence[Path] = ()) -> list[Item]:
    """The cases of the suites at the batch sizes, each once, the batch sizes of a case one after
    the other; those with `part` in their name.

    models: files that the suite `networks` measures.
    Raises InputError for a suite that is none, where no case has that name, and for models that
    no suite takes or that cannot be told apart.
    """
    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        raise InputError(f"no suite {', '.join(map(repr, unknown)) or 'given'}; there are: "
                         f"{', '.join(SUITES)}")
    if models and "networks" not in names:
        raise InputError(f"--model {models[0]}: goes with the suite networks")
    stems = [_stem(path) for path in models]
    for path, stem in zip(models, stems, strict=True):
        if stems.count(stem) > 1:
            raise InputError(f"--model {path}: there is another file for the case {stem!r}; "
                             "rename one")
    items = {(item.suite, item.name, item.batch): item
             for name in names for batch in batches for item in SUITES[name](batch, models)}
    order = list(dict.fromkeys((item.suite, item.name) for item in items.values()))
    chosen = sorted((item for item in items.values() if part is None or part in item.name),
                    key=lambda item: order.index((item.suite, item.name)))
    if not chosen:
        known = list(dict.fromkeys(item.name for item in items.values()))
        more = len(known) - _MOST_NAMED
        raise InputError(f"--case {part}: no case of {', '.join(names)} has that in its name; "
                         f"there are: {', '.join(known[:_MOST_NAMED])}"
                         + (f" and {more} more" if more > 0 else ""))
    return chosen


SUITES: dict[str, Suite] = {"mobilenet": mobilenet, "conv-layers": conv_layers, "gemm": gemm,
                            "networks": networks}
