"""The verb `bench`: runs suites that measure gossamer and its peers, and makes tables of committed
rows."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from gossamer.cli.arguments import DeviceOption, JsonOption
from gossamer.cli.bench import bench_network, parse_batches, parse_loads, parse_precisions
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.charts import check_available
from gossamer.model.readers import registry
from gossamer_bench.serve_verb import SERVE, bench_serve
from gossamer_bench.timm_verb import TIMM, bench_timm

if TYPE_CHECKING:
    from gossamer.bench.call_times import Load
    from gossamer.bench.rows import ResultRow
    from gossamer.device.base import Device
    from gossamer_bench.work import Item


def bench(
    suites: Annotated[list[str] | None, typer.Argument(
        metavar="SUITE...", help="mobilenet, mobilenet-blocks, mlperf-tiny, ladder, conv-layers, "
                                 "pointwise-layers, gemm, darknet, darknet-layers, published, "
                                 "binary-layers, networks, sparse-layers, sparse-networks, "
                                 "binary-networks, tuning, latency, throughput, backprop, "
                                 "train-many, torch-modules, timm, serve; or a network alone, for "
                                 "one table of its calls"
        )] = None,
    model: Annotated[list[Path] | None, typer.Option(
        metavar="FILE", help=f"A network for the suites networks, sparse-networks, "
                             f"binary-networks, tuning, latency and throughput: "
                             f"{registry.descriptions()}; may be repeated, and may stand behind "
                             "the suite without --model.")] = None,
    data: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="The published sparse weights that sparse-layers, "
                               "sparse-networks and tuning measure; benchmarks/README.md lists "
                               "them.")
    ] = None,
    case: Annotated[str | None, typer.Option(
        metavar="SUBSTRING", help="Only the case of this name, or else the cases whose "
                                  "names contain it; several as in conv3,conv4.")] = None,
    sparsity: Annotated[float | None, typer.Option(
        help="Of sparse-layers only those with at least this share of zeros, like 0.85.")] = None,
    device: DeviceOption = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, one measurement each.")] = "1,64",
    precision: Annotated[str, typer.Option(
        help="fp32 (strict float32 everywhere), tf32, fp16: the best of each contender in each.")
    ] = "fp32",
    against: Annotated[str | None, typer.Option(
        metavar="PEERS", help="torch-eager, torch-graph, torch-compile, jax-jit, onnxruntime, "
                              "cudnn, ..., of training c-one-core, c-openmp, jax-scan-gpu, ..., "
                              "or none (default: all that run on that kind of device, without "
                              "torch-compile:max-autotune, and of single layers without "
                              "torch-compile and torch-compile-graph).")] = None,
    forced: Annotated[str | None, typer.Option(
        metavar="ALGORITHMS", help="Which of gossamer's algorithms are measured each by itself, "
                                   "beside its choice: published,popcount or such, unfused for "
                                   "the plan without fusions, dense for that of sparse-networks "
                                   "with dense weights, or none (default: all that the suite "
                                   "has).")] = None,
    effort: Annotated[str | None, typer.Option(
        help="quick, normal or max: how much is tried before gossamer's choice (default: normal; "
             "of tuning: quick and normal; of a network alone: quick).")] = None,
    threads: Annotated[str, typer.Option(
        metavar="N,N", help="How many threads call at once in latency.")] = "1",
    rate: Annotated[float | None, typer.Option(
        help="Calls a second in latency, begun at even intervals (default: one after another).")
    ] = None,
    seconds: Annotated[float, typer.Option(
        help="Seconds for which each contender is called in latency and throughput.")] = 2.0,
    rates: Annotated[str | None, typer.Option(
        metavar="N,N", help="Requests a second in serve (default: shares of what each server "
                            "answers at most).")] = None,
    latency: Annotated[str | None, typer.Option(
        metavar="TIME", help="When answers are wanted in serve, such as 5ms (default: 10ms)."
        )] = None,
    photos: Annotated[int, typer.Option(min=1, help="Photos a request in serve.")] = 1,
    images: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="Pictures that throughput runs too.")] = None,
    modules: Annotated[str | None, typer.Option(
        "--models", metavar="PATTERNS", help="Networks of torch-modules, such as "
                                             "'resnet18,timm/mobilenetv4*' (default: twenty small "
                                             "ones), and of timm, without timm/.")] = None,
    count: Annotated[int | None, typer.Option(
        min=1, help="Networks to draw for timm, from timm and torchvision, of up to 20 million "
                    "parameters.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed by which --count draws.")] = 0,
    budget: Annotated[float | None, typer.Option(
        metavar="SECONDS", help="No case is begun after so many seconds (default: all are).")
    ] = None,
    plan_budget: Annotated[float | None, typer.Option(
        metavar="SECONDS", help="Seconds after which each plan measures only the candidates that "
                                "it cannot do without (default: no limit).")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE.jsonl", help="Append the result rows to this file.")
    ] = None,
    commit: Annotated[str | None, typer.Option(
        metavar="HASH", help="The commit that is measured, where there is no git to ask.")] = None,
    table: Annotated[Path | None, typer.Option(
        metavar="PATH", help="Measure nothing: print the Markdown tables of a file or folder of "
                             "result rows, or write them as --csv and --plot say.")] = None,
    into: Annotated[Path | None, typer.Option(
        metavar="FILE.md", help="With --table: put the tables between the marks "
                                "<!-- bench:SUITE --> and <!-- /bench --> of this file, or their "
                                "summary where a mark says <!-- bench:SUITE summary -->.")] = None,
    csv: Annotated[Path | None, typer.Option(
        metavar="FILE.csv", help="Write the rows as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(
        metavar="FILE.png", help="Draw the rows; needs matplotlib.")] = None,
    figures: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="With --table: draw the figures of the sparse suites, with a "
                               "summary, and of the ladder into this folder; needs matplotlib.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option(
        "--markdown", help="Print Markdown tables instead of text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure gossamer beside others, in one process on one machine."""
    if as_json and as_markdown:
        raise InputError("--json and --markdown: give one of them")
    _check_files(csv, plot)
    if table is not None:
        _tables(table, suites or [], case, into, csv, plot, figures)
        return
    if into is not None:
        raise InputError("--into goes with --table PATH")
    if figures is not None:
        raise InputError("--figures goes with --table PATH")
    names, models = _split(suites or [])
    models += model or []
    loads = parse_loads(threads, rate, seconds)
    if names == [SERVE]:
        bench_serve(models, device, rates, latency or "10ms", seconds, photos, against, output,
                    plot, as_json=as_json)
        return
    if names == [TIMM]:
        bench_timm(modules, count, seed, device, parse_batches(batch), precision,
                   effort or "normal", loads[0], budget, output, commit, as_json=as_json)
        return
    for option, value, suite in (("--rates", rates, SERVE), ("--latency", latency, SERVE),
                                 ("--count", count, TIMM)):
        if value is not None:
            raise InputError(f"{option} {value}: goes with the suite {suite} alone")
    if models and not names:
        bench_network(models, device, parse_batches(batch), parse_precisions(precision), against,
                      effort or "quick", loads[0], as_json=as_json)
        return
    rows = _measure(names, case, models, data, sparsity, device, batch, precision,
                    against, forced, effort, output, commit,
                    "json" if as_json else "markdown" if as_markdown else "text", loads, images,
                    modules, budget, plan_budget)
    _write_files(rows, csv, plot, sys.stderr if as_json or as_markdown else sys.stdout)


def _check_files(csv: Path | None, plot: Path | None) -> None:
    from gossamer_bench.row_files import check_writable

    if csv is not None:
        check_writable("--csv", csv, ".csv")
    if plot is not None:
        check_writable("--plot", plot, ".png")
        check_available("--plot")


def _write_files(rows: Sequence[ResultRow], csv: Path | None, plot: Path | None,
                 messages: TextIO) -> None:
    """Writes the rows to the files of --csv and --plot, and prints the names of these files to
    `messages`."""
    from gossamer_bench.report import plots
    from gossamer_bench.row_files import csv_bytes, write_output

    if csv is not None:
        write_output("--csv", csv, csv_bytes(rows))
        print(f"written: {csv}", file=messages)
    if plot is not None:
        write_output("--plot", plot, plots.png(rows))
        print(f"written: {plot}", file=messages)


def _tables(path: Path, suites: Sequence[str], case: str | None, into: Path | None,
            csv: Path | None, plot: Path | None, folder: Path | None) -> None:
    """Reads the result rows of a file or folder, and makes Markdown tables, figures, CSV or a plot
    from them, as the options ask."""
    from gossamer_bench.report import figures, tables
    from gossamer_bench.row_files import read_rows
    from gossamer_bench.suites.catalogue import named

    if into is not None:
        if suites or case is not None:
            raise InputError("--into takes all rows of --table: leave SUITE and --case out")
        for written in tables.rewrite(into, path):
            print(f"written: {written}")
        return
    rows = read_rows(path)
    chosen = [row for row in rows if row.suite in (suites or (row.suite,))]
    case_names = named({row.case for row in chosen}, case)
    chosen = [row for row in chosen if row.case in case_names]
    if rows and not chosen:
        suite_names = ", ".join(sorted({row.suite for row in rows}))
        raise InputError(f"--table {path}: has no rows of "
                         f"{', '.join(suites) or 'any suite'}"
                         + (f" with {case!r} in the case's name" if case is not None else "")
                         + f"; its suites: {suite_names}")
    if folder is not None:
        files = figures.write(chosen, folder)
        for written in files:
            print(f"written: {written}")
        if not any(written.suffix == ".png" for written in files):
            terminal.notice("no figure could be drawn: they are of the ladder, and in strict "
                            "float32 of gossamer's sparse forms and gossamer beside im2col with "
                            "cuBLAS and cuSPARSE")
    elif csv is None and plot is None:
        print(tables.markdown(chosen))
        _print_notices(chosen)
    _write_files(chosen, csv, plot, sys.stdout)


def _measure(names: list[str], case_parts: str | None, models: list[Path], data: Path | None,
             sparsity: float | None, device_name: str | None, batch: str, precision: str,
             against: str | None, forced: str | None, effort: str | None, output: Path | None,
             commit: str | None, output_format: str, loads: Sequence[Load],
             images: Path | None, modules: str | None, budget: float | None,
             plan_budget: float | None) -> list[ResultRow]:
    """Measures the cases of the suites and returns their rows, which are printed as text, JSON or
    Markdown."""
    from gossamer.bench import call_contest
    from gossamer.bench.call_contest import CallCase
    from gossamer.bench.peers.calls import release
    from gossamer.bench.rows import Stamp
    from gossamer.bench.work import AbsentError, Setting, tuners
    from gossamer.device.registry import find
    from gossamer.plan.policy import EFFORTS
    from gossamer_bench import contest
    from gossamer_bench.contender import OTHER_PLANS
    from gossamer_bench.peaks import measure_peaks
    from gossamer_bench.peers.inference import vendors
    from gossamer_bench.report import tables
    from gossamer_bench.report import terminal as report
    from gossamer_bench.row_files import append_rows, check_appendable
    from gossamer_bench.suites.catalogue import select
    from gossamer_bench.work import Case

    if effort is not None and effort not in EFFORTS:
        raise InputError(f"--effort {effort}: expected {', '.join(EFFORTS)}")
    if plan_budget is not None and not 0 < plan_budget < math.inf:
        raise InputError(f"--plan-budget {plan_budget:g}: expected seconds above 0, such as 10")
    begun = time.monotonic()
    try:
        items = select(names, parse_batches(batch), case_parts, models, data, sparsity, effort,
                       loads, images, modules)
    except AbsentError as reason:
        raise InputError(str(reason)) from None
    effort = effort or "normal"
    precisions = parse_precisions(precision)
    if output is not None:
        check_appendable(output)
    device = find(device_name)
    if device.is_simulator:
        raise InputError(f"{device.name} is a simulator, whose times mean nothing; choose another "
                         "device (gossamer devices lists them)")
    peers = _peers(against, device, items)
    by_themselves = _forced(forced)
    stamp = Stamp.of(device, shlex.join(["gossamer", *sys.argv[1:]]), commit)
    results: list[dict[str, Any]] = []
    rows: list[ResultRow] = []
    printed_lines: set[str] = set()
    status = Console(stderr=True).status("measuring the device's peak rates")
    with status:
        peaks = measure_peaks(device, precisions)
    named = {name for names in peers.values() for name in names}
    is_choice_only = by_themselves is not None and set(OTHER_PLANS).issuperset(by_themselves)
    tuner = tuners(device, effort, status.update, choice_only=all(
        item.is_called or item.is_module for item in items) or (
            is_choice_only and named.isdisjoint(vendors())), budget_s=plan_budget)
    if output_format == "text":
        report.print_peaks(device.name, device.description, peaks)
    for item in items:
        start = time.perf_counter()
        if budget is not None and time.monotonic() - begun > budget:
            terminal.notice(f"--budget {budget:g}: {item.name}, batch {item.batch} and what "
                            "follows are left out")
            break
        with status:
            status.update(f"{item.name}, batch {item.batch}: weights, input, reference")
            try:
                case = item.make(Setting(device, tuner, peers[_kind(item)], precisions, effort))
            except AbsentError as reason:
                terminal.notice(f"absent: {item.name}: {reason}")
                continue
            if isinstance(case, CallCase):
                result = call_contest.run(case, stamp, status.update)
            else:
                assert isinstance(case, Case)
                if by_themselves is not None:
                    case = case.with_forced(by_themselves)
                result = contest.run(case, peaks, stamp, status.update)
        result.seconds = time.perf_counter() - start
        rows += result.rows
        if output is not None:
            append_rows(output, result.rows)
        if output_format == "text":
            report.print_result(result, printed_lines)
        elif output_format == "json":
            results.append(report.result_dict(result))
        del case, result
        release()
    for notice in dict.fromkeys(line for name in precisions for line in tuner(name).notices):
        terminal.notice(notice)
    if output_format == "json":
        terminal.print_json({"device": device.name, "description": device.description,
                         "peak_flops": peaks.flops, "peak_bandwidth": peaks.bandwidth,
                         "results": results})
        return rows
    if output_format == "markdown":
        print(tables.markdown(rows))
        _print_notices(rows)
        return rows
    print("", *tables.summary_lines(rows), sep="\n")
    if output is not None:
        print(f"written: {output}")
    return rows


def _print_notices(rows: Sequence[ResultRow]) -> None:
    """Prints the notices of rows that a table shows, since the table has no room for notices."""
    for line in dict.fromkeys(f"{row.case}, batch {row.batch}: {row.notice}" for row in rows
                              if row.notice):
        terminal.notice(line)


def _split(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Returns the suites among the arguments, and the networks."""
    from gossamer.model import zoo
    from gossamer_bench.suites.catalogue import SUITES

    networks = [word for word in words if word not in SUITES
                and (word in zoo.MODELS or registry.reader_of(word))]
    return [word for word in words if word not in networks], list(map(Path, networks))


def _kind(item: Item) -> str:
    """Returns the kind of a case, which decides which peers run it."""
    if item.is_training:
        return "training"
    if item.is_called:
        return "called"
    if item.is_module:
        return "module"
    if item.is_ladder:
        return "ladder"
    return "tuning" if item.is_tuning else "layer" if item.is_layer else "network"


def _forced(text: str | None) -> list[str] | None:
    """Returns the names that --forced gives, of algorithms or of OTHER_PLANS; None where the option
    is not given."""
    from gossamer.ops.registry import OPS
    from gossamer_bench.contender import OTHER_PLANS

    return None if text is None else _chosen("--forced", "algorithm", text, sorted({
        *OTHER_PLANS, *(algorithm.name for op in OPS.values() for algorithm in op.algorithms
                        if not algorithm.vendor)}))


def _chosen(option: str, kind: str, text: str, known: Sequence[str]) -> list[str]:
    """Returns the names in the text of an option; no names where the text is "none". Raises
    InputError for a name that is not in `known`."""
    chosen = [] if text == "none" else text.split(",")
    for name in chosen:
        if name not in known:
            raise InputError(f"{option} {text}: no {kind} {name!r}; expected some of "
                             f"{', '.join(known)}, or none")
    return chosen


def _peers(text: str | None, device: Device, items: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    """Returns for each kind of case the peers that --against names, or the default peers."""
    from gossamer.bench.peers.calls import CALLED_PEERS
    from gossamer_bench.peers import training_peers
    from gossamer_bench.peers.inference import PEERS, defaults, vendors
    from gossamer_bench.suites import torch_modules, tuning

    kinds = list(dict.fromkeys(map(_kind, items)))
    if text is None:
        by_default = {"training": lambda: training_peers.defaults(device),
                      "tuning": lambda: tuning.PEERS,
                      "called": lambda: CALLED_PEERS,
                      "module": lambda: torch_modules.PEERS,
                      "ladder": lambda: (),
                      "layer": lambda: defaults(device, True),
                      "network": lambda: defaults(device, False)}
        return {kind: tuple(by_default[kind]()) for kind in kinds}
    inference = [*PEERS, *vendors()]
    peers_of = {"training": list(training_peers.TRAINING_PEERS), "tuning": list(tuning.PEERS),
                "called": list(CALLED_PEERS),
                "module": [*torch_modules.PEERS, *torch_modules.SLOW_PEERS],
                **dict.fromkeys(("ladder", "layer", "network"), inference)}
    chosen = _chosen("--against", "peer", text, list(dict.fromkeys(
        name for kind in kinds for name in peers_of[kind])))
    return {kind: tuple(name for name in chosen if name in peers_of[kind]) for kind in kinds}
