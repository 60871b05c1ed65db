"""Sentences about the parts of a network that ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph
from gossamer.model.opset.onnx_nodes import nodes_of
from gossamer.plan.candidate import counted
from gossamer.plan.program import Program

_MOST_NAMED = 3
"""Maximum number of nodes that a sentence names."""


def part_notes(graph: Graph, rows: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return a sentence for each part that ONNX Runtime computes.

    The network's tail counts as a part: the nodes that ONNX Runtime computes after the plan's
    layers. A sentence lists the part's nodes and the reasons why gossamer does not compute them.

    rows: the rows of a report; if they have times, sentences include the part's share of the time.
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
                     f"{_nodes(nodes_of(graph.tail.model))} on the host, after the plan's layers")
    return notes


def check_parts(graph: Graph) -> None:
    """Raise UnsupportedError if ONNX Runtime computes a part."""
    if notes := part_notes(graph):
        raise UnsupportedError(f"{graph.file or graph.name}: {notes[0]}, and strict allows "
                               "gossamer's own layers only; omit strict")


def _nodes(nodes: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{source} ({reason})" for source, reason in nodes[:_MOST_NAMED])
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"{counted(len(nodes), 'node')}: {named}{more}"


def run_notes(program: Program, *, has_times: bool) -> list[str]:
    """Return a list with one sentence on a program's parts; empty if there are none.

    has_times: whether the report has times of layers.
    """
    parts = [step for step in program.steps if step.layer.members]
    if not parts:
        return []
    count = sum(len(step.shown) for step in parts)
    name = parts[0].algorithm.name + (f", {parts[0].layer.name}" if len(parts) == 1 else "")
    calls = "one call" if len(parts) == 1 else f"{len(parts)} calls"
    note = f"{name}: {parts[0].algorithm.vendor} computes {counted(count, 'layer')} in {calls}"
    if has_times:
        note += "; each call's time is divided among its layers as in the library's profile"
    return [note]
