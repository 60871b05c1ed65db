"""The verb `bench`: compare the speed of gossamer and its peers on a network."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gossamer.cli import arguments
from gossamer.cli.arguments import DeviceOption, JsonOption
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.text import duration_text, range_text
from gossamer.model import zoo
from gossamer.model.load import expected_models
from gossamer.model.readers import registry
from gossamer.ops.algorithm import PRECISIONS
from gossamer.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from gossamer.bench.call_contest import Result
    from gossamer.bench.call_times import Load
    from gossamer.device.base import Device


def bench(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help=f"The network: {expected_models()}. With the package gossamer-bench "
                              "also the name of a suite.")],
    device: DeviceOption = None,
    batch: Annotated[str, typer.Option(
        help="Batch sizes for the latency and for the throughput.")] = "1,64",
    precision: Annotated[str, typer.Option(
        help="Precisions to measure: fp32, tf32, fp16.")
    ] = "fp32",
    against: Annotated[str | None, typer.Option(
        metavar="PEERS", help="Contenders: torch-eager, torch-compile, "
                              "torch-compile:reduce-overhead, torch-compile-graph, onnxruntime, or "
                              "none (default: all).")] = None,
    effort: Annotated[str, typer.Option(
        help="Tuning effort of gossamer: quick, normal or max.")] = "quick",
    seconds: Annotated[float, typer.Option(
        help="Duration of each measurement, in seconds.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Compare the speed of gossamer with that of PyTorch and ONNX Runtime.

    Prints one line per contender: the latency of single calls at the first batch size, and the
    throughput at the last.
    """
    if model not in zoo.MODELS and not registry.reader_of(model):
        raise InputError(f"{model}: expected a network ({expected_models()}); suites, timm and "
                         "serve need the package gossamer-bench: pip install -e "
                         "benchmarks/gossamer_bench in gossamer's checkout")
    (load,) = parse_loads("1", None, seconds)
    bench_network([Path(model)], device, parse_batches(batch), parse_precisions(precision), against,
                  effort, load, as_json=as_json)


def bench_network(models: Sequence[Path], device_name: str | None, batches: Sequence[int],
                  precisions: Sequence[str], against: str | None, effort: str, load: Load, *,
                  as_json: bool) -> None:
    """Measure gossamer and its peers, and print a table.

    The latency of calls is measured at the first batch size, the throughput at the last. The table
    has one line per contender.
    """
    from gossamer.device.registry import find
    from gossamer.plan.policy import EFFORTS

    if len(models) > 1:
        raise InputError(f"{models[1]}: expected only one network; for several networks, name a "
                         "suite such as latency first")
    if effort not in EFFORTS:
        raise InputError(f"--effort {effort}: expected {', '.join(EFFORTS)}")
    device = find(device_name)
    if device.is_simulator:
        raise InputError(f"{device.name} is a simulator, so its times are meaningless; choose "
                         "another device (see `gossamer devices`)")
    results = list(_results(models[0], device, batches, tuple(precisions), against, effort, load))
    document = _document(models[0], device, precisions, effort, results)
    if as_json:
        terminal.print_json(document)
        return
    terminal.print_line(f"{document['model']} on {device.name} ({device.description}), "
                        f"{','.join(precisions)}, effort {effort}, gossamer {PACKAGE_VERSION}")
    terminal.print_table(_columns(document), [_texts(line) for line in document["contenders"]],
                         spare=("quartiles", "p99.9_us"))
    names: dict[str, list[str]] = {}
    for name, reason in document["absent"].items():
        names.setdefault(reason, []).append(name)
    if names:
        terminal.print_line("absent: " + "; ".join(f"{', '.join(of_reason)} ({reason})"
                                                   for reason, of_reason in names.items()))
    for notice in document["notices"]:
        terminal.notice(notice)


def _results(model: Path, device: Device, batches: Sequence[int], precisions: tuple[str, ...],
             against: str | None, effort: str, load: Load) -> Iterator[Result]:
    """Yield the results of the latency contest and of the throughput contest.

    The latency is measured with PyTorch tensors, or with NumPy arrays if PyTorch is missing or
    cannot use the device. The throughput is measured with arrays.
    """
    from gossamer.bench import call_contest
    from gossamer.bench.calls import latency_case, throughput_case
    from gossamer.bench.networks import network_at
    from gossamer.bench.peers.calls import CALLED_PEERS, release
    from gossamer.bench.rows import Stamp
    from gossamer.bench.work import ARRAYS, TENSORS, AbsentError, Setting, tuners

    peers = tuple(CALLED_PEERS) if against is None else () if against == "none" else tuple(
        against.split(","))
    for name in peers:
        if name not in CALLED_PEERS:
            raise InputError(f"--against {against}: unknown peer {name!r}; expected some of "
                             f"{', '.join(CALLED_PEERS)}, or none")
    stamp = Stamp.of(device, shlex.join(["gossamer", *sys.argv[1:]]))
    status = Console(stderr=True).status("reading the network")
    with status:
        tuner = tuners(device, effort, status.update, choice_only=True)
        setting = Setting(device, tuner, peers, precisions, effort)
        make = partial(network_at, model)
        for kind in (TENSORS, ARRAYS):
            try:
                case = latency_case(make, batches[0], kind, load, setting)
            except AbsentError:
                continue
            yield call_contest.run(case, stamp, status.update)
            release()
            break
        yield call_contest.run(throughput_case(make, batches[-1], ARRAYS, load, setting), stamp,
                               status.update)
        release()


def _document(model: Path, device: Device, precisions: Sequence[str], effort: str,
              results: Sequence[Result]) -> dict[str, Any]:
    """Return the measurements as a JSON document with one object per contender."""
    latency, throughput = results
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in latency.rows:
        lines[row.contender, row.precision] = {
            "contender": row.contender, "precision": row.precision, "p50_us": row.median_us,
            "p25_us": row.p25_us, "p75_us": row.p75_us, "p99_us": row.tail["p99_us"],
            "p99.9_us": row.tail["p99.9_us"]}
    for row in throughput.rows:
        line = lines.setdefault((row.contender, row.precision), {
            "contender": row.contender, "precision": row.precision})
        line["a_second"] = row.batch / row.median_us * 1e6
    reasons = {**latency.absent, **latency.failed}
    return {
        "model": str(model), "device": device.name, "description": device.description,
        "precisions": list(precisions), "effort": effort, "gossamer": PACKAGE_VERSION,
        "input": latency.case.name.split("/")[1], "latency_batch": latency.case.batch,
        "throughput_batch": throughput.case.batch,
        "contenders": sorted(lines.values(), key=lambda line: line.get("p50_us", math.inf)),
        "absent": {**{f"{name} of throughput": reason for name, reason in {
            **throughput.absent, **throughput.failed}.items() if name not in reasons}, **reasons},
        "notices": list(dict.fromkeys(filter(None, (latency.notice, throughput.notice))))}


def _columns(document: dict[str, Any]) -> dict[str, str]:
    columns = {"contender": "contender"}
    if len(document["precisions"]) > 1:
        columns["precision"] = "precision"
    return columns | {
        "p50_us": f"p50, batch {document['latency_batch']}", "quartiles": "quartiles",
        "p99_us": "p99", "p99.9_us": "p99.9",
        "a_second": f"images per second, batch {document['throughput_batch']}"}


def _texts(line: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a line of the table."""
    texts = {key: duration_text(value) if key.endswith("_us") else value
             for key, value in line.items()}
    if "p25_us" in line:
        texts["quartiles"] = range_text(line["p25_us"], line["p75_us"])
    if "a_second" in line:
        texts["a_second"] = f"{line['a_second']:.0f}"
    return texts


def parse_loads(threads: str, rate: float | None, seconds: float) -> list[Load]:
    """Return the schedule of calls for each number of threads.

    threads, seconds: the values of --threads and --seconds.
    rate: calls per second, or None for a closed loop.
    """
    from gossamer.bench.call_times import Load

    counts = arguments.positive_numbers("--threads", threads, "numbers of 1 or more, like 1,4")
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"--rate {rate:g}: expected a number of calls per second above 0")
    if not 0 < seconds < math.inf:
        raise InputError(f"--seconds {seconds:g}: expected a number above 0")
    return [Load(count, rate, seconds) for count in dict.fromkeys(counts)]


def parse_batches(text: str) -> list[int]:
    """Parse the batch sizes of --batch."""
    return arguments.batch_sizes(text, "1,64")


def parse_precisions(text: str) -> tuple[str, ...]:
    """Parse the precisions of --precision, most precise first."""
    names = text.split(",")
    for name in names:
        if name not in PRECISIONS:
            raise InputError(f"--precision {text}: expected some of {', '.join(PRECISIONS)}")
    return tuple(name for name in PRECISIONS if name in names)
