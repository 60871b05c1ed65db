"""Reads ONNX files into graphs, and refuses files that libraries would never finish reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from gossamer import onnx_model
from gossamer.errors import (
    InputError,
    ModelError,
    UnsupportedError,
    first_line,
    kind_of,
    quoted,
    similar_file,
)
from gossamer.io.limits import opened, unpacked
from gossamer.model.formats import chosen
from gossamer.model.graph import Graph, ValueInfo, warn_of_broken_weights
from gossamer.model.input_format import InputFormat
from gossamer.model.readers.onnx import metadata
from gossamer.model.readers.onnx.constants import (
    add_constants,
    external_file,
    load_external_data,
    with_dense_constants,
)
from gossamer.model.readers.onnx.load_nodes import load_nodes
from gossamer.model.readers.onnx.order import in_order, source
from gossamer.model.readers.onnx.value_types import (
    TYPES,
    FileTypes,
    has_float64,
    is_of_numbers,
    is_untyped,
    type_text,
)
from gossamer.model.readers.other_kinds import by_content
from gossamer.onnx_model import nodes_within, subgraphs

NEWEST_OPSET = onnx.defs.onnx_opset_version()
"""The newest opset that the installed onnx defines."""
_EXPECTED = "expected an ONNX model; is it truncated, or another kind of file?"
_NAMES_OF_EXPORTERS = ("", "main", "main_graph", "torch_jit", "torch-jit-export")
"""Names that exporters give to every graph."""
MOST_EXPANDED = 2**14
"""Maximum number of nodes by which a file may grow when calls of functions are replaced by the
nodes of the functions. ONNX Runtime expands calls to this many nodes within 5 s on one core; twice
as many nodes take more than twice as long."""
MOST_NESTED = 100
"""Maximum nesting depth of calls of functions, which the onnx package follows recursively."""
_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def load_onnx(model: str | Path | bytes | onnx.ModelProto,
              outputs: Sequence[str] | None = None, *, narrows: bool = False) -> Graph:
    """Return the graph of an .onnx or .onnx.gz file, of its content, or of a model in memory.

    outputs: names of the outputs to read, in this order; None for all. Nodes that only other
    outputs need are not read.
    narrows: whether float64 becomes float32; without ONNX Runtime, it always does. If float64 is
    kept, ONNX Runtime computes the parts of the network with float64 values.
    Raises InputError if the file is absent or lacks an output of `outputs`; ModelError if the file
    is truncated, is not ONNX or is malformed; UnsupportedError for ops, attributes or opsets that
    gossamer does not compute.
    """
    unnamed: Sequence[str] = ("",)
    if isinstance(model, str | Path):
        path = Path(model)
        file, name, proto = str(path), path.name.split(".")[0], read_model(path)
        unnamed = _NAMES_OF_EXPORTERS
    elif isinstance(model, bytes):
        file, name = "ONNX bytes", "network"
        proto = _in_memory(_parsed(unpacked(model, file, ModelError), file), file)
    elif isinstance(model, onnx.ModelProto):
        file, name = "ONNX model", "network"
        proto = _in_memory(_checked(model, file), file)
    else:
        raise InputError(f"cannot load {kind_of(model)}: expected an onnx.ModelProto")
    if proto.graph.name not in unnamed:
        name = proto.graph.name
    opset = _opset(proto, file)
    check_expansion(proto, file)
    try:
        proto = with_dense_constants(proto, file)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None
    graph = Graph(name, [], [], [], {}, file)
    if proto.metadata_props:
        graph.metadata = metadata.read(proto)
    keeps = not narrows and onnx_model.has_runtime() and has_float64(proto.graph)
    exact: dict[str, np.ndarray] = {}
    add_constants(proto.graph.initializer, graph, keeps, exact)
    inputs = _load_interface(proto, graph, outputs, keeps)
    load_nodes(proto, graph, inputs, opset, keeps, exact)
    _warn_of_narrowed(proto.graph, graph)
    warn_of_broken_weights(graph)
    return graph


def _opset(model: onnx.ModelProto, file: str) -> int:
    """Return the opset of ONNX's own operators.

    Raises ModelError if the file names no opset, and UnsupportedError if the installed onnx does
    not have the opset.
    """
    versions = {entry.domain: entry.version for entry in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", NEWEST_OPSET if versions else 0))
    if opset < 1:
        raise ModelError(f"{file}: names no ONNX opset; export the model again")
    if opset > NEWEST_OPSET:
        raise UnsupportedError(f"{file}: opset {opset} is newer than {NEWEST_OPSET}, the newest "
                               f"that the installed onnx {onnx.__version__} knows; pip install "
                               "--upgrade onnx, or export with an older opset_version")
    return opset


def read_model(path: Path) -> onnx.ModelProto:
    """Return the content of an .onnx or .onnx.gz file with its external data loaded.

    Raises the errors of load_onnx().
    """
    if not path.is_file():
        reason = ("is no regular file" if path.exists() else
                  f"No such file or directory{similar_file(path)}")
        raise InputError(f"cannot read {path}: {reason}")
    with opened(path, ModelError) as file:
        data = file.read()
    model = _parsed(data, str(path))
    try:
        load_external_data(model, path)
    except InputError:
        raise
    except Exception as error:
        # onnx raises exceptions of its own classes, and OSError
        raise ModelError(f"{path}: its external data cannot be read ({first_line(error)}); put the "
                         "data file beside the model") from None
    return model


def _parsed(data: bytes, file: str) -> onnx.ModelProto:
    """Parse a model.

    Raises ModelError for bytes that hold no model, or another kind of file.
    """
    try:
        return _checked(onnx.load_model_from_string(data), file)
    except (DecodeError, ModelError) as error:
        if (kind := by_content(data)) is not None:
            raise ModelError(f"{file}: {kind}") from None
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{file}: not readable ({first_line(error)}); {_EXPECTED}") from None


def _checked(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Return the model. Raises ModelError if it holds no network or a name is not text."""
    if not model.ir_version or not model.graph.output:
        raise ModelError(f"{file}: holds no network; {_EXPECTED}")
    if (damaged := next(_damaged_texts(model.graph), None)) is not None:
        raise ModelError(f"{file}: the name {quoted(damaged)} is no text in UTF-8; {_EXPECTED}")
    return model


def _in_memory(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Return a model that was passed in memory, without a path.

    Raises InputError if data is in another file, because the folder of this file is unknown.
    """
    if (location := external_file(model)) is not None:
        raise InputError(f"{file}: its weights are in another file, {quoted(location)}; pass the "
                         "path of the model, or read it with onnx.load, which loads them")
    return model


def _damaged_texts(graph: onnx.GraphProto) -> Iterator[bytes]:
    """Yield the names in a graph that are not UTF-8 text; protobuf returns such names as bytes."""
    named = (graph.initializer, graph.input, graph.output, graph.node,
             *(node.attribute for node in graph.node))
    names = [graph.name, *(entry.name for entries in named for entry in entries)]
    for node in graph.node:
        names += (node.op_type, node.domain, *node.input, *node.output)
        for inner in subgraphs(node):
            yield from _damaged_texts(inner)
    for value in (*graph.input, *graph.output):
        names += (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (name for name in names if isinstance(name, bytes))


def _load_interface(model: onnx.ModelProto, graph: Graph, outputs: Sequence[str] | None,
                    keeps: bool) -> list[ValueInfo]:
    """Add inputs and outputs to the graph.

    If the file fixes the first dimension of all inputs to the same size, this size is the batch.
    Outputs that the file declares without a type have the type that ONNX's inference finds.

    outputs: as for load_onnx().
    keeps: whether ONNX Runtime computes float64.
    Returns all inputs of the network. Inputs that are not numeric tensors, which only ONNX Runtime
    supports, are not added to the graph.
    """
    seen = set(graph.constants)
    inputs = []
    for value in model.graph.input:
        if value.name in graph.constants:
            continue
        if value.name in seen:
            raise ModelError(f"{graph.file}: two inputs are named {quoted(value.name)}")
        info = _value_info(value, graph, "input", keeps)
        if is_of_numbers(value, keeps) and not value.type.tensor_type.HasField("shape"):
            raise ModelError(f"{graph.file}: input {quoted(value.name)} has no shape; export it "
                             "with one")
        seen.add(value.name)
        inputs.append(info)
        if is_of_numbers(value, keeps):
            graph.inputs.append(info)
    declared = list(model.graph.output)
    if outputs is not None:
        declared = chosen(declared, outputs, graph.file)
    if any(map(is_untyped, declared)):
        types = FileTypes(model, in_order(model.graph, [each.name for each in declared],
                                          graph.file))
        declared = [types.value_info(each.name) if is_untyped(each) else each
                    for each in declared]
    graph.outputs = [_value_info(each, graph, "output", keeps) for each in declared]
    leading = {info.shape[0] if len(info.shape) > 1 else None for info in graph.inputs}
    if len(leading) == 1 and (batch := leading.pop()) is not None:
        graph.fixed_batch = batch
        graph.inputs = [_free_batch(info, batch) for info in graph.inputs]
        graph.outputs = [_free_batch(info, batch) for info in graph.outputs]
    freed = {info.name: info for info in graph.inputs}
    return [freed.get(info.name, info) for info in inputs]


def _value_info(value: onnx.ValueInfoProto, graph: Graph, what: str, keeps: bool) -> ValueInfo:
    if not is_of_numbers(value, keeps) and not onnx_model.has_runtime():
        raise UnsupportedError(f"{graph.file}: {what} {quoted(value.name)} has ONNX type "
                               f"{type_text(value.type)}; gossamer knows tensors of "
                               f"{', '.join(sorted(set(TYPES.values())))}; {onnx_model.EXTRA}")
    tensor = value.type.tensor_type
    kind = tensor.elem_type or TensorProto.FLOAT
    shape = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
                  for dim in tensor.shape.dim)
    labels = tuple(dim.dim_param for dim in tensor.shape.dim)
    if not is_of_numbers(value, keeps):
        is_float64 = value.type.HasField("tensor_type") and kind == TensorProto.DOUBLE
        return ValueInfo(value.name, shape, "float64", labels) if is_float64 else (
            ValueInfo(value.name, (), type_text(value.type)))
    if kind == TensorProto.FLOAT16:
        # float16 inputs and outputs are float32 within the network, and float16 for callers
        return (ValueInfo(value.name, shape, "float32", labels, InputFormat("float16"))
                if what == "input" else ValueInfo(value.name, shape, "float32", labels,
                                                  returned_dtype="float16"))
    # the dtype of an untyped output follows from the node that makes it
    dtype = "" if what == "output" and is_untyped(value) else TYPES[kind]
    return ValueInfo(value.name, shape, dtype, labels)


def _warn_of_narrowed(proto: onnx.GraphProto, graph: Graph) -> None:
    """Add a warning for each float32 input and output that is float64 or bfloat16 in the file."""
    for what, infos, values in (("input", graph.network_inputs, proto.input),
                                ("output", graph.network_outputs, proto.output)):
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        for info in infos:
            kind = kinds[info.name]
            if info.dtype == "float32" and kind in (TensorProto.DOUBLE, TensorProto.BFLOAT16):
                name = TensorProto.DataType.Name(kind).lower().replace("double", "float64")
                graph.warnings.append(f"{graph.file}: {what} {quoted(info.name)} is {name}; "
                                      "gossamer accepts and returns float32")


def _free_batch(info: ValueInfo, batch: int) -> ValueInfo:
    """Return the value with an open first dimension if that dimension is the batch."""
    if info.shape[:1] != (batch,):
        return info
    return replace(info, shape=(None, *info.shape[1:]))


def check_expansion(model: onnx.ModelProto, file: str) -> None:
    """Raise ModelError for a file that would take too long to read.

    The file's functions must not call themselves, and must not expand to too many nodes. Equations
    of Einsum must not make the onnx package's shape inference run forever.
    """
    functions = {(each.domain, each.name, getattr(each, "overload", "")):
                 list(nodes_within(each.node)) for each in model.functions}
    nodes = list(nodes_within(model.graph.node))
    added = _Expansion(functions, file).count(nodes, ()) - len(nodes)
    if added > MOST_EXPANDED:
        raise ModelError(f"{file}: the calls of its functions expand to {quoted(added)} nodes, the "
                         f"limit is {MOST_EXPANDED}; if this is intended, expand them with "
                         "onnx.inliner.inline_local_functions(model)")
    defaults = [attribute for each in model.functions for attribute in each.attribute_proto]
    _check_equations([*nodes, *(node for body in functions.values() for node in body)],
                     functions, defaults, file)


class _Expansion:
    """Counts nodes as if each call of a function were replaced by the function's nodes."""

    def __init__(self, functions: Mapping[_Key, Iterable[onnx.NodeProto]], file: str) -> None:
        self._functions = functions
        self._file = file
        self._counts: dict[_Key, int] = {}

    def count(self, nodes: Iterable[onnx.NodeProto], callers: tuple[_Key, ...]) -> int:
        """Return the number of nodes.

        callers: the functions that contain these nodes, outermost first. Raises ModelError for
        functions that call themselves or are nested too deeply.
        """
        total = 0
        for node in nodes:
            key = _key(node)
            if key not in self._functions:
                total += 1
                continue
            if key in callers or len(callers) == MOST_NESTED:
                what = ("calls itself" if key in callers else
                        f"is called by more than {MOST_NESTED} functions in a row, the limit")
                raise ModelError(f"{self._file}: the function {quoted(key[1])} {what}; export the "
                                 "model without functions")
            if key not in self._counts:
                self._counts[key] = self.count(self._functions[key], (*callers, key))
            total += self._counts[key]
        return total


def _check_equations(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Key, object],
                     defaults: Iterable[onnx.AttributeProto], file: str) -> None:
    """Raise ModelError if a term of an equation has more than the three dots of one "...".

    All texts passed to functions are checked, because a function may use them as equations.
    """
    texts = [(source(node), attribute) for node in nodes for attribute in node.attribute
             if _key(node) in functions
             or (node.op_type == "Einsum" and attribute.name == "equation")]
    texts += [("a function", attribute) for attribute in defaults]
    for where, attribute in texts:
        text = attribute.s.decode(errors="replace")
        if any(term.count(".") > 3 for term in re.split(",|->", text)):
            raise ModelError(f"{file}: {where}: {attribute.name} {quoted(text)} has a term with "
                             "more dots than one '...', expected letters and one '...' at most")


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, getattr(node, "overload", "")
