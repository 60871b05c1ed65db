"""The command line: one verb a function."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gossamer
from gossamer import arguments, bench_cli, cache_cli, debug, show
from gossamer.errors import GossamerError, GossamerWarning, InputError
from gossamer.image import PRESETS
from gossamer.model import zoo
from gossamer.model.shapes import check_open_dimensions, resolve
from gossamer.model.summary import summarise

if TYPE_CHECKING:
    from gossamer.model.graph import Graph

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Makes thin networks fast: runs a trained network layer by layer on CUDA, OpenCL or "
         "NumPy.",
)

ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"An ONNX file, or a network of the zoo: {', '.join(zoo.MODELS)}.")]
ShapeOption = Annotated[list[str] | None, typer.Option(
    metavar="[NAME=]3,224,224",
    help="An input's shape without the batch, where the file leaves it open; may be repeated.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def main() -> None:
    """The console script `gossamer`."""
    app(prog_name="gossamer")


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """Errors become one line on stderr and an exit code: 2 for what the user can mend, 1 for a
    fault of gossamer's own, 130 for Ctrl-C. Warnings become one-line notices."""

    @functools.wraps(verb)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", GossamerWarning)
                warnings.showwarning = lambda message, *_, **__: show.notice(message, "warning")
                verb(*args, **options)
        except GossamerError as error:
            _fail(error, str(error), 2)
        except KeyboardInterrupt as error:
            _fail(error, "interrupted", 130)
        except MemoryError as error:
            _fail(error, f"the host's memory does not suffice ({error})", 2)
        except BrokenPipeError:
            # the reader of our output has left; Python must not complain of it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            _fail(error, f"a fault in gossamer itself ({type(error).__name__}: {error}); "
                         "GOSSAMER_DEBUG=1 shows where", 1)

    return guarded


def _fail(error: BaseException, message: str, code: int) -> None:
    first, *more = message.strip().splitlines() or [type(error).__name__]
    if debug.level() >= 1:
        traceback.print_exception(error)
    elif more:
        first += " (GOSSAMER_DEBUG=1 shows the rest)"
    show.notice(first, "error")
    raise typer.Exit(code) from None


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gossamer {version('gossamer')}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


@app.command()
@_guarded
def devices(as_json: JsonOption = False) -> None:
    """List the devices of this machine: PASS, or why one cannot be used."""
    rows = [asdict(found) for found in gossamer.devices()]
    if as_json:
        show.print_json(rows)
        return
    for row in rows:
        row["memory"] = show.bytes_text(row["memory_bytes"]) if row["memory_bytes"] else ""
        row["units"] = row["units"] or None
        row["state"] = row["problem"] or "PASS"
    show.print_table({"name": "device", "state": "state", "description": "name", "units": "units",
                      "memory": "memory", "driver": "driver"}, rows)


@app.command()
@_guarded
def inspect(
    model: ModelArgument,
    batch: Annotated[int, typer.Option(min=0, help="Images at once.")] = 1,
    shape: ShapeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a network's layers: shapes, parameters, FLOPs and density."""
    graph = _load(model, shape)
    rows = [asdict(row) for row in summarise(resolve(graph, batch))]
    totals = {"parameters": sum(row["parameters"] for row in rows),
              "flops": sum(row["flops"] for row in rows)}
    if as_json:
        show.print_json({"model": model, "batch": batch, **totals, "rows": rows})
        return
    show.print_summary(rows)
    print(f"{len(rows)} layers, {show.human(totals['parameters'])} parameters, "
          f"{show.human(totals['flops'])} FLOPs at batch {batch}")


@app.command()
@_guarded
def run(
    model: ModelArgument,
    photos: Annotated[list[Path] | None, typer.Argument(
        metavar="[FILE]...", help="Photos, as with --image.")] = None,
    image: Annotated[list[Path] | None, typer.Option(
        metavar="FILE...", help="Photos to run it on.")] = None,
    array: Annotated[Path | None, typer.Option(
        "--input", metavar="X.npy", help="An array of inputs, the batch first.")] = None,
    output: Annotated[Path | None, typer.Option(
        metavar="Y.npy", help="Write the outputs here (.npz when there are several).")] = None,
    device: Annotated[str | None, typer.Option(
        help="host, opencl:N or cuda:N (default: the best one).")] = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Images at once (default: 1, or all of --input).")] = None,
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
    table: Annotated[bool, typer.Option("--table", help="Time and show every layer.")] = False,
    strict: Annotated[bool, typer.Option(
        "--strict", help="Fail when a layer cannot run on the device.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a network on photos or on an array."""
    # click gives an option one value: what follows a first --image FILE comes as arguments
    photos = [*(image or []), *(photos or [])]
    if bool(photos) == bool(array):
        raise InputError("give either --image FILE... or --input X.npy")
    graph = _load(model, shape)
    if output:
        arguments.check_writable(output, len(graph.outputs))
    if photos:
        names = [str(path) for path in photos]
        count = min(batch or 1, len(photos))
        channels = "bgr" if bgr else "grey" if grey else None
        preprocessing = arguments.preprocessing(
            model, graph.inputs[0].shape, preprocess, channels=channels, size=size,
            resize=resize, scale=scale, mean=mean, std=std)
        chunks = arguments.photo_batches(photos, count, preprocessing, graph.inputs[0].shape)
    else:
        assert array is not None
        values = arguments.read_array(array)
        names = [f"{array}[{index}]" for index in range(len(values))]
        count = batch or len(values)
        chunks = (values[i : i + count] for i in range(0, max(len(values), 1), max(count, 1)))

    with _progress() as progress:
        task = progress.add_task(f"preparing {model}", total=None)
        plan = gossamer.compile(graph, device=device, strict=strict)
        progress.update(task, description=f"running on {plan.device.name}", total=len(names))
        results: list[tuple[np.ndarray, ...]] = []
        for chunk in chunks:
            result = plan(chunk)
            results.append(result if isinstance(result, tuple) else (result,))
            progress.advance(task, len(chunk))
        if table:
            progress.update(task, description="timing the layers", total=None)
        report = plan.profile(count) if table else plan.report()
    outputs = [np.concatenate(parts) for parts in zip(*results, strict=True)]
    output_names = [value.name for value in graph.outputs]
    if output:
        arguments.write_arrays(output, outputs, output_names)

    scores = outputs[0]
    answers = []
    if show.is_scores(scores):
        classes = show.labels(labels, scores.shape[1])
        answers = [{"input": name, "top": show.best(row, top, classes)}
                   for name, row in zip(names, scores, strict=True)]
    described = {"model": model, "device": plan.device.name,
                 "description": plan.device.description, "batch": count, "notes": report.notes,
                 "results": answers,
                 "outputs": {name: list(value.shape)
                             for name, value in zip(output_names, outputs, strict=True)}}
    if as_json:
        if table:
            described["report"] = show.report_dict(report)
        show.print_json(described)
        return
    print(f"device: {plan.device.name} ({plan.device.description})")
    print(*report.notes, sep="\n")
    if table:
        show.print_report(report)
    show.print_answers(answers)
    if not answers:
        for name, value in zip(output_names, outputs, strict=True):
            print(show.statistics(name, value))
    if output:
        print(f"written: {output}")


app.command()(_guarded(bench_cli.bench))

cache = typer.Typer(no_args_is_help=True, help="List or clear what is kept on disk.")
app.add_typer(cache, name="cache")
cache.command("list")(_guarded(cache_cli.list_caches))
cache.command("clear")(_guarded(cache_cli.clear))


def _load(model: str, shapes: list[str] | None) -> Graph:
    graph = gossamer.load(model)
    for warning in graph.warnings:
        show.notice(warning, "warning")
    graph = arguments.with_input_shapes(graph, shapes or [])
    check_open_dimensions(graph)
    return graph


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal; gone when done."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                  TimeRemainingColumn(), console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        yield progress
