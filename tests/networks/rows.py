"""Functions for bulk checks of networks on a device: they parse the options, and keep one row of
JSON a line in a file, so that a stopped run can be continued."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gossamer.device.registry import find
from gossamer.errors import GossamerError
from gossamer.plan.candidate import counted
from gossamer.plan.policy import EFFORTS

FAILURES = ("crashed", "differs")
"""The outcomes after which a check ends with exit code 1; what follows a colon is the reason."""


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, row: dict[str, Any]) -> None:
    """Appends a row, which stays in the file where the machine is lost afterwards."""
    with file.open("a") as written:
        written.write(json.dumps(row) + "\n")
        written.flush()
        os.fsync(written.fileno())


def program(module: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is the description of a module as it is written."""
    return argparse.ArgumentParser(prog=f"python -m {module}", description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def parser_of(module: str, description: str | None, budget: float) -> argparse.ArgumentParser:
    """Returns a parser of the options that every check of a folder of networks has. budget: the
    default seconds of measurements."""
    parser = program(module, description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="ROWS.jsonl")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--effort", choices=EFFORTS, default="quick")
    parser.add_argument("--budget", type=float, default=budget, metavar="SECONDS",
                        help=f"of measurements for each plan (default: {budget:g})")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="run only files whose path in the folder holds this")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="after which no network is begun")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the options of the command line. Ends the process where their device is absent."""
    options = parser.parse_args()
    try:
        find(options.device)
    except GossamerError as error:
        parser.error(f"--device {options.device}: {error}")
    return options


def run_all(tasks: Iterable[tuple[dict[str, Any], tuple[Any, ...]]],
            run: Callable[..., dict[str, Any]], file: Path, minutes: float = float("inf")) -> int:
    """Runs the tasks whose keys no row has, in a process beside this one, which is replaced after a
    crash. Appends a row for each task, prints a summary of all, and returns the exit code.

    tasks: for each row the key that it begins with, and what `run` is given.
    run: returns the rest of a row with its "outcome", a word and perhaps a colon and a reason.
    minutes: after which no task is begun.
    """
    start, rows = time.monotonic(), rows_of(file)
    outcomes: Counter[str] = Counter()
    pool: ProcessPoolExecutor | None = None
    for key, arguments in tasks:
        row = next((row for row in rows if key.items() <= row.items()), None)
        if row is None and time.monotonic() - start > 60 * minutes:
            print(f"{minutes:g} minutes are over; the same command continues", flush=True)
            break
        if row is None:
            pool = pool or ProcessPoolExecutor(1, get_context("spawn"))
            row = key | _outcome(pool, run, arguments)
            if row["outcome"].startswith("crashed"):
                # a device that has failed computes nothing more for this process
                pool.shutdown()
                pool = None
            append(file, row)
            print(json.dumps(row), flush=True)
        outcomes[row["outcome"].split(":")[0]] += 1
    if pool is not None:
        pool.shutdown()
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items()))
    print(f"{counted(outcomes.total(), 'row')}: {counts or 'none'}; "
          f"{time.monotonic() - start:.0f} s")
    return int(any(outcomes[kind] for kind in FAILURES))


def _outcome(pool: ProcessPoolExecutor, run: Callable[..., dict[str, Any]],
             arguments: tuple[Any, ...]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        found = pool.submit(run, *arguments).result()
    except BrokenProcessPool:
        found = {"outcome": "crashed: its process ended"}
    return found | {"seconds": round(time.monotonic() - start, 1)}
