"""Prunes an ONNX model by magnitude: the smallest weights become zero.

If all weights of a channel become zero, the channel's bias may become zero too. Nothing else
changes.

Magnitude pruning is the first step of S. Han, J. Pool, J. Tran and W. Dally, "Learning both Weights
and Connections for Efficient Neural Networks", NeurIPS 2015. The paper's retraining is not done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from gossamer.errors import InputError, ModelError, check_choice, closest, quoted
from gossamer.model.graph import UniqueNames
from gossamer.model.readers.onnx.constants import to_array
from gossamer.model.readers.onnx.order import node_name
from gossamer.onnx_model import nodes_within, subgraphs

SCOPES = ("global", "layer")
PATTERNS = ("unstructured", "2:4", "channels")
"""The patterns of zeros. unstructured: the smallest weights become zero. 2:4: of every four weights
along the input channels, the two smallest become zero, as required by the sparse tensor cores of
NVIDIA GPUs (from sm_80). channels: all weights of the filters with the smallest norms become zero,
so that the output channels of these filters depend on no input."""

_LAYERS = ("Conv", "Gemm", "MatMul")
_TRANSPARENT = ("Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Ops that may come between stored weights and the layer that reads them."""

_KEEPING_CHANNELS = (*_TRANSPARENT, "Add", "Clip", "LogSoftmax", "Mul", "Relu", "Sigmoid",
                     "Softmax", "Sub", "Tanh")
"""Ops through which the channels of a layer may reach an output of the network."""

_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data",
    TensorProto.FLOAT16: "int32_data", TensorProto.BFLOAT16: "int32_data",
}
"""For each prunable type of tensor, the field that holds the values if there is no raw data."""

_Readers = dict[str, list[tuple[onnx.NodeProto, int]]]
"""For each value, pairs of a node that reads it and the index of the node's input; -1 if a subgraph
of the node (a branch or a loop's body) reads the value."""


@dataclass(frozen=True)
class PrunedLayer:
    """A layer of the file, and the number of its nonzero weights before and after pruning.

    name: name of the layer in reports: the path of the layer's PyTorch module with the layer's op,
    else the name of the node, else the op and the output of the node.
    weight: name of the tensor of weights.
    kept: reason why the weights were not changed; empty if they were pruned.
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
    """A layer during pruning.

    node: the name of the node in the file.
    tensor: the stored weights; None unless they are a dense constant.
    values: the weights as an array of floats.
    before: number of nonzero weights at the beginning.
    kept: reason why the weights are not changed; empty if they can be pruned.
    depthwise: whether the layer is a convolution with one input channel per group.
    sparsity: fraction of weights that becomes zero; None while it is unknown.
    axes: the axes of output channels and of input channels in the stored weights; None if other ops
    come between the stored weights and the layer.
    reaches_output: whether the layer's channels are the channels of an output of the network.
    bias: the layer's stored bias, if no other node reads it.
    """

    name: str
    op: str
    node: str
    weight: str = ""
    tensor: TensorProto | None = None
    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    before: int = 0
    kept: str = ""
    depthwise: bool = False
    sparsity: float | None = None
    axes: tuple[int, int] | None = None
    reaches_output: bool = False
    bias: TensorProto | None = None


def check_sparsity(sparsity: float) -> str | None:
    """Return a text with the valid range if the sparsity is outside this range, else None."""
    if 0 <= sparsity < 1:
        return None
    hint = f"; {sparsity:g}% is {sparsity / 100:g}" if 1 < sparsity < 100 else ""
    return f"expected 0 or more and less than 1{hint}"


def prune(model: onnx.ModelProto, sparsity: float | None = None,
          per_layer: Mapping[str, float] | None = None, *, scope: str = "global",
          depthwise: bool = False, pattern: str = "unstructured",
          keep: Sequence[str] = ()) -> list[PrunedLayer]:
    """Set the smallest weights of convolutions and matrix products to zero, in place.

    Returns all convolutions and products in the file's order, with a reason for each layer that was
    not pruned.

    sparsity: the fraction of zeros, in all layers together (scope "global") or in each layer (scope
    "layer"). The number of zeros is rounded, and at least one weight stays nonzero. None prunes
    only the layers that per_layer names.
    pattern: one of PATTERNS. "2:4" makes half of each layer's weights zero. "channels" applies
    `sparsity` to the number of each layer's output channels; the biases of pruned channels become
    zero too, if no other node reads these biases. The channels can then be removed.
    keep: layers that are not pruned, by the name of the layer, its node or its weights.
    per_layer: fractions by the name of a layer, node or weight; `sparsity` does not apply to these
    layers.
    depthwise: whether `sparsity` also applies to convolutions with one input channel per group.
    per_layer may name such convolutions even if `depthwise` is False.

    Among weights of equal magnitude, the first in the file become zero first. NaN counts as the
    largest magnitude. Weights that are already zero count as zeros, and stay zero.

    Raises InputError for an unknown pattern or name, for a fraction that is outside of [0, 1) or
    that the pattern does not allow, and for a layer of per_layer that cannot be pruned. Raises
    ModelError if a tensor is damaged.
    """
    check_choice("pattern", pattern, PATTERNS)
    if pattern == "2:4":
        if sparsity not in (None, 0.5) or per_layer:
            raise InputError("the pattern 2:4 makes half of the weights zero; do not set other "
                             "sparsities")
        sparsity = 0.5
    for name, share in [("sparsity", sparsity or 0.0), *(per_layer or {}).items()]:
        if (reason := check_sparsity(share)) is not None:
            raise InputError(f"{name} {share:g}: {reason}")
    layers = _layers(model)
    _keep(layers, keep)
    if pattern != "unstructured":
        _keep_unsuited(layers, pattern)
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
    is_global = scope == "global" and pattern == "unstructured" and pool
    groups = [pool] if is_global else [[layer] for layer in pool]
    for group in [*alone, *groups]:
        _prune_together(group, pattern)
    return [PrunedLayer(layer.name, layer.op, layer.weight, layer.values.shape, layer.before,
                        int(np.count_nonzero(layer.values)), layer.kept) for layer in layers]


def _prune_together(layers: Sequence[_PrunableLayer], pattern: str) -> None:
    """Set the smallest weights of some layers to zero.

    The weights of all layers are pruned as one array with one sparsity. Patterns other than
    "unstructured" need exactly one layer.
    """
    magnitudes = [_magnitudes(layer) for layer in layers]
    first, sparsity = layers[0], layers[0].sparsity
    assert sparsity is not None
    if pattern == "unstructured":
        together = np.concatenate([values.reshape(-1) for values in magnitudes])
        chosen = smallest(together, min(round(sparsity * together.size), together.size - 1))
        masks = np.split(chosen, np.cumsum([layer.values.size for layer in layers])[:-1])
    else:
        assert first.axes is not None
        output, reduced = first.axes
        masks = [two_of_four(magnitudes[0], reduced) if pattern == "2:4" else
                 whole_channels(magnitudes[0], output, sparsity)]
    for layer, mask in zip(layers, masks, strict=True):
        assert layer.tensor is not None
        changed = mask.reshape(-1) & (layer.values.reshape(-1) != 0)
        if changed.any():
            _set_zero(layer.tensor, changed)
            layer.values[changed.reshape(layer.values.shape)] = 0
    if pattern == "channels" and first.bias is not None and first.axes is not None:
        channels = np.moveaxis(masks[0], first.axes[0], 0)
        _set_zero(first.bias, np.all(channels.reshape(len(channels), -1), axis=1))


def _magnitudes(layer: _PrunableLayer) -> np.ndarray:
    magnitudes = np.abs(layer.values)
    magnitudes[np.isnan(magnitudes)] = np.inf
    return magnitudes


def _set_zero(tensor: TensorProto, mask: np.ndarray) -> None:
    """Set the masked elements to zero in the tensor's own storage; no other bit changes."""
    if tensor.HasField("raw_data"):
        elements = np.frombuffer(tensor.raw_data, np.uint8).reshape(mask.size, -1).copy()
        elements[mask] = 0
        tensor.raw_data = elements.tobytes()
        return
    numbers = getattr(tensor, _FIELDS[tensor.data_type])
    for index in np.flatnonzero(mask).tolist():
        numbers[index] = 0


def _keep(layers: Sequence[_PrunableLayer], names: Sequence[str]) -> None:
    """Mark the named layers as kept. Raises InputError for an unknown name."""
    for name in names:
        named = [layer for layer in layers if layer.name == name] or [
            layer for layer in layers if name and name in (layer.node, layer.weight)]
        if not named:
            raise InputError(_unknown(name, [layer.name for layer in layers]))
        for layer in named:
            layer.kept = layer.kept or "named to be kept"


def _keep_unsuited(layers: Sequence[_PrunableLayer], pattern: str) -> None:
    """Mark the layers that do not support a pattern as kept, each with the reason."""
    for layer in layers:
        if layer.kept:
            continue
        if layer.axes is None:
            layer.kept = "other ops come between its stored weights and the layer"
        elif pattern == "channels" and layer.reaches_output:
            layer.kept = "its channels are those of an output of the network"
        elif pattern == "2:4" and layer.values.shape[layer.axes[1]] % 4:
            layer.kept = "depthwise" if layer.depthwise else (
                f"{layer.values.shape[layer.axes[1]]} input channels are no multiple of 4")


def _assign(layers: Sequence[_PrunableLayer], per_layer: Mapping[str, float]) -> None:
    """Set the sparsity of the named layers."""
    by_name = {layer.weight: layer for layer in layers if not layer.kept}
    by_name.update({layer.node: layer for layer in layers if layer.node})
    by_name.update({layer.name: layer for layer in layers})
    for name, share in per_layer.items():
        layer = by_name.get(name)
        if layer is None:
            raise InputError(_unknown(name, by_name))
        if layer.kept:
            raise InputError(f"layer {quoted(name)} cannot be pruned: {layer.kept}")
        if layer.sparsity is not None:
            raise InputError(f"layer {quoted(name)} is given twice, under two of its names")
        layer.sparsity = share


def _unknown(name: str, names: Iterable[str]) -> str:
    return f"no layer is called {quoted(name)}; {_close(name, names)}"


def _close(name: str, names: Iterable[str]) -> str:
    """Return text for a message that lists similar names or, if there are none, the first names."""
    names = list(names)
    containing = [layer for layer in names if name and name.lower() in layer.lower()][:5]
    close = dict.fromkeys([*containing, *closest(name, names)])
    return (f"close to it: {', '.join(map(quoted, close))}" if close else
            f"there are {', '.join(map(quoted, names[:5]))}" + (", ..." if len(names) > 5 else ""))


def _layers(model: onnx.ModelProto) -> list[_PrunableLayer]:
    """Return the convolutions and matrix products of the file, in order.

    If a layer cannot be pruned, its field `kept` holds the reason.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                tensors.update(dict.fromkeys(node.output[:1], attribute.t))
    producers = {name: node for node in graph.node for name in node.output}
    readers = _readers(graph)
    outputs = {value.name for value in graph.output}
    layers: list[_PrunableLayer] = []
    names = UniqueNames()
    owners: dict[str, str] = {}
    for node in graph.node:
        name = names.unique(node_name(node))
        if not _is_layer(node):
            continue
        source = _stored_weights(node.input[1], tensors, producers)
        if source not in tensors and node.op_type == "MatMul":
            continue  # a product of two run-time values
        layer = _PrunableLayer(name, node.op_type, node.name)
        layers.append(layer)
        if source not in tensors:
            layer.kept = "its weights are no dense constant"
            continue
        layer.weight, layer.tensor = source, tensors[source]
        if source in owners:
            layer.kept = f"has the weights of {quoted(owners[source])}"
            continue
        owners[source] = layer.name
        _inspect(layer, node)
        if source == node.input[1]:
            layer.axes = _channel_axes(node, layer.values.ndim)
            layer.bias = _own_bias(node, layer, tensors, readers)
        layer.reaches_output = _reaches_output(node, readers, outputs)
        if not layer.kept and (use := _other_use(source, readers, outputs)):
            layer.kept = f"{use} its weights too"
    return layers


def _stored_weights(name: str, tensors: dict[str, TensorProto],
                    producers: dict[str, onnx.NodeProto]) -> str:
    """Follow a value back through transparent ops, and return the name of its origin.

    The origin is a stored tensor, or a value that another op makes.
    """
    passed: set[str] = set()
    while name not in tensors and name not in passed and name in producers and (
            producers[name].op_type in _TRANSPARENT) and producers[name].input:
        passed.add(name)  # the nodes of a damaged file may form a cycle
        name = producers[name].input[0]
    return name


def _readers(graph: onnx.GraphProto) -> _Readers:
    readers: _Readers = defaultdict(list)
    for node in graph.node:
        for index, name in enumerate(node.input):
            readers[name].append((node, index))
        for name in _read_inside(node):
            readers[name].append((node, -1))
    return readers


def _is_layer(node: onnx.NodeProto) -> bool:
    return (node.op_type in _LAYERS and node.domain in ("", "ai.onnx") and len(node.input) > 1)


def _read_inside(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of values that the nodes in a node's subgraphs read.

    Subgraphs are branches and bodies of loops. A name may denote a value outside or inside the
    subgraph.
    """
    for body in subgraphs(node):
        for inner in nodes_within(body.node):
            yield from inner.input


def _other_use(name: str, readers: _Readers, outputs: set[str]) -> str:
    """Return the first use of a constant as anything but the weights of a layer.

    The use is text such as "Gather 'a' reads"; empty if there is no such use.
    """
    pending, passed = [name], set()
    while pending:
        value = pending.pop()
        if value in outputs:
            return f"output {quoted(value)} of the network returns"
        passed.add(value)
        for node, index in readers.get(value, ()):
            if node.op_type in _TRANSPARENT and index == 0:
                pending += [output for output in node.output[:1] if output not in passed]
            elif not (_is_layer(node) and index == 1):
                return f"{quoted(node.op_type)[1:-1]} {quoted(node_name(node))} reads"
    return ""


def _channel_axes(node: onnx.NodeProto, rank: int) -> tuple[int, int] | None:
    """Return the axes of the output and of the input channels of a layer's weights."""
    if rank < 2:
        return None
    if node.op_type == "MatMul":
        return rank - 1, rank - 2
    is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return (0, 1) if node.op_type == "Conv" or is_transposed else (1, 0)


def _own_bias(node: onnx.NodeProto, layer: _PrunableLayer, tensors: dict[str, TensorProto],
              readers: _Readers) -> TensorProto | None:
    """Return the stored bias of a layer, one number per channel, if no other node reads it."""
    name = node.input[2] if len(node.input) > 2 else ""
    tensor = tensors.get(name)
    if tensor is None or layer.axes is None or len(readers[name]) > 1 or (
            tensor.data_type not in _FIELDS):
        return None
    return tensor if list(tensor.dims) == [layer.values.shape[layer.axes[0]]] else None


def _reaches_output(node: onnx.NodeProto, readers: _Readers, outputs: set[str]) -> bool:
    """Whether an output of the network has the channels of a node's first output."""
    pending, passed = list(node.output[:1]), set()
    while pending:
        value = pending.pop()
        if value in outputs:
            return True
        passed.add(value)
        pending += [output for reader, _ in readers.get(value, ())
                    if reader.op_type in _KEEPING_CHANNELS
                    for output in reader.output[:1] if output not in passed]
    return False


def _inspect(layer: _PrunableLayer, node: onnx.NodeProto) -> None:
    """Set the fields of a layer that follow from its tensor, or the reason in `kept`."""
    tensor = layer.tensor
    assert tensor is not None
    if tensor.data_type not in _FIELDS:
        names = {number: name for name, number in TensorProto.DataType.items()}
        kind = names.get(tensor.data_type, f"of the unknown type {tensor.data_type}").lower()
        layer.kept = f"its weights are {kind}"
        return
    try:
        array = to_array(tensor)
    except ValueError as error:
        raise ModelError(f"tensor {quoted(layer.weight)} of {node.op_type} {quoted(layer.name)} is "
                         f"damaged: {error}") from None
    double = tensor.data_type == TensorProto.DOUBLE
    layer.values = array.astype(np.float64 if double else np.float32)
    layer.before = int(np.count_nonzero(layer.values))
    groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    layer.depthwise = node.op_type == "Conv" and groups > 1 and array.shape[1:2] == (1,)
    if array.ndim < 2 or not array.size:
        layer.kept = f"its weights have the shape {list(array.shape)}"


def smallest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the `count` smallest magnitudes.

    Of equal magnitudes, the first are masked.
    """
    if count == 0:
        return np.zeros(magnitudes.size, bool)
    threshold = np.partition(magnitudes, count - 1)[count - 1]
    chosen = magnitudes < threshold
    equal = np.flatnonzero(magnitudes == threshold)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return chosen


def two_of_four(magnitudes: np.ndarray, axis: int) -> np.ndarray:
    """Return a mask of the two smallest of every four magnitudes along an axis.

    The length of the axis is a multiple of 4. Of equal magnitudes, the first are masked.
    """
    moved = np.moveaxis(magnitudes, axis, -1)
    fours = moved.reshape(*moved.shape[:-1], -1, 4)
    ranks = np.argsort(np.argsort(fours, axis=-1, kind="stable"), axis=-1, kind="stable")
    return np.moveaxis((ranks < 2).reshape(moved.shape), -1, axis)


def whole_channels(magnitudes: np.ndarray, axis: int, sparsity: float) -> np.ndarray:
    """Return a mask of the channels along an axis with the smallest Euclidean norms.

    sparsity: the fraction of masked channels, which is rounded; at least one channel stays. Of
    channels with equal norms, the first are masked.
    """
    others = tuple(index for index in range(magnitudes.ndim) if index != axis)
    # scaled, so that no square overflows
    greatest = np.max(magnitudes[np.isfinite(magnitudes)], initial=0.0)
    norms = np.square(magnitudes / (greatest or 1.0)).sum(axis=others)
    count = min(round(sparsity * norms.size), norms.size - 1)
    shape = [1] * magnitudes.ndim
    shape[axis] = -1
    return np.broadcast_to(smallest(norms, count).reshape(shape), magnitudes.shape)
