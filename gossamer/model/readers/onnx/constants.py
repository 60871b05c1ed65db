"""The constants of ONNX files: tensors as arrays, and nodes whose results are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)
from onnx.shape_inference import infer_node_outputs

from gossamer.errors import first_line, quoted
from gossamer.io.limits import check_unpacked, most_value_bytes
from gossamer.model.graph import Graph

_FOLDED = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Clip", "Compress",
    "Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "CumSum",
    "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike",
    "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul",
    "MatMulInteger", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "NonZero", "Not",
    "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "Range", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round",
    "ScatterElements", "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Size",
    "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile",
    "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"))
"""Ops whose results are computed where all their inputs are constants. ONNX's reference also runs
loops, decodes pictures and matches patterns, which no file may ask for."""
_SHRINKING = frozenset(("Compress", "NonZero"))
"""Folded ops whose results have a shape that the values decide, and which is bounded by the
input's."""
_LONG = (TensorProto.INT64, TensorProto.UINT64, TensorProto.DOUBLE)
"""Types of eight bytes."""
_MOST_RANK = 32
_MOST_PARAMETERS = 1024
"""Elements of the largest constant that shape inference is told: shapes, axes and repeats."""


def as_float32(array: np.ndarray) -> np.ndarray:
    """Returns the array, cast to float32 where it has any floating type, such as bfloat16."""
    return array if array.dtype.kind in "biuUSO" else np.asarray(array, np.float32)


def to_array(tensor: onnx.TensorProto) -> np.ndarray:
    """Returns the values of a tensor. Raises ValueError that says what is wrong with it."""
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
    return array


def load_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Loads the tensors that lie in files beside the model, of each as many bytes as its shape
    takes. Raises ValueError that says what is wrong, InputError where they are too large."""
    tensors = filter(uses_external_data, _tensors(model.graph))
    files: dict[str, int] = {}
    total = 0
    for tensor in tensors:
        info = ExternalDataInfo(tensor)
        if min(tensor.dims, default=0) < 0:
            raise ValueError(f"tensor {quoted(tensor.name)} has shape {quoted(list(tensor.dims))}")
        size = -(-math.prod(tensor.dims) * _item_bits(tensor) // 8)
        if info.length and info.length != size:
            raise ValueError(f"tensor {quoted(tensor.name)} takes {size} bytes, {info.length} are "
                             "set aside for it")
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
    """Returns the name of a file in which some of a model's data lie; None where all are in it."""
    return next((ExternalDataInfo(tensor).location for tensor in _tensors(model.graph)
                 if uses_external_data(tensor)), None)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yields the tensors of a graph: its initializers, and those that its nodes hold."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner)


def _item_bits(tensor: onnx.TensorProto) -> int:
    """Returns the bits of a tensor's element. Raises ValueError where it has no size."""
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        raise ValueError(f"tensor {quoted(tensor.name)} holds no numbers")
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return 4
    return 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


class ConstantFolder:
    """Computes nodes whose inputs are all constants, with ONNX's reference implementation.

    What all of them keep is bounded before it is computed: see gossamer.io.limits.

    reads: for each value, how many nodes of the file read it.
    too_large: for each result that the limit keeps from being computed, or that is made of such a
    one, how many bytes the limit would have to be.
    """

    def __init__(self, opset: int, reads: Mapping[str, int]) -> None:
        self._opset = opset
        self._limit = self._bytes_left = most_value_bytes(0)
        self._reads = dict(reads)
        self._sizes: dict[str, int] = {}
        self.too_large: dict[str, int] = {}

    def fold(self, node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> bool:
        """Adds the results of a node to the constants where they are known, and drops those that
        only this node has read. Returns whether it has."""
        results = self._results(node, constants)
        if results is None:
            return False
        for name, result in zip(node.output, results, strict=False):
            if name:
                constants[name] = result
                self._sizes[name] = result.nbytes
        for name in filter(None, node.input):
            self._reads[name] -= 1
            if not self._reads[name] and name in self._sizes:
                self._bytes_left += self._sizes.pop(name)
                del constants[name]
        return True

    def _results(self, node: onnx.NodeProto,
                 constants: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        """Returns the results of a node; None where they are not known, too large, or cannot be
        computed, which is left to the node's converter and its messages."""
        inputs = [name for name in node.input if name]
        if node.op_type not in _FOLDED or node.domain not in ("", "ai.onnx"):
            return None
        if any(name not in constants for name in inputs):
            of_large = [self.too_large[name] for name in inputs if name in self.too_large]
            if of_large and all(name in constants or name in self.too_large for name in inputs):
                self.too_large.update(dict.fromkeys(node.output, max(of_large)))
            return None
        if not inputs and node.op_type != "Constant":
            return None
        try:
            # few files have such nodes, and the import takes long
            from onnx.reference import ReferenceEvaluator

            arrays = {name: constants[name] for name in inputs}
            size = self._most_bytes(node, arrays)
            if size > self._bytes_left:
                if math.isfinite(size):
                    needed = self._limit - self._bytes_left + int(size)
                    self.too_large.update(dict.fromkeys(node.output, needed))
                return None
            evaluator = ReferenceEvaluator(node, opsets={"": self._opset})
            results = [as_float32(np.asarray(result)) for result in evaluator.run(None, arrays)]
        except Exception:
            return None
        self._bytes_left -= sum(array.nbytes for array in results)
        return results

    def fold_last(self, graph: Graph) -> None:
        """Computes the last node of a graph, which a converter has made, where it is element-wise
        and its inputs are constants; a node whose result would be too large stays."""
        node = graph.nodes[-1]
        if node.op != "elementwise" or any(name not in graph.constants for name in node.inputs):
            return
        arrays = [graph.constants[name].astype(np.float32) for name in node.inputs]
        try:
            shape = np.broadcast_shapes(*[array.shape for array in arrays])
        except ValueError:
            return
        if 4 * math.prod(shape) <= self._bytes_left:
            (result,) = node.attributes["expression"].evaluate(*arrays)
            self._bytes_left -= result.nbytes
            graph.constants[node.outputs[0]] = result
            del graph.nodes[-1]

    def _most_bytes(self, node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> float:
        """Returns how many bytes the results of a node take at most, as ONNX's shape inference
        tells them; infinity where it does not."""
        if node.op_type == "Constant":
            return 0  # it is in the file
        if node.op_type in _SHRINKING:
            return sum(array.size for array in arrays.values()) * _MOST_RANK
        types = {name: onnx.helper.make_tensor_type_proto(
            onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()}
        values = {name: numpy_helper.from_array(array) for name, array in arrays.items()
                  if array.size <= _MOST_PARAMETERS}
        schema = onnx.defs.get_schema(node.op_type, self._opset, "")
        outputs = infer_node_outputs(schema, node, types, values,
                                     opset_imports=[onnx.helper.make_opsetid("", self._opset)])
        return sum(map(_bytes_of, outputs.values()))


def _bytes_of(inferred: onnx.TypeProto) -> float:
    """Returns the bytes of a result, four or eight for each element; infinity where its shape is
    not known."""
    tensor = inferred.tensor_type
    item = 8 if tensor.elem_type in _LONG else 4
    sizes = [dim.dim_value if dim.HasField("dim_value") else math.inf for dim in tensor.shape.dim]
    return item * math.prod(sizes) if tensor.HasField("shape") else math.inf
