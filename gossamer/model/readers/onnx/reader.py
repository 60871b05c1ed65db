"""Reads ONNX files into graphs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from gossamer import host_library
from gossamer.errors import InputError, ModelError, UnsupportedError, first_line, quoted
from gossamer.io.packed import opened, unpacked
from gossamer.model.choose_outputs import chosen
from gossamer.model.graph import Graph, Node, UniqueNames, ValueInfo, names_of, unused_name
from gossamer.model.input_format import InputFormat
from gossamer.model.opset.onnx_reference import as_float32
from gossamer.model.opset.state import MALFORMED, malformed
from gossamer.model.readers.numbers import warn_of_broken_weights
from gossamer.model.readers.onnx import metadata
from gossamer.model.readers.onnx.branches import guard, known_branch
from gossamer.model.readers.onnx.constants import (
    ConstantFolder,
    external_file,
    load_external_data,
    to_array,
    with_dense_constants,
)
from gossamer.model.readers.onnx.einsum import EINSUM
from gossamer.model.readers.onnx.elementwise import ELEMENTWISE, TYPES, Converter
from gossamer.model.readers.onnx.expansion import check_expansion
from gossamer.model.readers.onnx.file_types import FileTypes, has_float64, is_untyped, type_text
from gossamer.model.readers.onnx.indexing import INDEXING
from gossamer.model.readers.onnx.integers import Integers
from gossamer.model.readers.onnx.layers import LAYERS
from gossamer.model.readers.onnx.layout import LAYOUT
from gossamer.model.readers.onnx.microsoft import MICROSOFT
from gossamer.model.readers.onnx.node import OnnxNode
from gossamer.model.readers.onnx.normalisation import NORMALISATIONS
from gossamer.model.readers.onnx.order import in_order, reads, source
from gossamer.model.readers.onnx.parts import Parts
from gossamer.model.readers.onnx.probe import Probe
from gossamer.model.readers.onnx.qonnx import CONVERTERS as QONNX
from gossamer.model.readers.onnx.quantised import QUANTISED
from gossamer.model.readers.onnx.quantised_products import IntegerConverter
from gossamer.model.readers.other_kinds import by_content

OLDEST_OPSET = 7
"""The oldest opset whose operators are all read. In files with an older opset, only the operators
that have the same definition in this opset are read."""
NEWEST_OPSET = onnx.defs.onnx_opset_version()
"""The newest opset that the installed onnx defines."""

_QUANTISED = ("QLinear", "QAttention", "MatMulIntegerToFloat", "DynamicQuantize")
"""Beginnings of the names of operators that only quantised networks have."""



def _without_integers(converter: Converter) -> IntegerConverter:
    """Returns a converter that ignores `Integers`, the quantised values of the file."""
    return lambda node, integers: converter(node)


_CONVERTERS: dict[str, IntegerConverter] = {
    **{op: _without_integers(converter)
       for table in (ELEMENTWISE, LAYERS, LAYOUT, INDEXING, NORMALISATIONS)
       for op, converter in table.items()},
    **EINSUM, **QUANTISED}
_QONNX = {key: _without_integers(converter) for key, converter in QONNX.items()}

_CHOOSING = frozenset(("NonMaxSuppression", "TopK", "EfficientNMS_TRT", "BatchedNMS_TRT",
                       "BatchedNMSDynamic_TRT"))
"""Operators by which exported detectors choose among their boxes."""


def load_onnx(model: str | Path | bytes | onnx.ModelProto,
              outputs: Sequence[str] | None = None, *, narrows: bool = False) -> Graph:
    """Returns the graph of an .onnx or .onnx.gz file, of its content, or of a model in memory.

    outputs: names of the outputs that are wanted, in their order; None for all. Nodes that only
    other outputs need are not read.
    narrows: whether float64 becomes float32, as it always does without ONNX Runtime. Otherwise
    float64 values stay in parts that ONNX Runtime computes.
    Raises InputError when the file is absent or lacks an output of `outputs`; ModelError when the
    file is truncated, is not ONNX or is malformed; UnsupportedError for ops, attributes or opsets
    that gossamer does not compute.
    """
    if isinstance(model, str | Path):
        path = Path(model)
        file, name, proto = str(path), path.name.split(".")[0], read_model(path)
    elif isinstance(model, bytes):
        file, name = "ONNX bytes", "network"
        proto = _in_memory(_parsed(unpacked(model, file, ModelError), file), file)
    elif isinstance(model, onnx.ModelProto):
        file, name = "ONNX model", "network"
        proto = _in_memory(_checked(model, file), file)
    else:
        raise InputError(f"cannot load a {type(model).__name__}: expected an onnx.ModelProto")
    opset = _opset(proto, file)
    check_expansion(proto, file)
    try:
        proto = with_dense_constants(proto, file)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None
    graph = Graph(proto.graph.name or name, [], [], [], {}, file, metadata=metadata.read(proto))
    keeps = not narrows and host_library.is_installed() and has_float64(proto.graph)
    exact: dict[str, np.ndarray] = {}
    _add_constants(proto.graph.initializer, graph, keeps, exact)
    inputs = _load_interface(proto, graph, outputs, keeps)
    _load_nodes(proto, graph, inputs, opset, keeps, exact)
    _warn_of_narrowed(proto.graph, graph)
    warn_of_broken_weights(graph)
    return graph


def _opset(model: onnx.ModelProto, file: str) -> int:
    """Returns the opset of ONNX's own operators. Raises ModelError where the file names no opset,
    and UnsupportedError where the installed onnx does not know the opset."""
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
    """Returns the content of an .onnx or .onnx.gz file with its external data loaded. Raises the
    errors of load_onnx()."""
    if not path.is_file():
        reason = "is no regular file" if path.exists() else "No such file or directory"
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


_EXPECTED = "expected an ONNX model; is it truncated, or another kind of file?"


def _parsed(data: bytes, file: str) -> onnx.ModelProto:
    """Returns the model that bytes hold. Raises ModelError where they hold none, or another kind of
    file."""
    try:
        return _checked(onnx.load_model_from_string(data), file)
    except (DecodeError, ModelError) as error:
        if (kind := by_content(data)) is not None:
            raise ModelError(f"{file}: {kind}") from None
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{file}: not readable ({first_line(error)}); {_EXPECTED}") from None


def _checked(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Returns the model. Raises ModelError where the model holds no network, or a name is no
    text."""
    if not model.ir_version or not model.graph.output:
        raise ModelError(f"{file}: holds no network; {_EXPECTED}")
    if (damaged := next(_damaged_texts(model.graph), None)) is not None:
        raise ModelError(f"{file}: the name {quoted(damaged)} is no text in UTF-8; {_EXPECTED}")
    return model


def _in_memory(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """Returns a model that came without a path. Raises InputError where data lie in
    another file, whose folder is not known."""
    if (location := external_file(model)) is not None:
        raise InputError(f"{file}: its weights lie in another file, {quoted(location)}; give the "
                         "path of the model, or read it with onnx.load, which loads them")
    return model


def _damaged_texts(graph: onnx.GraphProto) -> Iterator[bytes]:
    """Yields the names in a graph that are no UTF-8 text; protobuf returns such names as bytes."""
    named = (graph.initializer, graph.input, graph.output, graph.node,
             *(node.attribute for node in graph.node))
    names = [graph.name, *(entry.name for entries in named for entry in entries)]
    for node in graph.node:
        names += (node.op_type, node.domain, *node.input, *node.output)
    for value in (*graph.input, *graph.output):
        names += (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (name for name in names if isinstance(name, bytes))


def _add_constants(tensors: Iterable[onnx.TensorProto], graph: Graph, keeps: bool,
                   exact: dict[str, np.ndarray]) -> None:
    """Adds tensors to the constants of a graph, floating-point ones as float32.

    keeps: whether float64 stays in parts for ONNX Runtime, and in outputs.
    exact: takes the float64 values of constants where float64 is kept.
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


def _load_interface(model: onnx.ModelProto, graph: Graph, outputs: Sequence[str] | None,
                    keeps: bool) -> list[ValueInfo]:
    """Adds inputs and outputs to the graph. A first dimension that all inputs share counts as the
    batch. Outputs that the file declares without a type have the type that ONNX's inference finds.

    outputs: as for load_onnx().
    keeps: whether float64 is left to ONNX Runtime.
    Returns all inputs of the network. Inputs that are no tensors of numbers, which only ONNX
    Runtime takes, are not added to the graph.
    """
    seen = set(graph.constants)
    inputs = []
    for value in model.graph.input:
        if value.name in graph.constants:
            continue
        if value.name in seen:
            raise ModelError(f"{graph.file}: two inputs are named {quoted(value.name)}")
        info = _value_info(value, graph, "input", keeps)
        if _is_of_numbers(value, keeps) and not value.type.tensor_type.HasField("shape"):
            raise ModelError(f"{graph.file}: input {quoted(value.name)} has no shape; export it "
                             "with one")
        seen.add(value.name)
        inputs.append(info)
        if _is_of_numbers(value, keeps):
            graph.inputs.append(info)
    declared = chosen(model.graph.output, outputs, graph.file)
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


def _is_of_numbers(value: onnx.ValueInfoProto, keeps: bool) -> bool:
    """Returns whether a value is a tensor of numbers that gossamer computes with, as values without
    a type are supposed to be. keeps: whether float64 is left to ONNX Runtime."""
    kind = value.type.tensor_type.elem_type or TensorProto.FLOAT
    return is_untyped(value) or (value.type.HasField("tensor_type") and kind in TYPES and not (
        keeps and kind == TensorProto.DOUBLE))


def _value_info(value: onnx.ValueInfoProto, graph: Graph, what: str, keeps: bool) -> ValueInfo:
    if not _is_of_numbers(value, keeps) and not host_library.is_installed():
        raise UnsupportedError(f"{graph.file}: {what} {quoted(value.name)} has ONNX type "
                               f"{type_text(value.type)}; gossamer knows tensors of "
                               f"{', '.join(sorted(set(TYPES.values())))}; {host_library.EXTRA}")
    tensor = value.type.tensor_type
    kind = tensor.elem_type or TensorProto.FLOAT
    shape = tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
                  for dim in tensor.shape.dim)
    labels = tuple(dim.dim_param for dim in tensor.shape.dim)
    if not _is_of_numbers(value, keeps):
        is_float64 = value.type.HasField("tensor_type") and kind == TensorProto.DOUBLE
        return ValueInfo(value.name, shape, "float64", labels) if is_float64 else (
            ValueInfo(value.name, (), type_text(value.type)))
    if kind == TensorProto.FLOAT16:
        # float16 inputs and outputs are float32 within the network, and float16 for callers
        return (ValueInfo(value.name, shape, "float32", labels, InputFormat("float16"))
                if what == "input" else ValueInfo(value.name, shape, "float32", labels,
                                                  returned_dtype="float16"))
    # what an untyped output is follows from its node
    dtype = "" if what == "output" and is_untyped(value) else TYPES[kind]
    return ValueInfo(value.name, shape, dtype, labels)


def _warn_of_narrowed(proto: onnx.GraphProto, graph: Graph) -> None:
    """Adds a warning for each float32 input and output that is float64 or bfloat16 in the file."""
    for what, infos, values in (("input", graph.network_inputs, proto.input),
                                ("output", graph.network_outputs, proto.output)):
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        for info in infos:
            kind = kinds[info.name]
            if info.dtype == "float32" and kind in (TensorProto.DOUBLE, TensorProto.BFLOAT16):
                name = TensorProto.DataType.Name(kind).lower().replace("double", "float64")
                graph.warnings.append(f"{graph.file}: {what} {quoted(info.name)} is {name}; "
                                      "gossamer takes and gives float32")


def _free_batch(info: ValueInfo, batch: int) -> ValueInfo:
    """Returns the value with its first dimension open, where this dimension is the batch."""
    if info.shape[:1] != (batch,):
        return info
    return replace(info, shape=(None, *info.shape[1:]))


def _load_nodes(model: onnx.ModelProto, graph: Graph, inputs: Sequence[ValueInfo],
                opset: int, keeps: bool, exact: dict[str, np.ndarray]) -> None:
    """Converts the file's nodes in order. A node that gossamer does not compute is left to ONNX
    Runtime, where ONNX Runtime is installed and knows the operator's domain. Raises
    UnsupportedError for nodes that neither gossamer nor ONNX Runtime computes; the message names
    the first of them.

    inputs: all inputs of the network.
    keeps: whether float64 is left to ONNX Runtime, too.
    exact: the float64 values of constants where float64 is kept.
    """
    nodes = in_order(model.graph, [info.name for info in graph.outputs], graph.file)
    used = Counter(name for node in nodes for name in reads(node))
    used.update(info.name for info in graph.outputs)
    available = set(graph.constants) | {info.name for info in inputs}
    unknown: list[str] = []
    folder = ConstantFolder(opset, used, exact if keeps else None)
    types = FileTypes(model, nodes, exact)
    parts = Parts(graph, types, keeps) if host_library.is_installed() else None
    integers = Integers(Probe(graph) if parts is None else parts.probe)
    if parts is not None:
        for value in model.graph.input:
            if value.name not in graph.constants and not _is_of_numbers(value, keeps):
                parts.add_input(value)
    waiting = deque(nodes)
    conditions: dict[str, tuple[str, bool, str]] = {}
    while waiting:
        entry = waiting.popleft()
        if entry.op_type == "If" and (branch := known_branch(
                entry, graph, parts, available)):
            truth, inner, initializers = branch
            _add_constants(initializers, graph, keeps, exact)
            available.update(tensor.name for tensor in initializers)
            used.update(name for each in inner for name in reads(each))
            if entry.input[0] not in graph.constants:
                conditions.update({name: (entry.input[0], truth, source(entry))
                                   for name in entry.output})
            waiting.extendleft(reversed(inner))
            continue
        entry = _as_cast(entry, types)
        node = OnnxNode(entry, opset, graph, used, folder.too_large)
        for name in reads(entry):
            if name not in available:
                raise node.error(f"reads {quoted(name)}, which no input, initializer or node "
                                 "provides")
        for name in filter(None, entry.output):
            if name in available:
                raise node.error(f"makes {quoted(name)}, a name that is already taken")
            available.add(name)
        condition = conditions.get(entry.output[0]) if entry.output else None
        values = {name: graph.constants[name] for name in entry.input if name in graph.constants}
        if condition is None and folder.fold(entry, graph.constants):
            if entry.op_type == "DequantizeLinear":
                integers.learn_constant(entry, values)
            continue
        begin, converter = len(graph.nodes), _converter(entry, opset)
        may_leave = parts is not None and parts.takes(entry)
        reason = "" if parts is None else parts.reason(entry)
        if converter is None and not reason:
            reason = f"gossamer computes no {quoted(node.op)[1:-1]}"
        if converter is not None and not reason and not unknown:
            try:
                _convert(node, converter, integers)
                if (entry.domain, entry.op_type) in QONNX:
                    # where the op quantises weights, the quantised weights are computed now
                    folder.fold_last(graph)
            except UnsupportedError as error:
                if parts is None:
                    raise UnsupportedError(host_library.with_advice(str(error))) from None
                if not may_leave:
                    raise
                del graph.nodes[begin:]
                integers.forget(entry.output)
                reason = str(error).removeprefix(f"{graph.file}: {node.source}: ")
        if reason and not unknown and parts is not None and parts.is_known(entry):
            try:
                _convert(node, _without_integers(partial(_known, entry)), integers)
                reason = ""
            except UnsupportedError:
                del graph.nodes[begin:]
        if reason and not may_leave:
            unknown.append(f"{node.source} of domain {quoted(entry.domain or 'ai.onnx')}")
        elif reason and parts is not None:
            parts.leave(entry, reason)
        elif parts is not None:
            if condition is not None:
                guard(graph.nodes[-1], *condition)
            parts.computed(entry, graph.nodes[begin:])
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UnsupportedError(f"{graph.file}: gossamer does not compute {', '.join(unknown[:3])}"
                               f"{more}; {_advice(model.graph)}")
    for info in graph.outputs:
        if info.name not in available:
            raise ModelError(f"{graph.file}: output {quoted(info.name)} is made by no node")
    graph.outputs = [info if info.dtype else replace(
        info, dtype=integers.probe.dtype(info.name) or "float32") for info in graph.outputs]
    if parts is not None:
        parts.finish(inputs)
    _exact_outputs(graph, exact)
    _cast_truth_outputs(graph)
    _unique_names(graph)


def _as_cast(node: onnx.NodeProto, types: FileTypes) -> onnx.NodeProto:
    """Returns a CastLike as a Cast, where the type in the file is known: values of float16 are
    float32 in the graph."""
    kind = types.elem_type(node.input[1]) if (
        node.op_type == "CastLike" and len(node.input) == 2) else 0
    if kind not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return node
    cast = onnx.NodeProto()
    cast.CopyFrom(node)
    cast.op_type = "Cast"
    del cast.input[1]
    cast.attribute.append(onnx.helper.make_attribute("to", kind))
    return cast


def _convert(node: OnnxNode, converter: IntegerConverter, integers: Integers) -> None:
    """Adds to the graph the nodes that a node of the file becomes. Raises UnsupportedError where
    gossamer does not compute the node, and ModelError where it is malformed."""
    if not node.outputs or not node.outputs[0]:
        raise node.error("its first output has no name")
    begin = len(node.graph.nodes)
    try:
        converter(node, integers)
    except MALFORMED as error:
        raise node.error(malformed(error)) from error
    node.finish()
    integers.probe.add(node.graph.nodes[begin:])


def _known(proto: onnx.NodeProto, node: OnnxNode) -> None:
    """Converts a node whose results follow from shapes and constants, and for which gossamer has no
    op with an algorithm."""
    for attribute in proto.attribute:
        node.attribute(attribute.name)
    node.emit("onnx_known", [name for name in node.inputs if name],
              node=np.frombuffer(proto.SerializeToString(), np.uint8), opset=node.opset)


def _converter(node: onnx.NodeProto, opset: int) -> IntegerConverter | None:
    """Returns the converter of a node; None where there is no converter, or the opset is too old
    for the converter."""
    if node.domain == "com.microsoft":
        return MICROSOFT.get(node.op_type)
    if node.domain not in ("", "ai.onnx"):
        return _QONNX.get((node.domain, node.op_type))
    if opset < OLDEST_OPSET and not _is_as_in(node.op_type, opset, OLDEST_OPSET):
        return None
    return _CONVERTERS.get(node.op_type)


def _is_as_in(op: str, opset: int, other: int) -> bool:
    """Returns whether an operator has the same definition in two opsets."""
    return onnx.defs.has(op, opset) and onnx.defs.has(op, other) and (
        onnx.defs.get_schema(op, opset).since_version
        == onnx.defs.get_schema(op, other).since_version)


def _advice(proto: onnx.GraphProto) -> str:
    """Returns advice about operators that gossamer does not compute, for messages."""
    used = {entry.op_type for entry in proto.node}
    extra = "" if host_library.is_installed() else f", or {host_library.EXTRA}"
    if any(op.startswith(_QUANTISED) for op in used):
        return f"take the float32 model that it was quantised from{extra}"
    hint = (" (a detector without its own choice of boxes, which `gossamer detect` makes)"
            if used & _CHOOSING else "")
    return f"export the model without them{hint}{extra}"


def _exact_outputs(graph: Graph, exact: Mapping[str, np.ndarray]) -> None:
    """Makes outputs that are float64 constants float64. Nodes read them in float32."""
    for info in graph.outputs:
        if info.dtype == "float64" and info.name in exact and info.name in graph.constants:
            number = unused_name(names_of(graph), f"{info.name}.as_number")
            graph.constants[number] = graph.constants[info.name]
            graph.constants[info.name] = exact[info.name]
            for node in graph.nodes:
                node.inputs = [number if name == info.name else name for name in node.inputs]


def _cast_truth_outputs(graph: Graph) -> None:
    """Appends a cast to each output that the file declares as bool, since truth values are numbers
    inside a graph."""
    truths = {info.name: f"{info.name}.number" for info in graph.outputs if info.dtype == "bool"}
    if not truths:
        return
    casts = [Node("cast", f"{name}.bool", [truths[name]], [name], {"dtype": "bool"}, node.source)
             for node in graph.nodes for name in node.outputs if name in truths]
    truths = {cast.outputs[0]: cast.inputs[0] for cast in casts}
    for node in graph.nodes:
        node.inputs = [truths.get(name, name) for name in node.inputs]
        node.outputs = [truths.get(name, name) for name in node.outputs]
    graph.nodes += casts


def _unique_names(graph: Graph) -> None:
    """Makes the names of nodes unique by numbers at the ends of names."""
    names = UniqueNames()
    for node in graph.nodes:
        node.name = names.unique(node.name)
