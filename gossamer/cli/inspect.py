"""The verbs `devices` and `inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

import gossamer
from gossamer.cli import arguments
from gossamer.cli.arguments import load_graph
from gossamer.io import terminal
from gossamer.io.text import bytes_text, human, share_text
from gossamer.model.formats import format_lines
from gossamer.model.infer.resolve import default_batch, resolve
from gossamer.plan.candidate import counted
from gossamer.plan.report.bits import forms_line, weights_line
from gossamer.plan.report.part_notes import part_notes
from gossamer.plan.report.summary import forms_of_layers, summarise


def devices(as_json: arguments.JsonOption = False) -> None:
    """List the devices of this machine: PASS, or why one cannot be used."""
    rows = [asdict(device) for device in gossamer.devices()]
    if as_json:
        terminal.print_json(rows)
        return
    for row in rows:
        row["memory"] = bytes_text(row["memory_bytes"]) if row["memory_bytes"] else ""
        row["compute_units"] = row["compute_units"] or None
        row["state"] = row["problem"] or "PASS"
    terminal.print_table({"name": "device", "state": "state", "description": "name",
                          "compute_units": "compute units", "memory": "memory",
                          "driver": "driver"}, rows,
                         spare=("driver", "memory", "compute_units", "description"))


def inspect(
    model: arguments.ModelArgument,
    batch: Annotated[int | None, typer.Option(
        min=0, help="Batch size.",
        show_default="1, or the file's batch size where the network cannot run at 1")] = None,
    shape: arguments.ShapeOption = None,
    weights: arguments.WeightsOption = None,
    outputs: arguments.OutputsOption = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Show the nodes of a network: shapes, parameters, FLOPs and density.

    Also marks binary layers.
    """
    graph = load_graph(model, shape, weights, outputs)
    if batch is None:
        batch = default_batch(graph)
    rows = [asdict(row) for row in summarise(resolve(graph, batch))]
    forms = forms_of_layers(graph, batch)
    for row in rows:
        form = forms.get(row["name"])
        row["form"] = None if form is None else form.form
        row["form_reason"] = None if form is None else form.reason
    totals = {"parameters": sum(row["parameters"] for row in rows),
              "flops": sum(row["flops"] for row in rows)}
    if as_json:
        terminal.print_json({"model": model, "batch": batch, **totals, "rows": rows,
                             "notes": part_notes(graph)})
        return
    line = forms_line(forms.values())
    _print_nodes(rows, with_form=bool(line))
    print(f"{counted(len(rows), 'node')}, {human(totals['parameters'])} parameters, "
          f"{human(totals['flops'])} FLOPs at batch {batch}")
    for text in filter(None, (line, weights_line(forms.values()), *format_lines(graph),
                              *part_notes(graph))):
        terminal.print_line(text)


def _print_nodes(rows: Iterable[Mapping[str, Any]], *, with_form: bool) -> None:
    cells = [{**row, "output_shape": "x".join(map(str, row["output_shape"])),
              "parameters": str(row["parameters"] or ""),
              "flops": human(row["flops"]) if row["flops"] else "",
              "density": None if row["density"] is None else share_text(row["density"])}
             for row in rows]
    titles = {"name": "node", "op": "op", "output_shape": "output", "parameters": "parameters",
              "flops": "FLOPs", "density": "density"}
    terminal.print_table(titles | ({"form": "form"} if with_form else {}), cells)
