"""Reads the constants of ONNX files: tensors, external data, and nodes with constant inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)

from gossamer.errors import ModelError, first_line, quoted
from gossamer.io.limits import check_unpacked, most_value_bytes
from gossamer.model.graph import Graph
from gossamer.model.opset.onnx_nodes import FOLDED, computed, most_bytes
from gossamer.onnx_model import as_float32, subgraphs
from gossamer.tensor import of_bfloat16_bits

_MOST_RANK = 32
"""Maximum number of dimensions of a constant: the limit of NumPy 1."""


def to_array(tensor: onnx.TensorProto) -> np.ndarray:
    """Return the values of a tensor. Raises ValueError with the reason for a damaged tensor."""
    dims = list(tensor.dims)
    if min(dims, default=0) < 0 or len(dims) > _MOST_RANK:
        raise ValueError(f"its shape is {quoted(dims)}, expected at most {_MOST_RANK} sizes of 0 "
                         "or more")
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:
        # a damaged tensor fails in many ways inside onnx
        raise ValueError(first_line(error)) from None
    if array.shape != tuple(dims):
        raise ValueError(f"it has {array.size} values, its shape is {quoted(dims)}")
    if tensor.data_type == TensorProto.BFLOAT16 and array.dtype.kind == "u":
        # before version 1.19, onnx returns bfloat16 as its bits
        return of_bfloat16_bits(array)
    return array


def with_dense_constants(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Return a model with sparse tensors made dense.

    Sparse tensors are sparse initializers and sparse values of Constant nodes. A model without
    sparse tensors is returned unchanged; any other model is copied. Raises ValueError for a damaged
    sparse tensor, and InputError if the dense tensors are too large.

    file: name of the file, for messages.
    """
    sparse = list(_sparse_tensors(model.graph))
    if not sparse:
        return model
    check_unpacked(file, sum(-(-math.prod(tensor.dims) * _item_bits(tensor.values) // 8)
                             for tensor in sparse), model.ByteSize())
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for graph in _graphs(copied.graph):
        graph.initializer.extend(map(_dense, graph.sparse_initializer))
        del graph.sparse_initializer[:]
        for attribute in _attributes(graph):
            if attribute.HasField("sparse_tensor"):
                dense = _dense(attribute.sparse_tensor)
                attribute.Clear()
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
    return copied


def _sparse_tensors(graph: onnx.GraphProto) -> Iterator[onnx.SparseTensorProto]:
    for each in _graphs(graph):
        yield from each.sparse_initializer
        yield from (attribute.sparse_tensor for attribute in _attributes(each)
                    if attribute.HasField("sparse_tensor"))


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor as a dense one.

    The indices of a sparse tensor are either positions in the flattened tensor, or a matrix with
    one row per value and one column per dimension.
    """
    name = sparse.values.name
    try:
        values, indices = to_array(sparse.values), to_array(sparse.indices)
        dims = tuple(sparse.dims)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), dims)
        array = np.zeros(math.prod(dims), values.dtype)
        if indices.shape != values.shape or min(indices, default=0) < 0:
            raise ValueError("its indices do not match its values")
        array[indices] = values
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(f"sparse tensor {quoted(name)} is damaged: {error}") from None
    return numpy_helper.from_array(array.reshape(dims), name)


def load_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Load the tensors that are stored in files beside the model.

    For each tensor, as many bytes are read as its shape needs. Raises ValueError for a damaged
    tensor, and InputError if the tensors are too large.
    """
    tensors = filter(uses_external_data, _tensors(model.graph))
    files: dict[str, int] = {}
    total = 0
    for tensor in tensors:
        info = ExternalDataInfo(tensor)
        if min(tensor.dims, default=0) < 0:
            raise ValueError(f"tensor {quoted(tensor.name)} has shape {quoted(list(tensor.dims))}")
        size = -(-math.prod(tensor.dims) * _item_bits(tensor) // 8)
        if info.length and info.length != size:
            raise ValueError(f"tensor {quoted(tensor.name)} needs {size} bytes, but the model "
                             f"states {info.length} for it")
        total += size
        file = path.parent / info.location
        if file.is_file():
            files[info.location] = file.stat().st_size
        check_unpacked(f"{path} with its external data", total,
                       path.stat().st_size + sum(files.values()))
        entry = next((entry for entry in tensor.external_data if entry.key == "length"), None)
        if entry is None:
            entry = tensor.external_data.add(key="length")
        entry.value = str(size)
        load_external_data_for_tensor(tensor, str(path.parent))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def external_file(model: onnx.ModelProto) -> str | None:
    """Return the name of a file that holds some of a model's data, or None if there is none."""
    return next((ExternalDataInfo(tensor).location for tensor in _tensors(model.graph)
                 if uses_external_data(tensor)), None)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph: initializers, and tensors in attributes of nodes."""
    for each in _graphs(graph):
        yield from each.initializer
        for attribute in _attributes(each):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _attributes(graph: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    """Yield the attributes of a graph's own nodes."""
    return (attribute for node in graph.node for attribute in node.attribute)


def _item_bits(tensor: onnx.TensorProto) -> int:
    """Return the bits per element of a tensor.

    Raises ValueError for elements without a fixed size.
    """
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        raise ValueError(f"tensor {quoted(tensor.name)} holds no numbers")
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return 4
    return 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def add_constants(tensors: Iterable[onnx.TensorProto], graph: Graph, keeps: bool,
                   exact: dict[str, np.ndarray]) -> None:
    """Add tensors to the constants of a graph, floating-point ones as float32.

    keeps: whether float64 is kept in the parts that ONNX Runtime computes, and in outputs.
    exact: the dict to which float64 values of constants are added if float64 is kept.
    """
    narrowed = []
    for tensor in tensors:
        if tensor.name in graph.constants:
            raise ModelError(f"{graph.file}: two initializers are named {quoted(tensor.name)}")
        try:
            array = to_array(tensor)
        except ValueError as error:
            raise ModelError(f"{graph.file}: initializer {quoted(tensor.name)} is damaged: {error}"
                             ) from None
        graph.constants[tensor.name] = as_float32(array)
        if array.dtype == np.float64 and keeps:
            exact[tensor.name] = array
        elif array.dtype == np.float64:
            narrowed.append((tensor.name, array.dtype))
    if narrowed:
        name, dtype = narrowed[0]
        graph.warnings.append(f"{graph.file}: {len(narrowed)} weights are {dtype} (first: "
                              f"{quoted(name)}); gossamer computes with them as float32")


class ConstantFolder:
    """Computes nodes with constant inputs only, by ONNX's reference implementation.

    The bytes of all kept results are limited. The limit is checked before a result is computed: see
    gossamer.io.limits.

    reads: for each value, the number of nodes of the file that read it.
    exact: the float64 values of constants, which are float32 in the graph; fold() adds the float64
    values of its results. None if float64 becomes float32.
    too_large: for each result that was not computed because of the limit, by name: the limit in
    bytes that this result needs. Results that depend on such results are included.
    """

    def __init__(self, opset: int, reads: Mapping[str, int],
                 exact: dict[str, np.ndarray] | None = None) -> None:
        self._opset = opset
        self._exact = exact
        self._limit = self._bytes_left = most_value_bytes(0)
        self._reads = Counter(reads)
        self._sizes: dict[str, int] = {}
        self.too_large: dict[str, int] = {}

    def fold(self, node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> bool:
        """Add the results of a node to the constants if they can be computed.

        Drops earlier results that no further node reads. Returns whether the node was computed.
        """
        results = self._results(node, constants)
        if results is None:
            return False
        for name, result in zip(node.output, results, strict=False):
            if name:
                constants[name] = as_float32(result)
                self._sizes[name] = result.nbytes
                if self._exact is not None and result.dtype == np.float64:
                    self._exact[name] = result
        for name in filter(None, node.input):
            self._reads[name] -= 1
            if not self._reads[name] and name in self._sizes:
                self._bytes_left += self._sizes.pop(name)
                del constants[name]
                if self._exact is not None:
                    self._exact.pop(name, None)
        return True

    def _results(self, node: onnx.NodeProto,
                 constants: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        """Return the results of a node, or None.

        None means that the results are not constant, are too large, or cannot be computed. If a
        node cannot be computed, its converter raises the error later.
        """
        inputs = [name for name in node.input if name]
        if node.op_type not in FOLDED or node.domain not in ("", "ai.onnx"):
            return None
        if any(name not in constants for name in inputs):
            needed = [self.too_large[name] for name in inputs if name in self.too_large]
            if needed and all(name in constants or name in self.too_large for name in inputs):
                self.too_large.update(dict.fromkeys(node.output, max(needed)))
            return None
        if not inputs and node.op_type != "Constant":
            return None
        try:
            arrays = {name: (self._exact or constants).get(name, constants[name])
                      for name in inputs}
            size = most_bytes(node, arrays, self._opset)
            if size > self._bytes_left:
                if math.isfinite(size):
                    limit = self._limit - self._bytes_left + int(size)
                    self.too_large.update(dict.fromkeys(node.output, limit))
                return None
            results = computed(node, arrays, self._opset)
        except Exception:
            return None
        self._bytes_left -= sum(array.nbytes for array in results)
        return results
