"""`gossamer bench MODEL`: prints one table of how fast gossamer and its peers run a network."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from gossamer.bench.call_times import Load
    from gossamer.bench.contest import Result
    from gossamer.device.base import Device


def bench_network(models: Sequence[Path], device_name: str | None, batches: Sequence[int],
                  precisions: Sequence[str], against: str | None, effort: str, load: Load, *,
                  as_json: bool) -> None:
    """Measures gossamer and its peers: the latency of calls at the first batch size, and the
    throughput at the last batch size. Prints a table with a line for each contender."""
    from gossamer.device.registry import find
    from gossamer.plan.policy import EFFORTS

    if len(models) > 1:
        raise InputError(f"{models[1]}: one network makes a table; give a suite before several, "
                         "such as latency")
    if effort not in EFFORTS:
        raise InputError(f"--effort {effort}: expected {', '.join(EFFORTS)}")
    device = find(device_name)
    if device.is_simulator:
        raise InputError(f"{device.name} is a simulator, whose times mean nothing; choose another "
                         "device (gossamer devices lists them)")
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
    """Yields the results of latency and of throughput."""
    from gossamer.bench import call_contest
    from gossamer.bench.call_contest import CallCase
    from gossamer.bench.contender import AbsentError
    from gossamer.bench.peers.call_inputs import ARRAYS, TENSORS
    from gossamer.bench.peers.calls import CALLED_PEERS
    from gossamer.bench.peers.inference import release
    from gossamer.bench.rows import Stamp
    from gossamer.bench.suites.calls import LATENCY, THROUGHPUT
    from gossamer.bench.suites.catalogue import select
    from gossamer.bench.work import Setting, tuners

    peers = tuple(CALLED_PEERS) if against is None else () if against == "none" else tuple(
        against.split(","))
    for name in peers:
        if name not in CALLED_PEERS:
            raise InputError(f"--against {against}: no peer {name!r}; expected some of "
                             f"{', '.join(CALLED_PEERS)}, or none")
    stamp = Stamp.of(device, shlex.join(["gossamer", *sys.argv[1:]]))
    status = Console(stderr=True).status("reading the network")
    with status:
        tuner = tuners(device, effort, status.update, choice_only=True)
        setting = Setting(device, tuner, peers, precisions, effort)
        for suite, kinds, batch in ((LATENCY, (TENSORS, ARRAYS), batches[0]),
                                    (THROUGHPUT, (ARRAYS,), batches[-1])):
            items = {item.name.split("/")[1]: item for item in select(
                [suite], [batch], None, [model], loads=[load])}
            for kind in kinds:
                try:
                    case = items[kind].make(setting)
                except AbsentError:
                    continue
                assert isinstance(case, CallCase)
                yield call_contest.run(case, stamp, status.update)
                release()
                break


def _document(model: Path, device: Device, precisions: Sequence[str], effort: str,
              results: Sequence[Result]) -> dict[str, Any]:
    """Returns the measurements as one document for JSON, with a dictionary for each contender."""
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
        "p50_us": f"p50 us, batch {document['latency_batch']}", "quartiles": "quartiles us",
        "p99_us": "p99 us", "p99.9_us": "p99.9 us",
        "a_second": f"images a second, batch {document['throughput_batch']}"}


def _texts(line: dict[str, Any]) -> dict[str, Any]:
    """Returns the texts of a line of the table."""
    from gossamer.bench.report.tables import us

    texts = {key: us(value) if key.endswith("_us") else value for key, value in line.items()}
    if "p25_us" in line:
        texts["quartiles"] = f"{texts['p25_us']} to {texts['p75_us']}"
    if "a_second" in line:
        texts["a_second"] = f"{line['a_second']:.0f}"
    return texts
