"""Prints the results of the verb `run`: the best classes of each input, and summaries of
outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.cli.arguments import device_of
from gossamer.cli.report import print_notes, print_report, report_dict
from gossamer.cli.run_inputs import RunInputs
from gossamer.errors import InputError, one_line
from gossamer.io import terminal
from gossamer.io.labels.reader import class_names
from gossamer.io.text import shape_text
from gossamer.model import outputs as network_outputs

if TYPE_CHECKING:
    from gossamer.cli.arguments import AnyPlan
    from gossamer.model.graph import Graph

_MOST_ANSWERS = 20
"""The number of rows at the beginning of an --input array for which classes are printed."""


def find_answers(outputs: Mapping[str, np.ndarray], inputs: RunInputs, graph: Graph,
                 labels: Path | None, top: int) -> list[dict[str, Any]] | None:
    """Returns the best classes of each input, or None where the first output does not score
    classes; warns of outputs with NaN or infinity.

    An input with scores that are not finite has no best classes. Raises InputError where labels
    are given and do not fit.
    """
    first, metadata = graph.network_outputs[0].name, graph.metadata
    scores = outputs[first]
    classify = metadata.detector is None and bool(
        inputs.are_photos or labels or metadata.classes) and (
        network_outputs.is_class_scores(scores, len(inputs.names)))
    if labels and not classify:
        raise InputError(f"--labels {labels}: output {first!r} is {shape_text(scores.shape)} "
                         f"{scores.dtype}: no score for each class; leave --labels out")
    broken = _warn_of_broken_numbers(outputs, inputs.names, classify).get(first, ())
    if not classify:
        return None
    names = class_names(labels, scores.shape[1], metadata.classes)
    return [{"input": name, "top": [] if index in broken else
             network_outputs.best_classes(row, top, names, metadata.independent_scores)}
            for index, (name, row) in enumerate(zip(inputs.names, scores, strict=True))]


def _warn_of_broken_numbers(outputs: Mapping[str, np.ndarray], names: Sequence[str],
                            classify: bool) -> dict[str, list[int]]:
    """Warns of outputs with NaN or infinity, and returns the rows with such numbers, by output."""
    broken = {}
    for output, values in outputs.items():
        if network_outputs.is_finite(values):
            continue
        rows = network_outputs.broken_rows(values, len(names))
        input_name = names[rows[0]] if rows else ", ".join(names[:1])
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        consequence = "; no class is named" if classify else ""
        terminal.notice(f"{input_name}{more}: output {output!r} has NaN or infinite "
                        f"numbers{consequence}", "warning")
        broken[output] = rows
    return broken


def print_results(plan: AnyPlan, report: Any, inputs: RunInputs, outputs: Mapping[str, np.ndarray],
                  answers: list[dict[str, Any]] | None, table: bool) -> None:
    """Prints the device, the notes of the report, the best classes, and a line on each output that
    does not score classes. table: whether the report has the times of the layers, which are then
    printed too."""
    print("device: {} ({})".format(*device_of(plan)))
    print_notes(report)
    if table:
        print_report(report)
    _print_answers(answers or [], None if inputs.are_photos else _MOST_ANSWERS)
    scored = plan.graph.network_outputs[0].name if answers is not None else None
    for name, values in outputs.items():
        if name != scored:
            terminal.print_line(_output_line(name, network_outputs.summary(values)))


def print_json(model: str, plan: AnyPlan, report: Any, inputs: RunInputs,
               outputs: Mapping[str, np.ndarray], answers: list[dict[str, Any]] | None,
               table: bool) -> None:
    """Prints the same as print_results(), and the index of each class, as JSON."""
    device, description = device_of(plan)
    results: dict[str, Any] = {
        "model": model, "device": device,
        "description": description, "batch": inputs.batch, "notes": report.notes,
        "results": answers or [],
        "outputs": {name: network_outputs.summary(values) for name, values in outputs.items()}}
    if table:
        results["report"] = report_dict(report)
    terminal.print_json(results)


def _print_answers(answers: Sequence[Mapping[str, Any]], most: int | None) -> None:
    """Prints the best classes of the first `most` inputs."""
    for answer in answers[:most]:
        print(f"\n{one_line(answer['input'])}")
        for line in answer["top"]:
            name = line["name"] or f"class {line['class']}"
            number = (f"score {line['score']:.4f}" if "score" in line
                      else f"{line['probability']:8.2%}")
            print(f"{number}  {one_line(name)}")
    if most is not None and len(answers) > most:
        print(f"\nand {len(answers) - most} more inputs: --json prints all")


def _output_line(name: str, summary: Mapping[str, Any]) -> str:
    text = f"{one_line(name)}: {shape_text(summary['shape'])} {summary['dtype']}"
    if summary["min"] is not None:
        text += f", {summary['min']:.6g} to {summary['max']:.6g}"
    return text
