"""The verb `run`: runs a network on photos or on arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import gossamer
from gossamer.cli import (
    arguments,
    photo_options,
    row_inputs,
    run_on_ray,
    run_output,
    run_rows,
)
from gossamer.cli.arguments import AnyPlan, load_graph, load_plan
from gossamer.cli.options import (
    BgrOption,
    DevicesOption,
    GreyOption,
    JsonOption,
    LabelOption,
    LabelsOption,
    MeanOption,
    OutputsOption,
    PlanArgument,
    PreprocessOption,
    ResizeOption,
    ScaleOption,
    ShapeOption,
    SizeOption,
    StdOption,
    StrictOption,
    WeightsOption,
)
from gossamer.cli.photo_options import PhotoOptions
from gossamer.cli.progress import input_bar
from gossamer.cli.run_inputs import RunInputs, array_inputs, negatives, photo_inputs
from gossamer.device.registry import names_several
from gossamer.errors import InputError
from gossamer.io import output_files, terminal
from gossamer.io.labels.reader import read_names
from gossamer.model.infer.resolve import is_open


def run(
    model: PlanArgument,
    photos: Annotated[list[str] | None, typer.Argument(
        metavar="[FILE]...", help="Photos, as with --image; folders of them; or a .csv file of "
                                  "samples.")] = None,
    image: Annotated[list[str] | None, typer.Option(
        metavar="FILE...", help="Photos to run it on.")] = None,
    array: Annotated[list[str] | None, typer.Option(
        "--input", metavar="[NAME=]X.npy",
        help="An array of inputs, the batch first; one for each of several inputs, or a .npz "
             "file with their names.")] = None,
    output: Annotated[str | None, typer.Option(
        "--output", "-o", metavar="FILE",
        help="Write the outputs here: .npy (.npz when there are several); a row for each photo or "
             "sample: .jsonl, .csv, .parquet.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue the rows of a .jsonl or .csv file that is there.")] = False,
    label: LabelOption = "first",
    device: DevicesOption = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Inputs at once (default: one photo, or all of --input; all photos where "
                    "the network mixes the inputs of a batch).")] = None,
    labels: LabelsOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 5,
    shape: ShapeOption = None,
    weights: WeightsOption = None,
    outputs: OutputsOption = None,
    preprocess: PreprocessOption = None,
    size: SizeOption = None,
    resize: ResizeOption = None,
    scale: ScaleOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    bgr: BgrOption = False,
    grey: GreyOption = False,
    table: Annotated[bool, typer.Option(
        "--table", help="Time and show every layer of the plan.")] = False,
    ray: Annotated[str | None, typer.Option(
        metavar="ADDRESS", help="Run pictures on a Ray cluster, whose workers read the files: "
                                "HOST:PORT, auto for this machine's own, or local.")] = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a network on photos or on arrays."""
    # click gives an option one value, so that further files after --image FILE are arguments
    photos, arrays = [*(image or []), *(photos or [])], array or []
    _check_sources(photos, arrays, labels)
    saved_plan = load_plan(model, device, shape, weights, strict, outputs)
    is_shared = ray is not None or names_several(device)
    graph = (load_graph(model, shape, weights, outputs, may_stay_open=not is_shared)
             if saved_plan is None else saved_plan.graph)
    arguments.check_numbers(graph)
    options = PhotoOptions(preprocess, size, resize, scale, mean, std, bgr, grey)
    if not arrays and (resume or ray is not None or row_inputs.make_rows(photos)
                       or is_open(graph) or Path(output or "").suffix in run_rows.OWN_SUFFIXES):
        rows = run_rows.RowOptions(output, resume, labels, top)
        run_rows.check(rows, graph, [model, *filter(None, [weights]), *photos])
        inputs_of_rows = row_inputs.row_inputs(model, graph, photos, options, batch, label,
                                               is_planned=saved_plan is not None)
        remote = None
        if ray is not None:
            run_on_ray.check(photos, table)
            prepare = photo_options.preprocessing(model, graph, options)
            network = model if saved_plan is not None else inputs_of_rows.graph
            remote = run_on_ray.RayAnswers(ray, network, inputs_of_rows, prepare, device)
        run_rows.run_rows(model, saved_plan, inputs_of_rows, rows, device, strict=strict,
                          table=table, as_json=as_json, remote=remote)
        return
    if ray is not None:
        raise InputError(f"--ray {ray}: is for pictures; leave --input out")
    row_inputs.check_label(label)
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
    plan, results, report = _execute(model, saved_plan, inputs, device, strict, table)
    answers = run_output.find_answers(results, inputs, graph, labels, top)
    if as_json:
        run_output.print_json(model, plan, report, inputs, results, answers, table)
    else:
        run_output.print_results(plan, report, inputs, results, answers, table)
    if output_path is not None:
        sys.stdout.flush()  # a closed stdout fails here, before the file is written
        output_files.write(output_path, output or "", results)
        if not as_json:
            terminal.print_line(f"written: {output}")


def _check_sources(photos: list[str], arrays: list[str], labels: Path | None) -> None:
    """Raises InputError, before any work, where photos and arrays are both given or both missing,
    and where labels cannot be read."""
    if bool(photos) == bool(arrays):
        raise InputError("give either --image FILE... or --input X.npy")
    if "" in photos:
        raise InputError("--image: the name is empty; expected an image file")
    if labels:
        read_names(labels)


def _execute(model: str, saved_plan: AnyPlan | None, inputs: RunInputs, device: str | None,
             strict: bool, table: bool) -> tuple[AnyPlan, dict[str, np.ndarray], Any]:
    """Returns the plan, the network's outputs on all inputs, and the plan's report. Where `table`
    is set, the report has the times of the layers."""
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
        plan = saved_plan or gossamer.compile(graph, device=device, strict=strict)
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
        terminal.notice(f"{inverted[0]}{more}: nearer in brightness to a negative of what was "
                        "trained on; --scale -1 --mean -255 takes its negative")
