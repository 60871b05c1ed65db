"""Reads ONNX files of opset 9 to 21 into graphs."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator

from gossamer.errors import InputError, ModelError, UnsupportedError
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.opset.state import CONSTANT_LIMIT, MALFORMED
from gossamer.model.readers.numbers import warn_of_broken_weights
from gossamer.model.readers.onnx import metadata
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE, TYPES
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.node import OnnxNode, as_float32

OPSETS = range(9, 22)

_CONVERTERS = {**ELEMENTWISE, **LAYERS, **LAYOUT}


def load_onnx(path: str | Path) -> Graph:
    """Returns the graph of an .onnx or .onnx.gz file.

    Raises InputError when the file is absent; ModelError when it is truncated, is not ONNX or
    is malformed; UnsupportedError for ops, attributes or opsets that gossamer does not compute.
    """
    path = Path(path)
    model = read_model(path)
    file = str(path)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx"))
    if opset is None:
        raise ModelError(f"{file}: names no ONNX opset; export the model again")
    if opset not in OPSETS:
        raise UnsupportedError(f"{file}: opset {opset} is outside {OPSETS[0]} to {OPSETS[-1]}; "
                               "export with opset_version=17")
    graph = Graph(model.graph.name or path.name.split(".")[0], [], [], [], {}, file,
                  metadata=metadata.read(model))
    _load_constants(model.graph, graph)
    _load_interface(model.graph, graph)
    _load_nodes(model.graph, graph, opset)
    warn_of_broken_weights(graph)
    return graph


def read_model(path: Path) -> onnx.ModelProto:
    """Returns the content of an .onnx or .onnx.gz file with its external data loaded. Raises the
    errors of load_onnx()."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    expected = "expected an ONNX model; is it truncated, or another kind of file?"
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        model = onnx.load_model_from_string(data)
    except (EOFError, gzip.BadGzipFile, zlib.error, DecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path}: not readable ({reason}); {expected}") from None
    if not model.ir_version or not model.graph.output:
        raise ModelError(f"{path}: holds no network; {expected}")
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        # onnx raises types of its own here, and OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path}: its external data cannot be read ({reason}); put the data file "
                         "beside the model") from None
    return model


def _load_constants(proto: onnx.GraphProto, graph: Graph) -> None:
    """Adds the file's initializers to the graph, floating-point ones as float32."""
    narrowed = []
    if proto.sparse_initializer:
        name = proto.sparse_initializer[0].values.name
        raise UnsupportedError(f"{graph.file}: initializer {name!r} is sparse; store it dense")
    for tensor in proto.initializer:
        if tensor.name in graph.constants:
            raise ModelError(f"{graph.file}: two initializers are named {tensor.name!r}")
        try:
            array = numpy_helper.to_array(tensor)
        except Exception as error:
            # a damaged tensor fails in many ways inside onnx
            reason = str(error).splitlines()[0]
            raise ModelError(f"{graph.file}: initializer {tensor.name!r} is damaged: {reason}"
                             ) from None
        graph.constants[tensor.name] = as_float32(array)
        if graph.constants[tensor.name].dtype != array.dtype:
            narrowed.append((tensor.name, array.dtype))
    if narrowed:
        name, dtype = narrowed[0]
        graph.warnings.append(f"{graph.file}: {len(narrowed)} weights are {dtype} (first: "
                              f"{name!r}); gossamer computes with them as float32")


def _load_interface(proto: onnx.GraphProto, graph: Graph) -> None:
    """Adds inputs and outputs to the graph. A first dimension that all inputs share counts as the
    batch."""
    for value in proto.input:
        if value.name in graph.constants:
            continue
        if any(info.name == value.name for info in graph.inputs):
            raise ModelError(f"{graph.file}: two inputs are named {value.name!r}")
        info = _value_info(value, graph, "input")
        if not value.type.tensor_type.HasField("shape"):
            raise ModelError(f"{graph.file}: input {value.name!r} has no shape; export it with one")
        graph.inputs.append(info)
    graph.outputs = [_value_info(value, graph, "output") for value in proto.output]
    leading = {info.shape[0] if len(info.shape) > 1 else None for info in graph.inputs}
    if len(leading) == 1 and (batch := leading.pop()) is not None:
        graph.fixed_batch = batch
        graph.inputs = [_free_batch(info, batch) for info in graph.inputs]
        graph.outputs = [_free_batch(info, batch) for info in graph.outputs]


def _value_info(value: onnx.ValueInfoProto, graph: Graph, what: str) -> ValueInfo:
    if not value.type.HasField("tensor_type"):
        raise UnsupportedError(f"{graph.file}: {what} {value.name!r} is not a tensor")
    tensor = value.type.tensor_type
    kind = tensor.elem_type or TensorProto.FLOAT
    if kind not in TYPES:
        raise UnsupportedError(f"{graph.file}: {what} {value.name!r} has ONNX type {kind}; "
                               f"gossamer knows {', '.join(sorted(set(TYPES.values())))}")
    if TYPES[kind] == "float32" and kind != TensorProto.FLOAT:
        name = TensorProto.DataType.Name(kind).lower().replace("double", "float64")
        graph.warnings.append(f"{graph.file}: {what} {value.name!r} is {name}; gossamer takes and "
                              "gives float32")
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
    labels = tuple(dim.dim_param for dim in tensor.shape.dim)
    return ValueInfo(value.name, shape, TYPES[kind], labels)


def _free_batch(info: ValueInfo, batch: int) -> ValueInfo:
    """Returns the value with its first dimension open, where that is the batch."""
    if info.shape[:1] != (batch,):
        return info
    return ValueInfo(info.name, (None, *info.shape[1:]), info.dtype, info.labels)


def _load_nodes(proto: onnx.GraphProto, graph: Graph, opset: int) -> None:
    """Converts the file's nodes in order. Raises UnsupportedError, which names the first nodes that
    no converter takes."""
    used = {name for node in proto.node for name in node.input}
    used |= {info.name for info in graph.outputs}
    later = {name: node for node in proto.node for name in node.output}
    available = set(graph.constants) | {info.name for info in graph.inputs}
    unknown = []
    for entry in proto.node:
        node = OnnxNode(entry, opset, graph, used)
        for name in entry.input:
            if name and name not in available:
                if name in later:
                    raise node.error(f"reads {name!r} before {later[name].op_type} "
                                     f"'{later[name].name}' makes it: the nodes are unsorted or "
                                     "form a cycle; export the model again")
                raise node.error(f"reads {name!r}, which no input, initializer or node provides")
        for name in filter(None, entry.output):
            if name in available:
                raise node.error(f"makes {name!r}, a name that is already taken")
            available.add(name)
        if _fold(entry, graph, opset):
            continue
        if entry.op_type not in _CONVERTERS or entry.domain not in ("", "ai.onnx"):
            unknown.append(f"{node.source} of domain {entry.domain or 'ai.onnx'!r}")
            continue
        if not entry.output or not entry.output[0]:
            raise node.error("its first output has no name")
        if not unknown:
            try:
                _CONVERTERS[entry.op_type](node)
            except MALFORMED as error:
                raise node.error(f"is malformed: {error!r}") from error
            node.finish()
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UnsupportedError(f"{graph.file}: gossamer does not compute {', '.join(unknown[:3])}"
                               f"{more}; export the model without them")
    for info in graph.outputs:
        if info.name not in available:
            raise ModelError(f"{graph.file}: output {info.name!r} is made by no node")
    _cast_truth_outputs(graph)
    _unique_names(graph)


def _fold(entry: onnx.NodeProto, graph: Graph, opset: int) -> bool:
    """Computes a node whose inputs are all constants with ONNX's reference implementation, and
    returns whether it has."""
    inputs = [name for name in entry.input if name]
    if entry.domain not in ("", "ai.onnx") or any(n not in graph.constants for n in inputs):
        return False
    if not inputs and entry.op_type != "Constant":
        return False
    if entry.op_type in ("Expand", "ConstantOfShape"):
        shape = graph.constants[inputs[-1]]
        if shape.size and np.prod(shape.astype(np.float64)) > CONSTANT_LIMIT:
            return False
    try:
        evaluator = ReferenceEvaluator(entry, opsets={"": opset})
        results = evaluator.run(None, {name: graph.constants[name] for name in inputs})
    except Exception:
        # what the reference cannot compute is left to the converter and its messages
        return False
    for name, result in zip(entry.output, results, strict=False):
        if name:
            graph.constants[name] = as_float32(np.asarray(result))
    return True


def _cast_truth_outputs(graph: Graph) -> None:
    """Appends a cast to each output that the file declares as bool, since truth values are numbers
    inside a graph."""
    for info in graph.outputs:
        for node in graph.nodes:
            if info.dtype == "bool" and info.name in node.outputs:
                inner = f"{info.name}.number"
                for reader in graph.nodes:
                    reader.inputs = [inner if n == info.name else n for n in reader.inputs]
                node.outputs = [inner if n == info.name else n for n in node.outputs]
                graph.nodes.append(Node("cast", f"{info.name}.bool", [inner], [info.name],
                                        {"dtype": "bool"}, node.source))
                break


def _unique_names(graph: Graph) -> None:
    """Appends numbers to names of nodes that occur more than once."""
    seen: set[str] = set()
    for node in graph.nodes:
        base, count = node.name, 1
        while node.name in seen:
            count += 1
            node.name = f"{base}_{count}"
        seen.add(node.name)
