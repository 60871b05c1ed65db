"""Chooses outputs of a network by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gossamer.errors import InputError, quoted
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import live_nodes


def chosen(infos: Sequence[Any], names: Sequence[str] | None, file: str) -> list[Any]:
    """Returns the outputs with these names, in the order of `names`; all outputs where `names` is
    None.

    infos: all outputs, as objects that have a `name`. Raises InputError for a name that no output
    has or that comes twice, and where `names` is empty.
    """
    if names is None:
        return list(infos)
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
    """Returns the graph with these outputs only, and without the nodes and constants that only
    other outputs need. Its inputs stay. Raises InputError as chosen() does."""
    if names is None:
        return graph
    if graph.tail is not None:
        raise InputError(f"{graph.file or graph.name}: its outputs are chosen where it is loaded: "
                         "gossamer.load(..., outputs=[...])")
    outputs = chosen(graph.outputs, names, graph.file or graph.name)
    wanted = [info.name for info in outputs]
    nodes = live_nodes(graph.nodes, wanted)
    used = {name for node in nodes for name in node.inputs}.union(wanted)
    return replace(graph, outputs=outputs, nodes=nodes, constants={
        name: array for name, array in graph.constants.items() if name in used})
