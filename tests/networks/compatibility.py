"""Runs exported networks beside ONNX Runtime, and draws docs/compatibility.md.

    python -m tests.networks.export FOLDER
    python -m tests.networks.compatibility FOLDER
    python -m tests.networks.compatibility FOLDER --draw docs/compatibility.md

The second command runs every network that the first has written, at two batch sizes on the host
with one thread, and appends what it sees to FOLDER/results.jsonl; networks that are in it are not
run again. The third makes the page of both files. --device and --effort run them elsewhere and
measure first; then a row says which share of the layers' time is spent outside of the device.
"""

from __future__ import annotations

import statistics
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import gossamer
from gossamer.plan.plan import Plan
from gossamer.plan.policy import EFFORTS
from tests.networks.compared import (
    drawn_inputs,
    fixed_batch,
    judged,
    left_nodes,
    line_of,
    outcome_of,
    outside,
    results_of,
    session_of,
)
from tests.networks.rows import append, program, rows_of
from tests.tolerances import WHOLE_NETWORK

BATCHES = (1, 2)
ROUNDS = 5
TITLES = {"torchvision": "torchvision", "timm": "timm", "transformers": "transformers",
          "module": "Single layers and functions of PyTorch"}


def run(path: Path, row: dict[str, Any], device: str, effort: str | None = None
        ) -> dict[str, Any]:
    """Returns what became of a network: its outcome ("ok", "ONNX Runtime refuses it: ...",
    "refused: ...", "crashed: ..." or "wrong"), how many nodes its file and its graph have, which of
    the file's nodes ONNX Runtime computes, the largest error, and the milliseconds of a call here
    and there."""
    model = onnx.load(str(path))
    row = {**row, "nodes": len(model.graph.node)}
    try:
        session = session_of(model, threads=1)
        batches = BATCHES if fixed_batch(session) is None else BATCHES[:1]
        feeds = [drawn_inputs(session, batch) for batch in batches]
        expected = [session.run(None, given) for given in feeds]
    except Exception as error:
        return {**row, "outcome": f"ONNX Runtime refuses it: {line_of(error)}"}
    try:
        plan = gossamer.compile(str(path), device, effort=effort, threads=1)
        row["left"] = left_nodes(plan.graph)
        errors = [judged(plan, given, results_of(plan, given), wanted)
                  for given, wanted in zip(feeds, expected, strict=True)]
        row["error"], allowed = max(errors)
        row |= _times(plan, session, feeds[0])
        if effort is not None:
            row["share_outside"] = outside(plan.report(1), plan.device.name)["share_outside"]
    except Exception as error:
        return {**row, "outcome": outcome_of(error)}
    return {**row, "outcome": "ok" if row["error"] <= allowed else "wrong"}


def _times(plan: Plan, session: onnxruntime.InferenceSession,
           given: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the milliseconds of a call here and by ONNX Runtime, medians of rounds in turn."""
    arrays = [given[info.name] for info in plan.inputs]
    ours, theirs = [], []
    for _ in range(ROUNDS):
        for times, call in ((ours, lambda: plan(*arrays)),
                            (theirs, lambda: session.run(None, given))):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(ours), "onnxruntime_ms": statistics.median(theirs)}


def page(exports: list[dict[str, Any]], results: list[dict[str, Any]], device: str) -> str:
    """Returns docs/compatibility.md."""
    rows = {(row["library"], row["name"], row["exporter"]): row for row in results}
    outcomes = Counter(row["outcome"].split(":")[0] for row in results)
    whole = sum(row["outcome"] == "ok" and not row["left"] for row in results)
    close = WHOLE_NETWORK["fp32"]
    others = " ".join(f"{count}: {kind}." for kind, count in sorted(outcomes.items())
                      if kind != "ok")
    texts = [
        "# Networks that were tried",
        "Networks of torchvision and timm, tiny configurations of transformers, and single layers "
        "and functions of PyTorch, with drawn weights, exported by both of PyTorch's exporters "
        f"and run on `{device}` with one thread beside ONNX Runtime {onnxruntime.__version__}, at "
        "batch 1 and, where the exporter leaves the batch open, 2.",
        f"Of {len(results)} files {outcomes['ok']} agree with ONNX Runtime within {close:g}, or "
        f"with results in float64 where that is further off; in {whole} of these every node is "
        f"computed by gossamer. {others}".strip(),
        "The two numbers of a cell are those of the exporters `torchscript` (opset 17) and "
        "`dynamo` (opset 18); a dash stands for a network that the exporter cannot export. Nodes "
        "are those of the file; the error is the largest normalised one. A call at batch 1 took "
        "so many ms here and with ONNX Runtime, on a machine with other work, and nothing was "
        "measured before to choose what is fastest. The last column names the operators that ONNX "
        "Runtime computes.",
        "`python -m tests.networks.export FOLDER` writes the files, `python -m "
        "tests.networks.compatibility FOLDER` runs them, and draws this page with `--draw`."]
    lines = [line for text in texts for line in (*textwrap.wrap(
        text, 100, break_on_hyphens=False, break_long_words=False), "")][:-1]
    for library, title in TITLES.items():
        names = list(dict.fromkeys(row["name"] for row in exports if row["library"] == library))
        lines += ["", f"## {title}", "", "| network | nodes | error | ms | ONNX Runtime's ms | "
                  "ONNX Runtime computes |", "| --- | --- | --- | --- | --- | --- |"]
        for name in names:
            pair = [rows.get((library, name, exporter)) for exporter in ("torchscript", "dynamo")]
            if any(pair):
                lines.append(_line_of(name, pair))
    failed = [row for row in exports if not row["outcome"].startswith("ok")]
    if failed:
        lines += ["", "## Not exported", ""]
        lines += [f"- {row['library']} {row['name']}, `{row['exporter']}`: {row['outcome']}"
                  for row in failed]
    return "\n".join(lines) + "\n"


def _line_of(name: str, pair: Sequence[dict[str, Any] | None]) -> str:
    def cell(key: str, text: Callable[[Any], str]) -> str:
        return " / ".join("-" if row is None or key not in row else text(row[key])
                          for row in pair)

    left = [", ".join(dict.fromkeys(row["left"])) if "left" in row else "" for row in pair if row]
    said = [row["outcome"] for row in pair if row and row["outcome"] != "ok"]
    last = "; ".join(dict.fromkeys([*filter(None, left), *said]))
    return (f"| {name} | {cell('nodes', str)} | {cell('error', _error_text)} | "
            f"{cell('ms', _ms_text)} | {cell('onnxruntime_ms', _ms_text)} | {last} |")


def _error_text(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def _ms_text(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2f}"


def main() -> int:
    parser = program("tests.networks.compatibility", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="host")
    parser.add_argument("--effort", choices=EFFORTS,
                        help="measure with this effort, and without it not at all")
    parser.add_argument("--draw", type=Path, metavar="PAGE", help="make the page, and run nothing")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="run only networks whose library and name hold this")
    options = parser.parse_args()
    exports = rows_of(options.folder / "exports.jsonl")
    file = options.folder / "results.jsonl"
    results = rows_of(file)
    if not exports:
        parser.error(f"no {options.folder / 'exports.jsonl'}; python -m tests.networks.export "
                     "writes it")
    if options.draw is not None:
        options.draw.write_text(page(exports, results, options.device))
        return 0
    done = {(row["library"], row["name"], row["exporter"]) for row in results}
    for entry in exports:
        key = {name: entry[name] for name in ("library", "name", "exporter")}
        if tuple(key.values()) in done or not entry["outcome"].startswith("ok") or (
                options.only not in f"{entry['library']} {entry['name']}"):
            continue
        path = options.folder / entry["exporter"] / f"{entry['library']}-{entry['name']}.onnx"
        with warnings.catch_warnings(action="ignore"):
            results.append(run(path, key, options.device, options.effort))
        append(file, results[-1])
        print(" ".join(map(str, results[-1].values())), flush=True)
    return int(any(row["outcome"].startswith(("wrong", "crashed", "refused")) for row in results))


if __name__ == "__main__":
    sys.exit(main())
