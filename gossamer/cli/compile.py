"""The verb `compile`: choose the fastest algorithm for every layer, and save the plan."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gossamer.cli import arguments
from gossamer.cli.guard import Terminated
from gossamer.cli.report import evaluate_hint, print_notes, report_dict
from gossamer.device.base import Device
from gossamer.device.registry import find, find_several, names_several
from gossamer.errors import InputError, closest
from gossamer.io import output_files, terminal
from gossamer.io.output_files import replacing
from gossamer.io.text import duration_text
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import default_batch
from gossamer.ops.algorithm import EXACT, PRECISIONS
from gossamer.ops.host_threads import ALL
from gossamer.plan.candidate import counted
from gossamer.plan.choose.program_builder import may_be_conversion
from gossamer.plan.fusion import find_fusions
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS, Policy
from gossamer.plan.program import Layer
from gossamer.plan.report.cells import candidate_table, layer_table, plan_table, rejected
from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from gossamer.plan.store.plan_file import SUFFIX
from gossamer.plan.tune.tuner import Progress as TuningProgress
from gossamer.plan.tune.tuner import Tuner
from gossamer.version import PACKAGE_VERSION


def compile_(
    model: arguments.ModelArgument,
    device: Annotated[str | None, typer.Option(
        help="Device to measure on: host, opencl:N or cuda:N (default: the best available). With "
             "cuda:all or cuda:0,cuda:1, the first device is measured and all can run the "
             "plan.")] = None,
    batch: Annotated[str | None, typer.Option(
        metavar="1,8", help="Batch sizes to plan for.",
        show_default="1, or the file's batch size where the network cannot run at 1")] = None,
    effort: Annotated[str, typer.Option(
        help=f"Tuning effort: {', '.join(EFFORTS)}.")] = "normal",
    given_precision: Annotated[str | None, typer.Option(
        "--precision", help=f"Lowest precision allowed: {', '.join(PRECISIONS)}. If the option is "
        "set, a float64 network is converted to float32.", show_default="fp32")] = None,
    calibration: Annotated[list[str] | None, typer.Option(
        metavar="[NAME=]X.npy", help="Inputs for measuring the error of the outputs relative to "
        "float64. Repeat the option for each input.")] = None,
    tolerance: Annotated[float | None, typer.Option(
        metavar="1e-3", help="Maximum error on the --calibration inputs; layers that would exceed "
        "it stay in float32.")] = None,
    sparse_threshold: Annotated[float | None, typer.Option(
        metavar="0.6", help="Use sparse algorithms for layers with a larger fraction of zeros, "
        "dense ones for the others (default: whichever measures faster).")] = None,
    force: Annotated[list[str] | None, typer.Option(
        metavar="LAYER=ALGORITHM", help="Use this algorithm for the layer, or fail. May be "
        "repeated.")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar=f"FILE{SUFFIX}",
        help="Save the plan to this file, for `gossamer run` and Plan.load.")] = None,
    explain: Annotated[list[str] | None, typer.Option(
        metavar="LAYER", help="Show every candidate of this layer. May be repeated.")] = None,
    html: Annotated[Path | None, typer.Option(
        "--html", metavar="FILE.html",
        help="Write an HTML report with all layers and candidates.")] = None,
    budget: Annotated[float | None, typer.Option(
        metavar="SECONDS", help="Maximum tuning time per batch size; the best plan so far is "
        "used.")] = None,
    threads: Annotated[str | None, typer.Option(
        metavar="N|all", show_default="all", help=arguments.THREADS_HELP)] = None,
    no_vendors: Annotated[bool, typer.Option(
        "--no-vendors", help="Do not use vendor libraries such as cuDNN and ONNX Runtime, except "
        "for layers without another algorithm.")] = False,
    strict: Annotated[bool, typer.Option(
        "--strict", help="Fail if a layer cannot run on the device.")] = False,
    shape: arguments.ShapeOption = None,
    weights: arguments.WeightsOption = None,
    outputs: arguments.OutputsOption = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Find the fastest algorithm for every layer of a network, and save the plan."""
    precision = given_precision or "fp32"
    _check_options(effort, precision, sparse_threshold, budget, output, html)
    sizes = [] if batch is None else sorted({*arguments.batch_sizes(batch, "1,8")})
    graph = arguments.load_graph(model, shape, weights, outputs, given_precision)
    if sizes not in ([], [1]) and not arguments.has_batch(graph):
        raise InputError(f"--batch {batch}: {model} has no batch dimension; omit --batch")
    sizes = sizes or [default_batch(graph)]
    if tolerance is not None and not calibration:
        raise InputError("--tolerance: needs --calibration X.npy")
    explained = explain or []
    inputs = arguments.read_inputs(calibration, graph, "--calibration") if calibration else None
    policy = Policy(effort, precision, strict, sparse_threshold=sparse_threshold,
                    calibration=inputs, tolerance=tolerance, budget_s=budget,
                    force=_forced(force or []), vendors=not no_vendors,
                    threads=arguments.threads_of(threads) or ALL)
    target = _target(device)
    arguments.tell_of_threads(arguments.threads_of(threads), target.name)
    with _progress() as counter:
        tuner = Tuner(target, effort, precision=precision, note=counter.note,
                      progress=counter.update, keeps_precisions=tolerance is not None,
                      budget_s=budget, threads=policy.threads)
        plan = Plan(graph, target, policy, tuner=tuner, note=counter.note)
        if plan.calibration is not None:
            for size in sizes:
                plan.calibration.check(size)
        with _stopping(tuner, counter):
            reports = _measure(plan, tuner, sizes, explained)
    explained = [_layer_named(name, [layer for report in reports for row in report.rows
                                     for layer in (row["layer"], *row["layers"])])
                 for name in explained]
    for notice in tuner.notices:
        terminal.notice(notice)
    if output is not None:
        plan.save(output)
    facts = {"model": model, "device": target.name, "description": target.description,
             "effort": effort, "precision": precision, "sparse_threshold": sparse_threshold,
             "measured": tuner.measured, "reused": tuner.reused, "not_tried": tuner.not_tried}
    if html is not None:
        with replacing(html) as file:
            # names of files and layers may contain characters that UTF-8 cannot encode
            file.write(page({**facts, **_page_facts(model, graph)}, reports)
                       .encode(errors="backslashreplace"))
    if as_json:
        terminal.print_json({**facts, "notices": tuner.notices,
                             "reports": [report_dict(report) for report in reports]})
        return
    _print_reports(target, reports, tuner, explained, precision)
    for path in (output, html):
        if path is not None:
            terminal.print_line(f"written: {path}")
    if any(row["precision"] not in ("fp32", EXACT) for report in reports for row in report.rows):
        print("some layers run in lower precision than float32; "
              f"{evaluate_hint(output or 'FILE' + SUFFIX)}")


def _page_facts(model: str, graph: Graph) -> dict[str, Any]:
    """Return the facts shown only in the HTML page: version, date, network size."""
    file = Path(model)
    return {"version": PACKAGE_VERSION, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "parameters": sum(array.size for array in graph.constants.values()),
            "model_bytes": file.stat().st_size if file.is_file() else None}


def _check_options(effort: str, precision: str, sparse_threshold: float | None,
                   budget: float | None, output: Path | None, html: Path | None) -> None:
    """Raise InputError for an invalid value, or a file that cannot be written."""
    arguments.check_choice("--effort", effort, EFFORTS)
    arguments.check_choice("--precision", precision, PRECISIONS)
    if sparse_threshold is not None and not 0 < sparse_threshold < 1:
        raise InputError(f"--sparse-threshold {sparse_threshold:g}: expected a sparsity between 0 "
                         "and 1, such as 0.6")
    if budget is not None and not 0 < budget < math.inf:
        raise InputError(f"--budget {budget:g}: expected seconds above 0, such as 10")
    for option, path, suffix in (("--output", output, SUFFIX), ("--html", html, ".html")):
        if path is not None:
            output_files.check_file(option, path, suffix)


def _measure(plan: Plan, tuner: Tuner, sizes: list[int],
             explained: Sequence[str]) -> list[Report]:
    """Measure the plan's candidates, and return its report at each batch size.

    explained: names of the layers of --explain.
    """
    layers: list[Layer] = []
    for size in sizes:
        of_size = plan.layers(size)
        layers += [layer for layer in of_size if layer.problem]
        layers += find_fusions(of_size, [info.name for info in plan.outputs])
    values = [name for layer in layers for name in (*layer.inputs, *layer.outputs)]
    for name in explained:
        # layers that convert formats are inserted only after the algorithms of the layers are
        # chosen
        if not may_be_conversion(name, values):
            _layer_named(name, [layer.name for layer in layers])
    reports = []
    for size in sizes:
        plan.end_to_end(size)
        reports.append(plan.report(size))
    return reports


@contextmanager
def _stopping(tuner: Tuner, counter: _CandidateCounter) -> Iterator[None]:
    """Make Ctrl-C stop only the measurements during a `with` block, not the program.

    After the first Ctrl-C, the plan is created from the measurements so far. A second Ctrl-C ends
    the program. If stderr is not a terminal, the first Ctrl-C already ends it. SIGTERM always ends
    the program. Before the program ends, a message says where the measurements are stored.
    """
    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        tuner.stop()
        counter.say("stopping with the best plan so far; press Ctrl-C again to abort")

    before = signal.getsignal(signal.SIGINT)
    # if the signal is already ignored, as under nohup, keep ignoring it
    is_handled = (threading.current_thread() is threading.main_thread() and sys.stderr.isatty()
                  and before not in (signal.SIG_IGN, None))
    if is_handled:
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        counter.stop()
        for notice in tuner.notices:
            terminal.notice(notice)
        terminal.notice(_interrupted(tuner), "error")
        raise typer.Exit(interrupt.exit_code if isinstance(interrupt, Terminated)
                         else 128 + signal.SIGINT) from None
    finally:
        if is_handled:
            signal.signal(signal.SIGINT, before)


def _interrupted(tuner: Tuner) -> str:
    """Describe the candidates measured before an interruption, and where they are stored."""
    text = f"interrupted: {counted(tuner.measured, 'candidate')} measured"
    if not tuner.measured:
        return text
    if not tuner.cache.is_kept:
        return f"{text}, not stored: {tuner.cache.path} cannot be written"
    return f"{text}, stored in {tuner.cache.path} for the next time"


def _target(device: str | None) -> Device:
    """Return the device on which to measure: the first one of --device.

    All devices must be of one kind, so that they can run the same plan. Raises InputError for
    devices of several kinds.
    """
    if device is None or not names_several(device):
        return find(device)
    devices = find_several(device)
    kinds = {each.kind: each for each in devices}
    if len(kinds) > 1:
        raise InputError(f"--device {device}: a plan is for one kind of device, but these are "
                         f"{len(kinds)} kinds; compile separately for "
                         f"{', '.join(each.name for each in kinds.values())}")
    return devices[0]


def _print_reports(device: Device, reports: Sequence[Report], tuner: Tuner,
                   explained: Sequence[str], precision: str) -> None:
    """Print each report, with every candidate of the explained layers."""
    print(f"device: {device.name} ({device.description})")
    said = set(tuner.notices)
    for report in reports:
        _print_report(report, said, precision)
        for row in report.rows:
            if not {row["layer"], *row["layers"]}.isdisjoint(explained):
                _print_candidates(row, report.batch)
    print(f"{counted(tuner.measured, 'candidate')} measured, {tuner.reused} from the cache, "
          f"{tuner.not_tried} not tried")


def _print_report(report: Report, said: set[str], precision: str) -> None:
    """Print the report at one batch size.

    said: lines that were already printed for any batch size; they are not printed again.
    """
    print(f"\nbatch {report.batch}")
    headings, rows = layer_table(report.rows)
    terminal.print_table(
        {key: heading for key, heading in headings.items() if key != "share"}, rows,
        spare=("config", "error", "spread", "problem", "break_even", "density"), below="why")
    if report.plans:
        print()
        terminal.print_table(*plan_table(report.plans), spare=("spread",), below="outcome")
        print()
    if report.end_to_end_us is not None:
        print(f"end to end, batch {report.batch}: {duration_text(report.end_to_end_us)}"
              + (" (from the cache)" if report.end_to_end_cached else ""))
    for line in report.facts:
        if line not in said:
            terminal.print_line(line)
        said.add(line)
    print_notes(report, said)
    said.update(report.notes)
    if precision != "fp32" and report.accuracy is None:
        count = sum(row["precision"] != "fp32" for row in report.rows)
        print(f"precision {precision} allowed: {count} of {counted(len(report.rows), 'layer')} in "
              "lower precision than float32")


def _print_candidates(row: Mapping[str, Any], batch: int) -> None:
    print()
    terminal.print_line(f"{row['layer']} ({row['op']} {row['problem']}), batch {batch}: "
                        f"{row['algorithm']} on {row['device']}")
    headings, rows = candidate_table(row)
    rows += [{"algorithm": name, "reason": reason} for name, reason in rejected(row).items()]
    terminal.print_table(
        headings, rows, spare=("precision", "layouts", "error", "spread", "config"), below="reason")


def _forced(options: Sequence[str]) -> dict[str, str]:
    """Parse --force: return the algorithm of each named layer.

    Raises InputError for a text without a layer or an algorithm.
    """
    forced = {}
    for option in options:
        # names of layers may contain "=", names of algorithms do not
        layer, equals, algorithm = option.rpartition("=")
        if not (layer and equals and algorithm):
            raise InputError(f"--force {option}: expected LAYER=ALGORITHM, such as conv1=winograd")
        forced[layer] = algorithm
    return forced


def _layer_named(name: str, names: Sequence[str]) -> str:
    """Return the layer named by --explain.

    If a module contains only one layer, the module's name is accepted too.

    names: names of all layers.
    Raises InputError if there is no such layer.
    """
    of_module = {layer for layer in names if layer.rpartition("/")[0] == name}
    if name in names or len(of_module) == 1:
        return name if name in names else of_module.pop()
    close = closest(name, names)
    containing = [layer for layer in dict.fromkeys(names) if name.lower() in layer.lower()][:5]
    listed = ", ".join(map(repr, dict.fromkeys([*containing, *close])))
    raise InputError(f"--explain {name}: the network has no such layer; "
                     + (f"similar names: {listed}" if listed else
                        "`gossamer compile` without --explain lists all layers"))


class _CandidateCounter:
    """A progress bar that counts the measured candidates.

    The bar's text shows the number of layers with a known time, the sum of the best times of these
    layers, and the remaining time of tuning.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("preparing", total=None)

    def note(self, line: str) -> None:
        """Show the next action as the bar's text."""
        self._progress.reset(self._task, description=line, total=None)

    def update(self, known: TuningProgress) -> None:
        """Show the progress of measuring."""
        left = f", about {known.seconds_left:.0f} s left" if known.done else ""
        self._progress.update(
            self._task, completed=known.done, total=known.candidates,
            description=f"{known.known_layers} of {known.layers} layers, best "
                        f"{duration_text(known.best_us)} so far{left}")

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        self._progress.console.print(line)

    def stop(self) -> None:
        """End the bar."""
        self._progress.stop()


@contextmanager
def _progress() -> Iterator[_CandidateCounter]:
    """Show a progress bar during a `with` block if stderr is a terminal."""
    console = Console(stderr=True)
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TextColumn("{task.description}", markup=False), console=console,
                  transient=True, disable=not console.is_terminal) as progress:
        yield _CandidateCounter(progress)
