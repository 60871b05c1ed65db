"""Computes nodes of ONNX files by ONNX's reference implementation, where the inputs of a node do
not depend on the data. A node that reads constants only is computed when its file is read. A node
that also reads values that follow from shapes becomes the op onnx_known, which is defined here."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper
from onnx.shape_inference import infer_node_outputs

from gossamer.errors import ModelError, first_line
from gossamer.model.graph import Node
from gossamer.model.opset.definition import define, never_jumps, resolved
from gossamer.model.opset.state import InferenceState

FOLDED = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Clip", "Compress",
    "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "CumSum",
    "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike",
    "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "MatMul",
    "MatMulInteger", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "NonZero", "Not",
    "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "Range", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round",
    "ScatterElements", "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Size",
    "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile",
    "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"))
"""Ops whose results are computed where all their inputs are constants. Other ops of ONNX's
reference are left out on purpose, so that no file makes gossamer run loops, decode pictures or
match patterns. ConvTranspose is left out because the reference is wrong for groups and for given
shapes of the output, LogSoftmax because it is infinite where Softmax is 0 in float32."""
_COMPUTED_SINCE = {"BatchNormalization": 15, "DequantizeLinear": 21}
"""The opset since which the reference computes an op, and rightly, for ops that mean the same in
older opsets."""
_SHRINKING = frozenset(("Compress", "NonZero"))
"""Folded ops whose result has a shape that depends on the input's values. The input's shape sets an
upper bound for this shape."""
_LONG = (TensorProto.INT64, TensorProto.UINT64, TensorProto.DOUBLE)
"""Types with elements of eight bytes."""
_MOST_PARAMETERS = 1024
"""The most elements of a constant that is given to ONNX's shape inference. Constants that decide
shapes, such as axes and repeats, have fewer elements."""


def as_float32(array: np.ndarray) -> np.ndarray:
    """Returns the array, cast to float32 where it has any floating type, such as bfloat16."""
    return array if array.dtype.kind in "biuUSO" else np.asarray(array, np.float32)


def computed(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int
             ) -> list[np.ndarray]:
    """Returns the results of a node. arrays: the node's inputs by name. ONNX raises exceptions of
    any class for nodes that it cannot compute."""
    # onnx.reference takes long to import, and few networks need it
    from onnx.reference import ReferenceEvaluator

    plain, given = _for_reference(node, arrays, opset)
    # of a node alone, the reference would take the newest opset
    function = onnx.helper.make_function(
        "gossamer", "node", list(given), list(plain.output), [plain],
        [onnx.helper.make_opsetid("", max(opset, _COMPUTED_SINCE.get(node.op_type, 0)))])
    results = [np.asarray(result)
               for result in ReferenceEvaluator(function).run(None, given, attributes={})]
    if node.op_type == "Softmax" and opset < 13:
        results = [results[0].reshape(arrays[node.input[0]].shape)]
    return _of_declared_types(node, results, arrays, opset)


def _of_declared_types(node: onnx.NodeProto, results: list[np.ndarray],
                       arrays: Mapping[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """Returns the results in the dtypes of the inputs whose types they have by the op's schema: the
    reference sums int32 to int64, for instance."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    dtypes = {formal.type_str: arrays[name].dtype
              for formal, name in zip(schema.inputs, node.input, strict=False) if name}
    # the last output of a schema may stand for several
    types = [formal.type_str for formal in schema.outputs]
    return [result.astype(dtypes.get(types[min(index, len(types) - 1)], result.dtype), copy=False)
            for index, result in enumerate(results)]


def _for_reference(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int
                   ) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """Returns the node and its inputs in a form that the reference computes as ONNX Runtime does:
    without empty lists of axes, with a matrix where the op treats all dimensions from its axis on
    as one, with starts that lie within the dimensions that a Slice goes through backwards, and with
    floats that 32-bit integers hold after their division by a scale."""
    plain, given = onnx.NodeProto(), dict(arrays)
    plain.CopyFrom(node)
    plain.domain = ""
    kept = [attribute for attribute in node.attribute if node.op_type == "Unsqueeze"
            or attribute.name != "axes" or attribute.ints]
    if node.op_type == "Softmax" and opset < 13:
        shape = given[node.input[0]].shape
        axis = next((attribute.i for attribute in kept if attribute.name == "axis"), 1)
        given[node.input[0]] = given[node.input[0]].reshape(
            math.prod(shape[:axis]), math.prod(shape[axis:]))
        kept = [onnx.helper.make_attribute("axis", 1)]
    elif node.op_type == "Slice" and len(node.input) == 5 and node.input[4]:
        starts, steps = given[node.input[1]], given[node.input[4]]
        axes = given[node.input[3]] if node.input[3] else np.arange(starts.size)
        sizes = np.array(given[node.input[0]].shape)[axes]
        # a second input of this name may be the first one, too
        plain.input[1] = f"{node.input[1]}.within"
        given[plain.input[1]] = np.where(steps < 0, np.maximum(starts, -sizes), starts)
    elif node.op_type == "QuantizeLinear" and given[node.input[0]].dtype.kind == "f":
        x, scale = given[node.input[0]], np.abs(given[node.input[1]])
        axis = next((attribute.i for attribute in kept if attribute.name == "axis"), 1)
        if scale.ndim == 1 and scale.size > 1:
            scale = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
        most = scale * scale.dtype.type(2**24)
        plain.input[0] = f"{node.input[0]}.within"
        given[plain.input[0]] = np.clip(x, -most, most)
    del plain.attribute[:]
    plain.attribute.extend(kept)
    return plain, given


def most_bytes(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int) -> float:
    """Returns the most bytes that the results of a node may take, by ONNX's shape inference;
    infinity where the inference finds no bound."""
    if node.op_type == "Constant":
        return 0  # the constant's value is in memory already, with the file
    if node.op_type in _SHRINKING:
        # NonZero gives an index of eight bytes for each dimension of an element
        return sum(8 * array.size * max(1, array.ndim) for array in arrays.values())
    types = {name: onnx.helper.make_tensor_type_proto(
        onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()}
    values = {name: numpy_helper.from_array(array) for name, array in arrays.items()
              if array.size <= _MOST_PARAMETERS}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    outputs = infer_node_outputs(schema, node, types, values,
                                 opset_imports=[onnx.helper.make_opsetid("", opset)])
    return sum(map(_bytes_of, outputs.values()))


def _bytes_of(inferred: onnx.TypeProto) -> float:
    """Returns the bytes of a result, four or eight for each element; infinity where the result's
    shape is not known."""
    tensor = inferred.tensor_type
    item = 8 if tensor.elem_type in _LONG else 4
    sizes = [dim.dim_value if dim.HasField("dim_value") else math.inf for dim in tensor.shape.dim]
    return item * math.prod(sizes) if tensor.HasField("shape") else math.inf


def _known_shape(state: InferenceState, node: Node) -> None:
    """Computes a node of an ONNX file at this batch size."""
    for name in node.inputs:
        if name not in state.known:
            raise state.unsupported(node, f"depends on {name!r}, which the data decides")
    try:
        proto = onnx.NodeProto.FromString(node.attributes["node"].tobytes())
    except DecodeError:
        raise state.error(node, "is damaged: it holds no node of ONNX") from None
    if proto.op_type not in FOLDED or proto.domain not in ("", "ai.onnx"):
        raise state.unsupported(node, f"is no {proto.op_type} that follows from shapes")
    arrays = {name: state.known[value] for name, value in zip(
        filter(None, proto.input), node.inputs, strict=True)}
    try:
        size = most_bytes(proto, arrays, node.attributes["opset"])
        if not math.isfinite(size):
            raise ValueError("the size of its result is not known")
        state.check_constant(node, (int(size),), "uint8")
        results = [as_float32(result)
                   for result in computed(proto, arrays, node.attributes["opset"])]
    except ModelError:
        raise
    except Exception as error:
        # ONNX raises exceptions of any class
        raise state.unsupported(node, f"cannot be computed: {first_line(error)}") from None
    named = (result for name, result in zip(proto.output, results, strict=False) if name)
    for name, result in zip(node.outputs, named, strict=True):
        state.know(name, result)


DEFINITIONS = (
    define("onnx_known",
           text="values that follow from shapes and constants; node: a node of an ONNX file as "
                "bytes, which reads them in this order, opset: the version of its operator",
           shape=_known_shape, evaluate=resolved, mixes=resolved, passes_values=True,
           jumps=never_jumps, facts=resolved, float_only=False, attribute_inputs=()),
)
