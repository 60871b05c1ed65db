"""Times exported networks of torchvision and timm on the host in turn with ONNX Runtime.

    python -m tests.networks.export FOLDER --exporter torchscript --only torchvision
    python -m tests.networks.export FOLDER --exporter torchscript --only timm
    python -m tests.networks.beside_onnxruntime FOLDER -o benchmarks/results/CHIP/onnxruntime.json

The first two commands, which need PyTorch, write the files. The last one plans the first networks
of them, calls each plan and an ONNX Runtime session of the same file in turn, with one image and
all threads, and adds a row to the file for each; what is in it is not measured again, so that a run
that was stopped is continued by the same command. Then it writes the page of the same name,
FILE.md: all networks, and those that a plan of several parts computes faster, with the layers that
are not ONNX Runtime's. It wants a machine on which nothing else runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import gossamer
from gossamer.bench.call_times import ROUNDS, Load, in_turn
from gossamer.bench.processors import far_notice, transfer_ns
from gossamer.bench.rows import checkout_commit, now
from gossamer.device.registry import find
from gossamer.errors import GossamerError
from gossamer.plan.candidate import counted
from gossamer.plan.fusion import is_part
from gossamer.plan.plan import Plan
from tests.networks.compared import drawn_inputs, session_of
from tests.networks.rows import program
from tests.networks.table import TIMM, TORCHVISION
from tests.tolerances import WHOLE_NETWORK, normalised_error

_LIBRARIES = ("torchvision", "timm")


def measured(path: Path, effort: str, seconds: float) -> dict[str, Any]:
    """Returns the row of a network: the median milliseconds of a call by the plan and by ONNX
    Runtime over rounds in turn, the seconds in which the plan was made, and its layers that ONNX
    Runtime does not compute. Raises ValueError where the two results are too far apart."""
    session = session_of(onnx.load(str(path)))
    given = drawn_inputs(session, 1)
    (x,) = given.values()
    start = time.perf_counter()
    plan = gossamer.compile(str(path), "host", effort=effort)
    plan.report(1)
    planning = time.perf_counter() - start
    error = normalised_error(np.asarray(plan(x)), session.run(None, given)[0])
    if error > WHOLE_NETWORK["fp32"]:
        raise ValueError(f"the results are {error:.1e} apart, above {WHOLE_NETWORK['fp32']:g}")
    transfers: list[float] = []
    times = in_turn([lambda: lambda: plan(x), lambda: lambda: session.run(None, given)],
                    Load(seconds=seconds), lambda: transfers.append(transfer_ns()))
    for contender in times:
        if isinstance(contender, Exception):
            raise contender
    ours, theirs = (sorted(contender.rounds) for contender in times)  # type: ignore[union-attr]
    return {"ms": ours[ROUNDS // 2] / 1e3, "onnxruntime_ms": theirs[ROUNDS // 2] / 1e3,
            "range_ms": [ours[0] / 1e3, ours[-1] / 1e3],
            "onnxruntime_range_ms": [theirs[0] / 1e3, theirs[-1] / 1e3], "error": error,
            "planning_s": round(planning, 1),
            "own_layers": own_layers(plan), "parts": parts_of(plan),
            "notice": far_notice(transfers)}


def parts_of(plan: Plan) -> int:
    """Returns how many parts of the network ONNX Runtime computes."""
    return sum(is_part(step.layer) for step in plan.program(1).steps)


def own_layers(plan: Plan) -> list[str]:
    """Returns the layers that are in no part, with the algorithm of each."""
    return [f"{step.layer.name}: {step.algorithm.name}" for step in plan.program(1).steps
            if not is_part(step.layer)]


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the speeds of all rows in one sentence."""
    rows = sorted(rows, key=_speed)
    speeds = [_speed(row) for row in rows]
    return (f"geometric mean {np.exp(np.mean(np.log(speeds))):.3f}, lowest {speeds[0]:.3f} "
            f"({rows[0]['name']}), highest {speeds[-1]:.3f} ({rows[-1]['name']}).")


def _speed(row: dict[str, Any]) -> float:
    return row["onnxruntime_ms"] / row["ms"]


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the page of the rows."""
    rows = sorted(rows, key=_speed)
    several = [row for row in rows if row["own_layers"]]
    faster = [row for row in several if row["ms"] < row["onnxruntime_ms"]]
    first = rows[0]
    lines = [
        "<!-- made by python -m tests.networks.beside_onnxruntime -->", "",
        f"{counted(len(rows), 'network')} on {first['machine']}, "
        f"{counted(first['processors'], 'processor')}, batch 1, effort {first['effort']}, beside "
        f"ONNX Runtime {first['onnxruntime']}, in turn, medians of {ROUNDS} rounds. Speed is ONNX "
        f"Runtime's time divided by that of the plan: {summary(rows)} {len(several)} plans have "
        f"layers that ONNX Runtime does not compute, {len(faster)} of these are faster than ONNX "
        "Runtime alone.", "",
        "| network | ms | ONNX Runtime's ms | speed | error | own layers |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"| {row['library']} {row['name']} | {_span(row['ms'], row['range_ms'])} | "
          f"{_span(row['onnxruntime_ms'], row['onnxruntime_range_ms'])} | {_speed(row):.3f} | "
          f"{row['error']:.0e} | {len(row['own_layers']) or ''} |" for row in rows)]
    if faster:
        lines += ["", "Plans of several parts that are faster than ONNX Runtime alone:", ""]
        lines += [f"- {row['library']} {row['name']}: {counted(row['parts'], 'part')} of ONNX "
                  f"Runtime; {'; '.join(row['own_layers'])}" for row in faster]
    notices = [f"- {row['library']} {row['name']}: {row['notice']}" for row in rows
               if row["notice"]]
    return "\n".join([*lines, *(["", "Notices:", "", *notices] if notices else [])]) + "\n"


def _span(median: float, ends: Sequence[float]) -> str:
    return f"{median:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"


def main() -> int:
    parser = program("tests.networks.beside_onnxruntime", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--most", type=int, default=40, help="how many networks are measured")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="measure only networks whose library and name hold this")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--seconds", type=float, default=3.0,
                        help="of the calls of each of the two, over all rounds")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="after which no network is begun")
    options = parser.parse_args()
    start, failed = time.monotonic(), False
    rows = json.loads(options.output.read_text()) if options.output.exists() else []
    done = {(row["library"], row["name"]) for row in rows}
    for library, name in ((library, name)
                          for library, names in zip(_LIBRARIES, (TORCHVISION, TIMM), strict=True)
                          for name in names):
        path = options.folder / "torchscript" / f"{library}-{name}.onnx"
        if (library, name) in done or not path.exists() or (
                options.only not in f"{library} {name}") or len(rows) >= options.most:
            continue
        if time.monotonic() - start > 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over; the same command continues", flush=True)
            break
        try:
            times = measured(path, options.effort, options.seconds)
        except (GossamerError, ValueError) as error:
            print(f"{library} {name}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        host = find("host")
        row = {"library": library, "name": name, **times, "effort": options.effort,
               "machine": host.chip, "processors": host.limits.compute_units,
               "onnxruntime": onnxruntime.__version__, "commit": checkout_commit(),
               "date": now()}
        rows.append(row)
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{library} {name}: {row['ms']:.3g} ms, ONNX Runtime {row['onnxruntime_ms']:.3g} ms, "
              f"speed {_speed(row):.3f}, {len(row['own_layers'])} own layers, planned in "
              f"{row['planning_s']:.0f} s", flush=True)
    if rows:
        print(f"{counted(len(rows), 'network')}: {summary(rows)}")
        options.output.with_suffix(".md").write_text(page(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
