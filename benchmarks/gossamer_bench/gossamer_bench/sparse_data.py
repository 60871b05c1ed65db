"""Reads layers with published sparse weights and masks from the folder that --data names."""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from gossamer.errors import InputError, ModelError
from gossamer.io import npy
from gossamer_bench.layer_tables import CAFFENET, ConvLayer, resnet50
from gossamer_bench.sparse_files import SparseWeightsFile, read_archive, read_sparse
from gossamer_bench.sparse_weights import drawn, redrawn, with_values

SHARES = ("0.90", "0.98")
"""Sparsities of the masks of DLMC, Google's collection of pruned networks."""
DRAWN_FROM = {"0.80": "0.90", "0.95": "0.90"}
"""Sparsities of further masks, which are made of DLMC's masks: nonzeros are added or removed at
random. The key is the sparsity of a mask, and the value is the sparsity of the mask of DLMC that it
is made of."""

SKIMCAFFE = "alexnet_pruned/skimcaffe_layers.csv"
"""The layers of SkimCaffe, Intel's fork of Caffe with pruned networks (J. Park et al., "Faster CNNs
with direct sparse convolutions and guided pruning", ICLR 2017)."""
MASKS = ("resnet50_masks/output_pixels.txt",
         *(f"resnet50_masks/magnitude_{share}.tar.gz" for share in SHARES))
_ALEXNET = tuple(f"alexnet_pruned/coo_conv{number}.mtx" for number in range(1, 6))
_FILTERS = tuple(f"resnet50_pruned_3x3/filter_{share}_bg{group}.npy"
                 for share in (90, 95) for group in (1, 2, 3))
ALL = (SKIMCAFFE, *MASKS, *_ALEXNET, *_FILTERS)

_COLUMNS = {"C": "channels", "Hin": "size", "M": "out_channels", "K": "kernel",
            "stride": "stride", "pad": "pad", "groups": "groups"}
_PRUNED = 0.5
"""Share of zeros above which a layer of SkimCaffe counts as pruned; the other layers have hardly
any zeros."""
_DLMC_LAYER = re.compile(
    r"bottleneck_(1|2|3|projection)_block_group(?:(\d)_(\d)_1|_projection_block_group(\d))")


@dataclass(frozen=True)
class SparseLayer:
    """A layer and its sparse weights.

    weights: function that returns the weights (M, C/groups, R, S) in float32. For a layer with
    published weights or masks the function reads a file, and raises InputError or ModelError where
    the file has no weights or mask of the layer.
    """

    layer: ConvLayer
    weights: Callable[[], np.ndarray]


def check(suite: str, folder: Path | None, files: tuple[str, ...]) -> Path:
    """Returns the folder of published sparse weights. Raises InputError where no folder is given or
    a file is missing."""
    if folder is None:
        kinds = sorted({file.split("/")[0] for file in files})
        raise InputError(f"suite {suite}: needs --data FOLDER, a folder of published sparse "
                         f"weights with {', '.join(kinds)} in it; benchmarks/README.md lists "
                         "their files")
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"--data {folder}: has no file {missing[0]}{more}; benchmarks/README.md "
                         "lists what is expected there")
    return folder


def published_layers(folder: Path) -> Iterator[SparseLayer]:
    """Yields every sparse layer, named network/layer.

    There are four kinds of layers: layers of SkimCaffe's networks with random weights of the
    published density; layers of SkimCaffe's AlexNet with its published weights; 3x3 layers of
    ResNet-50 with published filters; and layers of ResNet-50 with DLMC's masks.
    """
    for layer, density in skimcaffe(folder).values():
        if density < 1 - _PRUNED:
            yield SparseLayer(layer, partial(drawn, layer, density))
    for number, layer in enumerate(CAFFENET, 1):
        real = replace(layer, name=f"alexnet/conv{number}")
        yield SparseLayer(real, partial(_alexnet, folder / _ALEXNET[number - 1], real))
    for file in _FILTERS:
        share, group = re.findall(r"\d+", Path(file).name)
        channels = 32 << int(group)
        layer = ConvLayer(f"resnet50-filters/{share}_bg{group}", channels, 112 >> int(group),
                          channels, 3, 1, 1)
        yield SparseLayer(layer, partial(_npy_filters, folder / file, layer))
    for share in SHARES:
        yield from masked_resnet50(folder, share).values()


@cache
def skimcaffe(folder: Path) -> dict[str, tuple[ConvLayer, float]]:
    """Returns the layers of SkimCaffe's networks with their density, by name. Raises InputError."""
    path = folder / SKIMCAFFE
    layers = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    layer = ConvLayer(f"{row['net']}/{row['layer']}",
                                      **{field: int(row[key]) for key, field in _COLUMNS.items()})
                    density = 1 - float(row["sparsity_pct"]) / 100
                    if layer.out_size != int(row["Hout"]) or not 0 < density <= 1:
                        raise ValueError
                except (KeyError, TypeError, ValueError, ZeroDivisionError):
                    raise InputError(f"{path}: line {number} is no layer; expected net, layer, "
                                     f"{', '.join(_COLUMNS)}, Hout and sparsity_pct that agree"
                                     ) from None
                layers[layer.name] = layer, density
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return layers


def masked_resnet50(folder: Path, share: str) -> dict[str, SparseLayer]:
    """Returns the layers of ResNet-50 in order, by their names without the name of the network.

    Where the mask of a layer is set, weights are drawn from a normal distribution; the other
    weights are zero. The mask is DLMC's, or is made of DLMC's mask of the sparsity that DRAWN_FROM
    names. The classifier is a 1x1 convolution.
    """
    network = masked_name(share)
    layers = [replace(layer, name=layer.name.split("/")[1]) for layer in resnet50(halving=3)]
    layers.append(ConvLayer("fc1000", 2048, 1, 1000, 1))
    sparse_layers = {}
    for plain in layers:
        layer = replace(plain, name=f"{network}/{plain.name}")
        sparse_layers[plain.name] = SparseLayer(layer, partial(_masked, folder, share, layer))
    return sparse_layers


def masked_name(share: str) -> str:
    """Returns the name of ResNet-50 with masks of this sparsity; the name says where the masks come
    from."""
    source = DRAWN_FROM.get(share)
    return f"resnet50-dlmc-{share}" if source is None else f"resnet50-{share}-from-dlmc-{source}"


def _alexnet(path: Path, layer: ConvLayer) -> np.ndarray:
    """The weights of a layer of SkimCaffe's AlexNet from its MatrixMarket file."""
    return _filters_of(read_sparse(path), layer, "crs")


def _npy_filters(path: Path, layer: ConvLayer) -> np.ndarray:
    """The 3x3 filters of a .npy file. Raises ModelError."""
    try:
        with path.open("rb") as stream:
            matrix = npy.read_array(stream, path.stat().st_size)
    except (OSError, npy.BadArray) as error:
        raise ModelError(f"{path}: cannot be read as a .npy array: {error}") from None
    shape = layer.weight_shape
    if matrix.shape != (shape[0], math.prod(shape[1:])) or matrix.dtype != np.float32:
        raise ModelError(f"{path}: expected float32 of shape {shape[0]} x {math.prod(shape[1:])}")
    return matrix.reshape(shape)


def _masked(folder: Path, share: str, layer: ConvLayer) -> np.ndarray:
    """Random weights where the layer's mask is set, and zeros elsewhere. Raises ModelError."""
    archive = folder / f"resnet50_masks/magnitude_{DRAWN_FROM.get(share, share)}.tar.gz"
    by_layer = {_resnet_name(name): name for name in _archive(archive)}
    plain = layer.name.split("/")[1]
    if plain not in by_layer:
        raise ModelError(f"{archive}: has no mask for {plain} of ResNet-50")
    name = by_layer[plain]
    pixels = _output_pixels(folder / MASKS[0]).get(name)
    if pixels != layer.out_size ** 2:
        raise ModelError(f"{folder / MASKS[0]}: {name} has {pixels} output pixels, expected "
                         f"{layer.out_size ** 2}")
    mask = _filters_of(_archive(archive)[name], layer, "rsc") != 0
    random = np.random.default_rng(zlib.crc32(layer.name.encode()))
    if share in DRAWN_FROM:
        mask = redrawn(mask, 1 - float(share), random)
    return with_values(mask, random)


_archive = cache(read_archive)


@cache
def _output_pixels(path: Path) -> dict[str, int]:
    """Returns the number of output pixels of each layer, by the layer's name in DLMC. Raises
    InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: int(count) for name, count in (line.split(",") for line in lines)}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected lines `layer,pixels`: {error}") from None


def _resnet_name(name: str) -> str | None:
    """Returns the name in layer_tables.resnet50 of the layer that has this name in DLMC; None where
    ResNet-50 has no such layer."""
    match = _DLMC_LAYER.fullmatch(name)
    if match is None:
        return {"initial_conv": "conv1", "final_dense": "fc1000"}.get(name)
    conv, group, block, projection_group = match.groups()
    branch = "1" if conv == "projection" else f"2{' abc'[int(conv)]}"
    return f"res{int(group or projection_group) + 1}{'abcdef'[int(block or 0)]}_branch{branch}"


def _filters_of(weights: SparseWeightsFile, layer: ConvLayer, order: str) -> np.ndarray:
    """A file's weights in the layer's shape. Raises ModelError where the file has another shape."""
    filters = weights.filters((layer.kernel, layer.kernel), order)
    if filters.shape != layer.weight_shape:
        shapes = [" x ".join(map(str, shape)) for shape in (filters.shape, layer.weight_shape)]
        raise ModelError(f"{weights.name}: holds weights {shapes[0]}, expected {shapes[1]} of "
                         f"{layer.name}")
    return filters
