"""The verb `advise`: measure the speed-up of a network from pruning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gossamer.advise import Advice, Choice, LayerGroup, advise, chart, check_speed_up
from gossamer.advise.advice import AS_IT_IS, WAYS
from gossamer.cli import arguments
from gossamer.cli.convert import naming, onnx_form
from gossamer.errors import InputError
from gossamer.io import output_files, terminal
from gossamer.io.charts import check_available
from gossamer.io.output_files import replacing
from gossamer.ops.algorithm import PRECISIONS
from gossamer.ops.host_threads import ALL
from gossamer.plan.candidate import counted
from gossamer.plan.policy import EFFORTS
from gossamer.plan.report.cells import layer_time_text, time_text


def advise_(
    model: arguments.ModelArgument,
    device: arguments.DeviceOption = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Batch size.",
        show_default="1, or the file's batch size where the network cannot run at 1")] = None,
    precision: Annotated[str, typer.Option(
        help=f"Lowest precision allowed: {', '.join(PRECISIONS)}.")] = "fp32",
    effort: Annotated[str, typer.Option(
        help=f"Tuning effort: {', '.join(EFFORTS)}.")] = "quick",
    speed_up: Annotated[float | None, typer.Option(
        "--speed-up", metavar="2",
        help="Choose the layers to prune for this speed-up, and measure them together.")] = None,
    threads: Annotated[str | None, typer.Option(
        metavar="N|all", show_default="all", help=arguments.THREADS_HELP)] = None,
    plot: Annotated[Path | None, typer.Option(
        metavar="FILE.png", help="Plot speed over sparsity; needs matplotlib.")] = None,
    weights: arguments.WeightsOption = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Measure how much faster pruning would make a network on a device.

    The network and its layers are timed unchanged, and with weights set to zero in several ways:
    the smallest 80, 90, 95 or 98% of each layer; the two smallest of every four; half of each
    layer's filters.
    """
    arguments.check_choice("--precision", precision, PRECISIONS)
    arguments.check_choice("--effort", effort, EFFORTS)
    if speed_up is not None and (reason := check_speed_up(speed_up)) is not None:
        raise InputError(f"--speed-up {speed_up:g}: {reason}")
    if plot is not None:
        check_available("--plot")
        output_files.check_file("--plot", plot, ".png", filter(None, (model, weights)))
    number = arguments.threads_of(threads)
    read = onnx_form(model, weights)
    console = Console(stderr=True)
    with console.status("reading the network") as status, naming(model):
        advice = advise(read, device=device, batch=batch, precision=precision, effort=effort,
                        threads=number or ALL, speed_up=speed_up, note=status.update)
    arguments.tell_of_threads(number, advice.device)
    if plot is not None:
        with replacing(plot) as file:
            file.write(chart(advice, Path(model).name))
    if as_json:
        terminal.print_json({"model": model, "precision": precision, "effort": effort,
                             **asdict(advice)})
        return
    _print_advice(advice)
    if advice.choice is not None and speed_up is not None:
        print_choice(model, advice.choice, speed_up)
    if plot is not None:
        terminal.print_line(f"written: {plot}")


def _print_advice(advice: Advice) -> None:
    names = list(advice.network_us)
    print(f"device: {advice.device} ({advice.description}), batch {advice.batch}")
    columns = {"layer": "layer", "weights": "weights", **{name: name for name in names},
               "pays_from": "zeros pay from"}
    rows: list[dict[str, Any]] = [
        {"layer": _group_name(group), "weights": group.weights,
         **{name: layer_time_text(us) for name, us in group.us.items()},
         "pays_from": group.pays_from.name if group.pays_from else "-"}
        for group in advice.groups]
    rows += [{"layer": "other steps", **_texts(advice.others_us)},
             {"layer": "the network", **_texts(advice.network_us)},
             {"layer": "times as fast",
              **{name: f"{advice.speed(name):.2f}" for name in names if name != AS_IT_IS}}]
    terminal.print_table(columns, rows)
    print("steps are timed separately, so their sum differs from the network's time")
    for warning in advice.warnings:
        terminal.notice(warning, "warning")
    for name, reason in advice.absent.items():
        terminal.notice(f"{name}: {reason}")


def _texts(us: Any) -> dict[str, str]:
    return {name: time_text(value) for name, value in us.items()}


def _group_name(group: LayerGroup) -> str:
    others = len(group.pruned) - 1
    return group.pruned[0] + (f" and {counted(others, 'other')}" if others else "")


def print_choice(model: str, choice: Choice, speed_up: float) -> None:
    """Print the layers to prune for a speed-up, and the command that prunes them."""
    if not choice.sparsities:
        print(f"zeros make no layer faster on this device, so pruning cannot reach a speed-up of "
              f"{speed_up:g}")
        return
    if not choice.reached:
        terminal.notice(f"--speed-up {speed_up:g}: unstructured pruning makes the network at most "
                        f"about {choice.speed_up:.2f} times as fast")
    print(f"layers to prune; with these sparsities the network was measured to be "
          f"{choice.speed_up:.2f} times as fast:")
    terminal.print_table({"layer": "layer", "sparsity": "sparsity"}, list(_lines(choice)))
    terminal.print_line(f"to write this network: gossamer prune {model} --speed-up {speed_up:g} "
                        "-o thin.onnx")


def _lines(choice: Choice) -> Iterator[dict[str, str]]:
    names = {way.sparsity: way.name for way in WAYS if way.pattern == "unstructured"}
    for layer, sparsity in choice.sparsities.items():
        yield {"layer": layer, "sparsity": names[sparsity]}
