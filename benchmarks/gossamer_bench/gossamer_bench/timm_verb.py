"""The suite `timm` of the verb `bench`: measures networks that patterns name or that a seed draws,
with the columns of timm's own results."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gossamer.errors import InputError
from gossamer.io import terminal

if TYPE_CHECKING:
    from gossamer.bench.call_times import Load

TIMM = "timm"
"""The name of the suite."""
_SUFFIX = ".csv"


def bench_timm(patterns: str | None, count: int | None, seed: int, device_name: str | None,
               batches: Sequence[int], precision: str, effort: str, load: Load,
               budget: float | None, output: Path | None, commit: str | None, *,
               as_json: bool) -> None:
    """Measures the networks of timm that patterns name, or `count` networks of timm and torchvision
    that the seed draws, and prints a row for each network at each batch size. Raises InputError for
    wrong options, and where torch or timm is missing."""
    from gossamer.bench.rows import Stamp
    from gossamer.bench.work import AbsentError, Setting, tuners
    from gossamer.device.registry import find
    from gossamer_bench.modules import TIMM as PREFIX
    from gossamer_bench.modules import drawn, names_of
    from gossamer_bench.timm_rows import TimmRow, append, compiled_peer, measured

    if (patterns is None) == (count is None):
        raise InputError("bench timm: name networks, such as --models 'mobilenetv4_conv_*', or "
                         "draw some with --count N")
    if output is not None and output.suffix != _SUFFIX:
        raise InputError(f"--output {output}: rows of timm are written as CSV, expected a name "
                         f"that ends in {_SUFFIX}")
    start = time.monotonic()
    device = find(device_name)
    stamp = Stamp.of(device, shlex.join(["gossamer", *sys.argv[1:]]), commit)
    status = Console(stderr=True).status("making the networks")
    rows: list[TimmRow] = []
    notes: list[str] = []
    try:
        if patterns is None:
            names = [*islice(drawn(seed), count)]
        else:
            names = names_of(",".join(f"{PREFIX}{pattern}" for pattern in patterns.split(",")))
        setting = Setting(device, tuners(device, effort), (compiled_peer(device),), (precision,),
                          effort)
        with status:
            for row in measured(names, batches, setting, load, stamp, status.update, notes.append):
                rows.append(row)
                if output is not None:
                    append(output, row)
                if budget is not None and time.monotonic() - start > budget:
                    notes.append(f"--budget {budget:g}: what follows {row.model} is left out")
                    break
    except AbsentError as reason:
        raise InputError(str(reason)) from None
    if as_json:
        terminal.print_json({"device": device.name, "rows": [asdict(row) for row in rows],
                             "notes": notes})
        return
    if rows:
        terminal.print_table({name: name for name in asdict(rows[0])},
                             [{name: "" if value is None else value
                               for name, value in asdict(row).items()} for row in rows])
    for line in notes:
        terminal.notice(line)
    if output is not None and rows:
        print(f"written: {output}")
