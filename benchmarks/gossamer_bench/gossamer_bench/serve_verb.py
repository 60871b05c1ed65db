"""The suite `serve` of the verb `bench`: measures servers under load, and makes a table and a
chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer_bench.report.charts import serving_png
from gossamer_bench.row_files import write_output
from gossamer_bench.serving import SERVERS, ServingRow, Setting, measure

SERVE = "serve"
"""The name of the suite."""


def bench_serve(models: Sequence[Path], device: str | None, rates: str | None, latency: str,
                seconds: float, photos: int, against: str | None, output: Path | None,
                plot: Path | None, *, as_json: bool) -> None:
    """Measures the servers, and prints a row for each server at each rate. Raises InputError for
    wrong options, and where a server does not start."""
    if len(models) != 1:
        raise InputError("bench serve: give one network, such as mobilenet_v2")
    servers = _servers(against)
    setting = Setting(str(models[0]), device or find().name, seconds, latency, photos)
    status = Console(stderr=True).status("starting the servers")
    rows: list[ServingRow] = []
    with status:
        for row in measure(setting, servers, _rates(rates)):
            rows.append(row)
            status.update(f"{row.server}: {row.answered:.4g} answers a second")
    if output is not None:
        write_output("--output", output, "".join(
            json.dumps(asdict(row)) + "\n" for row in rows).encode())
    if plot is not None:
        write_output("--plot", plot, serving_png(rows))
    if as_json:
        terminal.print_json({"model": setting.model, "device": setting.device,
                             "photos": setting.photos,
                             "rows": [asdict(row) for row in rows]})
        return
    _print(rows)
    for file in filter(None, (output, plot)):
        print(f"written: {file}")


def _servers(against: str | None) -> list[str]:
    """Returns gossamer's server and the servers that --against names."""
    if against is None:
        return list(SERVERS)
    names = [] if against == "none" else against.split(",")
    for name in names:
        if name not in SERVERS[1:]:
            raise InputError(f"--against {against}: no server {name!r}; expected some of "
                             f"{', '.join(SERVERS[1:])}, or none")
    return [SERVERS[0], *names]


def _rates(text: str | None) -> list[float]:
    """Returns the requests a second that --rates gives."""
    if text is None:
        return []
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < math.inf for rate in rates):
        raise InputError(f"--rates {text}: expected requests a second, such as 100,200,400")
    return rates


def _print(rows: Sequence[ServingRow]) -> None:
    terminal.print_table(
        {"server": "server", "rate": "rate", "answers": "answers/s", "p50": "p50 ms",
         "p99": "p99 ms", "p99.9": "p99.9 ms", "failed": "failed", "batches": "batches"},
        [{"server": row.server, "rate": "64 at once" if row.rate is None else f"{row.rate:.4g}",
          "answers": f"{row.answered:.4g}", "p50": f"{row.p50_ms:.3g}", "p99": f"{row.p99_ms:.3g}",
          "p99.9": f"{row.p999_ms:.3g}", "failed": row.failed,
          "batches": ", ".join(f"{size}: {share:.0%}" for size, share in row.batches.items())}
         for row in rows], spare=("p99.9",), below="batches")
