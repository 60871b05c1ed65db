"""The verb `inspect`: lists the nodes of a network's file, with shapes, parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gossamer.cli.arguments import load_graph
from gossamer.cli.options import (
    JsonOption,
    ModelArgument,
    OutputsOption,
    ShapeOption,
    WeightsOption,
)
from gossamer.io import terminal
from gossamer.io.text import human, share_text
from gossamer.model.formats import format_lines
from gossamer.model.infer.resolve import default_batch, resolve
from gossamer.plan.candidate import counted
from gossamer.plan.report.bits import forms_line, weights_line
from gossamer.plan.report.part_notes import part_notes
from gossamer.plan.report.summary import forms_of_layers, summarise


def inspect(
    model: ModelArgument,
    batch: Annotated[int | None, typer.Option(
        min=0, help="Images at once.", show_default="1, or the file's where it does not run at 1",
        )] = None,
    shape: ShapeOption = None,
    weights: WeightsOption = None,
    outputs: OutputsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the nodes of a network's file: shapes, parameters, FLOPs and density, and which layers
    can be computed on bits."""
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
