"""Plans exported networks on a device with an effort and a budget, beside ONNX Runtime.

    python -m tests.networks.on_device FOLDER --device cuda:0 -o ROWS.jsonl
    python -m tests.networks.on_device FOLDER --precision fp16,fp32 --batch 1,8 --budget 2 -o FILE

FOLDER has .onnx files, or files that python -m tests.networks.packed has written. For each network,
precision and batch size a row is appended to ROWS.jsonl; what is in it is not run again. A row has
the outcome ("ok", "differs", "refused: ...", "crashed: ...", "not run: ..." where ONNX Runtime
cannot, and "fixed: ..." where the file has another batch size), the largest error and how large it
may be, the microseconds of an execution, how many layers are computed outside of the device and
their share of the layers' time, and the operators that ONNX Runtime computes. The exit code is 1
where a network crashed or differs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gossamer
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
from tests.networks.packed import name_of, networks_in, restored
from tests.networks.rows import parsed, parser_of, run_all
from tests.tolerances import WHOLE_NETWORK


def run(path: Path, precision: str, batch: int, device: str, effort: str, budget: float
        ) -> dict[str, Any]:
    """Returns what became of a network at a batch size."""
    warnings.simplefilter("ignore")
    try:
        model = restored(path)
        session = session_of(model)
        if (fixed := fixed_batch(session)) not in (None, batch):
            return {"outcome": f"fixed: the batch is {fixed}"}
        given = drawn_inputs(session, batch)
        expected = session.run(None, given)
    except Exception as error:
        return {"outcome": f"not run: {line_of(error)}"}
    try:
        with gossamer.compile(model, device, effort=effort, precision=precision,
                              budget=budget) as plan:
            results = results_of(plan, given)
            report = plan.profile(batch)
            row = {"us": report.end_to_end_us, **outside(report, plan.device.name),
                   "left": left_nodes(plan.graph)}
            row["error"], row["allowed"] = judged(plan, given, results, expected, precision)
        return {**row, "outcome": "ok" if row["error"] <= row["allowed"] else "differs"}
    except Exception as error:
        return {"outcome": outcome_of(error)}


def _tasks(files: list[Path], options: argparse.Namespace
           ) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    for precision in options.precision:
        for path in files:
            for batch in options.batch:
                name = str(path.relative_to(options.folder).with_name(name_of(path)))
                key = {"network": name, "precision": precision, "batch": batch,
                       "device": options.device, "effort": options.effort}
                yield key, (path, precision, batch, options.device, options.effort, options.budget)


def _precisions(text: str) -> list[str]:
    precisions = text.split(",")
    if unknown := [name for name in precisions if name not in WHOLE_NETWORK]:
        raise argparse.ArgumentTypeError(f"no precision {', '.join(unknown)}: expected some of "
                                         f"{','.join(WHOLE_NETWORK)}")
    return precisions


def main() -> int:
    parser = parser_of("tests.networks.on_device", __doc__, budget=2)
    parser.add_argument("--precision", type=_precisions, default=["fp16", "fp32"],
                        metavar="fp16,fp32")
    parser.add_argument("--batch", type=lambda text: list(map(int, text.split(","))), default=[1],
                        metavar="1,8")
    options = parsed(parser)
    files = networks_in(options.folder, options.only)
    if not files:
        parser.error(f"no file {options.folder}/**/*{options.only}*.onnx, and none .onnx.gz")
    return run_all(_tasks(files, options), run, options.output, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
