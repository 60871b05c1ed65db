"""Pruning by magnitude: the smallest weights of an ONNX model become zero, and nothing else
changes (Han et al., "Learning both Weights and Connections", 2015, without the retraining)."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from gossamer.errors import InputError, ModelError

SCOPES = ("global", "layer")

_LAYERS = ("Conv", "Gemm", "MatMul")
_KEEPING = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""What may stand between stored weights and the layer that reads them."""

_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data",
    TensorProto.FLOAT16: "int32_data", TensorProto.BFLOAT16: "int32_data",
}
"""Where a tensor of each type that is pruned keeps its numbers unless it has raw data."""


_Readers = dict[str, list[tuple[onnx.NodeProto, int]]]
"""Of each value the nodes that read it, and as which input; -1: inside of their bodies."""


@dataclass(frozen=True)
class PrunedLayer:
    """A layer of the file and the nonzeros of its weights, before and after.

    name: the node's, or made of its op and output where it has none. weight: the tensor's.
    kept: why nothing was done here; empty otherwise.
    """

    name: str
    op: str
    weight: str
    shape: tuple[int, ...]
    before: int
    after: int
    kept: str = ""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(eq=False)
class _PrunableLayer:
    """A layer while it is pruned. tensor: None where its weights are no dense constant."""

    name: str
    op: str
    weight: str = ""
    tensor: TensorProto | None = None
    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    before: int = 0
    kept: str = ""
    depthwise: bool = False
    sparsity: float | None = None


def check_sparsity(sparsity: float) -> str | None:
    """What is wrong with a share of zeros, in a few words; None: nothing."""
    if 0 <= sparsity < 1:
        return None
    hint = f"; {sparsity:g}% is {sparsity / 100:g}" if 1 < sparsity < 100 else ""
    return f"expected 0 or more and less than 1{hint}"


def prune(model: onnx.ModelProto, sparsity: float | None = None,
          per_layer: Mapping[str, float] | None = None, *, scope: str = "global",
          depthwise: bool = False) -> list[PrunedLayer]:
    """Sets the smallest weights of the model's convolutions and matrix products to zero, in
    place, and tells of every such layer in the file's order.

    sparsity: the share of zeros, rounded to whole weights of which one stays, in all layers
    together (scope "global") or in each (scope "layer"); None leaves the layers that per_layer
    does not name as they are. per_layer: shares by the names of layers or of their weights; the
    other layers share `sparsity`. Among equal magnitudes the first in the file's order go; a NaN
    counts as the largest. Zeros that are there already count, and stay. depthwise: also the
    convolutions with one input channel a group, which per_layer prunes where it names them.

    Raises InputError for a share outside of [0, 1), for a name that no layer has and for a
    named layer that cannot be pruned; ModelError where a tensor is damaged.
    """
    for name, share in [("sparsity", sparsity or 0.0), *(per_layer or {}).items()]:
        if (reason := check_sparsity(share)) is not None:
            raise InputError(f"{name} {share:g}: {reason}")
    layers = _layers(model)
    _assign(layers, per_layer or {})
    pool = []
    for layer in layers:
        if layer.kept or layer.sparsity is not None:
            continue
        if layer.depthwise and not depthwise:
            layer.kept = "depthwise"
        elif sparsity is None:
            layer.kept = "not named"
        else:
            layer.sparsity = sparsity
            pool.append(layer)
    alone = [[layer] for layer in layers if layer.sparsity is not None and layer not in pool]
    for together in alone + ([pool] if scope == "global" and pool else [[each] for each in pool]):
        _prune_together(together)
    return [PrunedLayer(layer.name, layer.op, layer.weight, layer.values.shape, layer.before,
                        int(np.count_nonzero(layer.values)), layer.kept) for layer in layers]


def _prune_together(layers: Sequence[_PrunableLayer]) -> None:
    magnitudes = np.concatenate([np.abs(layer.values).reshape(-1) for layer in layers])
    magnitudes[np.isnan(magnitudes)] = np.inf
    assert layers[0].sparsity is not None
    count = min(round(layers[0].sparsity * magnitudes.size), magnitudes.size - 1)
    chosen = _smallest(magnitudes, count)
    ends = np.cumsum([layer.values.size for layer in layers])
    for layer, mask in zip(layers, np.split(chosen, ends[:-1]), strict=True):
        assert layer.tensor is not None
        changed = mask & (layer.values.reshape(-1) != 0)
        if changed.any():
            _set_zero(layer.tensor, changed)
            layer.values[changed.reshape(layer.values.shape)] = 0


def _smallest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Marks exactly that many, ties from the first on."""
    if count == 0:
        return np.zeros(magnitudes.size, bool)
    threshold = np.partition(magnitudes, count - 1)[count - 1]
    chosen = magnitudes < threshold
    equal = np.flatnonzero(magnitudes == threshold)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return chosen


def _set_zero(tensor: TensorProto, places: np.ndarray) -> None:
    """Clears elements where the file keeps them, all other bits as they are."""
    if tensor.HasField("raw_data"):
        elements = np.frombuffer(tensor.raw_data, np.uint8).reshape(places.size, -1).copy()
        elements[places] = 0
        tensor.raw_data = elements.tobytes()
        return
    numbers = getattr(tensor, _FIELDS[tensor.data_type])
    for index in np.flatnonzero(places).tolist():
        numbers[index] = 0


def _assign(layers: Sequence[_PrunableLayer], per_layer: Mapping[str, float]) -> None:
    """Gives the named layers their shares."""
    by_name = {layer.weight: layer for layer in layers if not layer.kept}
    by_name.update({layer.name: layer for layer in layers})
    for name, share in per_layer.items():
        layer = by_name.get(name)
        if layer is None:
            raise InputError(f"no layer is called {name!r}; {_close(name, by_name)}")
        if layer.kept:
            raise InputError(f"layer {name!r} cannot be pruned: {layer.kept}")
        if layer.sparsity is not None:
            raise InputError(f"layer {name!r} is named twice, by its node and by its weights")
        layer.sparsity = share


def _close(name: str, names: Iterable[str]) -> str:
    names = list(names)
    near = [each for each in names if name and name.lower() in each.lower()][:5]
    close = dict.fromkeys([*near, *difflib.get_close_matches(name, names, 5, 0.4)])
    return (f"close to it: {', '.join(map(repr, close))}" if close else
            f"there are {', '.join(map(repr, names[:5]))}" + (", ..." if len(names) > 5 else ""))


def _layers(model: onnx.ModelProto) -> list[_PrunableLayer]:
    """The convolutions and matrix products of the file, in its order. Those that cannot be
    pruned say why."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    readers: _Readers = defaultdict(list)
    for node in graph.node:
        for index, name in enumerate(node.input):
            readers[name].append((node, index))
        for name in _read_inside(node):
            readers[name].append((node, -1))
    outputs = {value.name for value in graph.output}
    layers: list[_PrunableLayer] = []
    owners: dict[str, str] = {}
    for node in graph.node:
        if not _is_layer(node):
            continue
        source, passed = node.input[1], set()
        while source not in tensors and source not in passed and source in makers and (
                makers[source].op_type in _KEEPING):
            passed.add(source)  # a damaged file may go round in a circle
            source = makers[source].input[0]
        if source not in tensors and node.op_type == "MatMul":
            continue  # a product of two values that the data decides
        layer = _PrunableLayer(_unique_name(node, {each.name for each in layers}), node.op_type)
        layers.append(layer)
        if source not in tensors:
            layer.kept = "its weights are no dense constant"
            continue
        layer.weight, layer.tensor = source, tensors[source]
        if source in owners:
            layer.kept = f"has the weights of {owners[source]!r}"
            continue
        owners[source] = layer.name
        _inspect(layer, node)
        if not layer.kept and (other := _other_reader(source, readers, outputs)):
            layer.kept = f"{other} its weights too"
    return layers


def _unique_name(node: onnx.NodeProto, names: set[str]) -> str:
    """As a loaded graph calls the node."""
    name = base = node.name or f"{node.op_type}_{next(iter(node.output), '')}"
    count = 1
    while name in names:
        count += 1
        name = f"{base}_{count}"
    return name


def _is_layer(node: onnx.NodeProto) -> bool:
    return (node.op_type in _LAYERS and node.domain in ("", "ai.onnx") and len(node.input) > 1)


def _read_inside(node: onnx.NodeProto) -> Iterator[str]:
    """The values that the bodies of a branch or loop name, whatever they mean there."""
    bodies = [body for each in node.attribute for body in (each.g, *each.graphs)]
    for inner in (inner for body in bodies for inner in body.node):
        yield from inner.input
        yield from _read_inside(inner)


def _other_reader(name: str, readers: _Readers, outputs: set[str]) -> str:
    """Who takes the constant for something else than the weights of a layer, as "Gather 'a'
    reads"; empty where nobody does."""
    waiting, passed = [name], set()
    while waiting:
        value = waiting.pop()
        if value in outputs:
            return f"the network's output {value!r} tells"
        passed.add(value)
        for node, index in readers.get(value, ()):
            if node.op_type in _KEEPING and index == 0:
                waiting += [each for each in node.output[:1] if each not in passed]
            elif not (_is_layer(node) and index == 1):
                return f"{node.op_type} {node.name or node.output[0]!r} reads"
    return ""


def _inspect(layer: _PrunableLayer, node: onnx.NodeProto) -> None:
    """Takes the weights in, or says why they are kept."""
    tensor = layer.tensor
    assert tensor is not None
    if tensor.data_type not in _FIELDS:
        layer.kept = f"its weights are {TensorProto.DataType.Name(tensor.data_type).lower()}"
        return
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:
        # a damaged tensor fails in many ways inside onnx
        raise ModelError(f"tensor {layer.weight!r} of {node.op_type} {layer.name!r} is damaged: "
                         f"{str(error).splitlines()[0]}") from None
    double = tensor.data_type == TensorProto.DOUBLE
    layer.values = array.astype(np.float64 if double else np.float32)
    layer.before = int(np.count_nonzero(layer.values))
    groups = next((each.i for each in node.attribute if each.name == "group"), 1)
    layer.depthwise = node.op_type == "Conv" and groups > 1 and array.shape[1:2] == (1,)
    if array.ndim < 2 or not array.size:
        layer.kept = f"its weights have the shape {list(array.shape)}"
