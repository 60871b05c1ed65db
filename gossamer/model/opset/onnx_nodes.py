"""Nodes of ONNX files for which gossamer has no op.

If the inputs of such a node are constants, ONNX's reference implementation computes the node when
the file is read. If they follow from shapes, the reference computes the node at each batch size
(`onnx_known`). If they depend on the data, ONNX Runtime computes the node (`onnx_part`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from onnx.shape_inference import infer_node_outputs, infer_shapes

from gossamer import onnx_model
from gossamer.errors import ModelError, first_line
from gossamer.model.graph import Node
from gossamer.model.opset.definition import (
    RESOLVED,
    Images,
    InferenceState,
    OpDef,
    never,
    not_evaluated,
    nothing_known,
)
from gossamer.onnx_model import MOST_PARAMETERS, as_float32

_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))
_POOL_OPSET = 22
"""The first opset in which ONNX's inference counts the windows of pools correctly."""
_DOMAIN = "gossamer.pools"
"""The domain of the functions around pools."""
NODES = "nodes"
"""Key, in a part's metadata, of a JSON list of nodes. Each entry is a pair: the name of a node, as
messages show it, and the reason why gossamer does not compute this node."""
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
"""Ops that are evaluated if all their inputs are constants. Other ops of ONNX's reference are
excluded on purpose, so that no file makes gossamer run loops, decode pictures or match regular
expressions. ConvTranspose is excluded because the reference is wrong for groups and for an explicit
output shape. LogSoftmax is excluded because the reference returns -infinity where Softmax is 0 in
float32."""
_COMPUTED_SINCE = {"BatchNormalization": 15, "DequantizeLinear": 21}
"""The first opset at which the reference computes an op correctly. The op has the same meaning in
older opsets, so nodes of older opsets are computed as nodes of this opset."""
_SHRINKING = frozenset(("Compress", "NonZero"))
"""Folded ops whose result has a shape that depends on the values of the input. The shape of the
input gives an upper bound."""
_LONG = (TensorProto.INT64, TensorProto.UINT64, TensorProto.DOUBLE)
"""Types with elements of eight bytes."""


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the types and shapes that ONNX's inference finds.

    ONNX's inference is wrong for some nodes, so they are replaced before the inference:

    - Pools with ceil_mode before opset 22: ONNX counts a last window that begins beyond the input,
      but libraries do not compute this window. The pool is wrapped in a function of opset 22, in
      which pools have the same meaning.
    - Pools with both auto_pad and pads: ONNX ignores auto_pad. The pads are dropped.
    - A Resize to a size of 0, as at batch 0: ONNX finds no shape. The Resize becomes a constant.
    """
    graph = model.graph
    pools = [index for index, node in enumerate(graph.node) if node.op_type in _POOLS
             and node.domain in ("", "ai.onnx") and _is_miscounted(node)]
    empty = [index for index, node in enumerate(graph.node) if _resizes_to_nothing(node, graph)]
    if pools or empty:
        model = onnx.ModelProto.FromString(model.SerializeToString())
    for index in pools:
        _wrap(model, model.graph.node[index], f"pool_{index}")
    for index in empty:
        node = model.graph.node[index]
        dtype = _elem_type(infer_shapes(model, data_prop=True).graph, node.input[0])
        model.graph.node[index].CopyFrom(helper.make_node(
            "ConstantOfShape", [node.input[3]], list(node.output),
            value=helper.make_tensor("zero", dtype, [1], [0])))
    return infer_shapes(model, data_prop=True)


def _is_miscounted(pool: onnx.NodeProto) -> bool:
    """Return whether the inference may find a wrong size of a pool."""
    given = {entry.name: helper.get_attribute_value(entry) for entry in pool.attribute}
    return bool(given.get("ceil_mode") or (
        given.get("pads") and given.get("auto_pad", b"NOTSET") != b"NOTSET"))


def _wrap(model: onnx.ModelProto, pool: onnx.NodeProto, name: str) -> None:
    """Replace a pool by a call of a function that consists of this pool in opset 22."""
    inner = onnx.NodeProto()
    inner.CopyFrom(pool)
    inner.domain = ""
    given = {entry.name: entry for entry in inner.attribute}
    if "pads" in given and "auto_pad" in given and given["auto_pad"].s != b"NOTSET":
        inner.attribute.remove(given["pads"])
    outputs = list(filter(None, pool.output))
    model.functions.append(helper.make_function(
        _DOMAIN, name, list(pool.input), outputs, [inner], [helper.make_opsetid("", _POOL_OPSET)]))
    if all(entry.domain != _DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    pool.CopyFrom(helper.make_node(name, list(pool.input), outputs, domain=_DOMAIN))


def _resizes_to_nothing(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Return whether one of the sizes given to a Resize is 0."""
    return node.op_type == "Resize" and len(node.input) == 4 and any(
        tensor.name == node.input[3] and not numpy_helper.to_array(tensor).all()
        for tensor in graph.initializer) and all(entry.name != "axes" for entry in node.attribute)


def _elem_type(graph: onnx.GraphProto, name: str) -> int:
    """Return the ONNX type of a value's elements; float32 if it is unknown."""
    return next((info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info)
                 if info.name == name), onnx.TensorProto.FLOAT)


def nodes_of(model: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Return the nodes of a part, each with the reason why gossamer does not compute it.

    The first text of a pair is the node's name in messages, the second is the reason.

    model: the bytes of the part's model.
    Raises ValueError if the model does not name the nodes.
    """
    proto = _parsed(model)
    texts = [entry.value for entry in proto.metadata_props if entry.key == NODES]
    return tuple((str(source), str(reason)) for source, reason in json.loads("".join(texts)))


def has_float16(model: np.ndarray) -> bool:
    """Return whether a part has a value that the file declares as float16.

    Whether ONNX Runtime rounds such a value depends on how ONNX Runtime rewrites the model.

    model: the bytes of the part's model.
    """
    proto = _parsed(model)
    kinds = [info.type.tensor_type.elem_type for info in (*proto.graph.input, *proto.graph.output)]
    kinds += [tensor.data_type for tensor in proto.graph.initializer]
    kinds += [attribute.i for node in onnx_model.nodes_of(proto) for attribute in node.attribute
              if node.op_type == "Cast" and attribute.name == "to"]
    return onnx.TensorProto.FLOAT16 in kinds


def _parsed(model: np.ndarray) -> onnx.ModelProto:
    """Return the parsed model. Raises ValueError if the bytes are not a model."""
    try:
        return onnx.load_model_from_string(model.tobytes())
    except DecodeError:
        raise ValueError("the model of a part is damaged") from None


def _part_shape(state: InferenceState, node: Node) -> None:
    """Set the shapes of outputs by ONNX's shape inference.

    Raises UnsupportedError for a shape that depends on the data.
    """
    model = _parsed(node.attributes["model"])
    for index, (info, name) in enumerate(zip(model.graph.input, node.inputs, strict=True)):
        dtype = _dtype_of(info.type.tensor_type)
        if state.dtypes[name] != dtype and name not in state.known:
            # gossamer may hold ONNX's booleans as numbers
            name = node.inputs[index] = state.cast(
                node, name, [state.new_name(node, f"operand{index}")], dtype)
        known = state.known.get(name)
        if known is not None and known.size <= MOST_PARAMETERS:
            model.graph.initializer.append(numpy_helper.from_array(known.astype(dtype), info.name))
        info.type.tensor_type.ClearField("shape")
        info.type.tensor_type.shape.SetInParent()
        for size in state.shapes[name]:
            info.type.tensor_type.shape.dim.add(dim_value=size)
    try:
        result = inferred(model)
        if not all(map(_has_shape, result.graph.output)):
            # only strict inference raises an error that names the shapes that do not match
            infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:
        raise state.error(node, f"its shapes cannot be inferred: {first_line(error)}") from None
    shapes, dtypes = [], []
    for info, name in zip(result.graph.output, node.outputs, strict=True):
        tensor = info.type.tensor_type
        if not _has_shape(info):
            raise state.unsupported(node, f"makes {name!r}, whose shape depends on the data")
        shapes.append(tuple(dim.dim_value for dim in tensor.shape.dim))
        dtypes.append(_dtype_of(tensor))
    state.emit(node, (), several=shapes, dtype=dtypes[0], model=node.attributes["model"])
    state.dtypes.update(zip(node.outputs, dtypes, strict=True))


def _has_shape(info: onnx.ValueInfoProto) -> bool:
    tensor = info.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0
                                            for dim in tensor.shape.dim)


def _dtype_of(tensor: onnx.TypeProto.Tensor) -> str:
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name


def _part_mixes(images: Images, node: Node) -> str:
    return "is computed by ONNX Runtime, which may mix the images of a batch"


def computed(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int
             ) -> list[np.ndarray]:
    """Return the results of a node, computed by ONNX's reference implementation.

    arrays: the node's inputs by name.
    If the reference cannot compute the node, it raises an exception of any class.
    """
    # imported here, because importing onnx.reference is slow and few networks need it
    from onnx.reference import ReferenceEvaluator

    plain, given = _for_reference(node, arrays, opset)
    # a function has an opset, whereas a single node would be computed at the newest opset
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
    """Return the results in the dtypes of the op's schema.

    The schema gives some outputs the type of an input, but the reference may return another type;
    for example, it sums int32 to int64.
    """
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    dtypes = {formal.type_str: arrays[name].dtype
              for formal, name in zip(schema.inputs, node.input, strict=False) if name}
    # the last output of a schema may be variadic
    types = [formal.type_str for formal in schema.outputs]
    return [result.astype(dtypes.get(types[min(index, len(types) - 1)], result.dtype), copy=False)
            for index, result in enumerate(results)]


def _for_reference(node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], opset: int
                   ) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """Return the node and its inputs in a form that the reference computes as ONNX Runtime does.

    Empty lists of axes are dropped. Before opset 13, Softmax treats all dimensions from its axis on
    as one, so its input is reshaped to a matrix. Starts of a Slice with a negative step are clamped
    to their dimension. The float input of a QuantizeLinear is clipped, so that it fits into 32-bit
    integers after the division by the scale.
    """
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
        # under a new name, because the Slice may read one value as several inputs
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
    """Return an upper bound on the bytes of a node's results, by ONNX's shape inference.

    The bound is infinity if the inference finds no shape.
    """
    if node.op_type == "Constant":
        return 0  # the constant's value is already in memory as part of the file
    if node.op_type in _SHRINKING:
        # for each nonzero element, NonZero returns one index of eight bytes per dimension
        return sum(8 * array.size * max(1, array.ndim) for array in arrays.values())
    types = {name: onnx.helper.make_tensor_type_proto(
        onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()}
    values = {name: numpy_helper.from_array(array) for name, array in arrays.items()
              if array.size <= MOST_PARAMETERS}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    outputs = infer_node_outputs(schema, node, types, values,
                                 opset_imports=[onnx.helper.make_opsetid("", opset)])
    return sum(map(_bytes_of, outputs.values()))


def _bytes_of(inferred: onnx.TypeProto) -> float:
    """Return the bytes of a result; infinity if its shape is unknown.

    Elements are counted as eight bytes for types in _LONG, else as four.
    """
    tensor = inferred.tensor_type
    item = 8 if tensor.elem_type in _LONG else 4
    sizes = [dim.dim_value if dim.HasField("dim_value") else math.inf for dim in tensor.shape.dim]
    return item * math.prod(sizes) if tensor.HasField("shape") else math.inf


def _known_shape(state: InferenceState, node: Node) -> None:
    """Compute a node of an ONNX file from inputs that are known at this batch size."""
    for name in node.inputs:
        if name not in state.known:
            raise state.unsupported(node, f"reads {name!r}, which depends on the data")
    try:
        proto = onnx.NodeProto.FromString(node.attributes["node"].tobytes())
    except DecodeError:
        raise state.error(node, "is damaged: it holds no node of ONNX") from None
    if proto.op_type not in FOLDED or proto.domain not in ("", "ai.onnx"):
        raise state.unsupported(node, f"is a {proto.op_type}, which gossamer does not evaluate")
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
    OpDef("onnx_part",
          text="the values that a part of an ONNX file reads from outside of the part; model: the "
               "bytes of the part's ONNX model, whose inputs and outputs have the order of the "
               "node's inputs and outputs",
          shape=_part_shape, evaluate=not_evaluated, mixes=_part_mixes, passes_values=True,
          discontinuous=never, facts=nothing_known, float_only=False, attribute_inputs=()),
    OpDef("onnx_known",
          text="values that follow from shapes and constants, in the order in which the ONNX node "
               "reads them; node: the bytes of the ONNX node; opset: the opset of the ONNX file",
          shape=_known_shape, **RESOLVED, passes_values=True, discontinuous=never, float_only=False,
          attribute_inputs=()),
)
