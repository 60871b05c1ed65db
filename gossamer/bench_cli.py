"""The verb `bench`: suites on a device against its peers, and tables from committed rows."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gossamer import show
from gossamer.errors import InputError

PRECISIONS = ("fp32",)


def bench(
    suites: Annotated[list[str] | None, typer.Argument(
        metavar="SUITE...", help="mobilenet")] = None,
    device: Annotated[str | None, typer.Option(
        help="host, opencl:N or cuda:N (default: the best one).")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, one measurement each.")] = "1,64",
    precision: Annotated[str, typer.Option(help="fp32: strict float32 everywhere.")] = "fp32",
    against: Annotated[str | None, typer.Option(
        metavar="PEERS", help="torch-eager, torch-graph, torch-compile, onnxruntime, or none "
                              "(default: all that run on that kind of device, without "
                              "torch-compile:max-autotune).")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE.jsonl", help="Append the result rows to this file.")
    ] = None,
    commit: Annotated[str | None, typer.Option(
        metavar="HASH", help="The commit that is measured, where there is no git to ask.")] = None,
    table: Annotated[Path | None, typer.Option(
        metavar="PATH", help="Measure nothing: print the Markdown tables of a file or folder of "
                             "result rows.")] = None,
    into: Annotated[Path | None, typer.Option(
        metavar="FILE.md", help="With --table: put the tables between the marks "
                                "<!-- bench:SUITE --> and <!-- /bench --> of this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure gossamer beside others, in one process on one machine."""
    if table is not None:
        _tables(table, into)
        return
    if into is not None:
        raise InputError("--into goes with --table PATH")
    _measure(suites or [], device, batch, precision, against, output, commit, as_json)


def _tables(path: Path, into: Path | None) -> None:
    from gossamer.bench import report
    from gossamer.bench.rows import read_rows

    rows = read_rows(path)
    if into is not None:
        report.rewrite(into, rows)
        print(f"written: {into}")
    else:
        print(report.markdown(rows))


def _measure(names: list[str], device_name: str | None, batch: str, precision: str,
             against: str | None, output: Path | None, commit: str | None,
             as_json: bool) -> None:
    from gossamer.bench import contest, report
    from gossamer.bench.peaks import measure_peaks
    from gossamer.bench.rows import Stamp, append_rows, check_appendable
    from gossamer.bench.suites import SUITES
    from gossamer.device import find

    unknown = [name for name in names if name not in SUITES]
    if unknown or not names:
        raise InputError(f"no suite {', '.join(map(repr, unknown)) or 'given'}; there are: "
                         f"{', '.join(SUITES)}")
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision}: expected {' or '.join(PRECISIONS)}")
    batches = _batches(batch)
    if output is not None:
        check_appendable(output)
    device = find(device_name)
    if getattr(device, "is_simulator", False):
        raise InputError(f"{device.name} is a simulator, whose times mean nothing; choose another "
                         "device (gossamer devices lists them)")
    peers = _peers(against, device.api)
    stamp = Stamp.of(device, shlex.join(["gossamer", *sys.argv[1:]]), commit)
    results = []
    status = Console(stderr=True).status("measuring the device's peak rates")
    with status:
        peaks = measure_peaks(device)
    if not as_json:
        report.print_peaks(device.name, device.description, peaks)
    for name, size in [(name, size) for name in names for size in batches]:
        cases = SUITES[name](device, size, peers)
        while True:
            with status:
                status.update(f"{name}, batch {size}: the reference")
                case = next(cases, None)
                if case is None:
                    break
                result = contest.run(case, peaks, stamp, status.update)
            if output is not None:
                append_rows(output, result.rows)
            if not as_json:
                report.print_result(result)
            results.append(result)
    if as_json:
        show.print_json({"device": device.name, "description": device.description,
                         "peak_flops": peaks.flops, "peak_bandwidth": peaks.bandwidth,
                         "results": [report.result_dict(result) for result in results]})
    elif output is not None:
        print(f"\nwritten: {output}")


def _batches(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise InputError(f"--batch {text}: expected sizes of 1 or more, like 1,64")
    return sizes


def _peers(text: str | None, api: str) -> list[str]:
    from gossamer.bench.peers import PEERS

    if text is None:
        on_host = ("torch-eager", "onnxruntime")
        # max-autotune searches for many minutes: only when it is named
        names = [name for name in PEERS if name in on_host or (
            api == "cuda" and not name.endswith(":max-autotune"))]
    else:
        names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in PEERS:
            raise InputError(f"--against {text}: no peer {name!r}; expected some of "
                             f"{', '.join(PEERS)}, or none")
    # torch 2.11: a CUDA graph captured before torch.compile compiles faults when it is replayed
    return sorted(names, key=lambda name: not name.startswith("torch-compile"))
