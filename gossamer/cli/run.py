"""The verb `run`: run a network on photos or arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import gossamer
from gossamer.cli import arguments, photo_options, run_rows
from gossamer.cli.arguments import AnyPlan, device_of, load_graph, load_plan
from gossamer.cli.photo_options import PhotoOptions
from gossamer.cli.report import input_bar, print_notes, print_report, report_dict
from gossamer.cli.run_inputs import (
    RunInputs,
    array_inputs,
    check_label,
    make_rows,
    negatives,
    photo_inputs,
    row_inputs,
    scored_classes,
)
from gossamer.device.registry import names_several
from gossamer.errors import InputError, one_line
from gossamer.io import output_files, terminal
from gossamer.io.labels.reader import read_names
from gossamer.io.text import shape_text
from gossamer.model import outputs as network_outputs
from gossamer.model.infer.resolve import is_open
from gossamer.ops.host_threads import ALL, Threads

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


def run(
    model: arguments.PlanArgument,
    photos: Annotated[list[str] | None, typer.Argument(
        metavar="[FILE]...", help="Photos, folders of photos, or a .csv file of samples.")] = None,
    image: Annotated[list[str] | None, typer.Option(
        metavar="FILE...", help="Photos.")] = None,
    array: Annotated[list[str] | None, typer.Option(
        "--input", metavar="[NAME=]X.npy",
        help="Array of inputs, of shape (batch, ...). Repeat the option for each input, or use a "
             ".npz file with the names of the inputs.")] = None,
    output: Annotated[str | None, typer.Option(
        "--output", "-o", metavar="FILE",
        help="Write the outputs to this file: .npy, or .npz for several outputs; .jsonl, .csv or "
             ".parquet for one row per photo or sample.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue an existing .jsonl or .csv file.")] = False,
    label: arguments.LabelOption = "first",
    device: arguments.DevicesOption = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Batch size (default: 1 photo, or all of --input; all photos if the network "
                    "mixes the inputs of a batch).")] = None,
    labels: arguments.LabelsOption = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to print.")] = 5,
    shape: arguments.ShapeOption = None,
    weights: arguments.WeightsOption = None,
    outputs: arguments.OutputsOption = None,
    preprocess: arguments.PreprocessOption = None,
    size: arguments.SizeOption = None,
    resize: arguments.ResizeOption = None,
    scale: arguments.ScaleOption = None,
    mean: arguments.MeanOption = None,
    std: arguments.StdOption = None,
    bgr: arguments.BgrOption = False,
    grey: arguments.GreyOption = False,
    table: Annotated[bool, typer.Option(
        "--table", help="Time every layer and print a table.")] = False,
    ray: Annotated[str | None, typer.Option(
        metavar="ADDRESS", help="Run on a Ray cluster: HOST:PORT, auto (the cluster of this "
                                "machine) or local. Its workers read the images.")] = None,
    threads: arguments.ThreadsOption = None,
    strict: arguments.StrictOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Run a network on photos or on arrays."""
    # a click option has only one value: further files after --image FILE are parsed as arguments
    photos, arrays = [*(image or []), *(photos or [])], array or []
    _check_sources(photos, arrays, labels)
    number = arguments.threads_of(threads)
    saved_plan = load_plan(model, device, shape, weights, strict, outputs, number)
    is_shared = ray is not None or names_several(device)
    graph = (load_graph(model, shape, weights, outputs, may_stay_open=not is_shared)
             if saved_plan is None else saved_plan.graph)
    arguments.check_numbers(graph)
    options = PhotoOptions(preprocess, size, resize, scale, mean, std, bgr, grey)
    if not arrays and (resume or ray is not None or make_rows(photos)
                       or is_open(graph) or Path(output or "").suffix in run_rows.OWN_SUFFIXES):
        rows = run_rows.RowOptions(output, resume, labels, top)
        run_rows.check(rows, graph, [model, *filter(None, [weights]), *photos])
        inputs_of_rows = row_inputs(model, graph, photos, options, batch, label,
                                               is_planned=saved_plan is not None)
        remote = None
        if ray is not None:
            if threads is not None:
                raise InputError(f"--threads {threads}: the workers of --ray {ray} use all "
                                 "threads; omit --threads")
            run_rows.check_ray(photos, table)
            prepare = photo_options.preprocessing(model, graph, options)
            network = model if saved_plan is not None else inputs_of_rows.graph
            remote = run_rows.RayAnswers(ray, network, inputs_of_rows, prepare, device)
        run_rows.run_rows(model, saved_plan, inputs_of_rows, rows, device, strict=strict,
                          table=table, as_json=as_json, remote=remote, threads=number)
        return
    if ray is not None:
        raise InputError(f"--ray {ray}: needs images; omit --input")
    check_label(label)
    output_path = None
    if output is not None:
        files_read = [model, *filter(None, [weights]), *photos,
                      *(text.rpartition("=")[2] for text in arrays)]
        output_path = output_files.check(output, len(graph.network_outputs), files_read)
    if photos:
        inputs = photo_inputs(model, graph, photos, options, batch,
                              is_planned=saved_plan is not None)
    else:
        inputs = array_inputs(model, graph, arrays, options, batch)
    plan, results, report = _execute(model, saved_plan, inputs, device, strict, table, number)
    answers = find_answers(results, inputs, graph, labels, top)
    if as_json:
        print_json(model, plan, report, inputs, results, answers, table)
    else:
        print_results(plan, report, inputs, results, answers, table)
    if output_path is not None:
        sys.stdout.flush()  # fail here, before the file is written, if stdout is closed
        output_files.write(output_path, output or "", results)
        if not as_json:
            terminal.print_line(f"written: {output}")


def _check_sources(photos: list[str], arrays: list[str], labels: Path | None) -> None:
    """Raise InputError for missing or conflicting inputs."""
    if bool(photos) == bool(arrays):
        raise InputError("expected either --image FILE... or --input X.npy")
    if "" in photos:
        raise InputError("--image: the name is empty; expected an image file")
    if labels:
        read_names(labels)


def _execute(model: str, saved_plan: AnyPlan | None, inputs: RunInputs, device: str | None,
             strict: bool, table: bool, threads: Threads | None,
             ) -> tuple[AnyPlan, dict[str, np.ndarray], Any]:
    """Run all inputs, and return the plan, the outputs and the plan's report.

    table: whether to time the layers for the report.
    """
    graph, results = inputs.graph, list[tuple[np.ndarray, ...]]()
    inverted: list[str] = []

    def batches() -> Iterator[tuple[np.ndarray, ...]]:
        for index, arrays in enumerate(inputs.batches):
            if inputs.are_photos:
                names = inputs.names[index * inputs.batch:]
                inverted.extend(negatives(names, arrays[0], graph.metadata))
            yield arrays

    with input_bar() as progress:
        task = progress.add_task(f"preparing {model}", total=None)
        plan = saved_plan or gossamer.compile(graph, device=device, strict=strict,
                                              threads=threads or ALL)
        arguments.tell_of_threads(threads, device_of(plan)[0])
        progress.update(task, description=f"running on {arguments.device_of(plan)[0]}",
                        total=len(inputs.names))
        for result in arguments.results_of(plan, batches()):
            results.append(result if isinstance(result, tuple) else (result,))
            progress.advance(task, inputs.batch)
        if table:
            progress.update(task, description="timing the layers", total=None)
        report = plan.profile(inputs.batch) if table else plan.report()
    _tell_of_negatives(inverted)
    names = [info.name for info in graph.network_outputs]
    outputs = {name: parts[0] if len(parts) == 1 else np.concatenate(parts)
               for name, parts in zip(names, zip(*results, strict=True), strict=True)}
    return plan, outputs, report


def _tell_of_negatives(inverted: list[str]) -> None:
    if inverted:
        more = f" and {len(inverted) - 1} more" if len(inverted) > 1 else ""
        terminal.notice(f"{inverted[0]}{more}: looks inverted compared with the training "
                        "images; --scale -1 --mean -255 inverts it")


_MOST_ANSWERS = 20
"""Maximum number of rows whose classes are printed: the first rows of an --input array."""


def find_answers(outputs: Mapping[str, np.ndarray], inputs: RunInputs, graph: Graph,
                 labels: Path | None, top: int) -> list[dict[str, Any]] | None:
    """Return the best classes of each input, or None without class scores.

    Warns about outputs with NaN or infinity. Inputs whose class scores contain NaN or infinity have
    no best classes. Raises InputError if the file of --labels does not match the network.
    """
    first, metadata = graph.network_outputs[0].name, graph.metadata
    scores = outputs[first]
    classify, names = scored_classes(graph, scores, len(inputs.names), labels,
                                     are_photos=inputs.are_photos)
    broken = _warn_of_broken_numbers(outputs, inputs.names, classify).get(first, ())
    if not classify:
        return None
    return [{"input": name, "top": [] if index in broken else
             network_outputs.best_classes(row, top, names, metadata.independent_scores)}
            for index, (name, row) in enumerate(zip(inputs.names, scores, strict=True))]


def _warn_of_broken_numbers(outputs: Mapping[str, np.ndarray], names: Sequence[str],
                            classify: bool) -> dict[str, list[int]]:
    """Warn about NaN and infinity, and return the affected rows of each output."""
    broken = {}
    for output, values in outputs.items():
        if network_outputs.is_finite(values):
            continue
        rows = network_outputs.broken_rows(values, len(names))
        input_name = names[rows[0]] if rows else ", ".join(names[:1])
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        consequence = "; its classes are not printed" if classify else ""
        terminal.notice(f"{input_name}{more}: output {output!r} contains NaN or infinite "
                        f"values{consequence}", "warning")
        broken[output] = rows
    return broken


def print_results(plan: AnyPlan, report: Any, inputs: RunInputs, outputs: Mapping[str, np.ndarray],
                  answers: list[dict[str, Any]] | None, table: bool) -> None:
    """Print the device, notes, best classes and a summary of other outputs.

    table: whether to print the times of the layers; the report must then contain these times.
    """
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
    """Print the content of print_results(), and the class indices, as JSON."""
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
    """Print the best classes of the first `most` inputs."""
    for answer in answers[:most]:
        print(f"\n{one_line(answer['input'])}")
        for line in answer["top"]:
            name = line["name"] or f"class {line['class']}"
            number = (f"score {line['score']:.4f}" if "score" in line
                      else f"{line['probability']:8.2%}")
            print(f"{number}  {one_line(name)}")
    if most is not None and len(answers) > most:
        print(f"\nand {len(answers) - most} more inputs (use --json to print all)")


def _output_line(name: str, summary: Mapping[str, Any]) -> str:
    text = f"{one_line(name)}: {shape_text(summary['shape'])} {summary['dtype']}"
    if summary["min"] is not None:
        text += f", {summary['min']:.6g} to {summary['max']:.6g}"
    return text
