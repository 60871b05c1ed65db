"""Sets the formats of a graph's inputs and outputs, and selects its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gossamer.errors import InputError, did_you_mean, quoted
from gossamer.io.text import shape_text
from gossamer.model.graph import RETURNED, Graph, ValueInfo
from gossamer.model.infer.resolve import live_nodes
from gossamer.model.input_format import InputFormat

PHOTOS = "photos"
"""The value of `inputs` that requests uint8 photos as input. The plan normalises the photos as the
network's metadata states."""


def with_formats(graph: Graph, inputs: InputFormat | Mapping[str, InputFormat] | str | None,
                 output_dtype: str | None) -> Graph:
    """Return the graph with the input and output formats of `gossamer.compile`.

    None keeps the formats of the file. Raises InputError if the formats do not fit the graph.
    """
    if graph.tail is not None and (inputs is not None or output_dtype is not None):
        raise InputError(f"ONNX Runtime computes the end of {graph.name}, so its inputs and "
                         "outputs keep the formats of its file; do not set inputs or output_dtype")
    if inputs is not None:
        formats = _by_name(graph, inputs)
        for info in graph.inputs:
            if info.name in formats:
                formats[info.name].check(info.name, info.shape, info.dtype)
        graph = replace(graph, inputs=[_given(info, formats.get(info.name, info.given))
                                       for info in graph.inputs])
    if output_dtype is not None:
        graph = replace(graph, outputs=[_returned(info, output_dtype) for info in graph.outputs])
    return graph


def format_lines(graph: Graph) -> list[str]:
    """Describe the inputs and outputs whose format for callers differs from the network's."""
    lines = []
    for info in graph.inputs:
        if info.given is not None:
            lines.append(f"input {quoted(info.name)} is passed as {shape_text(info.called.shape)} "
                         f"{info.given}")
    lines += [f"output {quoted(info.name)} is returned in {info.returned_dtype}"
              for info in graph.outputs if info.returned_dtype]
    return lines


def _by_name(graph: Graph, inputs: InputFormat | Mapping[str, InputFormat] | str
             ) -> dict[str, InputFormat]:
    """Return the formats by input name."""
    names = ", ".join(quoted(info.name) for info in graph.inputs)
    if isinstance(inputs, Mapping):
        for name, format_ in inputs.items():
            if name not in {info.name for info in graph.inputs}:
                raise InputError(f"inputs: {graph.name} has no input {quoted(name)}; its inputs: "
                                 f"{names}")
            if not isinstance(format_, InputFormat):
                raise InputError(f"inputs: the format of {quoted(name)} is {quoted(format_)}, "
                                 "expected an InputFormat, such as InputFormat('uint8', 'NHWC')")
        return dict(inputs)
    if isinstance(inputs, str) and inputs == PHOTOS:
        inputs = InputFormat.from_metadata(graph.metadata)
    if not isinstance(inputs, InputFormat):
        raise InputError(f"inputs {quoted(inputs)}: expected an InputFormat, a mapping of names to "
                         f"these, or {PHOTOS!r}{did_you_mean(inputs, [PHOTOS])}")
    if len(graph.inputs) != 1:
        raise InputError(f"inputs: {graph.name} has the inputs {names}; pass a mapping of these "
                         "names to InputFormats")
    return {graph.inputs[0].name: inputs}


def _given(info: ValueInfo, format_: InputFormat | None) -> ValueInfo:
    return replace(info, given=None if format_ is None or format_.is_default else format_)


def _returned(info: ValueInfo, dtype: str) -> ValueInfo:
    if dtype == info.dtype:
        return replace(info, returned_dtype="")
    if (info.dtype, dtype) not in RETURNED:
        known = " or ".join((info.dtype, *(to for of, to in sorted(RETURNED) if of == info.dtype)))
        raise InputError(f"output_dtype {quoted(dtype)}: output {quoted(info.name)} is "
                         f"{info.dtype}, which can be returned as {known}")
    return replace(info, returned_dtype=dtype)


def chosen(infos: Sequence[Any], names: Sequence[str], file: str) -> list[Any]:
    """Return the outputs with these names, in the order of `names`.

    infos: all outputs, as objects with a `name`. Raises InputError for an unknown or repeated name,
    and if `names` is empty.
    """
    if isinstance(names, str):
        names = [names]
    by_name = {info.name: info for info in infos}
    for index, name in enumerate(names):
        if name not in by_name:
            raise InputError(f"{file}: has no output {quoted(name)}; its outputs: "
                             f"{', '.join(by_name)}")
        if name in names[:index]:
            raise InputError(f"{file}: output {quoted(name)} is asked for twice")
    if not names:
        raise InputError(f"{file}: no output is asked for; its outputs: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def with_outputs(graph: Graph, names: Sequence[str] | None) -> Graph:
    """Return the graph with the named outputs only.

    Nodes and constants that only other outputs need are removed; inputs stay. Raises InputError as
    chosen() does.
    """
    if names is None:
        return graph
    if graph.tail is not None:
        raise InputError(f"{graph.file or graph.name}: choose its outputs when you load it: "
                         "gossamer.load(..., outputs=[...])")
    outputs = chosen(graph.outputs, names, graph.file or graph.name)
    wanted = [info.name for info in outputs]
    nodes = live_nodes(graph.nodes, wanted)
    used = {name for node in nodes for name in node.inputs}.union(wanted)
    return replace(graph, outputs=outputs, nodes=nodes, constants={
        name: array for name, array in graph.constants.items() if name in used})
