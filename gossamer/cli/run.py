"""The verb `run`: a network on photos or on arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gossamer
from gossamer.cli import arguments, show
from gossamer.errors import InputError
from gossamer.io import output_files
from gossamer.io.images import PRESETS
from gossamer.model import zoo
from gossamer.model.batch_axis import mixing_node
from gossamer.model.infer.resolve import check_open_dimensions
from gossamer.plan.store.plan_file import SUFFIX

if TYPE_CHECKING:
    from gossamer.model.graph import Graph, ModelMetadata
    from gossamer.plan.plan import Plan

ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"An ONNX file, or a network of the zoo: {', '.join(zoo.MODELS)}.")]
ShapeOption = Annotated[list[str] | None, typer.Option(
    metavar="[NAME=]3,224,224",
    help="An input's shape without the batch, where the file leaves it open; may be repeated.")]
_MOST_ANSWERS = 20
"""Rows of an array whose classes are printed."""
_WHITE = 255.0
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def run(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"An ONNX file, a plan that `gossamer compile` saved, or a network "
                              f"of the zoo: {', '.join(zoo.MODELS)}.")],
    photos: Annotated[list[str] | None, typer.Argument(
        metavar="[FILE]...", help="Photos, as with --image.")] = None,
    image: Annotated[list[str] | None, typer.Option(
        metavar="FILE...", help="Photos to run it on.")] = None,
    array: Annotated[list[str] | None, typer.Option(
        "--input", metavar="[NAME=]X.npy",
        help="An array of inputs, the batch first; one for each of several inputs, or a .npz "
             "file with their names.")] = None,
    output: Annotated[str | None, typer.Option(
        metavar="Y.npy", help="Write the outputs here (.npz when there are several).")] = None,
    device: Annotated[str | None, typer.Option(
        help="host, opencl:N or cuda:N (default: the best one).")] = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Inputs at once (default: one photo, or all of --input; all photos where "
                    "the network mixes the inputs of a batch).")] = None,
    labels: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Names of the classes, one a line.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 5,
    shape: ShapeOption = None,
    preprocess: Annotated[str | None, typer.Option(
        help=f"How photos are prepared: {', '.join(PRESETS)}.")] = None,
    size: Annotated[str | None, typer.Option(help="Height x width: 224 or 224x320.")] = None,
    resize: Annotated[int | None, typer.Option(
        help="Scale the short side to this, then crop the centre to --size.")] = None,
    scale: Annotated[float | None, typer.Option(
        help="Multiply pixel values (0 to 255) by this, before --mean and --std.")] = None,
    mean: Annotated[str | None, typer.Option(help="Subtract: one number or three.")] = None,
    std: Annotated[str | None, typer.Option(help="Divide by: one number or three.")] = None,
    bgr: Annotated[bool, typer.Option("--bgr", help="Channels in the order BGR.")] = False,
    grey: Annotated[bool, typer.Option("--grey", help="One grey channel.")] = False,
    table: Annotated[bool, typer.Option(
        "--table", help="Time and show every layer of the plan.")] = False,
    strict: Annotated[bool, typer.Option(
        "--strict", help="Fail when a layer cannot run on the device.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a network on photos or on arrays."""
    # click gives an option one value: what follows a first --image FILE comes as arguments
    photos = [*(image or []), *(photos or [])]
    if bool(photos) == bool(array):
        raise InputError("give either --image FILE... or --input X.npy")
    if "" in photos:
        raise InputError("--image: the name is empty; expected an image file")
    if labels:
        show.read_names(labels)  # what cannot be read is said before the work
    saved = _saved_plan(model, device, shape, strict)
    graph = load_graph(model, shape) if saved is None else saved.graph
    target = None
    if output is not None:
        read = [model, *photos, *(text.rpartition("=")[2] for text in array or [])]
        target = output_files.check(output, len(graph.outputs), read)
    options = {"--preprocess": preprocess, "--size": size, "--resize": resize, "--scale": scale,
               "--mean": mean, "--std": std, "--bgr": bgr or None, "--grey": grey or None}
    given = [option for option, value in options.items() if value is not None]
    if photos:
        named = graph.name if saved is not None and graph.name in zoo.MODELS else model
        prepare = arguments.preprocessing(
            named, graph, preprocess, channels="bgr" if bgr else "grey" if grey else None,
            size=size, resize=resize, scale=scale, mean=mean, std=std)
        names = photos
        count = _batch_size(graph, batch, len(photos), 1)
        chunks = arguments.photo_batches(photos, count, prepare, graph.inputs[0].shape)
    else:
        if given:
            show.notice(f"{', '.join(given)}: for photos only; --input is taken as it is")
        arrays = arguments.read_inputs(array or [], graph)
        if arguments.has_batch(graph):
            rows = next(len(values) for values, info in zip(arrays, graph.inputs, strict=True)
                        if info.shape[:1] == (None,))
            whole = next(text for text in array or [])
            names = [f"{whole}[{index}]" for index in range(rows)]
            count = _batch_size(graph, batch, rows, rows)
        elif batch is not None:
            raise InputError(f"--batch {batch}: {model} has no batch; leave --batch out")
        else:
            names, count = [", ".join(array or [])], 1
        chunks = arguments.array_batches(arrays, graph, len(names), count)

    with _progress() as progress:
        task = progress.add_task(f"preparing {model}", total=None)
        plan = saved or gossamer.compile(graph, device=device, strict=strict)
        progress.update(task, description=f"running on {plan.device.name}", total=len(names))
        results: list[tuple[np.ndarray, ...]] = []
        negatives: list[str] = []
        for index, chunk in enumerate(chunks):
            if photos:
                negatives += _negatives(names[index * count:], chunk[0], graph.metadata)
            result = plan(*chunk)
            results.append(result if isinstance(result, tuple) else (result,))
            progress.advance(task, count)
        if table:
            progress.update(task, description="timing the layers", total=None)
        report = plan.profile(count) if table else plan.report()
    if negatives:
        more = f" and {len(negatives) - 1} more" if len(negatives) > 1 else ""
        show.notice(f"{negatives[0]}{more}: nearer in brightness to a negative of what was trained "
                    "on; --scale -1 --mean -255 takes its negative")
    outputs = {info.name: parts[0] if len(parts) == 1 else np.concatenate(parts)
               for info, parts in zip(graph.outputs, zip(*results, strict=True), strict=True)}

    main = graph.outputs[0].name
    metadata = graph.metadata
    classify = bool(photos or labels or metadata.classes) and show.is_scores(
        outputs[main], len(names))
    if labels and not classify:
        raise InputError(f"--labels {labels}: output {main!r} is "
                         f"{show.shape_text(outputs[main].shape)} {outputs[main].dtype}: no "
                         "score for each class; leave --labels out")
    broken = _warn_of_broken_numbers(outputs, names, classify)
    answers = []
    if classify:
        classes = show.labels(labels, outputs[main].shape[1], metadata.classes)
        answers = [{"input": name, "top": [] if index in broken.get(main, ()) else
                    show.best(row, top, classes, metadata.scores)}
                   for index, (name, row) in enumerate(zip(names, outputs[main], strict=True))]
    summaries = {name: show.summary(value) for name, value in outputs.items()}
    if as_json:
        described: dict[str, Any] = {
            "model": model, "device": plan.device.name,
            "description": plan.device.description, "batch": count, "notes": report.notes,
            "results": answers, "outputs": summaries}
        if table:
            described["report"] = show.report_dict(report)
        show.print_json(described)
    else:
        print(f"device: {plan.device.name} ({plan.device.description})")
        print(*report.notes, sep="\n")
        if table:
            show.print_report(report)
        shown = answers if photos else answers[:_MOST_ANSWERS]
        show.print_answers(shown)
        if len(shown) < len(answers):
            print(f"\nand {len(answers) - len(shown)} more inputs: --json prints all")
        for name, summary in summaries.items():
            if name != main or not classify:
                print(show.summary_line(name, summary))
    if target is not None:
        sys.stdout.flush()  # a command that fails leaves no file
        output_files.write(target, output or "", outputs)
        if not as_json:
            print(f"written: {output}")


def _saved_plan(model: str, device: str | None, shapes: list[str] | None,
                strict: bool) -> Plan | None:
    """The plan that the MODEL argument names; None where it names a network."""
    if not model.endswith(SUFFIX):
        return None
    if shapes:
        raise InputError(f"--shape {shapes[0]}: the shapes of a saved plan are settled; give it "
                         "to `gossamer compile`")
    plan = gossamer.Plan.load(model, device, strict=strict)
    for warning in plan.graph.warnings:
        show.notice(warning, "warning")
    return plan


def load_graph(model: str, shapes: list[str] | None) -> Graph:
    """The graph of the MODEL argument with the --shape options, its warnings printed."""
    if not model:
        raise InputError("MODEL: the name is empty; expected an ONNX file or the name of a network "
                         f"of the zoo ({', '.join(zoo.MODELS)})")
    if model not in zoo.MODELS and Path(model).is_dir():
        raise InputError(f"{model}: is a folder, expected an ONNX file or the name of a network "
                         f"of the zoo ({', '.join(zoo.MODELS)})")
    graph = gossamer.load(model)
    for warning in graph.warnings:
        show.notice(warning, "warning")
    graph = arguments.with_input_shapes(graph, shapes or [])
    check_open_dimensions(graph)
    return graph


def _batch_size(graph: Graph, wanted: int | None, rows: int, usual: int) -> int:
    """How many rows run at once. Raises InputError when --batch would change the numbers."""
    count = min(wanted or usual, rows)
    if count >= rows:
        return rows
    mixing = mixing_node(graph, count)
    if mixing is None:
        return count
    if wanted is None:
        return rows
    raise InputError(f"--batch {wanted}: the numbers of this network depend on what runs "
                     f"together ({mixing}); leave --batch out, so that all {rows} inputs run at "
                     "once")


def _negatives(names: Sequence[str], pictures: np.ndarray, metadata: ModelMetadata) -> list[str]:
    """Those that are dark on light where the network was trained on light on dark, or the other
    way round, as far as brightness tells: nothing where that was neither dark nor light. pictures:
    grey levels, of the first of the names."""
    if metadata.brightness is None or _WHITE / 4 <= metadata.brightness <= _WHITE * 3 / 4:
        return []
    means = pictures.reshape(len(pictures), -1).mean(axis=1)
    nearer = np.abs(_WHITE - means - metadata.brightness) < np.abs(means - metadata.brightness)
    return [name for name, negative in zip(names, nearer, strict=False) if negative]


def _warn_of_broken_numbers(outputs: dict[str, np.ndarray],
                            names: Sequence[str], classify: bool) -> dict[str, set[int]]:
    """Warns of outputs with NaN or infinity; the rows that have some, by output."""
    broken = {}
    for output, values in outputs.items():
        if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
            continue
        rows: list[int] = []
        if values.ndim and len(values) == len(names):
            finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
            rows = np.flatnonzero(~finite).tolist()
        which = names[rows[0]] if rows else ", ".join(names[:1])
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        unnamed = "; no class is named" if classify else ""
        show.notice(f"{which}{more}: output {output!r} has NaN or infinite numbers{unnamed}",
                    "warning")
        broken[output] = set(rows)
    return broken


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal; gone when done."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}", markup=False), BarColumn(),
                  MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        yield progress
