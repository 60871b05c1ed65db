"""Sentences on the parts of a network that a library computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.plan.candidate import counted
from gossamer.plan.program import Program

_MOST_NAMED = 3
"""The most nodes that a sentence names."""


def part_notes(graph: Graph, rows: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return a sentence for each part of a network that ONNX Runtime computes, and for the
    network's tail, with the nodes and the reasons why gossamer does not compute them.

    rows: the rows of a report; where the rows have times, sentences say which share of the time a
    part takes.
    """
    times = {row["layer"]: row.get("median_us") for row in rows}
    total = sum(filter(None, times.values()))
    notes = []
    for node in graph.nodes:
        if node.op == "onnx_part":
            time = times.get(node.name)
            share = f" ({time / total:.1%} of the layers' time)" if time and total else ""
            notes.append(f"{node.name}{share}: ONNX Runtime computes "
                         f"{_nodes(nodes_of(node.attributes['model']))} on the host")
    if graph.tail is not None:
        notes.append(f"the end of the network: ONNX Runtime computes "
                     f"{_nodes(nodes_of(graph.tail.model))} on the host, behind the plan's layers")
    return notes


def check_parts(graph: Graph) -> None:
    """Raise UnsupportedError where ONNX Runtime computes a part of a network."""
    if notes := part_notes(graph):
        raise UnsupportedError(f"{graph.file or graph.name}: {notes[0]}, and strict allows "
                               "gossamer's own layers only; leave strict out")


def _nodes(nodes: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{source} ({reason})" for source, reason in nodes[:_MOST_NAMED])
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"{counted(len(nodes), 'node')}: {named}{more}"


def run_notes(program: Program, *, has_times: bool) -> list[str]:
    """Return one sentence on the parts of a program, or an empty list where it has no parts.

    has_times: whether the report has times of layers.
    """
    parts = [step for step in program.steps if step.layer.members]
    if not parts:
        return []
    count = sum(len(step.shown) for step in parts)
    name = parts[0].algorithm.name + (f", {parts[0].layer.name}" if len(parts) == 1 else "")
    runs = "one run" if len(parts) == 1 else f"{len(parts)} runs"
    note = f"{name}: {parts[0].algorithm.vendor} computes {counted(count, 'layer')} in {runs}"
    if has_times:
        note += "; what each layer takes is its share of its run by the library's profile"
    return [note]
